// Where a topic's records are stored: its ledgers as a map, and those of one partition with their bookies.
import { html } from "../vendor/preact.js";
import { at, get, useData, words } from "../api.js";
import { bytes, count, time } from "../format.js";
import { link } from "../route.js";
import { Empty, Loaded, Table } from "../ui.js";
import { t } from "../words.js";

const kinds = () => ({
  open: t("open"), local: t("in the ledger store"), both: t("in the ledger store and in object storage"),
  remote: t("in object storage alone"), tabled: t("in the topic's table alone"), lacking: t("copies are missing"),
});

function kindOf(one) {
  if (one.copies_missing > 0) return "lacking";
  if (one.is_tabled) return "tabled";
  if (!one.is_local) return "remote";
  if (one.is_offloaded) return "both";
  return one.is_open ? "open" : "local";
}

export function Ledgers({ topic, query }) {
  const path = at("topics", topic.name, "ledgers");
  const one = query.partition;
  const asked = one === undefined ? {} : { partition: one };
  const state = useData((signal) => get(path, asked, signal), [topic.name, one]);
  return html`<${Loaded} state=${state}>${({ partitions, failed = [] }) => html`
      ${failed.length > 0 && html`<div class="note bad">${t("Partitions whose broker does not answer")}: ${failed.map((bad) => bad.partition).join(", ")}</div>`}
      <${Map} topic=${topic.name} partitions=${partitions} />
      ${one !== undefined && html`<${OfPartition} of=${partitions[0]} />`}
      <p>${one !== undefined && html`<a href=${link(["topics", topic.name, "ledgers"])}>${t("All partitions")}</a> `}<button onClick=${state.again}>${t("Read again")}</button></p>`}<//>`;
}

function Map({ topic, partitions }) {
  const sizes = partitions.map((one) => one.ledgers.reduce((sum, ledger) => sum + ledger.size_bytes, 0));
  const largest = Math.max(1, ...sizes);
  const columns = [
    { name: t("Partition"), isNumber: true, cell: (one) => html`<a href=${link(["topics", topic, "ledgers"], { partition: one.partition })}>${one.partition}</a>` },
    { name: t("Owner"), isNumber: true, cell: (one) => (one.broker < 0 ? t("none") : one.broker) },
    { name: t("Ledgers"), isNumber: true, cell: (one) => (one.is_loaded ? count(one.ledger_count) : "–") },
    { name: t("Size"), isNumber: true, cell: (one) => (one.is_loaded ? sizeOf(one) : "–") },
    { name: t("From oldest to newest"), cell: (one) => (one.is_loaded ? html`<${Strip} ledgers=${one.ledgers} largest=${largest} />` : t("not used since its broker's start")) },
  ];
  const names = kinds();
  return html`<${Table} label=${t("Ledgers")} rows=${partitions} keyOf=${(one) => one.partition} columns=${columns} />
    <p class="legend">${Object.keys(names).map((kind) => html`<span><svg class="key" viewBox=${`0 0 ${HEIGHT} ${HEIGHT}`} aria-hidden="true"><${Box} kind=${kind} x="0" width=${HEIGHT} /></svg> ${names[kind]}</span>`)}</p>`;
}

// Of the newest ledgers, which the broker has listed.
function sizeOf({ ledgers, ledger_count }) {
  const size = bytes(ledgers.reduce((sum, ledger) => sum + ledger.size_bytes, 0));
  return ledgers.length < ledger_count ? `≥ ${size}` : size;
}

const WIDTH = 1000;
const HEIGHT = 16;

// As wide as the partition's part of the largest one; a ledger as wide as its part of the partition.
function Strip({ ledgers, largest }) {
  const names = kinds();
  if (ledgers.length === 0) return t("none");
  const size = ledgers.reduce((sum, one) => sum + one.size_bytes, 0);
  const weights = ledgers.map((one) => Math.max(one.size_bytes, size / 100, 1)); // a small one is seen, too
  const unit = Math.max(40, (WIDTH * size) / largest) / weights.reduce((sum, one) => sum + one, 0);
  const counts = Object.entries(names).map(([kind, name]) => [ledgers.filter((one) => kindOf(one) === kind).length, name]);
  const said = counts.filter(([n]) => n > 0).map(([n, name]) => `${n} ${name}`).join(", ");
  let x = 0;
  return html`<svg class="strip" role="img" aria-label=${said} viewBox=${`0 0 ${WIDTH} ${HEIGHT}`} preserveAspectRatio="none">
    ${ledgers.map((one, at) => {
      const width = weights[at] * unit;
      const begin = x;
      x += width;
      return html`<${Box} kind=${kindOf(one)} x=${begin} width=${width}
        title=${`${one.ledger}: ${count(one.base_offset)}–${count(one.end_offset)}, ${bytes(one.size_bytes)}, ${names[kindOf(one)]}`} />`;
    })}</svg>`;
}

const Box = ({ kind, x, width, title }) => html`<g>${title && html`<title>${title}</title>`}
  <rect class=${`ledger ${kind}`} x=${x} y="0" width=${width} height=${HEIGHT} />
  ${kind === "both" && html`<rect class="ledger remote" x=${x} y=${HEIGHT / 2} width=${width} height=${HEIGHT / 2} />`}</g>`;

function OfPartition({ of: { partition, is_loaded, ledgers } }) {
  const names = kinds();
  if (!is_loaded) return html`<${Empty} text=${t("The partition was not used since its broker's start: which ledgers it has is not known yet.")} />`;
  if (ledgers.length === 0) return html`<${Empty} text=${t("The partition has no ledger yet: it gets one with its first record.")} />`;
  return html`<h2>${t("Ledgers of partition {n}", { n: partition })}</h2>
    <${Table} label=${t("Ledgers of partition {n}", { n: partition })} rows=${[...ledgers].reverse()} keyOf=${(one) => one.ledger} columns=${[
      { name: t("Ledger"), isNumber: true, cell: (one) => one.ledger },
      { name: t("Start"), isNumber: true, cell: (one) => count(one.base_offset) },
      { name: t("End"), isNumber: true, cell: (one) => count(one.end_offset) },
      { name: t("Size"), isNumber: true, cell: (one) => bytes(one.size_bytes) },
      { name: t("Newest record"), cell: (one) => time(one.newest_ms) },
      { name: t("State"), cell: (one) => names[kindOf(one)] },
      { name: t("Copies missing"), isNumber: true, cell: (one) => count(one.copies_missing) },
      ...(ledgers.some((one) => one.bookies) ? [{ name: t("Bookies"), cell: (one) => one.bookies?.map((name) => html`<div><bdi>${name}</bdi></div>`) ?? "–" }] : []),
    ]} />`;
}
