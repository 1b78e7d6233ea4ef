// Languages: the English text is the key, and `zh.js` is the one table of words besides.
import { signal } from "./vendor/preact.js";

export const language = signal("en");
let table = {};
let broker = {};

function chosen() {
  const kept = localStorage.getItem("headrace-language");
  if (kept === "en" || kept === "zh") return kept;
  return navigator.language.toLowerCase().startsWith("zh") ? "zh" : "en";
}

export async function startWords() {
  await speak(chosen());
}

export async function speak(name) {
  const files = name === "zh" ? [import("./zh.js"), import("./zh_broker.js"), import("./zh_settings.js")] : [];
  const [own, said, { settings } = {}] = await Promise.all(files);
  [table, broker] = [own?.words ?? {}, { ...said, settings }];
  document.documentElement.lang = name === "zh" ? "zh-CN" : "en";
  language.value = name;
}

export async function toggleLanguage() {
  const name = language.value === "zh" ? "en" : "zh";
  localStorage.setItem("headrace-language", name);
  await speak(name);
}

// The text in the chosen language, with {name} replaced by values.name.
export function t(text, values) {
  return filled((language.value === "zh" && table[text]) || text, values);
}

const filled = (text, values) => (values ? text.replace(/\{(\w+)\}/g, (whole, name) => String(values[name] ?? whole)) : text);

// What a broker says, by its code, or in English as it came: a code of a newer broker is not known.
function said(kind, code, values) {
  const found = language.value === "zh" && broker[kind]?.[code];
  return found && [found].flat().map((one) => filled(one, values));
}

export const finding = (one) => said("findings", one.kind, one.values) || [one.sentence, one.next_step];
export const problem = (one) => said("problems", one.code, one.values) || [one.what, one.cause, one.next_step];
export const reason = (one) => {
  const [text] = said("reasons", one.code, one.values) || [];
  return text ? text + (one.may_differ ? `（${said("reasons", "may_differ")[0]}）` : "") : one.reason;
};
export const settingText = ({ name, documentation }) => said("settings", name)?.[0] ?? documentation;
export const nextStep = (text) => said("steps", text)?.[0] ?? text;

// A refusal: of which kind in the chosen language, and what exactly as the broker says it.
export function refusal({ code, detail }) {
  const [kind] = said("errors", code) || [];
  return kind ? `${kind}（${detail}）` : detail;
}
