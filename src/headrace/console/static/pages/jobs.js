// Jobs: the redrives, searches and traces of all brokers, as they run and after; stopped, undone.
import { html, useEffect, useRef, useState } from "../vendor/preact.js";
import { at, get, useData } from "../api.js";
import { useAction } from "../action.js";
import { count, line, span, time, visible } from "../format.js";
import { Fates, Outcome, undoAction } from "../redrive.js";
import { link } from "../route.js";
import { resultsOf, soon } from "../task.js";
import { Empty, Figure, Loaded, Missing, Table, Title } from "../ui.js";
import { searchAction } from "./messages.js";
import { Result, Results } from "./results.js";
import { refusal, t } from "../words.js";

const SHOWN_MAX = 500;
const KINDS = ["redrives", "searches", "traces"];
const kindName = (kind) => ({ redrives: t("Redrive"), searches: t("Search"), traces: t("Trace") })[kind];
const stateName = (state) => ({ running: t("running"), done: t("done"), failed: t("failed"), cancelled: t("stopped") })[state] ?? state;

export const Page = ({ path, query }) => {
  if (path.length === 4 && path[0] === "results") return html`<${Result} topic=${path[1]} partition=${path[2]} offset=${path[3]} />`;
  if (path.length === 2 && KINDS.includes(path[0])) return html`<${Job} kind=${path[0]} id=${path[1]} />`;
  return html`<${Title} text=${t("Jobs")} />
    <p>${t("What the brokers do in the background. Each keeps the last 64 that have ended, until it restarts.")}</p>
    <${Jobs} kinds=${KINDS} />
    <${Results} topic=${query.results} />`;
};

// Asks again while something runs.
function usePolling(again, isRunning, keys) {
  useEffect(() => {
    if (!isRunning) return undefined;
    return soon(again);
  }, keys);
}

const isRunning = (one) => one.state === "running";

// The jobs of these kinds, of one broker, or of all.
const jobsOf = (kinds, query, signal) => Promise.all(kinds.map((kind) => get(`/v1/${kind}`, query, signal).then((answer) => ({ ...answer, kind }))))
  .then((answers) => ({
    failed: answers.flatMap((one) => one.failed ?? []),
    rows: answers.flatMap((one) => one[one.kind].map((task) => ({ ...task, kind: one.kind }))),
  }));

// The jobs as they are now, of which those that ran are asked for, each of its broker alone; null if that is away.
async function progressed(rows) {
  const asked = new Map(rows.filter(isRunning).map((one) => [`${one.kind} ${one.broker}`, one]));
  const found = await Promise.all([...asked.values()].map(({ kind, broker }) => jobsOf([kind], { broker })));
  if (found.some((one) => one.failed.length)) return null;
  const now = new Map(found.flatMap((one) => one.rows).map((one) => [one.id, one]));
  return rows.map((one) => (isRunning(one) ? now.get(one.id) ?? one : one));
}

function progressOf({ progress }) {
  if (progress.total) return t("{done} of {total}", { done: count(progress.done), total: count(progress.total) });
  return progress.records === undefined ? "–" : t("{n} records read", { n: count(progress.records) });
}

const askedOf = ({ asked }) => Object.entries(asked).map(([name, value]) => `${name}: ${typeof value === "string" ? value : JSON.stringify(value)}`).join(", ");

function stopAction(kind, task, changed) {
  return {
    title: t("Stop the job"), verb: t("Stop"), method: "DELETE", path: at(kind, task.id),
    preview: () => html`<p>${kind === "redrives"
      ? t("What it has sent stays sent, each record once. Start it again to continue.")
      : t("What it has found by now stays; what is left is not searched.")}</p>`,
    after: changed,
  };
}

// `topic`: those of one topic alone; `turn` changes when one was started elsewhere.
export function Jobs({ kinds, topic = "", turn = 0, changed = () => {} }) {
  const state = useData((signal) => jobsOf(kinds, {}, signal).then(({ failed, rows }) => ({
    failed,
    rows: rows.filter((one) => !topic || (one.asked.topic === topic && !one.asked.dry_run)).sort((a, b) => b.started_ms - a.started_ms),
  })), [topic, turn]);
  const [later, setLater] = useState(null); // {of: what was read, rows: as they are since then}
  const rowsNow = later?.of === state.data ? later?.rows : state.data?.rows;
  const [dialog, start] = useAction();
  usePolling(async () => {
    const { data } = state;
    try {
      const rows = await progressed(rowsNow);
      if (rows?.some(isRunning)) setLater({ of: data, rows });
      else state.again(); // what was started meanwhile, too
    } catch {
      state.again(); // says what is wrong
    }
  }, rowsNow?.some(isRunning), [state.data, later]);
  const again = () => { state.again(); changed(); };
  return html`<${Loaded} state=${state}>${({ failed }) => html`<${Missing} failed=${failed} />${rowsNow.length === 0
    ? html`<${Empty} text=${t("No job has run since the brokers started.")} />`
    : html`<${Table} label=${t("Jobs")} rows=${rowsNow} keyOf=${(one) => one.id} columns=${[
        { name: t("Job"), cell: (one) => html`<a href=${link(["jobs", one.kind, one.id])}>${kindName(one.kind)} ${one.id.slice(0, 8)}</a>` },
        { name: t("Broker"), isNumber: true, cell: (one) => one.broker },
        { name: t("State"), cell: (one) => stateName(one.state) + (one.asked.dry_run ? ` (${t("Dry run")})` : "") },
        { name: t("Progress"), cell: progressOf },
        { name: t("Started"), cell: (one) => time(one.started_ms) },
        { name: t("Asked"), cell: (one) => html`<bdi class="line">${line(askedOf(one))}</bdi>` },
        { name: t("Action"), cell: (one) => html`<${Buttons} task=${one} start=${start} changed=${again} />` },
      ]} />`}`}<//>${dialog}`;
}

function Buttons({ task, start, changed }) {
  const name = `${kindName(task.kind)} ${task.id.slice(0, 8)}`;
  if (task.state === "running") {
    return html`<button aria-label=${`${t("Stop")}: ${name}`} onClick=${() => start(stopAction(task.kind, task, changed))}>${t("Stop")}</button>`;
  }
  const { next_page_token: place } = task.progress;
  if (place && task.kind === "searches") {
    return html`<button aria-label=${`${t("Search on")}: ${name}`} onClick=${() => start(searchAction({ ...task.asked, page_token: place }))}>${t("Search on")}</button>`;
  }
  const hasSent = Object.keys(task.progress.result?.sent ?? {}).length > 0 || (task.kind === "redrives" && task.state !== "done" && task.result_count > 0);
  if (!hasSent || task.asked.dry_run) return "–";
  const undo = async () => start(undoAction(task.asked.topic, await resultsOf(at(task.kind, task.id)), changed));
  return html`<button aria-label=${`${t("Take back")}: ${name}`} onClick=${undo}>${t("Take back")}</button>`;
}

function Job({ kind, id }) {
  const path = at(kind, id);
  const broker = useRef(); // once known, no other one is asked
  const state = useData((signal) => get(path, { limit: SHOWN_MAX, broker: broker.current }, signal).then((task) => {
    broker.current = task.broker;
    return task;
  }), [path]);
  const [dialog, start] = useAction();
  usePolling(state.again, state.data?.state === "running", [state.data]);
  return html`<${Title} text=${`${kindName(kind)} ${id.slice(0, 8)}`}>
      ${state.data && html`<${Buttons} task=${{ ...state.data, kind }} start=${start} changed=${state.again} />`}
      <button onClick=${state.again}>${t("Read again")}</button><//>
    <${Loaded} state=${state}>${(task) => html`
      <dl class="figures">
        <${Figure} name=${t("State")} value=${stateName(task.state)} note=${task.error && visible(refusal(task.error), 500)} />
        <${Figure} name=${t("Progress")} value=${progressOf(task)} />
        <${Figure} name=${t("Started")} value=${time(task.started_ms)} note=${task.ended_ms && t("took {time}", { time: span(task.ended_ms - task.started_ms) })} />
        <${Figure} name=${t("Results")} value=${count(task.result_count)} />
      </dl>
      <div class="note"><bdi>${visible(askedOf(task), 2000)}</bdi></div>
      ${kind === "redrives"
        ? html`<${Outcome} task=${task} /><${Fates} rows=${task.results.filter((one) => one.letter)} />`
        : html`<pre tabindex="0">${visible(task.results.map((one) => JSON.stringify(one)).join("\n"))}</pre>`}
      ${task.next_page_token && html`<p class="quiet">${t("The first {n} results are shown.", { n: count(SHOWN_MAX) })}</p>`}`}<//>
    ${dialog}`;
}
