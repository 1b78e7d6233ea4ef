// How numbers, times and contents of messages are written.
import { language, t } from "./words.js";

// By language: making one takes far longer than using it.
const CLOCK = {
  year: "numeric", month: "2-digit", day: "2-digit", hour: "2-digit", minute: "2-digit",
  second: "2-digit", fractionalSecondDigits: 3, hour12: false,
};
const LOCALES = { en: "en-GB", zh: "zh-CN" };
const made = {};

function formats() {
  const name = language.value;
  made[name] ??= { number: new Intl.NumberFormat(LOCALES[name]), time: new Intl.DateTimeFormat(LOCALES[name], CLOCK) };
  return made[name];
}

// Numbers and times that a message says are shown, too: what is none is written as "–", and so is a
// time after the last one of a Date.
export const count = (value) => (value == null || typeof value === "object" ? "–" : formats().number.format(value));

export const atLeast = (isPartial, text) => (isPartial ? `≥ ${text}` : text);

export function bytes(value) {
  if (value == null || value < 0) return "–";
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let at = 0;
  for (; value >= 1024 && at < units.length - 1; at += 1) value /= 1024;
  return `${at && value < 100 ? value.toFixed(1) : Math.round(value)} ${units[at]}`;
}

const TIME_MS_MAX = 8_640_000_000_000_000;

export const time = (ms) => (Number.isFinite(ms) && ms >= 0 && ms <= TIME_MS_MAX ? formats().time.format(ms) : "–");

export const weekday = (date) => new Intl.DateTimeFormat(LOCALES[language.value], { weekday: "short" }).format(date);

export function span(ms) {
  if (ms == null || ms < 0) return "–";
  if (ms < 1000) return `${Math.round(ms)} ms`;
  for (const [unit, size] of [["d", 86_400_000], ["h", 3_600_000], ["min", 60_000]]) {
    if (ms >= size) return `${(ms / size).toFixed(1)} ${unit}`;
  }
  return `${(ms / 1000).toFixed(1)} s`;
}

// A topic of an address as the broker answers: acme/orders. Older addresses have «acme»orders, which it takes, too.
const OF_TENANT = /^«([a-z0-9][a-z0-9-]{0,31})»/;
export const topicText = (name) => name.replace(OF_TENANT, "$1/");

// Characters that draw nothing, or that turn the direction of what stands beside them: a message
// must not change how the page around it reads.
const HIDDEN = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]/g;
const named = (one) => `\u27e8U+${one.charCodeAt(0).toString(16).toUpperCase().padStart(4, "0")}\u27e9`;

export const TEXT_MAX = 100_000;
export const LINE_MAX = 300;

// A text as it may be shown, cut after `max` characters.
export function visible(text, max = TEXT_MAX) {
  const cut = text.length > max ? `${text.slice(0, max)} \u2026` : text;
  return cut.replace(HIDDEN, named);
}

export function bytesOf(text, encoding) {
  if (encoding !== "base64") return new TextEncoder().encode(text);
  return Uint8Array.from(atob(text), (one) => one.charCodeAt(0));
}

export function hex(data) {
  const lines = [];
  for (let at = 0; at < Math.min(data.length, 16_384); at += 16) {
    const row = [...data.slice(at, at + 16)];
    const codes = row.map((one) => one.toString(16).padStart(2, "0")).join(" ").padEnd(47);
    const shown = row.map((one) => (one > 31 && one < 127 ? String.fromCharCode(one) : ".")).join("");
    lines.push(`${at.toString(16).padStart(6, "0")}  ${codes}  ${shown}`);
  }
  return lines.join("\n");
}

// {kind, text, problem}: a value in the wanted form, and why it cannot be shown in it.
export function decoded(value, encoding, wanted, max = TEXT_MAX) {
  if (value === null || value === undefined) return { kind: "null", text: "null" };
  if (wanted === "hex") return { kind: t("hexadecimal"), text: hex(bytesOf(value, encoding)) };
  if (encoding === "base64") {
    const text = hex(bytesOf(value, encoding));
    return { kind: t("hexadecimal"), text, problem: wanted === "auto" ? "" : t("not UTF-8") };
  }
  if (wanted !== "text" && (wanted === "json" || /^\s*[[{"]/.test(value))) {
    if (value.length > max) return { kind: t("text"), text: visible(value, max), problem: t("too large") };
    try {
      return { kind: "JSON", text: visible(JSON.stringify(JSON.parse(value), null, 2), max) };
    } catch (error) {
      if (wanted === "json") return { kind: t("text"), text: visible(value, max), problem: error.message };
    }
  }
  return { kind: t("text"), text: visible(value, max) };
}

export function line(value, encoding) {
  if (value === null || value === undefined) return "null";
  if (encoding === "base64") return `0x${[...bytesOf(value.slice(0, 88), encoding)].map((one) => one.toString(16).padStart(2, "0")).join("")}`;
  return visible(value.slice(0, LINE_MAX + 1), LINE_MAX).replace(/[\n\t]+/g, " ");
}
