// One dead letter: where it came from, why it was given up, what became of it; edited, sent back.
import { html, useState } from "../vendor/preact.js";
import { at, get, useData, words } from "../api.js";
import { useAction } from "../action.js";
import { HIDDEN, Headers, isSecret } from "../contents.js";
import { count, decoded, time, visible } from "../format.js";
import { redriveAction } from "../redrive.js";
import { link } from "../route.js";
import { Field, Figure, Loaded, Table, Title } from "../ui.js";
import { t } from "../words.js";

const asLine = ([name, value]) => `${name}: ${value}`;
const isPlain = (one) => one.length === 2 && one[1] !== null && !/[\n:]/.test(one[0]) && !/^\s|\s$|\n/.test(one[1]);

export function Letter({ topic, partition, offset }) {
  const place = `${partition}:${offset}`;
  const path = at("dead-letters", topic, "letters", partition, offset);
  const state = useData((signal) => get(path, {}, signal), [path]);
  const [dialog, start] = useAction();
  return html`<${Title} text=${`${topic} ${place}`}>
      <a href=${link(["dead-letters", topic])}>${t("All letters")}</a>
      <button onClick=${() => start(redriveAction(topic, { letters: [place] }, state.again))}>${t("Send back")}</button><//>
    <${Loaded} state=${state}>${(letter) => html`
      <div class="note bad"><strong><bdi>${visible(letter.reason || "–", 500)}</bdi></strong>
        ${letter.cause && html`<p><bdi>${visible(letter.cause, 500)}</bdi></p>`}</div>
      <dl class="figures">
        <${Figure} name=${t("Origin")} value=${html`<${Origin} letter=${letter} />`} />
        <${Figure} name=${t("Consumer")} value=${html`<bdi>${visible(letter.group ?? "–", 200)}</bdi>`} note=${letter.format} />
        <${Figure} name=${t("Deliveries")} value=${count(letter.deliveries)} />
        <${Figure} name=${t("Sent back before")} value=${count(letter.redrives)} />
      </dl>
      <h2>${t("History")}</h2>
      <${History} letter=${letter} />
      <h2>${t("Message")}</h2>
      <${Edit} topic=${topic} letter=${letter} start=${start} changed=${state.again} key=${letter.edits.length} />
      <h2>${t("Headers")}</h2>
      <${Headers} headers=${letter.record.headers} />`}<//>
    ${dialog}`;
}

export function Origin({ letter }) {
  if (!letter.origin) return "–";
  if (letter.origin_offset === null) return html`<bdi>${visible(letter.origin, 249)}</bdi>`;
  const { origin, origin_partition: partition, origin_offset: offset } = letter;
  return html`<a href=${link(["topics", origin], { from: "offset", partition, offset })}><bdi>${visible(origin, 249)}</bdi> ${partition}:${offset}</a>`;
}

function History({ letter }) {
  const edits = letter.edits.map((one) => {
    const [who, ms, parts] = one.split(/ (?=\d+ [\w,]+$)| (?=[\w,]+$)/);
    return { when: Number(ms), what: t("Edited by {who}: {parts}", { who: visible(who, 200), parts: parts ?? "" }) };
  });
  const events = [
    { when: letter.record.timestamp_ms, what: t("Message sent") },
    { when: null, what: t("Given up after {n} deliveries", { n: count(letter.deliveries) }) }, // its time is not stored
    ...edits,
  ];
  return html`<${Table} label=${t("History")} rows=${events} keyOf=${(one) => `${one.when} ${one.what}`} columns=${[
    { name: t("Time"), cell: (one) => time(one.when) },
    { name: t("Event"), cell: (one) => html`<bdi>${one.what}</bdi>` },
  ]} />`;
}

// --- editing -------------------------------------------------------------------------------------

function Edit({ topic, letter, start, changed }) {
  const { record, own_headers: own } = letter;
  const before = { key: record.key ?? "", value: record.value ?? "", headers: own.map(asLine).join("\n") };
  const [given, setGiven] = useState(before);
  const [isShown, setShown] = useState(!own.some(([name]) => isSecret(name)));
  const canEditHeaders = own.every(isPlain);
  const set = (name) => (event) => setGiven((one) => ({ ...one, [name]: event.target.value }));
  const isChanged = Object.keys(before).some((name) => given[name] !== before[name]);
  const submit = (event) => {
    event.preventDefault();
    start(editAction(topic, letter, before, given, changed));
  };
  const isBinary = (name) => record[`${name}_encoding`] === "base64" && html` <small>(base64)</small>`;
  return html`<form onSubmit=${submit}>
    <${Field} label=${html`${t("Key")}${isBinary("key")}`}><input value=${given.key} onInput=${set("key")} placeholder=${record.key === null ? "null" : ""} /><//>
    <p><label>${t("Value")}${isBinary("value")}<textarea value=${given.value} onInput=${set("value")} spellcheck="false" placeholder=${record.value === null ? "null" : ""}></textarea></label></p>
    ${canEditHeaders && !isShown && html`<p><button type="button" onClick=${() => setShown(true)}>${t("Edit the headers, of which some are hidden")}</button></p>`}
    ${canEditHeaders
      ? isShown && html`<p><label>${t("Headers, one a line, as name: value")}<textarea value=${given.headers} onInput=${set("headers")} spellcheck="false"></textarea></label></p>`
      : html`<p class="quiet">${t("Its own headers are not all text of one line: edit them over HTTP.")}</p>`}
    <p class="tools"><button class="main" disabled=${!isChanged}>${t("Check the edit")}</button>
      <button type="button" disabled=${!isChanged} onClick=${() => setGiven(before)}>${t("Reset")}</button></p>
  </form>`;
}

function editAction(topic, letter, before, given, changed) {
  const place = { partition: letter.partition, offset: letter.letter_offset };
  const body = { ...place };
  const cli = ["headrace", "dead", "edit", topic, `${place.partition}:${place.offset}`];
  let isOnCli = true;
  for (const name of ["key", "value"]) {
    if (given[name] === before[name]) continue;
    body[name] = given[name];
    const encoding = letter.record[`${name}_encoding`];
    if (encoding) body[`${name}_encoding`] = encoding;
    isOnCli &&= !encoding;
    cli.push(`--${name}=${given[name]}`);
  }
  if (given.headers !== before.headers) {
    body.headers = given.headers.split("\n").filter((one) => one.trim()).map((one) => {
      const [name, ...rest] = one.split(":");
      return [name.trim(), rest.join(":").trim()];
    });
    isOnCli &&= body.headers.length > 0 && body.headers.every(([name]) => !name.includes("="));
    cli.push(...body.headers.map(([name, value]) => `--header=${name}=${value}`));
  }
  return {
    title: t("Edit the letter"), method: "POST", path: at("dead-letters", topic, "edits"), body, hasDryRun: true,
    cli: isOnCli ? words(...cli) : undefined,
    preview: (answer) => html`<p>${t("The letter stays in the log: a copy that says who edited it takes its place, and is what a redrive sends.")}</p><${Change} answer=${answer} />`,
    after: changed,
  };
}

function Change({ answer }) {
  const shown = (letter, name) => (name === "headers"
    ? visible(letter.own_headers.map(([header, value]) => asLine([header, isSecret(header) ? HIDDEN : value])).join("\n"))
    : decoded(letter.record[name], letter.record[`${name}_encoding`], "auto").text);
  const title = (name) => ({ key: t("Key"), value: t("Value"), headers: t("Headers") })[name];
  return html`<dl class="forms">${answer.changed.map((name) => html`
    <dt>${t("{part} before", { part: title(name) })}</dt><dd><pre tabindex="0">${shown(answer.before, name)}</pre></dd>
    <dt>${t("{part} after", { part: title(name) })}</dt><dd><pre tabindex="0">${shown(answer.after, name)}</pre></dd>`)}</dl>`;
}
