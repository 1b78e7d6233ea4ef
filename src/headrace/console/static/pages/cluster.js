// The cluster: its brokers and what each serves, and the clients that are connected here.
import { html, useState } from "../vendor/preact.js";
import { get, useData } from "../api.js";
import { count, time, visible } from "../format.js";
import { Empty, Loaded, More, PageForms, Table, Title } from "../ui.js";
import { t } from "../words.js";

export function Page() {
  const state = useData((signal) => get("/v1/brokers", {}, signal), []);
  return html`<${Title} text=${t("Cluster")}><button onClick=${state.again}>${t("Read again")}</button><//>
    <h2>${t("Brokers")}</h2>
    <${Loaded} state=${state}>${(data) => html`<${Table} label=${t("Brokers")} rows=${data.brokers} keyOf=${(one) => one.id} columns=${[
      { name: t("Broker"), isNumber: true, cell: (one) => one.id },
      { name: t("Addresses"), cell: (one) => one.endpoints.map((place) => html`<div>${place.face} ${place.security} <bdi>${place.address}</bdi></div>`) },
      { name: t("Rack"), cell: (one) => one.rack ?? "–" },
      { name: t("Partitions served"), isNumber: true, cell: (one) => count(one.partitions) },
      { name: t("Started"), cell: (one) => time(one.started_ms || null) },
      { name: t("State"), cell: (one) => [one.id === data.broker && t("this one"), one.is_leaving && t("is leaving")].filter(Boolean).join(", ") || t("live") },
    ]} />`}<//>
    <h2>${t("Connections with this broker")}</h2>
    <${Connections} />
    <${PageForms} cli="headrace info" path="/v1/brokers" />`;
}

function Connections() {
  const [further, setFurther] = useState([]);
  const state = useData((signal) => get("/v1/connections", { limit: 200 }, signal), []);
  const more = async (token) => setFurther([...further, await get("/v1/connections", { limit: 200, page_token: token })]);
  return html`<${Loaded} state=${state}>${(data) => {
    const rows = [data, ...further].flatMap((one) => one.connections);
    if (rows.length === 0) return html`<${Empty} text=${t("No Kafka client is connected with this broker.")} command="headrace consume orders --follow" />`;
    return html`<${Table} label=${t("Connections")} rows=${rows} keyOf=${(one) => one.address} columns=${[
      { name: t("Address"), cell: (one) => html`<bdi>${one.address}</bdi>` },
      { name: t("Client"), cell: (one) => html`<bdi>${visible(one.client_id || "–", 200)}</bdi>` },
      { name: t("Software"), cell: (one) => html`<bdi>${visible(`${one.software} ${one.software_version}`.trim() || "–", 100)}</bdi>` },
      { name: t("User"), cell: (one) => html`<bdi>${visible(one.principal ?? "–", 200)}</bdi>` },
      { name: t("Listener"), cell: (one) => one.listener },
    ]} /><${More} token=${(further.at(-1) ?? data).next_page_token} load=${more} />`;
  }}<//>`;
}
