// Tenants: who belongs to each, what it may have, and what it has of that.
import { html, useState } from "../vendor/preact.js";
import { at, get, useData, words } from "../api.js";
import { bytes, count, visible } from "../format.js";
import { link } from "../route.js";
import { Empty, Figure, Loaded, More, Table } from "../ui.js";
import { t } from "../words.js";

const PATH = "/v1/tenants";
const LIMIT = 200;
const amount = (name, value) => (name.includes("byte") ? bytes(value) : count(value)) + (name.endsWith("_rate") ? "/s" : name.endsWith("_percentage") ? " %" : "");
const limitsOf = ({ limits }) => Object.entries(limits).map(([name, value]) => html`<div>${name}: ${amount(name, value)}</div>`);

const whenFull = (name) => ({
  reject: t("records are refused"), slow: t("clients are slowed down"), "drop-oldest": t("the oldest records are deleted"),
})[name] ?? name;

const accessOf = (name) => ({ all: t("everything"), rules: t("what rules allow") })[name] ?? name;

export const Tenants = ({ path }) => (path.length ? html`<${Tenant} name=${path[0]} key=${path[0]} />` : html`<${List} />`);

function List() {
  const [further, setFurther] = useState([]);
  const state = useData((signal) => get(PATH, { limit: LIMIT }, signal), []);
  const more = async (token) => setFurther([...further, await get(PATH, { limit: LIMIT, page_token: token })]);
  return html`<${Loaded} state=${state}>${(data) => {
      const rows = [data, ...further].flatMap((one) => one.tenants);
      if (rows.length === 0) return html`<${Empty} text=${t("No tenant yet. Create one:")} command="headrace tenant create acme --principal User:alice" />`;
      return html`<${Table} label=${t("Tenants")} rows=${rows} keyOf=${(one) => one.name} columns=${[
        { name: t("Name"), cell: (one) => html`<a href=${link(["acls", "tenants", one.name])}>${one.name}</a>` },
        { name: t("Principals"), isNumber: true, cell: (one) => count(one.principals.length) },
        { name: t("Limits"), cell: limitsOf },
      ]} /><${More} token=${(further.at(-1) ?? data).next_page_token} load=${more} />`;
    }}<//>`;
}

function Tenant({ name }) {
  const path = at("tenants", name);
  const state = useData((signal) => get(path, {}, signal), [path]);
  return html`<h2>${visible(name, 200)}</h2>
    <${Loaded} state=${state}>${(tenant) => html`
      <dl class="figures">
        <${Figure} name=${t("Topics")} value=${count(tenant.topics)} />
        <${Figure} name=${t("Groups")} value=${count(tenant.groups)} />
        <${Figure} name=${t("Principals")} value=${count(tenant.principals.length)} />
        <${Figure} name=${t("When its storage is full")} value=${whenFull(tenant.when_full)} note=${tenant.when_full} />
        ${tenant.audit_topic && html`<${Figure} name=${t("Topic of its audit log")} value=${visible(tenant.audit_topic, 249)} />`}
        <${Figure} name=${t("Its principals may do")} value=${accessOf(tenant.access)} note=${tenant.access} />
      </dl>
      <p><button onClick=${state.again}>${t("Read again")}</button></p>
      ${Object.keys(tenant.limits).length === 0
        ? html`<${Empty} text=${t("The tenant has no limits. Set some:")} command=${words("headrace", "tenant", "set", name, "--limit", "topics=100")} />`
        : html`<${Table} label=${t("Limits")} rows=${Object.entries(tenant.limits)} keyOf=${([what]) => what} columns=${[
            { name: t("Limits"), cell: ([what]) => what },
            { name: t("Used"), isNumber: true, cell: ([what]) => amount(what, tenant.used[what]) },
            { name: t("At most"), isNumber: true, cell: ([what, most]) => amount(what, most) },
          ]} />`}
      <h2>${t("Principals")}</h2>
      <ul>${tenant.principals.map((one) => html`<li><bdi>${visible(one, 300)}</bdi></li>`)}</ul>`}<//>`;
}
