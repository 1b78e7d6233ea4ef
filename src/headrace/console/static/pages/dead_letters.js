// The desk of dead letters: by cause and one by one; chosen, looked at, sent back after a dry run.
import { html, useState } from "../vendor/preact.js";
import { address, at, get, useData, words } from "../api.js";
import { useAction } from "../action.js";
import { count, line, time, topicText, visible } from "../format.js";
import { LETTERS_MAX, redriveAction } from "../redrive.js";
import { go, link, setQuery } from "../route.js";
import { Empty, Field, Forms, Loaded, More, Select, Table, Title, TOPIC_NAME } from "../ui.js";
import { t } from "../words.js";
import { Jobs } from "./jobs.js";
import { Letter, Origin } from "./letter.js";

const PAGE = 100;
const LOOP_MAX = 3; // what a redrive keeps to unless told otherwise
const placeOf = (one) => `${one.partition}:${one.letter_offset}`;

export const Page = ({ path, query }) => {
  const [address = "", partition, offset] = path;
  const name = topicText(address);
  if (offset !== undefined) return html`<${Letter} topic=${name} partition=${partition} offset=${offset} />`;
  return name ? html`<${Desk} name=${name} query=${query} />` : html`<${List} />`;
};

function List() {
  const state = useData((signal) => get("/v1/dead-letters", { limit: 1000 }, signal), []);
  const open = (event) => {
    event.preventDefault();
    go(["dead-letters", event.target.elements.topic.value]);
  };
  return html`<${Title} text=${t("Dead letters")} />
    <p>${t("What share groups gave up is copied to the topic that they name for it.")}</p>
    <${Loaded} state=${state}>${({ topics }) => (topics.length === 0
      ? html`<${Empty} text=${t("No group names a topic for dead letters. Name one:")} command="headrace config set errors.deadletterqueue.topic.name=orders.dead --group billing" />`
      : html`<${Table} label=${t("Dead letters")} rows=${topics} keyOf=${(one) => one.name} columns=${[
          { name: t("Topic"), cell: (one) => html`<a href=${link(["dead-letters", one.name])}>${one.name}</a>` },
          { name: t("Records"), isNumber: true, cell: (one) => count(one.records) },
        ]} />`)}<//>
    <form class="filters" onSubmit=${open}>
      <${Field} label=${t("Another topic (of Spring or Connect, too)")}><input name="topic" required ...${TOPIC_NAME} /><//>
      <button>${t("Open")}</button></form>`;
}

function Desk({ name, query }) {
  const [turn, setTurn] = useState(0);
  const [chosen, setChosen] = useState(() => new Set());
  const [rate, setRate] = useState("");
  const [loopMax, setLoopMax] = useState("");
  const [dialog, start] = useAction();
  const path = at("dead-letters", name);
  const state = useData((signal) => get(path, {}, signal), [name, turn]);
  const changed = () => {
    setChosen(new Set());
    setTurn((before) => before + 1);
  };
  const redrive = (wanted) => start(redriveAction(name, { ...wanted, ...(rate && { rate: Number(rate) }), ...(loopMax && { loop_max: Number(loopMax) }) }, changed));
  return html`<${Title} text=${name}>
      <${Field} label=${t("Records a second at most")}><input type="number" min="1" max="1000000" value=${rate} onInput=${(event) => setRate(event.target.value)} /><//>
      <${Field} label=${t("Sent back at most (times)")}><input type="number" min="1" max="1000" placeholder=${LOOP_MAX} value=${loopMax} onInput=${(event) => setLoopMax(event.target.value)} /><//>
      <button onClick=${() => redrive({})}>${t("Send all back")}</button>
      <button onClick=${changed}>${t("Read again")}</button><//>
    <${Loaded} state=${state}>${(data) => html`
      <p role="status">${t("{n} dead letters that were not sent back", { n: `${data.is_complete ? "" : "≥ "}${count(data.records)}` })}</p>
      ${data.causes.length === 0
        ? html`<div class="note good">${t("There are no dead letters.")}</div>`
        : html`<${Causes} name=${name} causes=${data.causes} redrive=${redrive} />
            <h2>${t("Letters")}</h2>
            <${Letters} name=${name} causes=${data.causes} query=${query} turn=${turn} chosen=${chosen} setChosen=${setChosen} redrive=${redrive} />`}`}<//>
    <h2>${t("Redrives")}</h2>
    <${Jobs} kinds=${["redrives"]} topic=${name} turn=${turn} changed=${changed} />
    ${dialog}`;
}

function Causes({ name, causes, redrive }) {
  const filter = (cause) => ({ ...(cause.group && { group: cause.group }), ...(cause.reason && { reason: cause.reason }) });
  return html`<${Table} label=${t("Causes")} rows=${causes} keyOf=${(one) => `${one.origin} ${one.group} ${one.reason} ${one.format}`} columns=${[
    { name: t("Reason"), cell: (one) => html`<a href=${link(["dead-letters", name], { origin: one.origin, ...filter(one) })}><bdi class="line">${visible(one.reason || "–", 500)}</bdi></a>` },
    { name: t("Consumer"), cell: (one) => (one.group ? html`<bdi>${visible(one.group, 200)}</bdi>` : "–") },
    { name: t("Origin"), cell: (one) => (one.origin ? html`<bdi>${visible(one.origin, 249)}</bdi>` : "–") },
    { name: t("Records"), isNumber: true, cell: (one) => count(one.count) },
    { name: t("Last"), cell: (one) => time(one.last_ms) },
    { name: t("Action"), cell: (one) => html`<button aria-label=${`${t("Send back")}: ${visible(one.reason || "–", 100)}`} onClick=${() => redrive(filter(one))}>${t("Send back")}</button>` },
  ]} />`;
}

const FILTERS = ["origin", "group", "reason", "since", "until"];
const toMs = (local) => (local ? Math.max(Date.parse(local) || 0, 0) : "");

function Letters({ name, causes, query, turn, chosen, setChosen, redrive }) {
  const [further, setFurther] = useState([]);
  const path = at("dead-letters", name, "letters");
  const asked = {
    ...Object.fromEntries(["origin", "group", "reason"].map((one) => [one, query[one]])),
    since_ms: toMs(query.since), until_ms: toMs(query.until), limit: PAGE,
  };
  const keys = FILTERS.map((one) => query[one] ?? "");
  const state = useData((signal) => {
    setFurther([]);
    setChosen(new Set());
    return get(path, asked, signal);
  }, [name, turn, ...keys]);
  const more = async (token) => setFurther([...further, await get(path, { ...asked, page_token: token })]);
  const options = (part) => [["", t("all")], ...[...new Set(causes.map((one) => one[part]).filter(Boolean))].map((one) => [one, visible(one, 100)])];
  const choice = (part, label) => html`<${Select} label=${label} value=${query[part] ?? ""} options=${options(part)} onChange=${(value) => setQuery({ [part]: value })} />`;
  const field = (part, label, type) => html`<${Field} label=${label}><input type=${type} step=${type === "text" ? undefined : "1"} value=${query[part] ?? ""} onChange=${(event) => setQuery({ [part]: event.target.value })} /><//>`;
  const cli = words("headrace", "dead", "show", name, ...["origin", "group", "reason"].filter((one) => query[one]).map((one) => `--${one}=${query[one]}`),
    ...["since", "until"].filter((one) => query[one]).map((one) => `--${one}=@${toMs(query[one])}`), `--count=${PAGE}`);
  return html`<div class="filters">
      ${field("reason", t("Reason contains"), "text")}${choice("group", t("Consumer"))}${choice("origin", t("Origin"))}
      ${field("since", t("Message since"), "datetime-local")}${field("until", t("Message until"), "datetime-local")}
      ${keys.some(Boolean) && html`<a href=${link(["dead-letters", name])}>${t("All letters")}</a>`}</div>
    <${Loaded} state=${state}>${(data) => {
      const pages = [data, ...further];
      const rows = pages.flatMap((one) => one.letters);
      if (rows.length === 0) return html`<div class="note">${t("No letter is like that.")}</div>`;
      const places = rows.map(placeOf).slice(0, LETTERS_MAX);
      const wanted = chosen.size ? [...chosen] : places;
      const toggle = (place) => {
        const next = new Set(chosen);
        if (!next.delete(place) && next.size < LETTERS_MAX) next.add(place);
        setChosen(next);
      };
      return html`<p class="tools"><button onClick=${() => redrive({ letters: wanted })}>${chosen.size
          ? t("Send the {n} chosen back", { n: count(wanted.length) }) : t("Send the {n} shown back", { n: count(wanted.length) })}</button></p>
        <${Table} label=${t("Letters")} rows=${rows} keyOf=${placeOf} columns=${[
          { name: t("Choose"), cell: (one) => html`<input type="checkbox" aria-label=${t("Choose {place}", { place: placeOf(one) })} checked=${chosen.has(placeOf(one))} onChange=${() => toggle(placeOf(one))} />` },
          { name: t("Letter"), cell: (one) => html`<a href=${link(["dead-letters", name, one.partition, one.letter_offset])}>${placeOf(one)}</a>${one.edits.length > 0 && html` <small>${t("edited")}</small>`}` },
          { name: t("Message of"), cell: (one) => time(one.record.timestamp_ms) },
          { name: t("Reason"), cell: (one) => html`<bdi class="line">${visible(one.reason || "–", 300)}</bdi>` },
          { name: t("Consumer"), cell: (one) => html`<bdi>${visible(one.group ?? "–", 200)}</bdi>` },
          { name: t("Origin"), cell: (one) => html`<${Origin} letter=${one} />` },
          { name: t("Deliveries"), isNumber: true, cell: (one) => count(one.deliveries) },
          { name: t("Key"), cell: (one) => html`<bdi class="line">${line(one.record.key, one.record.key_encoding)}</bdi>` },
          { name: t("Value"), cell: (one) => html`<bdi class="line">${line(one.record.value, one.record.value_encoding)}</bdi>` },
        ]} />
        ${!data.is_complete && html`<p class="quiet">${t("Only the first records of the topic were read: send some back to see the others.")}</p>`}
        <${More} token=${pages.at(-1).next_page_token} load=${more} />`;
    }}<//>
    <details><summary>${t("These letters elsewhere: command line, HTTP, Python")}</summary><${Forms} cli=${cli} path=${address(path, asked)} /></details>`;
}
