// The page elsewhere: what it asked the broker, as command line, HTTP and Python; and the page as a file.
import { html, useState } from "./vendor/preact.js";
import { address, calls, words } from "./api.js";
import { visible } from "./format.js";
import { Forms } from "./ui.js";
import { t } from "./words.js";

const SHOWN_MAX = 12;

const given = (query, ...names) => names.filter((name) => query[name] != null && query[name] !== "")
  .map((name) => `--${name.replaceAll("_", "-")}=${query[name]}`);
const start = ({ offset, timestamp_ms: ms }) => (ms != null ? [`--from=${new Date(Number(ms)).toISOString()}`] : offset != null ? [`--from=${offset}`] : []);
const shownLetters = ({ origin, group, reason, since_ms: since, until_ms: until }) => [...given({ origin, group, reason }, "origin", "group", "reason"),
  ...[["since", since], ["until", until]].flatMap(([name, ms]) => (ms ? [`--${name}=${new Date(Number(ms)).toISOString()}`] : []))];
const rules = ({ principal, resource, name }) => [...given({ principal }, "principal"),
  ...(name && ["topic", "group", "transactional-id"].includes(resource) ? [`--${resource}=${name}`] : [])];

// What shows the same on the command line: a path, with * for a name, and (names ..., query) => words.
const COMMANDS = [
  ["cluster", () => ["info"]],
  ["overview", () => ["health", "--cluster"]],
  ["events", () => ["top"]],
  ["history", ({ all_brokers: all }) => ["cluster", "history", ...(all ? [] : ["--here"])]],
  ["brokers", () => ["cluster", "brokers"]],
  ["moves", () => ["cluster", "moves"]],
  ["ledgers/lacking", () => ["cluster", "lacking"]],
  ["connections", (query) => ["connections", ...given(query, "software", "software_version", "principal", "client_id")]],
  ["topics", ({ prefix, internal, details }) => ["topic", "list", ...(details ? ["--figures"] : []), ...(internal ? ["--internal"] : []), ...(prefix ? [`${prefix}*`] : [])]],
  ["topics/*", (topic) => ["topic", "describe", topic]],
  ["topics/*/config", (topic) => ["topic", "describe", topic, "--all-settings"]],
  ["topics/*/ledgers", (topic, query) => ["topic", "ledgers", topic, ...given(query, "partition")]],
  ["topics/*/objects/*", (topic, partition) => ["topic", "ledgers", topic, `--partition=${partition}`]],
  ["topics/*/hot-keys/*", (topic, partition, query) => ["topic", "hot-keys", topic, `--partition=${partition}`, ...given(query, "offset")]],
  ["topics/*/past-offsets", (topic, { at_ms: ms, group }) => ["group", "past", topic, `--at=${new Date(Number(ms ?? Date.now())).toISOString()}`, ...given({ group }, "group")]],
  ["topics/*/records", (topic, query) => ["consume", topic, ...given(query, "partition"), ...start(query), ...given({ count: query.max }, "count")]],
  ["topics/*/tail", (topic, query) => ["consume", topic, ...given(query, "partition"), "--from=latest", "--follow"]],
  ["topics/*/messages", (topic, query) => ["find", topic, ...given({ id: query.message_id, filter: query.where, ...query }, "id", "key", "filter", "partition")]],
  // What an export holds: of a place `consume` writes the same lines, else `find` finds the messages.
  ["topics/*/export", (topic, query) => (query.key || query.where
    ? ["find", topic, ...given({ filter: query.where, ...query, count: query.max }, "key", "filter", "partition", "count"), "--json"]
    : ["consume", topic, ...given(query, "partition"), ...start({ ...query, timestamp_ms: query.since_ms }), ...given({ count: query.max }, "count"), "--json"])],
  ["topics/*/journal/*", (topic, partition) => ["queue", "journal", topic, `--partition=${partition}`]],
  ["topics/*/trace", (topic, { message_id: id, partition, offset }) => ["trace", topic, id ?? `${partition}:${offset}`]],
  ["topics/*/delayed", (topic) => ["delayed", "list", topic]],
  ["topics/*/delayed/refused", (topic) => ["delayed", "refused", topic]],
  ["topics/*/half", (topic) => ["half", "list", topic]],
  ["groups", () => ["group", "list"]],
  ["groups/*", (group) => ["group", "describe", group]],
  ["groups/*/offsets", (group) => ["group", "describe", group]],
  ["groups/*/lag", (group) => ["group", "history", group]],
  ["groups/*/diagnosis", (group) => ["group", "diagnose", group]],
  ["groups/*/config", (group) => ["config", "list", `--group=${group}`, "--all"]],
  ["queues/*/*", (topic, group) => ["queue", "watch", topic, group]],
  ["dead-letters", () => ["dead", "topics"]],
  ["queues/*/*/parked", (topic, group) => ["backlog", "parked", group, topic]],
  ["dead-letters/*", (topic) => ["dead", "list", topic]],
  ["dead-letters/*/letters", (topic, query) => ["dead", "show", topic, ...shownLetters(query)]],
  ["dead-letters/*/letters/*/*", (topic, partition, offset) => ["dead", "show", topic, `--letter=${partition}:${offset}`]],
  ...["search", "trace", "redrive"].flatMap((kind) => {
    const path = kind === "search" ? "searches" : `${kind}s`;
    const show = (id) => ["task", "show", id];
    return [[path, () => ["task", "list", `--kind=${kind}`]], [`${path}/*`, show], [`${path}/*/events`, show]];
  }),
  ["cluster/config", () => ["config", "list", "--for-all"]],
  ["brokers/*/config", (broker) => ["config", "list", `--broker=${broker}`, "--all"]],
  ["users", () => ["user", "list"]],
  ["quotas", () => ["quota", "list"]],
  ["keys", () => ["key", "list"]],
  ["acls", (query) => ["acl", "list", ...rules(query)]],
  ["tenants", () => ["tenant", "list"]],
  ["shared-topics", () => ["topic", "shares"]],
  ["accepted-topics", () => ["topic", "shares"]],
  ["tenants/*", (tenant) => ["tenant", "describe", tenant]],
];

// The command line of a request; undefined: there is none.
export function commandOf(path, query = {}) {
  const parts = path.split("/").slice(2).map(decodeURIComponent);
  for (const [pattern, command] of COMMANDS) {
    const wanted = pattern.split("/");
    if (wanted.length !== parts.length || wanted.some((one, at) => one !== "*" && one !== parts[at])) continue;
    return words("headrace", ...command(...parts.filter((_, at) => wanted[at] === "*"), query));
  }
  return undefined;
}

function Call({ call: { path: whole, query, isStream } }) {
  const path = address(whole, query);
  const [place, search] = path.split("?");
  return html`<section><h3><bdi>GET ${visible(decodeURIComponent(place))}</bdi></h3>
    <${Forms} cli=${commandOf(place, Object.fromEntries(new URLSearchParams(search)))} path=${path} isStream=${isStream} /></section>`;
}

function Calls() {
  const byKey = new Map(calls.value.map((one) => [address(one.path, one.query), one]));
  const all = [...byKey].sort(([, a], [, b]) => Number(Boolean(a.isStream)) - Number(Boolean(b.isStream)));
  return html`${all.slice(0, SHOWN_MAX).map(([key, call]) => html`<${Call} key=${key} call=${call} />`)}
    ${all.length > SHOWN_MAX && html`<p class="quiet">${t("and {n} more", { n: all.length - SHOWN_MAX })}</p>`}`;
}

export function Elsewhere() {
  const [isOpen, setOpen] = useState(false);
  return html`<details class="foot" onToggle=${(event) => setOpen(event.currentTarget.open)}>
    <summary>${t("This page elsewhere: command line, HTTP, Python")}</summary>
    ${isOpen && html`<${Calls} />`}
    <p><button onClick=${() => import("./save.js").then(({ savePage }) => savePage())}>${t("Save this page as one HTML file")}</button></p></details>`;
}
