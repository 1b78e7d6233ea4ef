// The cluster: its brokers and what each serves.
import { html } from "../vendor/preact.js";
import { get, useData } from "../api.js";
import { count, time } from "../format.js";
import { link } from "../route.js";
import { Loaded, PageForms, Table, Title } from "../ui.js";
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
    <p><a href=${link(["connections"])}>${t("Connections with this broker")}</a></p>
    <${PageForms} cli="headrace info" path="/v1/brokers" />`;
}
