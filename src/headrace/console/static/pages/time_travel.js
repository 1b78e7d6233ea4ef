// A topic at a moment: its offsets then, how far a group is from there, and what a key was.
import { html, useState } from "../vendor/preact.js";
import { at, get, useData, words } from "../api.js";
import { contents } from "../contents.js";
import { count, time, visible } from "../format.js";
import { lifeOf, placeOf } from "./life.js";
import { resetAction } from "./groups.js";
import { link, setQuery } from "../route.js";
import { Code, Empty, Field, Loaded, Select, Table } from "../ui.js";
import { t } from "../words.js";

const PARTITIONS_MAX = 64;
const STEPS = 1000;
const GROUPS_MAX = 200;
const PAGES_MAX = 20;
const PAGE = 200;

const records = (topic, partition, place, signal) => get(at("topics", topic, "records"), { partition, max: 1, ...place }, signal);

// The oldest and newest moment of a topic, as its partitions are now.
async function spanOf(topic, numbers, signal) {
  const firsts = await Promise.all(numbers.map(async (partition) => {
    const probe = await records(topic.name, partition, { timestamp_ms: 0 }, signal);
    return probe.records[0]?.timestamp_ms;
  }));
  const known = firsts.filter((one) => one !== undefined);
  return known.length ? { from: Math.min(...known), to: Date.now() } : null;
}

export function TimeTravel({ topic, query, start }) {
  const numbers = topic.partitions.slice(0, PARTITIONS_MAX).map((one) => one.partition);
  const state = useData((signal) => spanOf(topic, numbers, signal), [topic.name]);
  return html`<${Loaded} state=${{ ...state, data: state.isLoading ? null : state.data ?? {} }}>${(range) => (range.from === undefined
    ? html`<${Empty} text=${t("No messages yet: here is how to send one.")} command=${`echo 'hello' | ${words("headrace", "produce", topic.name)}`} />`
    : html`<${Moment} topic=${topic} numbers=${numbers} range=${range} query=${query} start=${start} />`)}<//>`;
}

function Moment({ topic, numbers, range, query, start }) {
  const asked = Number(query.at);
  const moment = query.at && Number.isFinite(asked) ? Math.min(Math.max(asked, range.from), range.to) : range.to;
  const [dragged, setDragged] = useState(null);
  const choose = (event) => { setDragged(null); setQuery({ at: event.target.value }); };
  return html`<div class="filters">
      <${Field} label=${t("Moment")}><input class="wide" type="range" min=${range.from} max=${range.to} step=${Math.max(Math.floor((range.to - range.from) / STEPS), 1)} value=${dragged ?? moment}
        aria-valuetext=${time(dragged ?? moment)} onInput=${(event) => setDragged(Number(event.target.value))} onChange=${choose} /><//>
      <${Field} label=${t("Time")}><input type="datetime-local" step="0.001" value=${local(moment)} onChange=${(event) => event.target.value && setQuery({ at: Date.parse(event.target.value) })} /><//>
    </div>
    <p role="status">${time(dragged ?? moment)}</p>
    <${Offsets} topic=${topic} numbers=${numbers} moment=${moment} query=${query} start=${start} />
    <${Groups} topic=${topic} moment=${moment} start=${start} />
    <h2>${t("A key then and now")}</h2>
    <div class="filters"><${Field} label=${t("Key")}><input value=${query.key ?? ""} autocomplete="off" onChange=${(event) => setQuery({ key: event.target.value })} /><//></div>
    ${query.key && html`<${KeyState} topic=${topic.name} wanted=${query.key} moment=${moment} />`}`;
}

// As an input of the type datetime-local has it: in the browser's zone of time.
const local = (ms) => new Date(ms - new Date(ms).getTimezoneOffset() * 60_000).toISOString().slice(0, 23);

// --- offsets -------------------------------------------------------------------------------------

function Offsets({ topic, numbers, moment, query, start }) {
  const groups = useData((signal) => get("/v1/groups", { limit: GROUPS_MAX }, signal), []);
  const offsets = useData(async (signal) => {
    const places = Promise.all(numbers.map(async (partition) => {
      const found = await records(topic.name, partition, { timestamp_ms: moment }, signal);
      return { partition, then: found.records[0]?.offset ?? found.next_offset, end: found.end_offset };
    }));
    const group = query.group ? get(at("groups", query.group, "offsets"), {}, signal) : { offsets: [] };
    const mine = (await group).offsets.filter((one) => one.topic === topic.name);
    return (await places).map((one) => ({ ...one, group: mine.find((other) => other.partition === one.partition)?.offset }));
  }, [topic.name, moment, query.group]);
  const reset = (rows) => start(resetAction(query.group, rows.filter((one) => one.group !== undefined).map((one) => ({ topic: topic.name, partition: one.partition, offset: one.group })),
    { timestamp_ms: moment }, ["--to", new Date(moment).toISOString()], offsets.again));
  return html`<div class="filters"><${Select} label=${t("Group")} value=${query.group ?? ""} onChange=${(group) => setQuery({ group })}
      options=${[["", "–"], ...(groups.data?.groups ?? []).map((one) => [one.group, visible(one.group, 100)])]} /></div>
    <${Loaded} state=${offsets}>${(rows) => {
      const known = rows.filter((one) => one.group !== undefined);
      const again = known.reduce((sum, one) => sum + Math.max(one.group - one.then, 0), 0);
      const skipped = known.reduce((sum, one) => sum + Math.max(one.then - one.group, 0), 0);
      return html`${numbers.length < topic.partitions.length && html`<p class="quiet">${t("Only the first {n} partitions are shown.", { n: numbers.length })}</p>`}
        <${Table} label=${t("Offsets")} rows=${rows} keyOf=${(one) => one.partition} columns=${[
          { name: t("Partition"), isNumber: true, cell: (one) => one.partition },
          { name: t("Offset then"), isNumber: true, cell: (one) => count(one.then) },
          { name: t("Messages since"), isNumber: true, cell: (one) => count(one.end - one.then) },
          ...(query.group ? [{ name: t("The group's offset now"), isNumber: true, cell: (one) => count(one.group) }] : []),
        ]} />
        ${query.group && (known.length === 0
          ? html`<p class="quiet">${t("The group has no offsets in this topic.")}</p>`
          : html`<p>${t("From there, {again} records are consumed again and {skipped} are skipped.", { again: count(again), skipped: count(skipped) })}
              <button onClick=${() => reset(rows)}>${t("Reset the group to this moment")}</button></p>`)}`;
    }}<//>`;
}

// --- what groups had committed -------------------------------------------------------------------

const UNKNOWN = {
  trimmed: () => t("Unknown: a snapshot has replaced the commits of that time."),
  in_transaction: () => t("Unknown: it may have been in a transaction that had not ended."),
  too_large: () => t("Unknown: the log of offsets is too long to be read for this."),
};

function Groups({ topic, moment, start }) {
  const path = at("topics", topic.name, "past-offsets");
  const state = useData((signal) => get(path, { at_ms: moment }, signal), [topic.name, moment]);
  const reset = async ({ group, offsets }) => {
    const now = new Map((await get(at("groups", group, "offsets"))).offsets.filter((one) => one.topic === topic.name).map((one) => [one.partition, one.offset]));
    const places = offsets.filter((one) => one.offset !== null)
      .map((one) => ({ topic: topic.name, partition: one.partition, offset: now.get(one.partition), target: { offset: one.offset } }));
    start(resetAction(group, places, {}, ["--as-of", new Date(moment).toISOString()], state.again));
  };
  return html`<h2>${t("What groups had committed then")}</h2>
    <${Loaded} state=${state}>${({ groups, is_partial: isPartial }) => html`
      ${isPartial && html`<div class="note bad">${t("There are more: a broker did not answer, or there are too many for one answer.")}</div>`}
      ${groups.length === 0 ? html`<p class="quiet">${t("No group is known to have committed an offset in this topic.")}</p>`
        : html`<${Table} label=${t("What groups had committed then")} rows=${groups.slice(0, GROUPS_MAX)} keyOf=${(one) => one.group} columns=${[
          { name: t("Group"), cell: (one) => html`<a href=${link(["groups", one.group])}><bdi>${visible(one.group, 100)}</bdi></a>` },
          { name: t("Offsets then, by partition"), cell: ({ offsets }) => html`<${Then} offsets=${offsets} />` },
          { name: t("Reset"), cell: (one) => one.offsets.some(({ offset }) => offset !== null)
            && html`<button aria-label=${t("Reset {group} to these offsets", { group: one.group })} onClick=${() => reset(one)}>${t("Reset to these")}</button>` },
        ]} />`}`}<//>
    <p class="quiet">${t("Share groups commit no offsets.")}</p>`;
}

// Known offsets, then why others are not known.
function Then({ offsets }) {
  const shown = offsets.filter((one) => one.state === "committed" || one.state === "none").map((one) => `${one.partition}: ${one.offset === null ? t("none") : count(one.offset)}`);
  const reasons = [...new Set(offsets.map((one) => one.state).filter((one) => UNKNOWN[one]))];
  const having = (reason) => offsets.filter((one) => one.state === reason).map((one) => one.partition).join(", ");
  return html`${shown.join(" \u00b7 ")}${reasons.map((one) => html`<div class="quiet">${having(one)}: ${UNKNOWN[one]()}</div>`)}`;
}

// --- a key ---------------------------------------------------------------------------------------

// The newest message of a key before a moment (or of all). Holds one page of messages at a time.
async function newest(topic, key, untilMs, signal) {
  let [found, token, seen] = [null, undefined, 0];
  for (let turn = 0; turn < PAGES_MAX; turn += 1) {
    const page = await get(at("topics", topic, "messages"), { key, until_ms: untilMs, limit: PAGE, page_token: token }, signal);
    for (const one of page.messages.filter((message) => message.topic === topic && message.offset !== undefined)) {
      seen += 1;
      const isNewer = !found || (one.partition === found.partition ? one.offset > found.offset : one.timestamp_ms >= found.timestamp_ms);
      if (isNewer) found = one;
    }
    token = page.next_page_token;
    if (!token) break;
  }
  return { found, seen, isCut: token !== undefined };
}

function KeyState({ topic, wanted, moment }) {
  const state = useData((signal) => Promise.all([newest(topic, wanted, moment + 1, signal), newest(topic, wanted, undefined, signal)]), [topic, wanted, moment]);
  return html`<${Loaded} state=${state}>${([then, now]) => {
    const isSame = then.found?.offset === now.found?.offset && then.found?.partition === now.found?.partition;
    return html`<p role="status"><strong>${isSame ? t("It is the same now.") : t("It has changed since, {n} times.", { n: count(now.seen - then.seen) })}</strong></p>
      ${(then.isCut || now.isCut) && html`<div class="note bad">${t("The key has too many messages to read all: this is the newest of the first ones.")}</div>`}
      <${State} title=${t("Then")} topic=${topic} message=${then.found} /><${State} title=${t("Now")} topic=${topic} message=${now.found} />
      <p class="quiet">${t("Compaction and retention remove older messages: what they have removed is not seen here.")}</p>`;
  }}<//>`;
}

function State({ title, topic, message }) {
  if (!message) return html`<h3>${title}</h3><p class="quiet">${t("No message of this key.")}</p>`;
  const shown = contents(message, "auto");
  return html`<h3>${title}</h3><p><a href=${lifeOf(topic, message)}>${placeOf(message)}</a> · ${time(message.timestamp_ms)} · ${message.value === null ? t("deleted") : shown.kind}</p>
    ${message.value !== null && html`<bdi><${Code} text=${shown.text} /></bdi>`}`;
}
