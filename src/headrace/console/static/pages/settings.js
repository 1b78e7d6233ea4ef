// Settings of a topic, group or broker, with their origin, and how to change them.
import { html, useState } from "../vendor/preact.js";
import { at, get, useData } from "../api.js";
import { visible } from "../format.js";
import { setQuery } from "../route.js";
import { Field, Loaded, Table } from "../ui.js";
import { settingText, t } from "../words.js";

// What is said of settings of topics and groups; those of brokers differ (broker_settings.js).
const OF_ONE = {
  isListed: () => true,
  isSet: (one) => one.is_set, // here: it can be reset
  canChange: () => true,
  origin: (one) => (one.is_set ? t("set here") : t("default")),
  reset: (one) => one.default, // the value after that
  columns: () => [],
};
const written = (value) => visible(String(value ?? "–"), 500);

export function Settings({ kind, name, path = at(kind, name, "config"), query, start, cli, of = OF_ONE, children }) {
  const state = useData((signal) => get(path, {}, signal), [path]);
  const wanted = query.contains ?? "";
  const [edited, setEdited] = useState(null);
  const change = (setting, value) => start({
    title: value === null ? t("Reset the setting") : t("Change the setting"), method: "PATCH", path, hasDryRun: true,
    body: value === null ? { reset: [setting.name] } : { set: { [setting.name]: value } },
    cli: cli(value === null ? ["--unset", setting.name] : ["--set", `${setting.name}=${value}`]),
    preview: () => t("{name}: from {before} to {after}.", { name: setting.name, before: written(setting.value), after: written(value ?? of.reset(setting)) }),
    after: () => { setEdited(null); state.again(); },
  });
  return html`<div class="filters"><${Field} label=${t("Name contains")}>
      <input type="search" value=${wanted} onInput=${(event) => setQuery({ contains: event.target.value })} /><//>${children}</div>
    <${Loaded} state=${state}>${(data) => html`<${Table} label=${t("Settings")} keyOf=${(one) => one.name}
      rows=${data.settings.filter((one) => of.isListed(one) && one.name.includes(wanted.toLowerCase()))} columns=${[
        { name: t("Name"), cell: (one) => html`<b>${one.name}</b><br /><small>${settingText(one)}</small>` },
        { name: t("Value"), cell: (one) => (edited === one.name
          ? html`<form class="tools" onSubmit=${(event) => { event.preventDefault(); change(one, event.target.elements.value.value); }}>
              <input name="value" aria-label=${one.name} value=${one.value} autofocus /><button>${t("Check")}</button></form>`
          : html`<span class="line">${visible(String(one.value ?? ""), 500)}</span>`) },
        { name: t("Origin"), cell: (one) => of.origin(one) },
        ...of.columns(),
        { name: t("Default"), cell: (one) => html`<span class="line">${visible(String(one.default ?? ""), 200)}</span>` },
        { name: t("Change"), cell: (one) => of.canChange(one) && html`<div class="tools">
            <button aria-label=${`${t("Change")} ${one.name}`} onClick=${() => setEdited(edited === one.name ? null : one.name)}>${t("Change")}</button>
            ${of.isSet(one) && html`<button aria-label=${`${t("Reset")} ${one.name}`} onClick=${() => change(one, null)}>${t("Reset")}</button>`}</div>` },
      ]} />`}<//>`;
}
