// Sending dead letters back, and taking back what no consumer has seen: the actions, and what they did.
import { html } from "./vendor/preact.js";
import { ask, at, quoted, words } from "./api.js";
import { count, visible } from "./format.js";
import { runTask } from "./task.js";
import { Table } from "./ui.js";
import { refusal, t } from "./words.js";

export const LETTERS_MAX = 500;
const TAKEN_AT_ONCE = 1000;
const SHOWN_MAX = 200;

// What `headrace dead redrive` is told: group, reason, rate, loop_max, letters.
function options({ letters = [], loop_max: loopMax, ...others }) {
  const given = Object.entries(others).map(([name, value]) => `--${name}=${value}`);
  if (loopMax) given.push(`--loop-max=${loopMax}`);
  return [...given, ...letters.map((one) => `--letter=${one}`)];
}

// `wanted`: the body of a redrive without its topic; `changed()`: something has begun or ended.
export function redriveAction(topic, wanted, changed) {
  const body = { topic, ...wanted };
  const { rate, ...checked } = body;
  return {
    title: t("Send back"), method: "POST", path: "/v1/redrives", confirm: topic, body,
    cli: words("headrace", "dead", "redrive", topic, ...options(wanted)),
    dryRun: () => runTask("/v1/redrives", { ...checked, dry_run: true }),
    preview: (task) => html`<p>${t("Each record goes back once, in the order of its partition and key, to the topic that it came from.")}</p><${Outcome} task=${task} />`,
    run: () => runTask("/v1/redrives", body, changed),
    done: (task) => html`<${Outcome} task=${task} /><${Fates} rows=${task.results.filter((one) => one.letter)} />
      <p>${t("What no consumer has seen can be taken back: under Redrives, on this page.")}</p>`,
    after: changed,
  };
}

// What a redrive counts: how many go where, how many stay, and why.
export function Outcome({ task }) {
  const result = task?.progress?.result;
  if (!result) return null;
  const isDry = result.dry_run;
  const sent = Object.entries(result.sent);
  return html`<ul>
    ${sent.map(([name, number]) => html`<li>${isDry ? t("{n} would go back to {name}", { n: count(number), name }) : t("{n} went back to {name}", { n: count(number), name })}</li>`)}
    ${sent.length === 0 && html`<li>${isDry ? t("None would go back") : t("None went back")}</li>`}
    ${result.edited > 0 && html`<li>${t("{n} of them edited", { n: count(result.edited) })}</li>`}
    ${Object.entries(result.origin_unverified ?? {}).map(([name, number]) => html`<li>${t("{n} for {name} are of Kafka Connect, which keeps what a producer has written as the origin: check them, or choose the topic with --to", { n: count(number), name })}</li>`)}
    <li>${isDry ? t("{n} would stay dead letters", { n: count(result.kept) }) : t("{n} stay dead letters", { n: count(result.kept) })}</li>
    ${(result.failed ?? []).map((one) => html`<li><bdi>${one.record}</bdi>: ${visible(one.error, 300)}</li>`)}
  </ul>`;
}

export function Fates({ rows }) {
  if (rows.length === 0) return null;
  return html`<${Table} label=${t("What became of each letter")} rows=${rows.slice(0, SHOWN_MAX)} keyOf=${(one) => one.letter} columns=${[
    { name: t("Letter"), cell: (one) => one.letter },
    { name: t("Outcome"), cell: (one) => ({ sent: t("sent"), kept: t("kept"), dropped: t("dropped") })[one.outcome] ?? one.outcome },
    { name: t("To, or why not"), cell: (one) => html`<bdi>${visible(one.to ?? one.error ?? "–", 300)}</bdi>` },
  ]} />`;
}

async function takeBack(path, sent, query) {
  const results = [];
  for (let first = 0; first < sent.length; first += TAKEN_AT_ONCE) {
    const answer = await ask("POST", path, { query, body: { sent: sent.slice(first, first + TAKEN_AT_ONCE) } });
    results.push(...answer.results);
  }
  return results;
}

// `rows`: the results of a redrive.
export function undoAction(topic, rows, changed) {
  const path = at("dead-letters", topic, "take-back");
  const sent = rows.filter((one) => one.outcome === "sent").map(({ letter, to }) => ({ letter, to }));
  const lines = sent.map((one) => quoted(JSON.stringify({ ...one, outcome: "sent" })));
  return {
    title: t("Take back"), method: "POST", path, body: { sent: sent.slice(0, TAKEN_AT_ONCE) },
    cli: lines.length <= SHOWN_MAX ? `printf '%s\\n' ${lines.join(" ")} | ${words("headrace", "dead", "undo", topic, "-")}` : undefined,
    dryRun: () => takeBack(path, sent, { dry_run: true }),
    preview: (results) => html`<p>${t("{n} of {all} messages can be taken back: they are finished in each queue, and dead letters again.", { n: count(results.filter((one) => one.taken_back).length), all: count(results.length) })}</p>
      ${sent.length > TAKEN_AT_ONCE && html`<p class="quiet">${t("In requests of {n} messages, the first of which is shown below.", { n: count(TAKEN_AT_ONCE) })}</p>`}
      <${Taken} results=${results} />`,
    run: () => takeBack(path, sent),
    done: (results) => html`<p>${t("{n} of {all} messages were taken back", { n: count(results.filter((one) => one.taken_back).length), all: count(results.length) })}</p>
      <${Taken} results=${results} />`,
    after: changed,
  };
}

function Taken({ results }) {
  return html`<${Table} label=${t("What can be taken back")} rows=${results.slice(0, SHOWN_MAX)} keyOf=${(one) => one.letter} columns=${[
    { name: t("Letter"), cell: (one) => one.letter },
    { name: t("Sent to"), cell: (one) => html`<bdi>${one.to}</bdi>` },
    { name: t("Taken back"), cell: (one) => (one.taken_back ? t("yes") : t("no")) },
    { name: t("Why not"), cell: (one) => html`<bdi>${visible(one.reason ?? (one.error ? refusal(one.error) : "–"), 300)}</bdi>` },
  ]} />`;
}
