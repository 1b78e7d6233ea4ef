// Settings of a topic or group, with their origin, and how to change them.
import { html, useState } from "../vendor/preact.js";
import { at, get, useData } from "../api.js";
import { visible } from "../format.js";
import { setQuery } from "../route.js";
import { Field, Loaded, Table } from "../ui.js";
import { settingText, t } from "../words.js";

export function Settings({ kind, name, query, start, cli }) {
  const path = at(kind, name, "config");
  const state = useData((signal) => get(path, {}, signal), [path]);
  const wanted = query.contains ?? "";
  const [edited, setEdited] = useState(null);
  const change = (setting, value) => start({
    title: value === null ? t("Reset the setting") : t("Change the setting"), method: "PATCH", path, hasDryRun: true,
    body: value === null ? { reset: [setting.name] } : { set: { [setting.name]: value } },
    cli: cli(value === null ? ["--unset", setting.name] : ["--set", `${setting.name}=${value}`]),
    preview: () => t("{name}: from {before} to {after}.", { name: setting.name, before: setting.value, after: value ?? setting.default }),
    after: () => { setEdited(null); state.again(); },
  });
  return html`<div class="filters"><${Field} label=${t("Name contains")}>
      <input type="search" value=${wanted} onInput=${(event) => setQuery({ contains: event.target.value })} /><//></div>
    <${Loaded} state=${state}>${(data) => html`<${Table} label=${t("Settings")} keyOf=${(one) => one.name}
      rows=${data.settings.filter((one) => one.name.includes(wanted.toLowerCase()))} columns=${[
        { name: t("Name"), cell: (one) => html`<b>${one.name}</b><br /><small>${settingText(one)}</small>` },
        { name: t("Value"), cell: (one) => (edited === one.name
          ? html`<form class="tools" onSubmit=${(event) => { event.preventDefault(); change(one, event.target.elements.value.value); }}>
              <input name="value" aria-label=${one.name} value=${one.value} autofocus /><button>${t("Check")}</button></form>`
          : html`<span class="line">${visible(String(one.value ?? ""), 500)}</span>`) },
        { name: t("Origin"), cell: (one) => (one.is_set ? t("set here") : t("default")) },
        { name: t("Default"), cell: (one) => html`<span class="line">${visible(String(one.default ?? ""), 200)}</span>` },
        { name: t("Change"), cell: (one) => html`<div class="tools">
            <button aria-label=${`${t("Change")} ${one.name}`} onClick=${() => setEdited(edited === one.name ? null : one.name)}>${t("Change")}</button>
            ${one.is_set && html`<button aria-label=${`${t("Reset")} ${one.name}`} onClick=${() => change(one, null)}>${t("Reset")}</button>`}</div>` },
      ]} />`}<//>`;
}
