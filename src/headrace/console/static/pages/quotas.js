// Quotas of users, client ids and addresses, and their defaults: listed, set, removed.
import { html, useEffect, useState } from "../vendor/preact.js";
import { get, useData, words } from "../api.js";
import { useAction } from "../action.js";
import { bytes, count, visible } from "../format.js";
import { link, setQuery } from "../route.js";
import { Empty, Field, Loaded, More, Select, Table } from "../ui.js";
import { t } from "../words.js";

const PATH = "/v1/quotas";
const LIMIT = 500;
const KINDS = () => [["user", t("a user")], ["client_id", t("a client id")], ["both", t("a user with a client id")], ["ip", t("an address")]];
const PARTS = { user: ["user"], client_id: ["client_id"], both: ["user", "client_id"], ip: ["ip"] };
const OF_CLIENTS = ["producer_byte_rate", "consumer_byte_rate", "request_percentage", "controller_mutation_rate"];
const OF_ADDRESSES = ["connection_creation_rate"];

const titleOf = (part) => ({ user: t("User"), client_id: t("Client id"), ip: t("Address") })[part];
const rateOf = (name, value) => (name.endsWith("byte_rate") ? `${bytes(value)}/s` : name === "request_percentage" ? `${count(value)} %` : `${count(value)}/s`);
const partsOf = (entity) => ["user", "client_id", "ip"].filter((part) => part in entity || `default_${part}` in entity);
const kindOf = (entity) => { const parts = partsOf(entity); return parts.length > 1 ? "both" : parts[0]; };
const entityText = (entity) => partsOf(entity).map((part) => `${titleOf(part)}: ${part in entity ? visible(entity[part], 300) : t("default")}`).join(", ");
const options = (entity) => partsOf(entity).map((part) => { const option = part.replace("_", "-"); return part in entity ? `--${option}=${entity[part]}` : `--default-${option}`; });
const ratesText = (quotas) => Object.entries(quotas).map(([name, value]) => html`<li>${name}: ${rateOf(name, value)}</li>`);

export function Quotas({ query }) {
  const [dialog, start] = useAction();
  const [further, setFurther] = useState([]);
  const state = useData((signal) => { setFurther([]); return get(PATH, { limit: LIMIT }, signal); }, []);
  const more = async (token) => setFurther([...further, await get(PATH, { limit: LIMIT, page_token: token })]);
  const change = (entity, before, { set = {}, reset = [] }) => start({
    title: Object.keys(set).length ? t("Set quotas") : t("Remove the quotas"), method: "PATCH", path: PATH, hasDryRun: true,
    confirm: Object.keys(set).length ? "" : Object.values(entity).find((one) => one !== true) ?? "default",
    body: { ...entity, ...(Object.keys(set).length && { set }), ...(reset.length && { reset }) },
    cli: [
      ...(Object.keys(set).length ? [words("headrace", "quota", "set", ...Object.entries(set).map(([name, value]) => `${name}=${value}`), ...options(entity))] : []),
      ...(reset.length ? [words("headrace", "quota", "delete", ...reset, ...options(entity))] : []),
    ].join(" && "),
    preview: (answer) => html`<p>${t("From then on, on each broker:")} <bdi>${entityText(entity)}</bdi></p>
      <ul>${Object.keys(answer.quotas).length ? ratesText(answer.quotas) : html`<li>${t("no quota of its own")}</li>`}</ul>
      ${Object.keys(before).length > 0 && html`<p>${t("Until now:")}</p><ul>${ratesText(before)}</ul>`}`,
    after: state.again,
  });
  return html`<p>${t("Each broker limits its clients separately; the most specific quota counts.")}</p>
    <${Loaded} state=${state}>${(data) => {
      const rows = [data, ...further].flatMap((one) => one.quotas);
      const entity = entityOf(query);
      const known = rows.find((one) => JSON.stringify(sorted(one.entity)) === JSON.stringify(sorted(entity)))?.quotas ?? {};
      return html`${rows.length === 0
        ? html`<${Empty} text=${t("No quotas yet. Set one here, or:")} command="headrace quota set producer_byte_rate=1MiB --client-id loader" />`
        : html`<${Table} label=${t("Quotas")} rows=${rows} keyOf=${(one) => one.id} columns=${[
            { name: t("Of"), cell: (one) => html`<bdi>${entityText(one.entity)}</bdi>` },
            { name: t("Quotas"), cell: (one) => html`<ul>${ratesText(one.quotas)}</ul>` },
            { name: t("Action"), cell: (one) => html`<div class="tools">
                <a href=${link(["acls", "quotas"], asQuery(one.entity))} aria-label=${`${t("Change")}: ${entityText(one.entity)}`}>${t("Change")}</a>
                <button aria-label=${`${t("Remove")}: ${entityText(one.entity)}`} onClick=${() => change(one.entity, one.quotas, { reset: Object.keys(one.quotas) })}>${t("Remove")}</button></div>` },
          ]} />`}
        <${More} token=${(further.at(-1) ?? data).next_page_token} load=${more} />
        <h2>${t("Set quotas")}</h2>
        <${Form} query=${query} entity=${entity} known=${known} change=${change} />`;
    }}<//>${dialog}`;
}

const sorted = (entity) => Object.entries(entity).sort();

// What the address names. An empty name is the default of its kind.
function entityOf(query) {
  const named = PARTS[query.kind] ?? PARTS.user;
  return Object.fromEntries(named.map((part) => (query[part] ? [part, query[part]] : [`default_${part}`, true])));
}

const asQuery = (entity) => ({ kind: kindOf(entity), ...Object.fromEntries(partsOf(entity).map((part) => [part, entity[part] ?? ""])) });

function Form({ query, entity, known, change }) {
  const kind = kindOf(entity);
  const names = kind === "ip" ? OF_ADDRESSES : OF_CLIENTS;
  const [values, setValues] = useState(known);
  useEffect(() => setValues(known), [JSON.stringify(known)]);
  const check = (event) => {
    event.preventDefault();
    const set = Object.fromEntries(names.filter((name) => values[name]).map((name) => [name, Number(values[name])]));
    const reset = names.filter((name) => !values[name] && name in known);
    if (reset.length || Object.keys(set).length) return change(entity, known, { set, reset });
    const first = event.target.elements[names[0]];
    first.setCustomValidity(t("Give at least one quota."));
    first.reportValidity();
  };
  const type = (name) => (event) => {
    event.target.form.elements[names[0]].setCustomValidity("");
    setValues({ ...values, [name]: event.target.value });
  };
  return html`<form onSubmit=${check}><div class="filters">
      <${Select} label=${t("Of")} value=${kind} options=${KINDS()} onChange=${(one) => setQuery({ kind: one })} />
      ${PARTS[kind].map((part) => html`<${Field} key=${part} label=${titleOf(part)}><input value=${query[part] ?? ""} maxlength="1000" placeholder=${t("all without their own")}
        autocomplete="off" onChange=${(event) => setQuery({ [part]: event.target.value })} /><//>`)}
    </div><div class="filters">
      ${names.map((name) => html`<${Field} key=${name} label=${name}><input name=${name} type="number" min="1" step="1" placeholder=${t("none")} value=${values[name] ?? ""} onInput=${type(name)} /><//>`)}
    </div><p><button class="main">${t("Check")}</button></p></form>`;
}
