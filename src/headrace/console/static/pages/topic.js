// One topic: its messages, partitions and settings, and what can be done with it.
import { html, useEffect } from "../vendor/preact.js";
import { ask, at, get, useData, words } from "../api.js";
import { useAction } from "../action.js";
import { bytes, count } from "../format.js";
import { offsets, watchedTopic } from "../live.js";
import { go, link } from "../route.js";
import { Loaded, Table, Tabs, Title } from "../ui.js";
import { Ledgers } from "./ledgers.js";
import { Life } from "./life.js";
import { Messages } from "./messages.js";
import { Produce } from "./produce.js";
import { Settings } from "./settings.js";
import { TimeTravel } from "./time_travel.js";
import { t } from "../words.js";

export function Topic({ name, tab, query }) {
  const state = useData((signal) => get(at("topics", name), {}, signal), [name]);
  const [dialog, start] = useAction();
  useEffect(() => {
    watchedTopic.value = name;
    return () => (watchedTopic.value = "");
  }, [name]);
  const tabs = [["messages", t("Messages")], ["life", t("A message's life")], ["time", t("Time travel")], ["partitions", t("Partitions")], ["ledgers", t("Ledgers")], ["settings", t("Settings")], ["send", t("Send")]];
  return html`<${Title} text=${name}>
      ${state.data && html`<button onClick=${() => start(deletion(name))}>${t("Delete the topic")}</button>`}
    <//>
    <${Tabs} label=${t("Parts of the topic")} tabs=${tabs} chosen=${tab} href=${(one) => link(["topics", name, one])} />
    <${Loaded} state=${state}>${(topic) => html`
      ${tab === "messages" && html`<${Messages} topic=${topic} query=${query} />`}
      ${tab === "life" && html`<${Life} topic=${topic} query=${query} />`}
      ${tab === "time" && html`<${TimeTravel} topic=${topic} query=${query} start=${start} />`}
      ${tab === "partitions" && html`<${Partitions} topic=${topic} start=${start} again=${state.again} />`}
      ${tab === "ledgers" && html`<${Ledgers} topic=${topic} query=${query} />`}
      ${tab === "settings" && html`<${Settings} kind="topics" name=${name} query=${query} start=${start}
        cli=${(change) => words("headrace", "topic", "alter", name, ...change)} />`}
      ${tab === "send" && html`<${Produce} topic=${topic} query=${query} start=${start} />`}
    `}<//>
    ${dialog}`;
}

function deletion(name) {
  const path = at("topics", name);
  return {
    title: t("Delete the topic"), verb: t("Delete"), method: "DELETE", path,
    confirm: name, cli: words("headrace", "topic", "delete", name, "--yes"),
    dryRun: async () => {
      await ask("DELETE", path, { query: { dry_run: true } });
      return get(path); // what it holds now
    },
    preview: ({ partitions }) => {
      const known = partitions.filter((one) => one.end_offset != null);
      const records = known.reduce((sum, one) => sum + one.end_offset - one.start_offset, 0);
      return html`<p>${t("Deletes {name}: {n} partitions with {records} records. This cannot be undone.", {
        name, n: partitions.length, records: (known.length < partitions.length ? "≥ " : "") + count(records),
      })}</p>`;
    },
    after: () => go(["topics"]),
  };
}

function Partitions({ topic, start, again }) {
  const now = offsets.value?.topic === topic.name ? new Map(offsets.value.offsets.map(([number, ...rest]) => [number, rest])) : new Map();
  const grow = (event) => {
    event.preventDefault();
    const partitions = Number(event.target.elements.partitions.value);
    start({
      title: t("Add partitions"), method: "PATCH", path: at("topics", topic.name), body: { partitions }, hasDryRun: true,
      cli: words("headrace", "topic", "alter", topic.name, "--partitions", partitions),
      preview: () => t("From {before} to {after} partitions. Records with a key may go to another partition from then on; partitions cannot be removed.",
        { before: topic.partitions.length, after: partitions }),
      after: again,
    });
  };
  return html`<${Table} label=${t("Partitions")} rows=${topic.partitions} keyOf=${(one) => one.partition} columns=${[
      { name: t("Partition"), isNumber: true, cell: (one) => html`<a href=${link(["topics", topic.name], { partition: one.partition })}>${one.partition}</a>` },
      { name: t("Owner"), isNumber: true, cell: (one) => (one.leader < 0 ? t("none") : one.leader) },
      { name: t("Epoch"), isNumber: true, cell: (one) => one.leader_epoch },
      { name: t("Start"), isNumber: true, cell: (one) => count(now.get(one.partition)?.[0] ?? one.start_offset) },
      { name: t("End"), isNumber: true, cell: (one) => count(now.get(one.partition)?.[1] ?? one.end_offset) },
      { name: t("Size"), isNumber: true, cell: (one) => bytes(one.size_bytes) },
    ]} />
    <form class="filters" onSubmit=${grow}><label class="field"><span>${t("Partitions")}</span>
      <input name="partitions" type="number" required min=${topic.partitions.length + 1} max="10000" value=${topic.partitions.length + 1} /></label>
      <button>${t("Add partitions")}</button></form>`;
}
