// The lag of a group: now, over the last hour, and the keys of a partition that it is behind in.
import { html, useEffect } from "../vendor/preact.js";
import { at, get, useData } from "../api.js";
import { bytes, count, line, span, topicText } from "../format.js";
import { link } from "../route.js";
import { Chart, Empty, Figure, Loaded, Missing, Table } from "../ui.js";
import { t } from "../words.js";

const REFRESH_MS = 15_000;

// Of the partitions that a broker has loaded: a lower bound unless it is all of them.
function lagOf(offsets) {
  const known = offsets.filter((one) => one.lag != null);
  if (known.length === 0 && offsets.length > 0) return "–";
  return (known.length < offsets.length ? "≥ " : "") + count(known.reduce((sum, one) => sum + one.lag, 0));
}

// The age of the oldest record that waits; a lower bound where that of a partition is not known.
function lagInTime(offsets) {
  const age = Math.max(-1, ...offsets.map((one) => one.lag_ms ?? -1));
  const isUnknown = offsets.some((one) => one.lag !== 0 && one.lag_ms == null);
  return age >= 0 && isUnknown ? t("at least {age}", { age: span(age) }) : span(age);
}

export function Lag({ group, query, again }) {
  return html`<dl class="figures">
      <${Figure} name=${t("Lag")} value=${lagOf(group.offsets)} note=${t("records not consumed yet")} />
      <${Figure} name=${t("Lag in time")} value=${lagInTime(group.offsets)} note=${t("age of the oldest record that is not consumed")} />
      <${Figure} name=${t("Members")} value=${count(group.members.length)} note=${group.state} />
      <${Figure} name=${t("Type")} value=${group.type} />
    </dl>
    <${Missing} failed=${group.failed} />
    ${group.offsets.some((one) => one.lag == null) && html`<p class="quiet">${t("–: not known, because the partition was not used since its broker's start. This page loads none.")}</p>`}
    <${History} name=${group.group} />
    <p><button onClick=${again}>${t("Read again")}</button></p>
    ${group.offsets.length === 0
      ? html`<${Empty} text=${t("The group has no offsets: its consumers have not committed any.")} />`
      : html`<${Table} label=${t("Offsets")} rows=${group.offsets} keyOf=${(one) => `${one.topic}/${one.partition}`} columns=${[
          { name: t("Topic"), cell: (one) => html`<a href=${link(["topics", one.topic], { from: "offset", partition: one.partition, offset: one.offset })}>${one.topic}</a>` },
          { name: t("Partition"), isNumber: true, cell: (one) => one.partition },
          { name: t("Offset"), isNumber: true, cell: (one) => count(one.offset) },
          { name: t("Lag"), isNumber: true, cell: (one) => count(one.lag) },
          { name: t("Lag in time"), isNumber: true, cell: (one) => span(one.lag_ms) },
          { name: t("Keys"), cell: (one) => html`<a href=${link(["groups", group.group], { hot: `${one.topic}/${one.partition}` })}>${t("Hot keys")}</a>` },
          ...(group.type === "share" ? [{ name: t("Queue"), cell: (one) => html`<a href=${link(["queues", one.topic, group.group])}>${t("Queue")}</a>` }] : []),
        ]} />`}
    ${query.hot && html`<${HotKeys} group=${group} place=${query.hot} />`}`;
}


// --- the last hour -------------------------------------------------------------------------------

function History({ name }) {
  const path = at("groups", name, "lag");
  const state = useData((signal) => get(path, {}, signal), [name]);
  useEffect(() => {
    const timer = setInterval(() => document.hidden || state.again(), REFRESH_MS);
    return () => clearInterval(timer);
  }, [name]);
  return html`<${Loaded} state=${state}>${({ points, trend, lag_is_partial: isPartial, failed }) => html`
      <${Missing} failed=${failed} />
      ${points.length === 0 ? html`<p class="quiet">${t("Its lag is sampled every 15 seconds: none was taken yet.")}</p>`
        : html`<div class="charts"><${Chart} title=${t("Lag over the last hour")} points=${points} format=${count} series=${[{ name: t("Lag"), of: "lag_records" }]} />
            <${Chart} title=${t("Lag in time over the last hour")} points=${points} format=${span} series=${[{ name: t("Lag in time"), of: "lag_ms" }]} /></div>
          <p class="quiet">${trend && direction(trend)}${points.some((one) => one.lag_ms == null) && ` ${t("The lag in time has gaps where the oldest record that waits was not in memory.")}`}${isPartial && ` ${t("Some points are lower bounds: a broker did not answer, was started later, or did not know all partitions, or partitions were added since.")}`}</p>`}`}<//>`;
}

function direction({ records_per_s: rate, span_ms: ms }) {
  const values = { n: count(Math.abs(rate)), span: span(ms) };
  if (rate > 0) return t("It has grown by {n} records a second over the last {span}.", values);
  return rate < 0 ? t("It has fallen by {n} records a second over the last {span}.", values) : t("It has not changed over the last {span}.", values);
}

// --- hot keys ------------------------------------------------------------------------------------

// Of the records that wait in one partition, or of its newest ones where none waits.
function HotKeys({ group, place }) {
  const cut = place.lastIndexOf("/");
  const [topic, partition] = [topicText(place.slice(0, cut)), place.slice(cut + 1)];
  const found = group.offsets.find((one) => one.topic === topic && String(one.partition) === partition);
  const from = found?.lag > 0 && found.offset != null ? { offset: found.offset } : {};
  const path = at("topics", topic, "hot-keys", partition);
  const state = useData((signal) => get(path, from, signal), [place, from.offset]);
  return html`<h2>${t("Hot keys of {place}", { place: `${topic}-${partition}` })}</h2>
    <${Loaded} state=${state}>${(data) => html`
      ${data.records === 0 ? html`<${Empty} text=${data.is_whole ? t("No records are there.") : t("None was counted: one look ends after two seconds or 64 MiB.")} />` : html`<p class="quiet" role="status">${from.offset === undefined ? t("Of its newest {n} records (offsets {from} to {to}), with {keys} keys.", figures(data))
        : t("Of the first {n} records that wait (offsets {from} to {to}), with {keys} keys.", figures(data))}${!data.is_whole && ` ${t("There are more: one look ends after two seconds or 64 MiB.")}`}</p>
      <${Table} label=${t("Hot keys")} rows=${data.keys} keyOf=${(one) => `${one.key_encoding ?? ""}/${one.key}`} columns=${[
        { name: t("Key"), cell: (one) => (one.key === null ? html`<i>${t("no key")}</i>` : html`<bdi class="line"><a href=${one.key_encoding ? undefined : link(["topics", topic], { from: "key", key: one.key })}>${line(one.key, one.key_encoding)}</a></bdi>`) },
        { name: t("Records"), isNumber: true, cell: (one) => count(one.records) },
        { name: t("Share"), isNumber: true, cell: (one) => `${((100 * one.records) / data.records).toFixed(1)} %` },
        { name: t("Size"), isNumber: true, cell: (one) => bytes(one.size_bytes) },
      ]} />`}`}<//>`;
}

const figures = (data) => ({ n: count(data.records), from: count(data.first_offset), to: count(data.end_offset - 1), keys: count(data.distinct_keys) });
