// Messages of a topic: browsed by offset or time, found by key or expression, exported, or followed
// as they come.
import { html, useEffect, useRef, useState } from "../vendor/preact.js";
import { address, at, get, useData, words } from "../api.js";
import { useAction } from "../action.js";
import { BY_SCHEMA, FORMS, Headers, contents } from "../contents.js";
import { count, decoded, line, time, visible } from "../format.js";
import { go, link, setQuery } from "../route.js";
import { openStream } from "../stream.js";
import { Code, Dialog, Empty, Field, Loaded, Refusal, Select, Table } from "../ui.js";
import { lifeOf } from "./life.js";
import { nextStep, refusal, t } from "../words.js";

const ROWS = 50;
const TAIL_ROWS = 200;
const TAIL_CHARACTERS = 32_000_000; // of rows that a page keeps, unless the newest alone is longer
const READS_MAX = 4; // of a partition's newest messages: each ends at 8 MiB
const PARTITIONS_AT_ONCE = 16;
const EXPORTED_MAX = 10_000;
const START = { offset: "", time: "", key: "", where: "", after: "" };
const PLACE = /^(\d+):(\d+)$/;
const EXAMPLE = 'value.amount > 100 && headers.region == "eu"';

const decodeOf = ({ as }) => (as === BY_SCHEMA ? BY_SCHEMA : undefined);

export function Messages({ topic, query }) {
  const [opened, open] = useState(null);
  const linkOf = (record) => (record?.offset != null && (record.topic ?? topic.name) === topic.name ? `${record.partition}:${record.offset}` : "");
  const setOpened = (record) => {
    open(record);
    setQuery({ open: linkOf(record) });
  };
  useEffect(() => {
    const wanted = query.open ?? "";
    if (wanted === linkOf(opened)) return undefined;
    open(null); // that of another link
    const place = PLACE.exec(wanted);
    let isOver = !place;
    if (place) {
      page(topic, Number(place[1]), { offset: place[2], max: 1, decode: decodeOf(query) }).then(
        ({ records: [found] }) => !isOver && found?.offset === Number(place[2]) && open(found), () => {});
    }
    return () => (isOver = true);
  }, [query.open]);
  const from = query.from ?? "latest";
  return html`<div class="filters">
      <${Select} label=${t("Show")} value=${from} onChange=${(one) => setQuery({ ...START, from: one })} options=${[
        ["latest", t("the latest")], ["offset", t("from an offset")], ["time", t("from a time")], ["key", t("with a key")], ["where", t("by an expression")], ["live", t("as they come (live)")]]} />
      <${Select} label=${t("Partition")} value=${query.partition ?? ""} onChange=${(partition) => setQuery({ partition, offset: "", after: "" })}
        options=${[["", t("all")], ...topic.partitions.map((one) => [one.partition, one.partition])]} />
      ${from === "offset" && html`<${Field} label=${t("Offset")}><input type="number" min="0" value=${query.offset ?? ""} onChange=${(event) => setQuery({ offset: event.target.value })} /><//>`}
      ${from === "time" && html`<${Field} label=${t("Time")}><input type="datetime-local" step="1" value=${query.time ?? ""} onChange=${(event) => setQuery({ time: event.target.value })} /><//>`}
      ${from === "key" && html`<${Field} label=${t("Key")}><input value=${query.key ?? ""} onChange=${(event) => setQuery({ key: event.target.value, after: "" })} /><//>`}
      ${from === "where" && html`<${Field} label=${t("Expression (CEL)")}><input class="wide" spellcheck="false" autocomplete="off" maxlength="2048" placeholder=${EXAMPLE} value=${query.where ?? ""} onChange=${(event) => setQuery({ where: event.target.value, after: "" })} /><//>`}
      <${Select} label=${t("Decode as")} value=${query.as ?? "auto"} options=${FORMS()} onChange=${(as) => setQuery({ as })} />
    </div>
    ${from === "live"
      ? html`<${Tail} topic=${topic} partition=${query.partition ?? ""} open=${setOpened} key=${query.partition ?? ""} />`
      : html`<${Browse} topic=${topic} from=${from} query=${query} open=${setOpened} />`}
    ${opened && html`<${Message} topic=${opened.topic ?? topic.name} record=${opened} as=${query.as ?? "auto"} close=${() => setOpened(null)} />`}`;
}

// --- browse --------------------------------------------------------------------------------------

async function page(topic, number, query, signal) {
  const path = at("topics", topic.name, "records");
  const answer = await get(path, { partition: number, max: ROWS, ...query }, signal);
  return { ...answer, records: answer.records.map((one) => ({ ...one, partition: number })) };
}

// The newest messages of a partition. A read of large ones ends before the newest: after a few, those
// between are skipped, and the last read begins as far from the end as the one before it has reached.
export async function latest(topic, number, decode, signal) {
  const known = topic.partitions[number];
  let end = known.end_offset;
  if (end == null) end = (await page(topic, number, { timestamp_ms: 253_402_300_799_999, max: 1 }, signal)).next_offset;
  const from = (offset) => page(topic, number, { offset, decode }, signal);
  let found = await from(Math.max(end - ROWS, known.start_offset ?? 0));
  // The offsets of a topic that was read a while ago: the end has moved since.
  if (found.end_offset > end) found = await from(Math.max(found.start_offset, found.end_offset - ROWS));
  const pages = [found];
  while (pages.length < READS_MAX && found.next_offset < found.end_offset) {
    const { next_offset: next, end_offset: last, records } = found;
    found = await from(pages.length < READS_MAX - 1 ? next : Math.max(next, last - Math.max(records.length, 1)));
    if (found.next_offset <= next) break; // the rest is of transactions that are not complete
    pages.push(found);
  }
  return { ...found, records: pages.flatMap((one) => one.records).slice(-ROWS), unreadable: pages.flatMap((one) => one.unreadable ?? []) };
}

const isSearch = (from) => from === "key" || from === "where";

// What a page searches for; null: it reads messages by their place, or has nothing to search for yet.
export function searched({ from, partition, ...query }) {
  return isSearch(from) && query[from] ? { [from]: query[from], partition } : null;
}

async function read(topic, from, query, signal) {
  const search = searched(query);
  const decode = decodeOf(query);
  if (isSearch(from)) {
    if (!search) return { records: [] };
    const found = await get(at("topics", topic.name, "messages"), { ...search, limit: ROWS, page_token: query.after, decode }, signal);
    return { records: found.messages, searched: found.searched, failed: found.failed, after: found.next_page_token };
  }
  const numbers = query.partition ? [Number(query.partition)] : topic.partitions.slice(0, PARTITIONS_AT_ONCE).map((one) => one.partition);
  const asked = from === "time" ? { timestamp_ms: Math.max(Date.parse(query.time) || 0, 0) } : { offset: Number(query.offset) || 0 };
  const pages = await Promise.all(numbers.map((number) => (from === "latest" ? latest(topic, number, decode, signal)
    : page(topic, number, { ...asked, decode }, signal).catch((problem) => {
      if (numbers.length > 1 && problem.status === 409) return { records: [] }; // it has no such offset
      throw problem;
    }))));
  const order = from === "latest" ? -1 : 1;
  const records = pages.flatMap((one) => one.records)
    .sort((a, b) => order * (a.timestamp_ms - b.timestamp_ms || a.partition - b.partition || a.offset - b.offset));
  return {
    records: records.slice(0, ROWS),
    unreadable: pages.flatMap((one, index) => (one.unreadable ?? []).map((bad) => ({ ...bad, partition: numbers[index] }))),
    next: numbers.length === 1 && pages[0].next_offset < pages[0].end_offset ? pages[0].next_offset : null,
    skipped: query.partition ? 0 : topic.partitions.length - numbers.length,
  };
}

function Browse({ topic, from, query, open }) {
  const keys = [topic.name, from, query.partition, query.offset, query.time, query.key, query.where, query.after, decodeOf(query)];
  const state = useData((signal) => read(topic, from, query, signal), keys);
  const search = searched(query);
  const exported = exportOf(from, query);
  const [dialog, start] = useAction();
  const hint = `echo 'hello' | ${words("headrace", "produce", topic.name)}`;
  return html`<${Loaded} state=${state}>${(data) => html`
    ${data.unreadable?.length > 0 && html`<div class="note bad"><strong>${t("Batches that cannot be decoded")}</strong>
      <ul>${data.unreadable.map((one) => html`<li>${one.partition}: ${one.offset}–${one.last_offset}: ${visible(one.reason, 300)}</li>`)}</ul></div>`}
    ${data.skipped > 0 && html`<p class="quiet">${t("Only the first {n} partitions are shown: choose one to see another.", { n: PARTITIONS_AT_ONCE })}</p>`}
    ${data.searched && html`<${Progress} found=${data} />`}
    ${from === "where" && !query.where && html`<p class="quiet">${t("For example")}: <code>${EXAMPLE}</code></p>`}
    ${data.records.length === 0
      ? !data.after && html`<${Empty} text=${from === "latest" ? t("No messages yet: here is how to send one.") : t("No message is there. To send one:")} command=${hint} />`
      : html`<${Rows} topic=${topic} records=${data.records} open=${open} />`}
    <div class="tools"><button onClick=${state.again}>${t("Read again")}</button>
      ${data.next != null && from !== "latest" && html`<button onClick=${() => setQuery({ from: "offset", offset: data.next, time: "" })}>${t("Next {n}", { n: ROWS })}</button>`}
      ${data.after && html`<button onClick=${() => setQuery({ after: data.after })}>${t("Search on")}</button>
        <button onClick=${() => start(searchAction({ topic: topic.name, ...search, partition: search.partition ? Number(search.partition) : undefined, page_token: data.after }))}>${t("Continue as a job")}</button>`}
      ${exported && ["ndjson", "csv"].map((format) => html`<a download href=${address(at("topics", topic.name, "export"), { ...exported, format, max: EXPORTED_MAX })}>${t("Export as {format}", { format: format.toUpperCase() })}</a>`)}</div>
    ${exported && html`<p class="quiet">${t("An export has all that matches, at most {n} messages of the log, with all their bytes and headers.", { n: count(EXPORTED_MAX) })}</p>`}
  `}<//>${dialog}`;
}

// A search as a job of the broker: followed, stopped and continued on the page of jobs.
export const searchAction = (body) => ({
  title: t("Continue as a job"), verb: t("Search"), method: "POST", path: "/v1/searches", body,
  preview: () => t("Begins after what was searched. It keeps at most {n} results; what it has read is on the page of jobs.", { n: count(body.max ?? 1000) }),
  after: ({ id }) => go(["jobs", "searches", id]),
});

// How far a search came, and what it could not decide.
function Progress({ found: { searched: done, failed, after } }) {
  return html`<p class="quiet" role="status">${t("{n} records searched", { n: count(done.records) })}${after && ` · ${t("There is more to search.")}`}</p>
    ${done.not_evaluated > 0 && html`<p class="quiet">${t("The expression has no value for {n} records; the first", { n: count(done.not_evaluated) })}: ${visible(done.not_evaluated_because, 300)}</p>`}
    ${failed?.length > 0 && html`<div class="note bad"><strong>${t("Partitions that could not be searched")}</strong>
      <ul>${failed.map((one) => html`<li>${one.topic} ${one.partition}: ${visible(refusal(one.error), 300)}</li>`)}</ul></div>`}`;
}

// What the export of this page asks for; null: nothing was chosen to export.
function exportOf(from, query) {
  const search = searched(query);
  if (search) return search;
  if (from === "time" && query.time) return { since_ms: Math.max(Date.parse(query.time) || 0, 0), partition: query.partition };
  return from === "offset" && query.partition ? { partition: query.partition, offset: query.offset || 0 } : null;
}

function Rows({ topic, records, open }) {
  return html`<${Table} label=${t("Messages")} rows=${records} keyOf=${keyOf} columns=${[
    { name: t("Partition"), isNumber: true, cell: (one) => one.partition },
    { name: t("Offset"), isNumber: true, cell: (one) => html`<button class="plain" aria-label=${t("Open {place}", { place: `${one.partition}:${one.offset}` })} onClick=${() => open(one)}><u>${one.offset ?? one.state}</u></button>` },
    { name: t("Time"), cell: (one) => time(one.timestamp_ms) },
    { name: t("Key"), cell: (one) => html`<bdi class="line">${line(one.key, one.key_encoding)}</bdi>` },
    { name: t("Value"), cell: (one) => html`<bdi class="line">${one.decoded ? line(one.decoded.json) : line(one.value, one.value_encoding)}</bdi>${one.undecodable && html`<small>${t("Not decoded")}: ${visible(one.undecodable, 200)}</small>`}` },
  ]} />`;
}

// --- live ----------------------------------------------------------------------------------------

// Characters of a message, its headers ([name, value, encoding]) included.
const sizeOf = ({ key, value, headers = [] }) => (key?.length ?? 0) + (value?.length ?? 0) + headers.flat().reduce((sum, one) => sum + (one?.length ?? 0), 0);

const keyOf = (one) => `${one.topic ?? ""}/${one.partition}/${one.offset}`;

// The first of these, newest first, that a page keeps.
function kept(newest, charactersOf) {
  let size = 0;
  const end = newest.findIndex((one, at) => at >= TAIL_ROWS || ((size += charactersOf(one)) > TAIL_CHARACTERS && at > 0));
  return end < 0 ? newest : newest.slice(0, end);
}

// A tail shows the newest rows alone, drawn at most four times a second, however many come. After a
// lost connection it continues at its last place: what came after that comes once more.
function Tail({ topic, partition, open }) {
  const [rows, setRows] = useState([]);
  const [isPaused, setPaused] = useState(false);
  const [{ isOpen, problem }, setState] = useState({ isOpen: false });
  const waiting = useRef([]);
  const total = useRef(0);
  useEffect(() => {
    if (isPaused) return undefined;
    let place = "";
    let totalThere = total.current;
    let characters = 0;
    const take = {
      place: (event) => {
        place = event.lastEventId;
        totalThere = total.current;
      },
      record: (event) => {
        waiting.current.push(event.data);
        total.current += 1;
        characters += event.data.length;
        if (waiting.current.length <= 2 * TAIL_ROWS && characters <= 2 * TAIL_CHARACTERS) return;
        waiting.current = kept(waiting.current.reverse(), (one) => one.length).reverse();
        characters = waiting.current.reduce((sum, one) => sum + one.length, 0);
      },
    };
    const end = openStream(() => address(at("topics", topic.name, "tail"), { partition, after: place }), take, (isBack, refused) => {
      if (!isBack && place) total.current = totalThere;
      setState({ isOpen: isBack, problem: refused && { message: refusal(refused), nextStep: nextStep(refused.next_step) } });
    });
    const timer = setInterval(() => {
      if (waiting.current.length === 0) return;
      const fresh = new Map(waiting.current.map((one) => JSON.parse(one)).reverse().map((one) => [keyOf(one), one]));
      waiting.current = [];
      characters = 0;
      setRows((before) => kept([...fresh.values(), ...before.filter((one) => !fresh.has(keyOf(one)))], sizeOf));
    }, 250);
    return () => {
      end();
      clearInterval(timer);
    };
  }, [isPaused]);
  return html`<div class="tools"><button onClick=${() => setPaused(!isPaused)}>${isPaused ? t("Continue") : t("Pause")}</button>
      <span role="status">${t("{n} messages came; the newest {rows} are shown", { n: count(total.current), rows: rows.length })}</span></div>
    ${problem && html`<${Refusal} problem=${problem} />`}
    ${!isOpen && !isPaused && !problem && html`<p class="quiet" role="status">${t("Connecting")} …</p>`}
    ${isOpen && rows.length === 0 && html`<p class="quiet">${t("Waiting for messages")} …</p>`}
    ${rows.length > 0 && html`<${Rows} topic=${topic} records=${rows} open=${open} />`}`;
}

// --- one message ---------------------------------------------------------------------------------

function Message({ topic, record, as, close }) {
  const [form, setForm] = useState(as);
  const value = contents(record, form);
  const key = decoded(record.key, record.key_encoding, form);
  const again = link(["topics", topic, "send"], { partition: record.partition, offset: record.offset });
  return html`<${Dialog} title=${`${topic} ${record.partition}:${record.offset ?? record.state}`} close=${close}>
    <p>${time(record.timestamp_ms)} · ${t("{n} characters", { n: count(record.value?.length ?? 0) })}</p>
    <${Select} label=${t("Decode as")} value=${form} options=${FORMS()} onChange=${setForm} />
    <h3>${t("Key")}</h3><bdi><${Code} text=${key.text} /></bdi>
    <h3>${t("Value")} (${value.kind})</h3>
    ${value.problem && html`<p class="quiet">${t("Not shown as asked")}: ${visible(value.problem, 200)}</p>`}
    <bdi><${Code} text=${value.text} /></bdi>
    <h3>${t("Headers")}</h3>
    <${Headers} headers=${record.headers} />
    <footer class="tools">${record.offset != null && html`<a href=${again} onClick=${close}>${t("Send it again, or changed")}</a>
      <a href=${lifeOf(topic, record)} onClick=${close}>${t("A message's life")}</a>`}</footer>
  <//>`;
}
