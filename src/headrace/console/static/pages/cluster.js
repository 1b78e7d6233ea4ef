// The cluster: its brokers and what each does, moves and drains as they proceed, and the storage below.
import { html, useEffect } from "../vendor/preact.js";
import { get, useData } from "../api.js";
import { bytes, count, time, visible } from "../format.js";
import { link } from "../route.js";
import { Figure, Loaded, Missing, Table, Tabs, Title } from "../ui.js";
import { t } from "../words.js";
import { BrokerSettings } from "./broker_settings.js";

const REFRESH_MS = 10_000;
const MOTION_MS = 2_000;
const SHOWN = 100;

// Who may not see a part, sees the others.
const allowed = (asked) => asked.catch((problem) => {
  if (problem.status === 403) return {};
  throw problem;
});

async function read(signal) {
  const [brokers, below, moves, lacking] = await Promise.all([
    get("/v1/brokers", { details: true }, signal),
    allowed(get("/v1/overview", {}, signal)),
    get("/v1/moves", { limit: SHOWN }, signal),
    get("/v1/ledgers/lacking", {}, signal),
  ]);
  return { ...brokers, below, moves, lacking };
}

const TABS = () => [["brokers", t("Brokers")], ["settings", t("Settings")]];

export function Page({ path, query }) {
  const chosen = path[0] === "settings" ? "settings" : "brokers";
  const tabs = html`<${Tabs} label=${t("Cluster")} tabs=${TABS()} chosen=${chosen} href=${(name) => link(name === "brokers" ? ["cluster"] : ["cluster", name])} />`;
  return chosen === "settings" ? html`<${Title} text=${t("Cluster")} />${tabs}<${BrokerSettings} query=${query} />` : html`<${Now} tabs=${tabs} />`;
}

function Now({ tabs }) {
  const state = useData(read, []);
  const isInMotion = state.data?.moves.count > 0 || state.data?.brokers.some((one) => one.is_leaving || one.is_draining);
  useEffect(() => {
    const timer = setInterval(() => document.hidden || state.again(), isInMotion ? MOTION_MS : REFRESH_MS);
    return () => clearInterval(timer);
  }, [isInMotion]);
  return html`<${Title} text=${t("Cluster")}><button onClick=${state.again}>${t("Read again")}</button><//>${tabs}
    <${Loaded} state=${state}>${(data) => html`<${Below} of=${data.below} />
      <${Missing} failed=${data.failed} />
      <h2>${t("Brokers")}</h2><${Brokers} of=${data} />
      <h2>${t("What they do")}</h2><${Work} brokers=${data.brokers} />
      <h2>${t("Moves")}</h2><${Moves} of=${data.moves} />
      <h2>${t("Ledgers with missing copies")}</h2><${Lacking} of=${data.lacking} />
      ${data.brokers.some((one) => one.figures?.tier) && html`<h2>${t("Object storage")}</h2><${Tiers} brokers=${data.brokers} />`}`}<//>
    <p><a href=${link(["connections"])}>${t("Connections with this broker")}</a></p>`;
}

function Below({ of: { bookies, zookeeper } }) {
  return bookies && html`<dl class="figures">
    <${Figure} name=${t("Bookies")} value=${`${bookies.writable} / ${bookies.known}`} note=${t("writable")} />
    <${Figure} name="ZooKeeper" value=${zookeeper} />
  </dl>`;
}

const Brokers = ({ of: { brokers, broker } }) => html`<${Table} label=${t("Brokers")} rows=${brokers} keyOf=${(one) => one.id} columns=${[
  { name: t("Broker"), isNumber: true, cell: (one) => one.id },
  { name: t("Addresses"), cell: (one) => one.endpoints.map((place) => html`<div>${place.face} ${place.security} <bdi>${place.address}</bdi></div>`) },
  { name: t("Rack"), cell: (one) => one.rack ?? "–" },
  { name: t("Partitions served"), isNumber: true, cell: (one) => count(one.partitions) },
  { name: t("Started"), cell: (one) => time(one.started_ms || null) },
  { name: t("State"), cell: (one) => html`${stateOf(one, broker)}<${Drain} of=${one} />` },
]} />`;

const stateOf = (one, broker) => [
  one.id === broker && t("this one"),
  one.is_leaving && t("is leaving: {n} partitions to hand over", { n: count(one.partitions) }),
  one.is_draining && (one.partitions ? t("is drained: {n} partitions to hand over", { n: count(one.partitions) }) : t("is drained: it may be stopped")),
].filter(Boolean).join(", ") || t("live");

function Drain({ of: { is_draining, owned_before: before, partitions } }) {
  if (!is_draining || before === undefined) return null;
  const said = t("{done} of {total}", { done: count(Math.max(before - partitions, 0)), total: count(before) });
  return html`<div><progress max=${before} value=${Math.max(before - partitions, 0)} aria-label=${t("Partitions handed over")}></progress> ${said}</div>`;
}

const Work = ({ brokers }) => html`<${Table} label=${t("What they do")} rows=${brokers} keyOf=${(one) => one.id} columns=${[
  { name: t("Broker"), isNumber: true, cell: (one) => one.id },
  ...[
    [t("Records in"), "records_in_per_s", (value) => `${count(value)}/s`], [t("Bytes in"), "bytes_in_per_s", (value) => `${bytes(value)}/s`],
    [t("Bytes out"), "bytes_out_per_s", (value) => `${bytes(value)}/s`], ["CPU", "cpu_percent", (value) => `${count(value)} %`],
    [t("Memory"), "memory_bytes", bytes], [t("Disk free"), "disk_free_bytes", bytes], [t("Connections"), "connections", count],
    [t("Problems"), "problems", count],
  ].map(([name, figure, shown]) => ({ name, isNumber: true, cell: ({ figures }) => (figures?.[figure] === undefined ? "–" : shown(figures[figure])) })),
]} />`;

const reasons = () => ({
  reassigned: t("reassigned by an operator"), drained: t("its broker is drained or leaves"),
  balanced: t("moved by load"), placed: t("brokers came or left"),
});

function Moves({ of: { moves, count: all } }) {
  if (all === 0) return html`<p class="quiet">${t("All partitions are where they belong.")}</p>`;
  const why = reasons();
  return html`<p class="quiet" role="status">${t("{n} partitions move, or wait to move.", { n: count(all) })}</p>
    <${Table} label=${t("Moves")} rows=${moves} keyOf=${(one) => `${one.topic}/${one.partition}`} columns=${[
      { name: t("Topic"), cell: (one) => html`<a href=${link(["topics", one.topic, "partitions"])}><bdi>${visible(one.topic, 250)}</bdi></a>` },
      { name: t("Partition"), isNumber: true, cell: (one) => one.partition },
      { name: t("From"), isNumber: true, cell: (one) => one.from },
      { name: t("To"), isNumber: true, cell: (one) => one.to },
      { name: t("Reason"), cell: (one) => why[one.reason] ?? one.reason },
    ]} />`;
}

function Lacking({ of: { ledgers, count: all, failed } }) {
  return html`<${Missing} failed=${failed} />
    ${all === 0 ? html`<p class="quiet">${t("No copies are missing.")}</p>` : html`
      <p class="quiet" role="status">${t("{n} ledgers. BookKeeper's AutoRecovery copies them again once enough bookies are up.", { n: count(all) })}</p>
      <${Table} label=${t("Ledgers with missing copies")} rows=${ledgers.slice(0, SHOWN)} keyOf=${(one) => one.ledger} columns=${[
        { name: t("Topic"), cell: (one) => html`<a href=${link(["topics", one.topic, "ledgers"], { partition: one.partition })}><bdi>${visible(one.topic, 250)}</bdi></a>` },
        { name: t("Partition"), isNumber: true, cell: (one) => one.partition },
        { name: t("Ledger"), isNumber: true, cell: (one) => one.ledger },
        { name: t("Copies missing"), isNumber: true, cell: (one) => count(one.copies_missing) },
      ]} />`}`;
}

// What each broker has done with object storage since its start.
function Tiers({ brokers }) {
  const rows = brokers.filter((one) => one.figures?.tier).map((one) => ({ id: one.id, ...one.figures.tier }));
  const both = (ledgers, size) => (one) => `${count(one[ledgers])} (${bytes(one[size])})`;
  return html`${rows.filter((one) => one.problem).map((one) => html`<div class="note bad"><strong>${t("Broker {id}", { id: one.id })}</strong>: ${visible(one.problem, 500)}</div>`)}
    <${Table} label=${t("Object storage")} rows=${rows} keyOf=${(one) => one.id} columns=${[
      { name: t("Broker"), isNumber: true, cell: (one) => one.id },
      { name: t("State"), cell: (one) => (one.is_away ? t("unavailable: it is tried again") : t("available")) },
      { name: t("Ledgers that wait"), isNumber: true, cell: both("pending_ledgers", "pending_bytes") },
      { name: t("Ledgers moved"), isNumber: true, cell: both("offloads", "offload_bytes") },
      { name: t("Cold reads"), isNumber: true, cell: both("cold_reads", "cold_bytes") },
      { name: t("Deleted"), isNumber: true, cell: (one) => count(one.deletes) },
      { name: t("Failures"), isNumber: true, cell: (one) => count(one.failures) },
      { name: t("Damaged blocks"), isNumber: true, cell: (one) => count(one.corrupt_blocks) },
    ]} />`;
}
