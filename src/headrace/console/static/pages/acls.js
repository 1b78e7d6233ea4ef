// Access: who may do what, rules added and removed, why something is refused, tenants, users, keys and quotas.
import { html, useState } from "../vendor/preact.js";
import { ask, at, get, useData, words } from "../api.js";
import { useAction } from "../action.js";
import { visible } from "../format.js";
import { link, setQuery } from "../route.js";
import { Field, Forms, Loaded, More, Refusal, Select, Table, Tabs, Title } from "../ui.js";
import { Keys } from "./keys.js";
import { Quotas } from "./quotas.js";
import { OPERATIONS, RESOURCES } from "./rights.js";
import { Tenants } from "./tenants.js";
import { Users } from "./users.js";
import { reason, t } from "../words.js";

const PATH = "/v1/acls";
const PAGE = 500;
const CLUSTER = "kafka-cluster";
const ON_CLI = ["topic", "group", "transactional-id", "cluster"];
const OPERATIONS_ON_CLI = OPERATIONS.slice(0, 11);
const TABS = () => [["rules", t("Rules")], ["add", t("Add a rule")], ["explain", t("Why was this refused?")], ["tenants", t("Tenants")],
  ["users", t("Users")], ["keys", t("API keys")], ["quotas", t("Quotas")]];
const PARTS = { add: Add, explain: Explain, tenants: Tenants, users: Users, keys: Keys, quotas: Quotas };

export function Page({ path, query }) {
  const tab = path[0] ?? "rules";
  const Part = PARTS[tab] ?? Rules;
  return html`<${Title} text=${t("Access")} />
    <${Tabs} label=${t("Access")} tabs=${TABS()} chosen=${tab} href=${(name) => link(name === "rules" ? ["acls"] : ["acls", name])} />
    <${Part} query=${query} path=${path.slice(1)} />`;
}

const ofCluster = (name) => /^(?:([a-z0-9-]+)\/)?kafka-cluster$/.exec(name); // also of what a tenant administers in it

// The options of `headrace acl` for a rule or a question; undefined: it cannot say this.
function command(verb, one) {
  const { resource, name, operation, principal, host = "*", pattern } = one;
  if (!ON_CLI.includes(resource) || !OPERATIONS_ON_CLI.includes(operation) || (resource === "cluster" && !ofCluster(name))) return undefined;
  return words("headrace", "acl", verb, `--principal=${principal}`, `--operation=${operation}`,
    ...(resource === "cluster" ? [name === CLUSTER ? "--cluster" : `--tenant=${ofCluster(name)[1]}`] : [`--${resource}=${name}`]), ...(pattern === "prefixed" ? ["--prefix"] : []),
    ...(host !== "*" ? [`--host=${host}`] : []), ...(verb === "add" && one.permission === "deny" ? ["--deny"] : []));
}

const said = (one) => `${one.permission === "deny" ? t("deny") : t("allow")} ${visible(one.principal, 200)} ${one.operation} · ${one.resource} ${visible(one.name, 249)}${
  one.pattern === "prefixed" ? ` (${t("prefix")})` : ""}${one.host === "*" ? "" : ` · ${visible(one.host, 100)}`}`;

function RuleTable({ rows, action }) {
  return html`<${Table} label=${t("Rules")} rows=${rows} keyOf=${(one) => one.id} columns=${[
    { name: t("Permission"), cell: (one) => (one.permission === "deny" ? html`<strong>${t("deny")}</strong>` : t("allow")) },
    { name: t("Principal"), cell: (one) => html`<bdi>${visible(one.principal, 300)}</bdi>` },
    { name: t("Operation"), cell: (one) => one.operation },
    { name: t("Resource"), cell: (one) => html`${one.resource} <bdi>${visible(one.name, 300)}</bdi>${one.pattern === "prefixed" && html` <small>(${t("prefix")})</small>`}` },
    { name: t("Host"), cell: (one) => html`<bdi>${visible(one.host, 100)}</bdi>` },
    ...(action ? [{ name: t("Action"), cell: action }] : []),
  ]} />`;
}

function Rules({ query }) {
  const [further, setFurther] = useState([]);
  const [dialog, start] = useAction();
  const asked = { principal: query.principal, resource: query.resource, name: query.name, limit: PAGE };
  const state = useData((signal) => {
    setFurther([]);
    return get(PATH, asked, signal);
  }, [query.principal, query.resource, query.name]);
  const more = async (token) => setFurther([...further, await get(PATH, { ...asked, page_token: token })]);
  const remove = (one, rows) => start({
    title: t("Remove the rule"), verb: t("Remove"), method: "DELETE", path: at("acls", one.id), hasDryRun: true, confirm: one.principal,
    cli: rows.some((other) => other.id !== one.id && command("remove", other) === command("remove", one)) ? undefined : command("remove", one),
    preview: () => html`<p>${t("Removes this rule, on every broker within a second:")}</p><p><bdi>${said(one)}</bdi></p>`,
    after: state.again,
  });
  const field = (name, label) => html`<${Field} label=${label}><input value=${query[name] ?? ""} onChange=${(event) => setQuery({ [name]: event.target.value })} /><//>`;
  return html`<div class="filters">${field("principal", t("Principal"))}
      <${Select} label=${t("Resource")} value=${query.resource ?? ""} options=${[["", t("all")], ...RESOURCES.map((one) => [one, one])]} onChange=${(resource) => setQuery({ resource })} />
      ${field("name", t("Applies to the name"))}</div>
    <${Loaded} state=${state}>${(data) => {
      const pages = [data, ...further];
      const rows = pages.flatMap((one) => one.acls).sort((a, b) => `${a.principal} ${a.resource} ${a.name}`.localeCompare(`${b.principal} ${b.resource} ${b.name}`));
      return html`${rows.length === 0
        ? html`<div class="note">${t("There is no such rule. What no rule allows is denied, unless allow.everyone.if.no.acl.found is set.")}</div>`
        : html`<${RuleTable} rows=${rows} action=${(one) => html`<button aria-label=${`${t("Remove")}: ${said(one)}`} onClick=${() => remove(one, rows)}>${t("Remove")}</button>`} />`}
        <${More} token=${pages.at(-1).next_page_token} load=${more} />`;
    }}<//>
    ${dialog}`;
}

// The fields that a rule and a question have in common, kept in the address.
function Asked({ query, children }) {
  const set = (name) => (event) => setQuery({ [name]: event.target.value });
  const isCluster = query.resource === "cluster";
  return html`<div class="filters">
    <${Field} label=${t("Principal")}><input required pattern="[^:]+:.+" placeholder="User:alice" value=${query.principal ?? ""} onInput=${set("principal")} /><//>
    <${Select} label=${t("Operation")} value=${query.operation ?? "READ"} options=${OPERATIONS.map((one) => [one, one])} onChange=${(operation) => setQuery({ operation })} />
    <${Select} label=${t("Resource")} value=${query.resource ?? "topic"} options=${RESOURCES.map((one) => [one, one])} onChange=${(resource) => setQuery({ resource })} />
    ${isCluster ? html`<${Field} label=${t("Only for the tenant")}><input pattern="[a-z0-9\\-]{1,32}" value=${query.tenant ?? ""} onInput=${set("tenant")} /><//>` : html`<${Field} label=${t("Name")}><input required value=${query.name ?? ""} onInput=${set("name")} /><//>`}
    <${Field} label=${t("Host")}><input placeholder="*" value=${query.host ?? ""} onInput=${set("host")} /><//>
    ${children}</div>`;
}

const questionOf = (query) => ({
  principal: query.principal ?? "", operation: query.operation ?? "READ", resource: query.resource ?? "topic",
  name: query.resource === "cluster" ? (query.tenant ? `${query.tenant}/${CLUSTER}` : CLUSTER) : query.name ?? "", ...(query.host && { host: query.host }),
});

function Add({ query }) {
  const [dialog, start] = useAction();
  const submit = (event) => {
    event.preventDefault();
    const body = { permission: query.permission ?? "allow", ...questionOf(query), ...(query.pattern === "prefixed" && { pattern: "prefixed" }) };
    start({
      title: t("Add a rule"), method: "POST", path: PATH, body, hasDryRun: true, cli: command("add", body),
      preview: ({ acl, existed }) => html`<p>${existed ? t("This rule exists already: nothing will change.") : t("Adds this rule, on every broker within a second:")}</p><p><bdi>${said(acl)}</bdi></p>`,
    });
  };
  return html`<form onSubmit=${submit}><${Asked} query=${query}>
      <${Select} label=${t("Permission")} value=${query.permission ?? "allow"} options=${[["allow", t("allow")], ["deny", t("deny")]]} onChange=${(permission) => setQuery({ permission })} />
      <${Select} label=${t("Name is")} value=${query.pattern ?? "literal"} options=${[["literal", t("the whole name")], ["prefixed", t("a prefix")]]} onChange=${(pattern) => setQuery({ pattern })} />
    <//><p><button class="main">${t("Check")}</button></p></form>${dialog}`;
}

function Explain({ query }) {
  const isAsked = query.principal && (query.name || query.resource === "cluster");
  return html`<form onSubmit=${(event) => { event.preventDefault(); setQuery({ asked: String(Date.now()) }); }}>
      <${Asked} query=${query} /><p><button class="main">${t("Ask")}</button></p></form>
    ${query.asked && isAsked && html`<${Answer} question=${questionOf(query)} key=${query.asked} />`}`;
}

function Answer({ question }) {
  const path = "/v1/acl-explanations";
  const [asked] = useState(question); // what was asked, while another question is typed
  const state = useData((signal) => ask("POST", path, { body: asked, signal }), []);
  if (state.problem) return html`<${Refusal} problem=${state.problem} again=${state.again} />`;
  return html`<${Loaded} state=${state}>${(answer) => html`
    <div class=${`note ${answer.allowed ? "good" : "bad"}`} role="status"><strong>${answer.allowed ? t("Allowed") : t("Denied")}</strong><p><bdi>${visible(reason(answer), 2000)}</bdi></p></div>
    ${answer.acls.length > 0 && html`<${RuleTable} rows=${answer.acls} />`}
    <details><summary>${t("The same elsewhere: command line, HTTP, Python")}</summary>
      <${Forms} cli=${command("explain", asked)} method="POST" path=${path} body=${asked} /></details>`}<//>`;
}
