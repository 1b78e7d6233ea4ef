// The Kafka clients of this broker: by software, version and user, with quotas and throttling.
import { html, useState } from "../vendor/preact.js";
import { address, get, useData, words } from "../api.js";
import { count, span, visible } from "../format.js";
import { link, setQuery } from "../route.js";
import { Empty, Field, Loaded, More, Table, Title } from "../ui.js";
import { t } from "../words.js";

const PATH = "/v1/connections";
const LIMIT = 200;
const FILTERS = () => [["software", t("Software")], ["software_version", t("Version")], ["principal", t("User")], ["client_id", t("Client id")]];
const shown = (text, max = 200) => html`<bdi>${visible(text || "–", max)}</bdi>`;
const throttled = (ms) => (ms > 0 ? span(ms) : "–");

export function Page({ query }) {
  const names = FILTERS().map(([name]) => name);
  const asked = Object.fromEntries(names.filter((name) => query[name]).map((name) => [name, query[name]]));
  const [further, setFurther] = useState([]);
  const state = useData((signal) => get(PATH, { ...asked, limit: LIMIT }, signal).then((data) => { setFurther([]); return data; }), names.map((name) => query[name]));
  const more = async (token) => setFurther([...further, await get(PATH, { ...asked, limit: LIMIT, page_token: token })]);
  return html`<${Title} text=${t("Connections")}><button onClick=${state.again}>${t("Read again")}</button><//>
    <p>${t("The Kafka clients that are connected with this broker. Other brokers have their own.")}</p>
    <div class="filters">${FILTERS().map(([name, title]) => html`<${Field} label=${title}>
      <input type="search" maxlength="1000" autocomplete="off" value=${query[name] ?? ""} onChange=${(event) => setQuery({ [name]: event.target.value })} /><//>`)}</div>
    <${Loaded} state=${state}>${(data) => {
      const rows = [data, ...further].flatMap((one) => one.connections);
      if (rows.length === 0) return html`<${Empty} text=${t("No such Kafka client is connected with this broker.")} command="headrace consume orders --follow" />`;
      return html`<h2>${t("By software and user")}</h2><${Counts} counts=${data.counts} />
        <h2>${t("Each connection")}</h2><${Each} rows=${rows} />
        <${More} token=${(further.at(-1) ?? data).next_page_token} load=${more} />`;
    }}<//>`;
}

function Counts({ counts }) {
  const only = ({ software, software_version: version, principal }) => link(["connections"], { software, software_version: version, principal });
  return html`<${Table} label=${t("By software and user")} rows=${counts} keyOf=${(one) => JSON.stringify([one.software, one.software_version, one.principal])} columns=${[
    { name: t("Software"), cell: (one) => html`<a href=${only(one)}>${shown(`${one.software} ${one.software_version}`.trim())}</a>` },
    { name: t("User"), cell: (one) => shown(one.principal) },
    { name: t("Connections"), isNumber: true, cell: (one) => count(one.connections) },
    { name: t("Throttled for"), isNumber: true, cell: (one) => throttled(one.throttled_ms) },
  ]} />`;
}

function Each({ rows }) {
  return html`<${Table} label=${t("Each connection")} rows=${rows} keyOf=${(one) => one.address} columns=${[
    { name: t("Address"), cell: (one) => html`<bdi>${one.address}</bdi>` },
    { name: t("Client id"), cell: (one) => shown(one.client_id) },
    { name: t("Software"), cell: (one) => shown(`${one.software} ${one.software_version}`.trim()) },
    { name: t("User"), cell: (one) => shown(one.principal) },
    { name: t("Listener"), cell: (one) => one.listener },
    { name: t("Quotas"), cell: (one) => Object.entries(one.quotas).map(([name, rate]) => html`<div>${name}: ${count(rate)}</div>`) },
    { name: t("Throttled for"), isNumber: true, cell: (one) => throttled(one.throttled_ms) },
  ]} />`;
}
