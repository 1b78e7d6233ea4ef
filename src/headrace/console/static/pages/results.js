// Results of Spark jobs: messages of a topic that `headrace pipeline ... --results` sends them to.
import { html } from "../vendor/preact.js";
import { address, at, get, useData, words } from "../api.js";
import { count, time, visible } from "../format.js";
import { link, setQuery } from "../route.js";
import { Empty, Field, Figure, Loaded, Table, Title } from "../ui.js";
import { latest } from "./messages.js";
import { t } from "../words.js";

const TOPIC = "headrace.results";
const SHOWN_MAX = 50;
const PARTITIONS_MAX = 16;
const LISTS = () => [["problems", t("Problems")], ["not_proven", t("Not proven")], ["advice", t("Advice")]];

const isText = (value) => typeof value === "string";

// What a job has written; null: another message. Anyone who may write to the topic can have written
// it: its fields are never those of the record, and have the types that are drawn here.
export function written({ partition, offset, timestamp_ms: timestampMs, value }) {
  try {
    const { job, of, summary, result } = JSON.parse(value);
    if (![job, of, summary].every(isText) || typeof result !== "object" || result === null) return null;
    return { partition, offset, timestamp_ms: timestampMs, job, of, summary, result };
  } catch {
    return null;
  }
}

async function read(topic, signal) {
  const found = await get(at("topics", topic), {}, signal).catch((problem) => {
    if (problem.status === 404) return { partitions: [] };
    throw problem;
  });
  const pages = await Promise.all(found.partitions.slice(0, PARTITIONS_MAX).map((one) => latest(found, one.partition, undefined, signal)));
  return pages.flatMap((one) => one.records).map(written).filter(Boolean)
    .sort((a, b) => b.timestamp_ms - a.timestamp_ms).slice(0, SHOWN_MAX);
}

const textOf = (value) => (isText(value) ? value : JSON.stringify(value));

export function Results({ topic = TOPIC }) {
  const state = useData((signal) => read(topic, signal), [topic]);
  return html`<h2>${t("Results of Spark jobs")}</h2>
    <div class="filters"><${Field} label=${t("Topic")}><input value=${topic} onChange=${(event) => setQuery({ results: event.target.value })} /><//>
      <button onClick=${state.again}>${t("Read again")}</button></div>
    <${Loaded} state=${state}>${(rows) => (rows.length === 0
      ? html`<${Empty} text=${t("No result is in this topic. To keep one there, create the topic and run a job so:")} command=${words("headrace", "pipeline", "proof", "orders", "--results", topic)} />`
      : html`<${Table} label=${t("Results of Spark jobs")} rows=${rows} keyOf=${(one) => `${one.partition}:${one.offset}`} columns=${[
          { name: t("Time"), cell: (one) => time(one.timestamp_ms) },
          { name: t("Job"), cell: (one) => html`<a href=${link(["jobs", "results", topic, one.partition, one.offset])}><bdi>${visible(`${one.job} ${one.of}`, 300)}</bdi></a>` },
          { name: t("Result"), cell: (one) => html`<bdi>${visible(one.summary, 300)}</bdi>` },
        ]} />`)}<//>`;
}

export function Result({ topic, partition, offset }) {
  const path = address(at("topics", topic, "records"), { partition, offset, max: 1 });
  const state = useData(async (signal) => {
    const { records } = await get(path, {}, signal);
    return { found: records.map(written).find((one) => one && String(one.offset) === offset) };
  }, [path]);
  return html`<${Loaded} state=${state}>${({ found }) => (found
    ? html`<${Title} text=${visible(`${found.job} ${found.of}`, 300)} />
        <div class="note"><strong><bdi>${visible(found.summary, 1000)}</bdi></strong></div>
        <dl class="figures">
          <${Figure} name=${t("Time")} value=${time(found.timestamp_ms)} />
          ${found.result.forecast && html`<${Forecast} of=${found.result} />`}
        </dl>
        ${LISTS().map(([name, title]) => Array.isArray(found.result[name]) && found.result[name].length > 0 && html`<h2>${title}</h2>
          <ul>${found.result[name].slice(0, 1000).map((one) => html`<li><bdi>${visible(textOf(one), 1000)}</bdi></li>`)}</ul>`)}
        <h2>${t("All of it")}</h2><pre tabindex="0" dir="ltr">${visible(JSON.stringify(found.result, null, 2))}</pre>`
    : html`<${Title} text=${t("Results of Spark jobs")} /><${Empty} text=${t("There is no such result any more.")} />`)}<//>
    <p><a href=${link(["jobs"], { results: topic === TOPIC ? "" : topic })}>${t("Jobs")}</a></p>`;
}

function Forecast({ of: { lag, forecast } }) {
  const rate = (value) => (Number.isFinite(value) ? `${count(Math.round(value))}/s` : "–");
  return html`<${Figure} name=${t("Lag")} value=${count(lag)} />
    <${Figure} name=${t("Records in")} value=${rate(forecast.arrival_per_s)} />
    <${Figure} name=${t("Processed")} value=${rate(forecast.drain_per_s)} />
    <${Figure} name=${t("Empty at")} value=${time(forecast.empty_at_ms)} />`;
}
