// What is inside a message: values by the format of their bytes, and headers, of which some are hidden.
import { html, useState } from "./vendor/preact.js";
import { TEXT_MAX, bytesOf, decoded, line, visible } from "./format.js";
import { messagePack } from "./messagepack.js";
import { Table } from "./ui.js";
import { t } from "./words.js";

export const BY_SCHEMA = "schema";
export const FORMS = () => [["auto", t("Automatic")], ["json", "JSON"], ["text", t("Text")], ["hex", t("Hexadecimal")], ["msgpack", "MessagePack"], ["cloudevents", "CloudEvents"], [BY_SCHEMA, t("By its schema")]];

// --- values --------------------------------------------------------------------------------------

const asJson = (value) => visible(JSON.stringify(value, null, 2) ?? "null");
const strict = new TextDecoder("utf-8", { fatal: true });

// {kind, text, problem}: a message's value in the wanted form, and why it cannot be shown in it.
export function contents(record, wanted) {
  const { value, value_encoding: encoding } = record;
  if (value === null || value === undefined) return decoded(value, encoding, wanted);
  if (wanted === BY_SCHEMA) return bySchema(record);
  if (wanted === "msgpack" || wanted === "cloudevents") {
    try {
      return wanted === "msgpack" ? { kind: "MessagePack", text: asJson(messagePack(bytesOf(value, encoding))) } : event(record);
    } catch (error) {
      return { ...decoded(value, encoding, "auto"), problem: error.message };
    }
  }
  if (wanted !== "auto" || value.length > TEXT_MAX) return decoded(value, encoding, wanted);
  return guessed(record) ?? decoded(value, encoding, wanted);
}

// What the broker made of a value by its schema, or why it could not.
function bySchema(record) {
  const { value, value_encoding: encoding, decoded: found, undecodable } = record;
  if (found === undefined) return { ...(guessed(record) ?? decoded(value, encoding, "auto")), problem: undecodable ?? t("read without schemas: choose this form above the list") };
  const { format, schema, json } = found;
  const isExact = json.length <= TEXT_MAX && !/\d{16}/.test(json); // JavaScript would round longer numbers
  return { kind: t("{format}, schema {schema}", { format, schema }), text: isExact ? asJson(JSON.parse(json)) : visible(json) };
}

// A value whose bytes or headers say what it is; undefined: they do not.
function guessed(record) {
  const { value, value_encoding: encoding } = record;
  try {
    if (isEvent(record)) return event(record);
    const bytes = bytesOf(value, encoding);
    if (bytes[0] === 0 && bytes.length > 5) return withSchema(record, bytes);
    const isMapOrArray = (bytes[0] >= 0x80 && bytes[0] <= 0x9f) || (bytes[0] >= 0xdc && bytes[0] <= 0xdf);
    if (encoding === "base64" && isMapOrArray) return { kind: "MessagePack", text: asJson(messagePack(bytes)) };
  } catch {
    // it only looked so
  }
  return undefined;
}

// A registry's clients write 0, the schema's number in four bytes, and then the value.
function withSchema({ value, value_encoding: encoding }, bytes) {
  const id = new DataView(bytes.buffer).getUint32(1);
  try {
    return { kind: t("JSON, schema {id}", { id }), text: asJson(JSON.parse(strict.decode(bytes.slice(5)))) };
  } catch {
    return { ...decoded(value, encoding, "hex"), problem: t("it begins as a value with the schema {id} of a registry, and is not JSON", { id }) };
  }
}

// --- CloudEvents 1.0, in the bindings for Kafka and JSON -------------------------------------------

const REQUIRED = ["id", "source", "specversion", "type"];
const textHeaders = ({ headers }) => new Map(headers.filter((one) => one.length === 2 && one[1] !== null));
const contentType = (headers) => (headers.get("content-type") ?? "").toLowerCase();

function isEvent(record) {
  const headers = textHeaders(record);
  return headers.has("ce_specversion") || contentType(headers).startsWith("application/cloudevents");
}

function event(record) {
  const headers = textHeaders(record);
  const isBinary = headers.has("ce_specversion");
  const found = isBinary ? ofHeaders(headers, record) : JSON.parse(record.value);
  if (found === null || typeof found !== "object" || Array.isArray(found)) throw new Error(t("not a CloudEvent: it is not a JSON object and has no header ce_specversion"));
  const missing = REQUIRED.filter((name) => !Object.hasOwn(found, name));
  if (missing.length) throw new Error(t("not a CloudEvent: it lacks {names}", { names: missing.join(", ") }));
  return { kind: "CloudEvent", text: asJson(found) };
}

function ofHeaders(headers, record) {
  const found = Object.create(null);
  for (const [name, value] of headers) if (name.startsWith("ce_")) found[name.slice(3)] = value;
  const type = contentType(headers);
  if (type) found.datacontenttype = headers.get("content-type");
  const isJson = /[/+]json\b/.test(type) && record.value_encoding !== "base64";
  if (record.value_encoding === "base64") found.data_base64 = record.value;
  else found.data = isJson ? JSON.parse(record.value) : record.value;
  return found;
}

// --- headers -------------------------------------------------------------------------------------

const SECRET = /authori[sz]ation|cookie|passw|secret|token|credential|api[-_.]?key|private[-_.]?key/i;

// Whether a header's name says that its value is a secret: it is shown only when somebody asks.
export const isSecret = (name) => SECRET.test(name);
export const HIDDEN = "••••••";

export function Headers({ headers }) {
  const [isShown, setShown] = useState(false);
  if (headers.length === 0) return html`<p class="quiet">${t("none")}</p>`;
  return html`<${Table} label=${t("Headers")} rows=${headers.map((one, number) => [number, ...one])} keyOf=${([number]) => number} columns=${[
      { name: t("Name"), cell: ([, name]) => html`<bdi class="line">${visible(name, 200)}</bdi>` },
      { name: t("Value"), cell: ([, name, value, encoding]) => html`<bdi class="line">${isSecret(name) && !isShown ? HIDDEN : line(value, encoding)}</bdi>` },
    ]} />
    ${headers.some(([name]) => isSecret(name)) && html`<p><button type="button" aria-pressed=${isShown} onClick=${() => setShown(!isShown)}>${t("Show hidden values")}</button></p>`}`;
}
