// Languages: the English text is the key, and `zh.js` is the one table of words besides.
import { signal } from "./vendor/preact.js";

export const language = signal("en");
let table = {};

function chosen() {
  const kept = localStorage.getItem("headrace-language");
  if (kept === "en" || kept === "zh") return kept;
  return navigator.language.toLowerCase().startsWith("zh") ? "zh" : "en";
}

export async function startWords() {
  await speak(chosen());
}

export async function speak(name) {
  table = name === "zh" ? (await import("./zh.js")).words : {};
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
  const found = (language.value === "zh" && table[text]) || text;
  return values ? found.replace(/\{(\w+)\}/g, (whole, name) => String(values[name] ?? whole)) : found;
}
