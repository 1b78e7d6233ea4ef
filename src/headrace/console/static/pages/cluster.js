// The cluster: its brokers, what each serves, a drain as it proceeds, and the storage below.
import { html, useEffect } from "../vendor/preact.js";
import { get, useData } from "../api.js";
import { count, time } from "../format.js";
import { link } from "../route.js";
import { Figure, Loaded, PageForms, Table, Title } from "../ui.js";
import { t } from "../words.js";

const DRAIN_MS = 2_000;

async function read(signal) {
  const [brokers, below] = await Promise.all([
    get("/v1/brokers", {}, signal),
    get("/v1/overview", {}, signal).catch((problem) => {
      if (problem.status === 403) return {}; // who may not see it, sees the brokers
      throw problem;
    }),
  ]);
  return { ...brokers, below };
}

export function Page() {
  const state = useData(read, []);
  const isDraining = state.data?.brokers.some((one) => one.is_leaving);
  useEffect(() => {
    if (!isDraining) return undefined;
    const timer = setTimeout(state.again, DRAIN_MS);
    return () => clearTimeout(timer);
  }, [state.data]);
  return html`<${Title} text=${t("Cluster")}><button onClick=${state.again}>${t("Read again")}</button><//>
    <h2>${t("Brokers")}</h2>
    <${Loaded} state=${state}>${(data) => html`<${Below} of=${data.below} />
    <${Table} label=${t("Brokers")} rows=${data.brokers} keyOf=${(one) => one.id} columns=${[
      { name: t("Broker"), isNumber: true, cell: (one) => one.id },
      { name: t("Addresses"), cell: (one) => one.endpoints.map((place) => html`<div>${place.face} ${place.security} <bdi>${place.address}</bdi></div>`) },
      { name: t("Rack"), cell: (one) => one.rack ?? "–" },
      { name: t("Partitions served"), isNumber: true, cell: (one) => count(one.partitions) },
      { name: t("Started"), cell: (one) => time(one.started_ms || null) },
      { name: t("State"), cell: (one) => [one.id === data.broker && t("this one"), one.is_leaving && t("is leaving: {n} partitions to hand over", { n: count(one.partitions) })].filter(Boolean).join(", ") || t("live") },
    ]} />`}<//>
    <p><a href=${link(["connections"])}>${t("Connections with this broker")}</a></p>
    <${PageForms} cli="headrace info" path="/v1/brokers" />`;
}

function Below({ of: { bookies, zookeeper } }) {
  return bookies && html`<dl class="figures">
    <${Figure} name=${t("Bookies")} value=${`${bookies.writable} / ${bookies.known}`} note=${t("writable")} />
    <${Figure} name="ZooKeeper" value=${zookeeper} />
  </dl>`;
}
