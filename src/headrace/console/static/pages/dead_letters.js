// The desk of dead letters: by cause and consumer, with samples, sent back after a dry run.
import { html, useState } from "../vendor/preact.js";
import { at, get, useData, words } from "../api.js";
import { useAction } from "../action.js";
import { count, line, time, visible } from "../format.js";
import { go, link } from "../route.js";
import { runTask } from "../task.js";
import { Empty, Field, Loaded, PageForms, Table, Title } from "../ui.js";
import { t } from "../words.js";

export const Page = ({ path }) => (path.length ? html`<${Desk} name=${path[0]} />` : html`<${List} />`);

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
      <${Field} label=${t("Another topic (of Spring or Connect, too)")}><input name="topic" required pattern="[a-zA-Z0-9._\\-]+" /><//>
      <button>${t("Open")}</button></form>
    <${PageForms} path="/v1/dead-letters" />`;
}

function Desk({ name }) {
  const path = at("dead-letters", name);
  const state = useData((signal) => get(path, {}, signal), [name]);
  const [dialog, start] = useAction();
  const [rate, setRate] = useState("");
  const redrive = (cause) => {
    const filter = cause ? { ...(cause.group && { group: cause.group }), ...(cause.reason && { reason: cause.reason }) } : {};
    const paced = rate ? { rate: Number(rate) } : {};
    const options = Object.entries({ ...filter, ...paced }).flatMap(([key, value]) => [`--${key}`, value]);
    start({
      title: t("Send back"), method: "POST", path: "/v1/redrives", confirm: name,
      body: { topic: name, ...filter, ...paced }, cli: words("headrace", "dead", "redrive", name, ...options),
      dryRun: () => runTask("/v1/redrives", { topic: name, ...filter, dry_run: true }),
      preview: (task) => html`<p>${t("Each record goes back once, in the order of its partition and key, to the topic that it came from.")}</p><${Outcome} task=${task} />`,
      run: () => runTask("/v1/redrives", { topic: name, ...filter, ...paced }),
      done: (task) => html`<${Outcome} task=${task} />`,
      after: state.again,
    });
  };
  return html`<${Title} text=${name}>
      <${Field} label=${t("Records a second at most")}><input type="number" min="1" max="1000000" value=${rate} onInput=${(event) => setRate(event.target.value)} /><//>
      <button onClick=${() => redrive(null)}>${t("Send all back")}</button>
    <//>
    <${Loaded} state=${state}>${(data) => html`
      <p role="status">${t("{n} dead letters that were not sent back", { n: `${data.is_complete ? "" : "≥ "}${count(data.records)}` })}</p>
      ${data.causes.length === 0
        ? html`<div class="note good">${t("There are no dead letters.")}</div>`
        : html`<${Table} label=${t("Causes")} rows=${data.causes} keyOf=${(one) => `${one.origin} ${one.group} ${one.reason} ${one.format}`} columns=${[
            { name: t("Reason"), cell: (one) => html`<bdi class="line">${visible(one.reason || "–", 500)}</bdi>` },
            { name: t("Consumer"), cell: (one) => (one.group ? html`<bdi>${visible(one.group, 200)}</bdi>` : "–") },
            { name: t("Origin"), cell: (one) => (one.origin ? html`<bdi>${visible(one.origin, 249)}</bdi>` : "–") },
            { name: t("Records"), isNumber: true, cell: (one) => count(one.count) },
            { name: t("Last"), cell: (one) => time(one.last_ms) },
            { name: t("Samples"), cell: (one) => html`<${Samples} topic=${name} places=${one.samples} />` },
            { name: t("Action"), cell: (one) => html`<button aria-label=${`${t("Send back")}: ${visible(one.reason, 100)}`} onClick=${() => redrive(one)}>${t("Send back")}</button>` },
          ]} />`}
      <p><button onClick=${state.again}>${t("Read again")}</button></p>`}<//>
    <${PageForms} cli=${words("headrace", "dead", "list", name)} path=${path} />
    ${dialog}`;
}

function Samples({ topic, places }) {
  return places.map(({ partition, offset }) => html`<a class="chip" href=${link(["topics", topic], { from: "offset", partition, offset })}>${partition}:${offset}</a> `);
}

// What a redrive counts, as its command says it.
function Outcome({ task }) {
  const shown = Object.entries(task?.progress ?? {}).filter(([, value]) => typeof value !== "object");
  return html`<ul>${shown.map(([key, value]) => html`<li>${key.replaceAll("_", " ")}: ${count(value) === "NaN" ? String(value) : line(String(value))}</li>`)}</ul>
    ${[task?.progress?.result].filter(Boolean).map((one) => html`<ul>${Object.entries(one).map(([key, value]) => html`<li>${key.replaceAll("_", " ")}: ${visible(JSON.stringify(value), 300)}</li>`)}</ul>`)}`;
}
