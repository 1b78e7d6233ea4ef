// Settings of one broker, or what is set for all: values, where they come from, and how to change them.
import { html } from "../vendor/preact.js";
import { at, get, useData, words } from "../api.js";
import { useAction } from "../action.js";
import { visible } from "../format.js";
import { setQuery } from "../route.js";
import { Loaded, Select } from "../ui.js";
import { t } from "../words.js";
import { Settings } from "./settings.js";

const ALL = "all";
const ORIGINS = () => ({ broker: t("this broker"), cluster: t("all brokers"), start: t("its start"), default: t("default"), unset: t("not set") });
const EFFECTS = () => ({ live: t("at once"), restart: t("after a restart"), never: t("never changes") });
const LISTED = {
  set: (one) => one.source !== "default" && one.source !== "unset",
  live: (one) => one.change === "live",
};

// Of a broker, a reset leaves what counts next; what all brokers have without a common value differs.
const of = (source, isListed) => ({
  isListed,
  isSet: (one) => one.source === source && one.change === "live",
  canChange: (one) => one.change === "live",
  origin: (one) => ORIGINS()[one.source] ?? one.source,
  reset: (one) => (source === "broker" ? one.values.find((other) => other.source !== source)?.value : t("what each broker was started with, or the default")),
  columns: () => [
    { name: t("Takes effect"), cell: (one) => EFFECTS()[one.change] ?? one.change },
    { name: t("Unit"), cell: (one) => one.unit ?? "–" },
    { name: t("Accepted"), cell: (one) => html`<span class="line">${one.sensitive ? t("not shown: a secret, or a path of the broker's machine") : visible(one.accepts, 300)}</span>` },
  ],
});

export function BrokerSettings({ query }) {
  const [dialog, start] = useAction();
  const state = useData((signal) => get("/v1/brokers", {}, signal), []);
  return html`<${Loaded} state=${state}>${({ broker, brokers }) => {
      const chosen = query.broker ?? String(broker);
      const isAll = chosen === ALL;
      const path = isAll ? at("cluster", "config") : at("brokers", chosen, "config");
      const ids = [...new Set([...brokers.map((one) => String(one.id)), ...(isAll ? [] : [chosen])])];
      const [verbs, whom] = [{ "--set": "set", "--unset": "unset" }, isAll ? [] : [`--broker=${chosen}`]];
      return html`<p>${isAll
          ? t("What is set for all brokers counts where a broker has no value of its own.")
          : t("A value of this broker's own counts more than one for all brokers, that more than what it was started with.")}</p>
        <${Settings} key=${path} path=${path} query=${query} start=${start} of=${of(isAll ? "cluster" : "broker", LISTED[query.only] ?? (() => true))}
          cli=${([option, change]) => words("headrace", "config", verbs[option], change, ...whom)}>
          <${Select} label=${t("Of")} value=${chosen} onChange=${(name) => setQuery({ broker: name === String(broker) ? "" : name })}
            options=${[...ids.map((id) => [id, t("Broker {id}", { id })]), [ALL, t("All brokers")]]} />
          <${Select} label=${t("Show")} value=${query.only ?? ""} onChange=${(only) => setQuery({ only })}
            options=${[["", t("all")], ["set", t("what is set")], ["live", t("what can change now")]]} />
        <//>`;
    }}<//>${dialog}`;
}
