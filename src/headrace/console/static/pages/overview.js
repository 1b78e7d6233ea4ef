// Overview: are the brokers well, and if not, why and what next; an hour of rates; lag, dead
// letters, disk.
import { html, useEffect } from "../vendor/preact.js";
import { get, useData } from "../api.js";
import { atLeast, bytes, count, visible } from "../format.js";
import { health, points } from "../live.js";
import { link } from "../route.js";
import { Chart, Empty, Figure, Loaded, Missing, Table, Title } from "../ui.js";
import { problem, t } from "../words.js";

const REFRESH_MS = 10_000;

// Those of this broker as they come, those of the others as of the last look.
function problemsOf({ problems, broker }) {
  const own = health.value?.problems;
  if (!own) return problems;
  const same = (one) => (other) => one.what === other.what && one.cause === other.cause;
  const here = own.map((one) => ({ ...one, brokers: problems.find(same(one))?.brokers ?? [broker] }));
  return [...here, ...problems.filter((one) => one.brokers.some((id) => id !== broker) && !own.some(same(one)))];
}

function Health({ data }) {
  const problems = problemsOf(data);
  const isCluster = data.brokers > 1;
  if (problems.length === 0) {
    return html`<div class="note good" role="status"><strong>${t("All is well")}</strong> ${isCluster ? t("The brokers serve their partitions and can store records.") : t("This broker serves its partitions and can store records.")}</div>`;
  }
  return html`<section class="note bad" role="alert"><strong>${t("{n} problems", { n: problems.length })}</strong>
    <ul>${problems.map((one) => [one, ...problem(one)]).map(([one, what, cause, step]) => html`<li><b>${visible(what, 200)}</b>: ${visible(cause, 500)}
      <br />${t("Next")}: ${visible(step, 300)}${isCluster && html`<br /><span class="quiet">${t("Brokers")}: ${one.brokers.join(", ")}</span>`}</li>`)}</ul></section>`;
}

// One broker: its live values. Several: theirs added, as of the last look.
async function read(signal) {
  const found = await get("/v1/overview", {}, signal);
  return found.brokers === 1 ? found : { ...found, history: await get("/v1/history", { all_brokers: true }, signal) };
}

export function Page() {
  const state = useData(read, []);
  useEffect(() => {
    const timer = setInterval(() => document.hidden || state.again(), REFRESH_MS);
    return () => clearInterval(timer);
  }, []);
  const rate = (value) => `${count(value)}/s`;
  const size = (value) => `${bytes(value)}/s`;
  return html`<${Title} text=${t("Overview")} />
    <${Loaded} state=${state}>${(data) => html`
      <${Health} data=${data} />
      <dl class="figures">
        <${Figure} name=${t("Topics")} value=${count(data.topics)} note=${t("{n} partitions", { n: count(data.partitions) })} />
        <${Figure} name=${t("Brokers")} value=${count(data.brokers)} />
        <${Figure} name=${t("Lag")} value=${atLeast(data.lag_is_partial, count(data.lag_records))} note=${t("records not consumed yet")} />
        <${Figure} name=${t("Dead letters")} value=${count(data.dead_letters.copied)} note=${data.brokers > 1 ? t("since the start of each broker") : t("since the start of this broker")} />
        ${data.disk && html`<${Figure} name=${t("Disk free")} value=${bytes(data.disk.free_bytes)} note=${data.brokers > 1 ? t("of {size}, on broker {id}", { size: bytes(data.disk.total_bytes), id: data.disk.broker }) : t("of {size}", { size: bytes(data.disk.total_bytes) })} />`}
        ${data.bookies && html`<${Figure} name=${t("Bookies")} value=${`${data.bookies.writable} / ${data.bookies.known}`} note=${t("writable")} />`}
        ${data.zookeeper && html`<${Figure} name="ZooKeeper" value=${data.zookeeper} />`}
      </dl>
      <div class="charts">
        <${Chart} title=${t("Records in")} points=${data.history?.points ?? points.value} format=${rate} series=${[{ name: t("in"), of: "records_in_per_s" }]} />
        <${Chart} title=${t("Bytes")} points=${data.history?.points ?? points.value} format=${size} series=${[{ name: t("in"), of: "bytes_in_per_s" }, { name: t("out"), of: "bytes_out_per_s" }]} />
        <${Chart} title=${data.history ? t("CPU of the brokers") : t("CPU of the broker")} points=${data.history?.points ?? points.value} format=${(value) => `${Math.round(value)} %`} series=${[{ name: t("of one core"), of: "cpu_percent" }]} />
        <${Chart} title=${t("Connections")} points=${data.history?.points ?? points.value} format=${count} series=${[{ name: "Kafka", of: "connections" }]} />
      </div>
      <h2>${t("Groups with the most lag")}</h2>
      <${Missing} failed=${[data, data.history].flatMap((one) => one?.failed ?? [])} />
      ${data.lag_is_partial && html`<p class="quiet">${t("≥: without partitions that were not used since their broker's start, or whose broker does not answer, or without the lag of some groups, because they are too many.")}</p>`}
      ${data.lags.length === 0
        ? html`<${Empty} text=${t("No group has committed an offset yet. Consume with one:")} command="headrace consume orders --group billing" />`
        : html`<${Table} label=${t("Groups with the most lag")} rows=${data.lags} keyOf=${(one) => one.group} columns=${[
            { name: t("Group"), cell: (one) => html`<a href=${link(["groups", one.group])}><bdi>${visible(one.group, 120)}</bdi></a>` },
            { name: t("Lag"), isNumber: true, cell: (one) => atLeast(one.is_partial, count(one.records)) },
          ]} />`}
    `}<//>`;
}
