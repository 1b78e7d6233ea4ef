// Topics: the list, and one topic in tabs.
import { html, useState } from "../vendor/preact.js";
import { at, get, useData, words } from "../api.js";
import { useAction } from "../action.js";
import { atLeast, bytes, count, topicText, visible } from "../format.js";
import { link, setQuery } from "../route.js";
import { Empty, Field, Loaded, More, Select, Table, Title, TOPIC_NAME } from "../ui.js";
import { Topic } from "./topic.js";
import { t } from "../words.js";

const PAGE = 200;

export const Page = ({ path, query }) => (path.length
  ? html`<${Topic} name=${topicText(path[0])} tab=${path[1] ?? "messages"} query=${query} />`
  : html`<${List} query=${query} />`);

function List({ query }) {
  const [further, setFurther] = useState([]);
  const asked = { prefix: query.prefix, internal: query.internal, details: true, limit: PAGE };
  const state = useData((signal) => get("/v1/topics", asked, signal), [query.prefix, query.internal]);
  const [dialog, start] = useAction();
  const [isMaking, setMaking] = useState(false);
  const more = async (token) => {
    const next = await get("/v1/topics", { ...asked, page_token: token });
    setFurther([...further, next]);
  };
  const search = (changes) => {
    setFurther([]);
    setQuery(changes);
  };
  const command = "headrace topic create orders --partitions 3";
  return html`<${Title} text=${t("Topics")}>
      <button class="main" onClick=${() => setMaking(!isMaking)} aria-expanded=${isMaking}>${t("Create a topic")}</button>
    <//>
    ${isMaking && html`<${Create} start=${start} after=${state.again} />`}
    <div class="filters">
      <${Field} label=${t("Name begins with")}><input type="search" value=${query.prefix ?? ""} onChange=${(event) => search({ prefix: event.target.value })} /><//>
      <${Select} label=${t("Internal topics")} value=${query.internal ?? ""} options=${[["", t("hidden")], ["true", t("shown")]]} onChange=${(internal) => search({ internal })} />
    </div>
    <${Loaded} state=${state}>${(data) => {
      const rows = [data, ...further].flatMap((one) => one.topics);
      if (rows.length === 0) return html`<${Empty} text=${t("No topic yet. Create one:")} command=${command} />`;
      return html`<${Table} label=${t("Topics")} rows=${rows} keyOf=${(one) => one.name} columns=${[
        { name: t("Name"), cell: (one) => html`<a href=${link(["topics", one.name])}>${one.name}</a>` },
        { name: t("Partitions"), isNumber: true, cell: (one) => count(one.partitions) },
        { name: t("Records"), isNumber: true, cell: (one) => partly(one, count(one.records)) },
        { name: t("Size"), isNumber: true, cell: (one) => partly(one, bytes(one.size_bytes)) },
        { name: t("Records in"), isNumber: true, cell: (one) => partly(one, perSecond(count(one.records_in_per_s))) },
        { name: t("Out"), isNumber: true, cell: (one) => partly(one, perSecond(bytes(one.bytes_out_per_s))) },
        { name: t("Lag of groups"), isNumber: true, cell: lagOf },
      ]} /><${More} token=${(further.at(-1) ?? data).next_page_token} load=${more} />
      ${rows.some((one) => one.lag_is_partial) && html`<p class="quiet">${t("≥: without partitions that were not used since their broker's start, or whose broker does not answer, or without the lag of some groups, because they are too many.")}</p>`}`;
    }}<//>
    ${dialog}`;
}

const partly = (one, text) => atLeast(one.is_partial, text);

const perSecond = (text) => `${text}/s`;

// The group that is furthest behind, of those that the reader may see.
function lagOf({ lags, lag_is_partial }) {
  if (lags.length === 0) return "–";
  const [{ group, records }] = lags;
  return html`${atLeast(lag_is_partial, count(records))} <a href=${link(["groups", group])}><bdi>${visible(group, 60)}</bdi></a>${lags.length > 1 && ` ${t("and {n} more", { n: lags.length - 1 })}`}`;
}

function Create({ start, after }) {
  const [name, setName] = useState("");
  const [partitions, setPartitions] = useState(1);
  const submit = (event) => {
    event.preventDefault();
    const body = { name, partitions: Number(partitions) };
    start({
      title: t("Create a topic"), method: "POST", path: "/v1/topics", body, hasDryRun: true,
      cli: words("headrace", "topic", "create", name, "--partitions", partitions),
      preview: (answer) => t("Creates {name} with {n} partitions, each stored {copies} times.",
        { name: answer.name, n: answer.partitions, copies: answer.replication_factor }),
      done: (answer) => html`<a href=${link(["topics", answer.name])}>${answer.name}</a>`,
      after,
    });
  };
  return html`<form class="filters note" onSubmit=${submit}>
    <${Field} label=${t("Name")}><input required ...${TOPIC_NAME} value=${name} onInput=${(event) => setName(event.target.value)} /><//>
    <${Field} label=${t("Partitions")}><input type="number" min="1" max="10000" required value=${partitions} onInput=${(event) => setPartitions(event.target.value)} /><//>
    <button class="main">${t("Check")}</button>
  </form>`;
}
