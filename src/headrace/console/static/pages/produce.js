// Sends a message: a new one, or one that begins as a copy of another.
import { html, useEffect, useState } from "../vendor/preact.js";
import { at, get, quoted, words } from "../api.js";
import { visible } from "../format.js";
import { isSecret } from "../contents.js";
import { link } from "../route.js";
import { Field, Refusal, Select } from "../ui.js";
import { refusal, t } from "../words.js";

// `kept`: headers that are sent as they are, since their values are hidden.
const NEW = { kept: [], key: "", keyEncoding: "text", value: "", encoding: "text", partition: "", headers: "" };

function copyOf(record) {
  const plain = record.headers.filter((one) => one.length === 2 && one[1] !== null);
  return {
    key: record.key ?? "", keyEncoding: record.key_encoding ?? "text",
    value: record.value ?? "", encoding: record.value_encoding ?? "text", partition: "",
    kept: plain.filter(([name]) => isSecret(name)),
    headers: plain.filter(([name]) => !isSecret(name)).map(([name, value]) => `${name}: ${value}`).join("\n"),
  };
}

function recordOf(given) {
  const record = {};
  if (given.key !== "") record.key = given.key;
  if (given.key !== "" && given.keyEncoding !== "text") record.key_encoding = given.keyEncoding;
  record.value = given.encoding === "json" ? JSON.parse(given.value) : given.value;
  if (given.encoding !== "text") record.value_encoding = given.encoding;
  if (given.partition !== "") record.partition = Number(given.partition);
  const headers = given.headers.split("\n").filter((one) => one.trim()).map((one) => {
    const [name, ...rest] = one.split(":");
    return [name.trim(), rest.join(":").trim()];
  });
  if (headers.length + given.kept.length) record.headers = [...headers, ...given.kept];
  return record;
}

// The line that `headrace produce --format json` reads.
function lineOf(record) {
  const { key, key_encoding: keyEncoding, value, value_encoding: encoding, partition, headers } = record;
  const line = {};
  if (key !== undefined) line[keyEncoding === "base64" ? "key_base64" : "key"] = key;
  line[encoding === "base64" ? "value_base64" : "value"] = value;
  if (partition !== undefined) line.partition = partition;
  if (headers) line.headers = headers.map(([name, one]) => ({ key: name, value: one }));
  return JSON.stringify(line);
}

export function Produce({ topic, query, start }) {
  const [given, setGiven] = useState(NEW);
  const [problem, setProblem] = useState(null);
  const set = (change) => setGiven((before) => ({ ...before, ...change }));
  useEffect(() => {
    setGiven(NEW); // also after a step back from a copy
    setProblem(null);
    if (query.offset === undefined) return undefined;
    let isOver = false;
    get(at("topics", topic.name, "records"), { partition: query.partition, offset: query.offset, max: 1 }).then(
      ({ records }) => !isOver && records[0] && setGiven(copyOf(records[0])), (refused) => !isOver && setProblem(refused));
    return () => (isOver = true);
  }, [query.partition, query.offset]);
  const submit = (event) => {
    event.preventDefault();
    let record;
    try {
      record = recordOf(given);
      setProblem(null);
    } catch (error) {
      setProblem({ message: t("The value is not JSON: {why}", { why: error.message }), nextStep: t("correct it, or send it as text") });
      return;
    }
    start({
      title: t("Send the message"), verb: t("Send"), method: "POST", path: at("topics", topic.name, "records"), body: { records: [record] },
      cli: `printf '%s\\n' ${quoted(lineOf(record))} | ${words("headrace", "produce", topic.name, "--format", "json")}`,
      preview: () => t("Appends one message to {name}.", { name: topic.name }),
      done: ({ results: [one] }) => (one.ok
        ? html`<a href=${link(["topics", topic.name], { from: "offset", partition: one.partition, offset: one.offset })}>${topic.name} ${one.partition}:${one.offset ?? one.state}</a>`
        : html`<p>${refusal(one.error)}</p>`),
    });
  };
  const encodings = [["text", t("Text")], ["json", "JSON"], ["base64", "base64"]];
  return html`<form onSubmit=${submit}>
    ${query.offset !== undefined && html`<p class="quiet">${t("A copy of {place}.", { place: `${query.partition}:${query.offset}` })}</p>`}
    ${problem && html`<${Refusal} problem=${problem} />`}
    <div class="filters">
      <${Field} label=${t("Key")}><input value=${given.key} onInput=${(event) => set({ key: event.target.value })} /><//>
      <${Select} label=${t("Key is")} value=${given.keyEncoding} options=${[encodings[0], encodings[2]]} onChange=${(keyEncoding) => set({ keyEncoding })} />
      <${Select} label=${t("Value is")} value=${given.encoding} options=${encodings} onChange=${(encoding) => set({ encoding })} />
      <${Select} label=${t("Partition")} value=${given.partition} options=${[["", t("by key")], ...topic.partitions.map((one) => [one.partition, one.partition])]} onChange=${(partition) => set({ partition })} />
    </div>
    <label>${t("Value")}<textarea value=${given.value} onInput=${(event) => set({ value: event.target.value })} spellcheck="false"></textarea></label>
    <label>${t("Headers, one a line, as name: value")}<textarea value=${given.headers} onInput=${(event) => set({ headers: event.target.value })} spellcheck="false"></textarea></label>
    ${given.kept.length > 0 && html`<p class="note">${t("Sent as they are, with hidden values")}: ${given.kept.map(([name]) => visible(name, 200)).join(", ")}
      <button type="button" onClick=${() => set({ kept: [] })}>${t("Leave them out")}</button></p>`}
    <p><button class="main">${t("Check")}</button></p>
  </form>`;
}
