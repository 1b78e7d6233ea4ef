// API keys of programs and access keys of RocketMQ's clients: listed, created, shown once, revoked.
import { html, useState } from "../vendor/preact.js";
import { at, get, useData, words } from "../api.js";
import { useAction } from "../action.js";
import { count, time, visible } from "../format.js";
import { Empty, Field, Loaded, More, Secret, Select, Table } from "../ui.js";
import { t } from "../words.js";
import { OPERATIONS, RESOURCES } from "./rights.js";

const PATH = "/v1/keys";
const LIMIT = 200;
const DAY_MS = 86_400_000;
const OF_SCOPES = RESOURCES.filter((one) => one !== "delegation-token");
const EMPTY = { operation: "READ", resource: "topic", name: "" };

const ruleText = (one) => `${one.operation} ${one.resource} ${one.name}${one.pattern === "prefixed" ? "*" : ""}`;
const scopeText = (key) => (key.scope ?? []).map(ruleText);

export function Keys() {
  const [dialog, start] = useAction();
  const [further, setFurther] = useState([]);
  const state = useData((signal) => { setFurther([]); return get(PATH, { limit: LIMIT }, signal); }, []);
  const more = async (token) => setFurther([...further, await get(PATH, { limit: LIMIT, page_token: token })]);
  const revoke = (key) => start({
    title: t("Revoke the key"), verb: t("Revoke"), method: "DELETE", path: at("keys", key.id), hasDryRun: true, confirm: key.name,
    cli: words("headrace", "key", "revoke", key.id, "--yes"), after: state.again,
    preview: () => html`<p>${t("Requests with this key are refused, on every broker within a second:")} <bdi>${visible(`${key.name} (${key.principal})`, 400)}</bdi></p>`,
  });
  return html`<${Loaded} state=${state}>${(data) => {
      const rows = [data, ...further].flatMap((one) => one.keys);
      return html`${rows.length === 0
        ? html`<${Empty} text=${t("No keys that you may see. Create one here, or:")} command='headrace key create nightly-export --scope "READ topic orders"' />`
        : html`<${Table} label=${t("API keys")} rows=${rows} keyOf=${(one) => one.id} columns=${[
            { name: t("Name"), cell: (one) => html`<bdi>${visible(one.name, 200)}</bdi><br /><small>${one.id}</small>` },
            { name: t("Acts as"), cell: (one) => html`<bdi>${visible(one.principal, 300)}</bdi>` },
            { name: t("Used by"), cell: (one) => usedBy(one.kind) },
            { name: t("Scope"), cell: (one) => (one.scope ? scopeText(one).map((rule) => html`<div><bdi>${visible(rule, 300)}</bdi></div>`) : t("all rights of its user")) },
            { name: t("Created"), cell: (one) => time(one.created_ms) },
            { name: t("Expires"), cell: (one) => time(one.expires_ms) },
            { name: t("Action"), cell: (one) => html`<button aria-label=${`${t("Revoke")}: ${one.name}`} onClick=${() => revoke(one)}>${t("Revoke")}</button>` },
          ]} />`}
        <${More} token=${(further.at(-1) ?? data).next_page_token} load=${more} />`;
    }}<//>
    <h2>${t("Create a key")}</h2><${NewKey} start=${start} after=${state.again} />${dialog}`;
}

const usedBy = (kind) => (kind === "rocketmq" ? t("RocketMQ's clients") : t("HTTP clients"));

// A name that ends with * is a prefix, as on the command line.
const ruleOf = ({ name, ...rule }) => {
  const isPrefix = name.length > 1 && name.endsWith("*");
  return { ...rule, name: isPrefix ? name.slice(0, -1) : name, pattern: isPrefix ? "prefixed" : "literal" };
};

function NewKey({ start, after }) {
  const [kind, setKind] = useState("http");
  const [rules, setRules] = useState([EMPTY]);
  const change = (at, part) => setRules(rules.map((one, number) => (number === at ? { ...one, ...part } : one)));
  const check = (event) => {
    event.preventDefault();
    const { name, user, days } = event.target.elements;
    const scope = rules.map(ruleOf);
    const body = { name: name.value, kind, lifetime_ms: Number(days.value) * DAY_MS,
      ...(user.value && { user: user.value }), ...(scope.length && { scope }) };
    start({
      title: t("Create a key"), method: "POST", path: PATH, body, hasDryRun: true, after,
      cli: words("headrace", "key", "create", body.name, ...scope.map((one) => `--scope=${ruleText(one)}`), `--expires=${days.value}d`,
        ...(kind === "rocketmq" ? ["--for=rocketmq"] : []), ...(user.value ? [`--user=${user.value}`] : [])),
      preview: () => html`<p>${t("Creates a key for {who}, which holds for {n} days and may:", { who: usedBy(kind), n: count(Number(days.value)) })}</p>
        <ul>${(scope.length ? scope.map(ruleText) : [t("all rights of its user")]).map((one) => html`<li><bdi>${visible(one, 300)}</bdi></li>`)}</ul>`,
      done: (made) => html`${made.secret && html`<p>${t("Access key")}: ${made.id}</p>`}<${Secret} name=${made.secret ? t("Secret") : t("Key")} text=${made.secret ?? made.key} />`,
    });
  };
  return html`<form onSubmit=${check}>
    <div class="filters">
      <${Field} label=${t("Name")}><input name="name" required maxlength="100" autocomplete="off" /><//>
      <${Select} label=${t("Used by")} value=${kind} onChange=${setKind} options=${["http", "rocketmq"].map((one) => [one, usedBy(one)])} />
      <${Field} label=${t("Days")}><input name="days" type="number" required min="1" max="366" value="90" /><//>
      <${Field} label=${t("Acts as another user")}><input name="user" maxlength="100" placeholder=${t("you")} autocomplete="off" /><//>
    </div>
    <fieldset><legend>${t("Scope")}</legend>
      ${rules.length === 0 && html`<p>${t("all rights of its user")}</p>`}
      ${rules.map((rule, at) => html`<div class="filters" key=${at}>
        <${Select} label=${t("Operation")} value=${rule.operation} onChange=${(operation) => change(at, { operation })} options=${OPERATIONS.map((one) => [one, one])} />
        <${Select} label=${t("Resource")} value=${rule.resource} onChange=${(resource) => change(at, { resource })} options=${OF_SCOPES.map((one) => [one, one])} />
        <${Field} label=${t("Name, or a beginning and *")}><input required maxlength="8000" value=${rule.name} onInput=${(event) => change(at, { name: event.target.value })} /><//>
        <button type="button" aria-label=${`${t("Remove")}: ${ruleText(rule)}`} onClick=${() => setRules(rules.filter((_, number) => number !== at))}>${t("Remove")}</button></div>`)}
      <button type="button" onClick=${() => setRules([...rules, EMPTY])}>${t("Add a rule")}</button>
    </fieldset>
    <p><button class="main">${t("Check")}</button></p></form>`;
}
