// The life of a message: what became of it, step by step, found by its id, place, key or trace.
import { html, useEffect, useState } from "../vendor/preact.js";
import { at, get, useData, words } from "../api.js";
import { count, line, span, time, visible } from "../format.js";
import { link, setQuery } from "../route.js";
import { Empty, Field, Loaded, Select, Table } from "../ui.js";
import { t } from "../words.js";

const TIME_MS = 5000;
const FOUND_MAX = 50;
const PLACE = /^(\d+):(\d+)$/;
const TRACE_ID = /^[0-9a-f]{32}$/;
const OWN_COLUMNS = new Set(["event", "at_ms", "topic", "partition", "offset", "group", "attempt"]);
const eventName = (event) => ({
  stored: t("stored"), redriven: t("sent back"), delayed: t("delayed"), half_received: t("half message received"),
  half_committed: t("half message committed"), half_rolled_back: t("half message rolled back"), half_expired: t("half message expired"),
  delivery_failed: t("delivery failed"), acknowledged: t("acknowledged"), filtered: t("filtered"), given_up: t("given up"),
  dead_lettered: t("made a dead letter"), dead_letter_stored: t("dead letter stored"), skipped: t("skipped"), reset: t("offsets reset"),
  finished_without_acknowledgement: t("finished without acknowledgement"), earlier_state: t("earlier state"), now: t("now"), in_table: t("in a table"),
})[event] ?? event;

export const placeOf = (one) => `${one.partition}:${one.offset}`;
export const lifeOf = (topic, record) => link(["topics", topic, "life"], { message: placeOf(record) });

export function Life({ topic, query }) {
  const by = query.by ?? "message";
  const [typed, setTyped] = useState(query[by] ?? "");
  useEffect(() => setTyped(query[by] ?? ""), [by, query[by]]); // a link leads here, too
  const show = (event) => {
    event.preventDefault();
    setQuery({ message: "", key: "", trace: "", [by]: typed.trim() });
  };
  return html`<form class="filters" onSubmit=${show}>
      <${Select} label=${t("Find by")} value=${by} onChange=${(one) => setQuery({ by: one, message: "", key: "", trace: "" })} options=${[
        ["message", t("message id, or partition:offset")], ["key", t("key")], ["trace", t("trace id (W3C)")]]} />
      <${Field} label=${t("Value")}><input class="wide" required maxlength="255" spellcheck="false" autocomplete="off" pattern=${by === "trace" ? "[0-9a-f]{32}" : undefined}
        value=${typed} onInput=${(event) => setTyped(event.target.value)} /><//>
      <button class="main">${t("Show")}</button>
    </form>
    ${!query[by] && html`<${Empty} text=${t("What became of a message: stored, delivered, settled, made a dead letter, sent back.")} command=${words("headrace", "trace", topic.name, "0:0")} />`}
    ${query[by] && (by === "message" ? html`<${Timeline} topic=${topic.name} message=${query.message} key=${query.message} />`
      : html`<${Candidates} topic=${topic.name} by=${by} wanted=${query[by]} />`)}`;
}

// --- one message ---------------------------------------------------------------------------------

function asked(message) {
  const place = PLACE.exec(message);
  return { ...(place ? { partition: place[1], offset: place[2] } : { message_id: message }), time_ms: TIME_MS };
}

// What finds the message in an archive; only an operator knows where the table is kept.
function findIn(topic, message, table) {
  const place = PLACE.exec(message);
  return words("headrace", "find", topic, ...(place ? [`--partition=${place[1]}`, `--offset=${place[2]}`] : [`--id=${message}`]), `--table=${table}`, "--warehouse=WAREHOUSE");
}

function Timeline({ topic, message }) {
  const path = at("topics", topic, "trace");
  const state = useData((signal) => get(path, asked(message), signal), [topic, message]);
  return html`<${Loaded} state=${state}>${(data) => html`
    ${data.events.length === 0
      ? html`${data.tables ? data.tables.map((one) => html`<${Empty} command=${findIn(topic, message, one.table)}
          text=${t("The log does not have it. The table {table} may: its archive has taken what the log had.", { table: visible(one.table, 300) })} />`)
        : html`<${Empty} text=${t("No trace of it. Messages that retention has deleted have none.")} />`}`
      : html`<${Events} events=${data.events} />`}
    ${!data.is_complete && html`<div class="note bad">${t("The trace is incomplete: a broker did not answer, or the time ended.")}</div>`}
    ${data.traceparents.length > 0 && html`<p>${t("Trace ids")}: ${data.traceparents.map((one) => html`<bdi><a href=${traceLink(topic, one)}>${visible(one, 100)}</a></bdi> `)}</p>`}
    ${data.unknown.length > 0 && html`<details><summary>${t("What is not known of it")}</summary><ul>${data.unknown.map((one) => html`<li>${visible(one, 300)}</li>`)}</ul></details>`}
    <div class="tools"><button onClick=${state.again}>${t("Read again")}</button></div>
  `}<//>`;
}

function traceLink(topic, parent) {
  const id = parent.split("-")[1] ?? "";
  return TRACE_ID.test(id) ? link(["topics", topic, "life"], { by: "trace", trace: id }) : undefined;
}

function Events({ events }) {
  const begin = events[0].at_ms;
  return html`<${Table} label=${t("Timeline")} rows=${events.map((one, number) => ({ ...one, number }))} keyOf=${(one) => one.number} columns=${[
    { name: t("Time"), cell: (one) => (one.at_ms === undefined ? t("now") : time(one.at_ms)) },
    { name: t("After"), isNumber: true, cell: (one) => (one.at_ms === undefined || begin === undefined ? "" : `+${span(Math.max(one.at_ms - begin, 0))}`) },
    { name: t("Event"), cell: (one) => eventName(one.event) },
    { name: t("Place"), cell: (one) => html`<bdi>${visible(one.topic, 250)} ${one.offset === undefined ? one.partition : placeOf(one)}</bdi>` },
    { name: t("Group"), cell: (one) => (one.group ? html`<bdi><a href=${link(["groups", one.group])}>${visible(one.group, 200)}</a></bdi>` : "") },
    { name: t("Attempt"), isNumber: true, cell: (one) => (one.attempt === undefined ? "" : count(one.attempt)) },
    { name: t("Details"), cell: (one) => html`<bdi class="line">${Object.entries(one).filter(([name]) => !OWN_COLUMNS.has(name) && name !== "number").map(([name, value]) =>
      visible(`${name.replace(/_ms$/, "").replaceAll("_", " ")}: ${name.endsWith("_ms") ? time(value) : value}`, 300)).join(", ")}</bdi>` },
  ]} />`;
}

// --- messages of a key or a trace ----------------------------------------------------------------

function Candidates({ topic, by, wanted }) {
  const path = at("topics", topic, "messages");
  // A trace id is in the middle of a traceparent: version-trace-span-flags (W3C Trace Context).
  const search = by === "key" ? { key: wanted } : { where: `has(headers.traceparent) && headers.traceparent.contains(${JSON.stringify(wanted)})` };
  const [further, setFurther] = useState([]);
  const state = useData((signal) => get(path, { ...search, limit: FOUND_MAX }, signal).then((data) => { setFurther([]); return data; }), [topic, by, wanted]);
  const more = async (token) => setFurther([...further, await get(path, { ...search, limit: FOUND_MAX, page_token: token })]);
  return html`<${Loaded} state=${state}>${(data) => {
    const pages = [data, ...further];
    const rows = pages.flatMap((one) => one.messages);
    const token = pages.at(-1).next_page_token;
    return html`<p class="quiet" role="status">${t("{n} records searched", { n: count(pages.reduce((sum, one) => sum + one.searched.records, 0)) })}${token && ` · ${t("There is more to search.")}`}</p>
      ${pages.some((one) => one.failed?.length) && html`<div class="note bad">${t("Partitions that could not be searched")}: ${pages.flatMap((one) => one.failed ?? []).map((one) => `${one.topic} ${one.partition}`).join(", ")}</div>`}
      ${rows.length === 0 ? !token && html`<${Empty} text=${t("No message is found.")} />` : html`<${Table} label=${t("Messages")} rows=${rows} keyOf=${(one) => `${one.state}/${one.topic}/${one.partition}/${one.offset ?? one.receipt ?? rows.indexOf(one)}`} columns=${[
        { name: t("Place"), cell: (one) => (one.offset === undefined ? html`<bdi>${one.topic} ${one.partition} (${one.state})</bdi>`
          : html`<bdi><a href=${lifeOf(one.topic, one)}>${one.topic} ${placeOf(one)}</a></bdi>`) },
        { name: t("Time"), cell: (one) => time(one.timestamp_ms) },
        { name: t("Key"), cell: (one) => html`<bdi class="line">${line(one.key, one.key_encoding)}</bdi>` },
        { name: t("Value"), cell: (one) => html`<bdi class="line">${line(one.value, one.value_encoding)}</bdi>` },
      ]} />`}
      ${token && html`<div class="tools"><button onClick=${() => more(token)}>${t("Search on")}</button></div>`}`;
  }}<//>`;
}
