// Queues: what a share group has in flight and waiting, and the delayed, half and parked messages.
import { html } from "../vendor/preact.js";
import { at, get, useData, words } from "../api.js";
import { useAction } from "../action.js";
import { count, line, span, time, topicText, visible, weekday } from "../format.js";
import { go, link } from "../route.js";
import { Empty, Field, Figure, Loaded, Table, Title, TOPIC_NAME } from "../ui.js";
import { t } from "../words.js";

export const Page = ({ path, query }) => {
  if (path.length > 1) return html`<${Queue} topic=${topicText(path[0])} group=${path[1]} />`;
  return path.length ? html`<${Waiting} topic=${topicText(path[0])} day=${query.day} />` : html`<${List} />`;
};

function List() {
  const state = useData((signal) => get("/v1/groups", { type: "share", limit: 1000 }, signal), []);
  const open = (event) => {
    event.preventDefault();
    const { topic, group } = event.target.elements;
    go(["queues", topic.value, ...(group.value ? [group.value] : [])]);
  };
  return html`<${Title} text=${t("Queues")} />
    <p>${t("A queue is a topic that a share group consumes.")}</p>
    <${Loaded} state=${state}>${({ groups }) => (groups.length === 0
      ? html`<${Empty} text=${t("No share group yet. Receive with one:")} command="headrace queue receive orders workers --ack" />`
      : html`<${Table} label=${t("Share groups")} rows=${groups} keyOf=${(one) => one.group} columns=${[
          { name: t("Group"), cell: (one) => html`<a href=${link(["groups", one.group])}><bdi>${visible(one.group, 200)}</bdi></a>` },
          { name: t("State"), cell: (one) => one.state },
        ]} />`)}<//>
    <form class="filters" onSubmit=${open}>
      <${Field} label=${t("Topic")}><input name="topic" required ...${TOPIC_NAME} /><//>
      <${Field} label=${t("Group")}><input name="group" /><//>
      <button>${t("Open")}</button></form>`;
}

// By partition, how old the first unfinished message is, in ms; none if that is not known: the group received
// nothing yet, or its coordinator is away, and the rest of the page is still of use.
async function agesOf(topic, group, signal) {
  try {
    const { offsets } = await get(at("groups", group, "offsets"), { loaded: true }, signal); // reads no record
    return new Map(offsets.filter((one) => one.topic === topic).map((one) => [one.partition, one.lag_ms]));
  } catch (problem) {
    if (problem.name === "AbortError") throw problem;
    return new Map();
  }
}

// The greatest known age; "at least" where that of a partition with messages is not known.
function oldest({ partitions, ages }) {
  const known = [...ages.values()].filter((one) => one !== null && one !== undefined);
  const age = span(Math.max(-1, ...known));
  const isPart = known.length > 0 && partitions.some((one) => one.lag > 0 && (ages.get(one.partition) ?? null) === null);
  return isPart ? t("at least {age}", { age }) : age;
}

function Queue({ topic, group }) {
  const path = at("queues", topic, group);
  const state = useData((signal) => Promise.all([
    get(path, {}, signal), get(`${path}/parked`, { limit: 100 }, signal), agesOf(topic, group, signal),
  ]).then(([queue, { parked }, ages]) => ({ ...queue, parked, ages })), [path]);
  const [dialog, start] = useAction();
  const unpark = (one) => start({
    title: t("Unpark the key"), method: "POST", path: `${path}/unpark`,
    body: { keys: [one.key], ...(one.key_encoding && { key_encoding: one.key_encoding }) },
    cli: one.key_encoding ? undefined : words("headrace", "backlog", "unpark", group, topic, "--", one.key),
    hasDryRun: true,
    preview: ({ released, records }) => html`<p>${released ? t("Its {n} known messages are delivered again, from the first on.", { n: count(records) }) : t("The key is not parked any more.")}</p>`,
    after: state.again,
  });
  const park = (event) => {
    event.preventDefault();
    const key = event.target.elements.key.value;
    start({
      title: t("Park the key"), method: "POST", path: `${path}/park`, body: { keys: [key] },
      cli: words("headrace", "backlog", "park", group, topic, "--", key),
      hasDryRun: true,
      preview: ({ parked, records }) => html`<p>${t("Messages with the key {key} are set aside, and stay in the topic, in order; others are still delivered.", { key: visible(key, 200) })}</p>
        <p>${parked ? t("{n} of them are known now; more may follow.", { n: count(records) }) : t("The key is parked already.")}</p>`,
      after: state.again,
    });
  };
  const sum = (name, partitions) => partitions.reduce((total, one) => total + one[name], 0);
  return html`<${Title} text=${`${topic} · ${visible(group, 200)}`}>
      <a href=${link(["queues", topic])}>${t("Delayed and half messages")}</a>
      <button onClick=${state.again}>${t("Read again")}</button><//>
    <${Loaded} state=${state}>${(data) => html`
      <dl class="figures">
        <${Figure} name=${t("Waiting")} value=${count(sum("lag", data.partitions) - sum("in_flight", data.partitions))} />
        <${Figure} name=${t("In flight")} value=${count(sum("in_flight", data.partitions))} />
        <${Figure} name=${t("Oldest")} value=${oldest(data)} note=${t("age of the oldest unfinished message")} />
        <${Figure} name=${t("Redelivered")} value=${count(sum("redelivered", data.partitions))} note=${t("unfinished, and delivered before")} />
        <${Figure} name=${t("Deliveries at most")} value=${count(data.delivery_count_limit)} />
        <${Figure} name=${t("Dead letters")} value=${data.dead_letter_topic ? html`<a href=${link(["dead-letters", data.dead_letter_topic])}>${data.dead_letter_topic}</a>` : t("none")} />
      </dl>
      <${Table} label=${t("Partitions")} rows=${data.partitions} keyOf=${(one) => one.partition} columns=${[
        { name: t("Partition"), isNumber: true, cell: (one) => one.partition },
        { name: t("First unfinished"), isNumber: true, cell: (one) => html`<a href=${link(["topics", topic], { from: "offset", partition: one.partition, offset: one.start_offset })}>${count(one.start_offset)}</a>` },
        { name: t("In flight"), isNumber: true, cell: (one) => count(one.in_flight) },
        { name: t("Lag"), isNumber: true, cell: (one) => count(one.lag) },
        { name: t("Redelivered"), isNumber: true, cell: (one) => count(one.redelivered) },
        { name: t("Lag in time"), isNumber: true, cell: (one) => span(data.ages.get(one.partition)) },
      ]} />
      <h2>${t("Parked keys")}</h2>
      <form class="filters" onSubmit=${park}><${Field} label=${t("Key")}><input name="key" required maxlength="4096" autocomplete="off" spellcheck="false" /><//>
        <button>${t("Park the key")}</button></form>
      ${data.parked.length === 0 ? html`<p class="quiet">${t("none")}</p>` : html`<${Table} label=${t("Parked keys")} rows=${data.parked} keyOf=${(one) => `${one.partition} ${one.key}`} columns=${[
        { name: t("Key"), cell: (one) => html`<bdi class="line">${line(one.key, one.key_encoding)}</bdi>` },
        { name: t("Records"), isNumber: true, cell: (one) => count(one.records) },
        { name: t("Since"), cell: (one) => time(one.parked_ms) },
        { name: t("Action"), cell: (one) => html`<button onClick=${() => unpark(one)}>${t("Unpark the key")}</button>` },
      ]} />`}`}<//>
    ${dialog}`;
}

const DELAYED_MAX = 1000;
const DAY_MS = 86_400_000;
const WEEKS_MAX = 6;
const two = (number) => String(number).padStart(2, "0");
const dayName = (date) => `${date.getFullYear()}-${two(date.getMonth() + 1)}-${two(date.getDate())}`;
const dayOf = (one) => dayName(new Date(one.due_ms));

// The weeks in which messages are due, from the first on: how many, by day.
function Calendar({ topic, delayed, isCut, day }) {
  const counts = new Map();
  for (const one of delayed) counts.set(dayOf(one), (counts.get(dayOf(one)) ?? 0) + 1);
  const first = new Date(Math.min(...delayed.map((one) => one.due_ms)));
  first.setHours(12, 0, 0, 0);
  const monday = first.getTime() - ((first.getDay() + 6) % 7) * DAY_MS;
  const last = Math.max(...delayed.map((one) => one.due_ms));
  const weeks = Math.min(WEEKS_MAX, Math.floor((last - monday + DAY_MS / 2) / (7 * DAY_MS)) + 1);
  const rows = Array.from({ length: weeks }, (_, week) => Array.from({ length: 7 }, (__, at) => new Date(monday + (7 * week + at) * DAY_MS)));
  const cell = (date) => {
    const name = dayName(date);
    const n = counts.get(name);
    const shown = html`${date.getDate()}${n && html` <b>${isCut && "≥ "}${count(n)}</b>`}`;
    return n ? html`<a href=${link(["queues", topic], { day: name })} aria-current=${name === day ? "date" : undefined}>${shown}</a>` : html`<span class="quiet">${shown}</span>`;
  };
  return html`<${Table} label=${t("Calendar")} rows=${rows} keyOf=${(week) => week[0].getTime()}
      columns=${rows[0].map((date, at) => ({ name: weekday(date), cell: (week) => cell(week[at]) }))} />
    <p class="quiet">${isCut && `${t("≥: of the first {n} messages.", { n: count(DELAYED_MAX) })} `}${weeks === WEEKS_MAX && `${t("{n} weeks are shown; later messages are in the list.", { n: WEEKS_MAX })} `}${day && html`<a href=${link(["queues", topic])}>${t("All days")}</a>`}</p>`;
}

// What a dry run found to change: how many messages, in the field of this name, or why none.
const willOr = (field, will) => ({ results: [one] }) => (one[field]
  ? html`<p>${will}</p>${one[field] > 1 && html`<p>${t("{n} messages have this id.", { n: count(one[field]) })}</p>`}`
  : html`<p>${t("Nothing would change: the message does not wait any more.")} ${one.error && visible(one.error, 300)}</p>`);

function Waiting({ topic, day }) {
  const state = useData((signal) => Promise.all([
    get(at("topics", topic, "delayed"), { limit: DELAYED_MAX }, signal), get(at("topics", topic, "half"), { limit: 200 }, signal),
  ]).then(([delayed, half]) => ({ delayed: delayed.delayed, isCut: Boolean(delayed.next_page_token), half: half.half, reads: delayed.reads_attributes })), [topic]);
  const [dialog, start] = useAction();
  const cancel = (one) => start({
    title: t("Cancel the message"), method: "POST", path: at("topics", topic, "delayed", "cancel"), body: { receipts: [one.receipt] },
    confirm: topic, cli: words("headrace", "delayed", "cancel", topic, one.receipt),
    hasDryRun: true, preview: willOr("cancelled", t("The message of {when} will not be delivered. This cannot be undone.", { when: time(one.due_ms) })), after: state.again,
  });
  const deliver = (one) => start({
    title: t("Deliver now"), method: "POST", path: at("topics", topic, "delayed", "deliver"), body: { receipts: [one.receipt] },
    cli: words("headrace", "delayed", "deliver", topic, one.receipt),
    hasDryRun: true, preview: willOr("delivered", t("The message of {when} is delivered at once.", { when: time(one.due_ms) })), after: state.again,
  });
  const settle = (one, verb) => start({
    title: verb === "commit" ? t("Commit") : t("Roll back"), method: "POST", path: at("topics", topic, "half", "settle"), body: { [verb]: [{ message_id: one.message_id }] },
    confirm: topic, cli: words("headrace", "half", verb, topic, one.message_id),
    hasDryRun: true, preview: willOr("settled_now", t("Settles a half message of {group} by hand, in place of its producer.", { group: visible(one.group, 200) })), after: state.again,
  });
  return html`<${Title} text=${topic}><button onClick=${state.again}>${t("Read again")}</button><//>
    <${Loaded} state=${state}>${(data) => html`
      ${!data.reads && html`<div class="note">${t("This topic does not read attributes of messages: nothing in it is delayed (headrace.message.attributes).")}</div>`}
      <h2>${t("Delayed messages")}</h2>
      ${data.delayed.length === 0 ? html`<p class="quiet">${t("none")}</p>` : html`<${Calendar} topic=${topic} delayed=${data.delayed} isCut=${data.isCut} day=${day} />
        <${Table} label=${t("Delayed messages")} rows=${data.delayed.filter((one) => !day || dayOf(one) === day)} keyOf=${(one) => one.receipt} columns=${[
        { name: t("Due"), cell: (one) => `${time(one.due_ms)} (${span(one.due_ms - Date.now())})` },
        { name: t("Partition"), isNumber: true, cell: (one) => one.partition },
        { name: t("Key"), cell: (one) => html`<bdi class="line">${line(one.key)}</bdi>` },
        { name: t("Message"), cell: (one) => html`<bdi class="line">${line(one.message_id)}</bdi>` },
        { name: t("Action"), cell: (one) => html`<div class="tools"><button onClick=${() => deliver(one)}>${t("Deliver now")}</button><button onClick=${() => cancel(one)}>${t("Cancel the message")}</button></div>` },
      ]} />`}
      <h2>${t("Half messages")}</h2>
      ${data.half.length === 0 ? html`<p class="quiet">${t("none")}</p>` : html`<${Table} label=${t("Half messages")} rows=${data.half} keyOf=${(one) => one.receipt} columns=${[
        { name: t("Age"), isNumber: true, cell: (one) => span(Math.max(Date.now() - one.received_ms, 0)) },
        { name: t("Received"), cell: (one) => time(one.received_ms) },
        { name: t("Producer group"), cell: (one) => html`<bdi>${visible(one.group, 200)}</bdi>` },
        { name: t("Message"), cell: (one) => html`<bdi class="line">${line(one.message_id)}</bdi>` },
        { name: t("Check-backs"), isNumber: true, cell: (one) => count(one.checks) },
        { name: t("Action"), cell: (one) => html`<div class="tools"><button onClick=${() => settle(one, "commit")}>${t("Commit")}</button><button onClick=${() => settle(one, "rollback")}>${t("Roll back")}</button></div>` },
      ]} />`}`}<//>
    ${dialog}`;
}
