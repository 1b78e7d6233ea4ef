// Requests to the broker's HTTP API, and how each is made elsewhere: curl, Python.
import { signal as shared, useEffect, useRef, useState } from "./vendor/preact.js";
import { nextStep, refusal, t } from "./words.js";

export class Problem extends Error {
  constructor(status, detail, nextStep) {
    super(detail);
    this.status = status;
    this.nextStep = nextStep;
  }
}

// What requests of a session need: set by session.js, which this module must not know.
export const credentials = { csrf: "", ended: () => {} };

export function address(path, query = {}) {
  const given = Object.entries(query).filter(([, value]) => value !== "" && value != null);
  const search = new URLSearchParams(given).toString();
  return path + (search ? `?${search}` : "");
}

// The path of names, each escaped: at("topics", name, "records").
export const at = (...names) => `/v1/${names.map(encodeURIComponent).join("/")}`;

// What the page has read, in the order in which it asked: {owner, path, query, isStream}. Each belongs to
// the load or stream that asked, and is kept as long as what that found is shown.
export const calls = shared([]);
export const noteCall = (call) => (calls.value = [...calls.peek(), call]);
export const forgetCalls = (owners) => (calls.value = calls.peek().filter((one) => !owners.includes(one.owner)));

// A broker may accept a request and never answer it. What takes long says how far it is in a stream or a task.
const LIMIT_MS = 60_000;

export async function ask(method, path, { query, body, signal, limitMs = LIMIT_MS } = {}) {
  if (method === "GET" && signal && !signal.aborted) noteCall({ owner: signal, path, query });
  const headers = body === undefined ? {} : { "Content-Type": "application/json" };
  if (credentials.csrf && method !== "GET") headers["X-CSRF-Token"] = credentials.csrf;
  const ends = new AbortController();
  const end = () => ends.abort();
  signal?.addEventListener("abort", end);
  if (signal?.aborted) end();
  let isLate = false;
  const timer = setTimeout(() => {
    isLate = true;
    end();
  }, limitMs);
  let answer;
  let text;
  try {
    answer = await fetch(address(path, query), {
      method,
      signal: ends.signal,
      headers,
      body: body === undefined ? undefined : JSON.stringify(body),
    });
    text = await answer.text(); // a broker may stop in the middle of its answer
  } catch (error) {
    if (isLate) {
      throw new Problem(0, t("the broker has not answered for {n} seconds", { n: limitMs / 1_000 }), method === "GET"
        ? t("check that it runs, then try again") : t("check that it runs, and whether it has done it, then try again"));
    }
    if (error.name === "AbortError") throw error;
    throw new Problem(0, t("the broker does not answer"), t("check that it runs, then try again"));
  } finally {
    clearTimeout(timer);
    signal?.removeEventListener("abort", end);
  }
  let data = null;
  try {
    data = text ? JSON.parse(text) : null;
  } catch {
    data = { detail: text.slice(0, 300) };
  }
  if (answer.status === 401) credentials.ended();
  if (!answer.ok) {
    throw new Problem(answer.status, data?.detail ? refusal(data) : answer.statusText, nextStep(data?.next_step ?? ""));
  }
  return data;
}

export const get = (path, query, signal) => ask("GET", path, { query, signal });

// What `load(signal)` returns, again whenever `keys` change: {data, problem, isLoading, again}.
export function useData(load, keys) {
  const loads = useRef([]);
  const [state, setState] = useState({ data: null, problem: null, isLoading: true });
  const [turn, setTurn] = useState(0);
  useEffect(() => {
    const ends = new AbortController();
    loads.current.push(ends.signal);
    setState((before) => ({ ...before, isLoading: true }));
    const done = (state) => {
      if (ends.signal.aborted) return;
      forgetCalls(loads.current.filter((one) => one !== ends.signal)); // of what was shown before
      loads.current = [ends.signal];
      setState({ ...state, isLoading: false });
    };
    load(ends.signal).then((data) => done({ data, problem: null }), (problem) => done({ data: null, problem }));
    return () => ends.abort();
  }, [...keys, turn]);
  useEffect(() => () => forgetCalls(loads.current), []);
  return { ...state, again: () => setTurn((before) => before + 1) };
}

// --- the same request elsewhere ----------------------------------------------------------------

// What a terminal acts on, or shows in another order, when a command is pasted: control characters
// but line feeds, and those that turn the direction of text.
const UNSEEN = /[\u0000-\u0009\u000b-\u001f\u007f-\u009f\u200e\u200f\u2028-\u202e\u2066-\u2069]/g;
const bytesOf = (text) => [...new TextEncoder().encode(text)];
const octal = (text) => bytesOf(text).map((one) => `\\${one.toString(8).padStart(3, "0")}`).join("");

// A word for a POSIX shell: no character of it has a meaning there.
export function quoted(word) {
  const text = String(word);
  if (/^[\w@%+=:,./-]+$/.test(text)) return text;
  if (text.search(UNSEEN) < 0) return `'${text.replaceAll("'", `'\\''`)}'`;
  const [, head, feeds] = text.match(/^([^]*?)(\n*)$/); // a substitution drops line feeds at its end
  const format = head.replace(/[\\%]/g, "$&$&").replaceAll("'", "'\\''").replace(UNSEEN, octal);
  return `"$(printf -- '${format}')"${feeds && `'${feeds}'`}`; // not every shell knows $'...'
}

export const words = (...parts) => parts.map(quoted).join(" ");

// JSON without raw control characters: all shells can quote it.
const asJson = (value) => JSON.stringify(value).replace(UNSEEN, (one) =>
  `\\u${one.charCodeAt(0).toString(16).padStart(4, "0")}`);

export function asCurl(method, path, body, isStream = false) {
  const parts = ["curl", isStream ? "-sSN" : "-sS"];
  if (method !== "GET") parts.push("-X", method);
  if (body !== undefined) parts.push("-H", "Content-Type: application/json", "-d", asJson(body));
  return words(...parts, location.origin + path);
}

// A text as a literal of Python: JSON's escapes are Python's, too.
const literal = (value) => JSON.stringify(value).replace(/[\u007f-\uffff]/g, (one) =>
  `\\u${one.charCodeAt(0).toString(16).padStart(4, "0")}`);

export function asPython(method, path, body) {
  const lines = ["import json, urllib.request", ""];
  const parts = [literal(location.origin + path)];
  if (method !== "GET") parts.push(`method=${literal(method)}`);
  if (body !== undefined) {
    lines.push(`body = json.loads(${literal(JSON.stringify(body))})`);
    parts.push("data=json.dumps(body).encode()", 'headers={"Content-Type": "application/json"}');
  }
  lines.push(`request = urllib.request.Request(${parts.join(", ")})`);
  lines.push("print(json.load(urllib.request.urlopen(request)))");
  return lines.join("\n");
}
