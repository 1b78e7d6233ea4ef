// Overview: is it well, and if not, why and what next; an hour of rates; lag, dead letters, disk.
import { html, useEffect } from "../vendor/preact.js";
import { get, useData } from "../api.js";
import { bytes, count, visible } from "../format.js";
import { health, points } from "../live.js";
import { link } from "../route.js";
import { Chart, Empty, Figure, Loaded, PageForms, Table, Title } from "../ui.js";
import { t } from "../words.js";

const REFRESH_MS = 10_000;

function Health({ problems }) {
  if (problems.length === 0) {
    return html`<div class="note good" role="status"><strong>${t("All is well")}</strong> ${t("This broker serves its partitions and can store records.")}</div>`;
  }
  return html`<section class="note bad" role="alert"><strong>${t("{n} problems", { n: problems.length })}</strong>
    <ul>${problems.map((one) => html`<li><b>${visible(one.what, 200)}</b>: ${visible(one.cause, 500)}
      <br />${t("Next")}: ${visible(one.next_step, 300)}</li>`)}</ul></section>`;
}

export function Page() {
  const state = useData((signal) => get("/v1/overview", {}, signal), []);
  useEffect(() => {
    const timer = setInterval(() => document.hidden || state.again(), REFRESH_MS);
    return () => clearInterval(timer);
  }, []);
  const rate = (value) => `${count(value)}/s`;
  const size = (value) => `${bytes(value)}/s`;
  return html`<${Title} text=${t("Overview")} />
    <${Loaded} state=${state}>${(data) => html`
      <${Health} problems=${health.value?.problems ?? data.problems} />
      <dl class="figures">
        <${Figure} name=${t("Topics")} value=${count(data.topics)} note=${t("{n} partitions", { n: count(data.partitions) })} />
        <${Figure} name=${t("Brokers")} value=${count(data.brokers)} />
        <${Figure} name=${t("Lag")} value=${count(data.lag_records)} note=${t("records not consumed yet")} />
        <${Figure} name=${t("Dead letters")} value=${count(data.dead_letters.copied)} note=${t("since the start of this broker")} />
        ${data.disk && html`<${Figure} name=${t("Disk free")} value=${bytes(data.disk.free_bytes)} note=${t("of {size}", { size: bytes(data.disk.total_bytes) })} />`}
        ${data.bookies && html`<${Figure} name=${t("Bookies")} value=${`${data.bookies.writable} / ${data.bookies.known}`} note=${t("writable")} />`}
        ${data.zookeeper && html`<${Figure} name="ZooKeeper" value=${data.zookeeper} />`}
      </dl>
      <div class="charts">
        <${Chart} title=${t("Records in")} points=${points.value} format=${rate} series=${[{ name: t("in"), of: "records_in_per_s" }]} />
        <${Chart} title=${t("Bytes")} points=${points.value} format=${size} series=${[{ name: t("in"), of: "bytes_in_per_s" }, { name: t("out"), of: "bytes_out_per_s" }]} />
        <${Chart} title=${t("CPU of the broker")} points=${points.value} format=${(value) => `${Math.round(value)} %`} series=${[{ name: t("of one core"), of: "cpu_percent" }]} />
        <${Chart} title=${t("Connections")} points=${points.value} format=${count} series=${[{ name: "Kafka", of: "connections" }]} />
      </div>
      <h2>${t("Groups with the most lag")}</h2>
      ${data.failed && html`<div class="note bad">${t("Brokers that do not answer")}: ${data.failed.map((one) => one.broker).join(", ")}</div>`}
      ${data.lags.length === 0
        ? html`<${Empty} text=${t("No group has committed an offset yet. Consume with one:")} command="headrace consume orders --group billing" />`
        : html`<${Table} label=${t("Groups with the most lag")} rows=${data.lags} keyOf=${(one) => one.group} columns=${[
            { name: t("Group"), cell: (one) => html`<a href=${link(["groups", one.group])}><bdi>${visible(one.group, 120)}</bdi></a>` },
            { name: t("Lag"), isNumber: true, cell: (one) => count(one.records) },
          ]} />`}
    `}<//>
    <${PageForms} path="/v1/overview" />`;
}
