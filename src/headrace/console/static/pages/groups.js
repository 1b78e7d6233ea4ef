// Groups: the list, and one group: its lag and members, why it is slow, and its offsets reset.
import { html, useEffect, useState } from "../vendor/preact.js";
import { at, get, useData, words } from "../api.js";
import { useAction } from "../action.js";
import { count, visible } from "../format.js";
import { go, link, setQuery } from "../route.js";
import { Empty, Field, Loaded, More, Refusal, Select, Table, Tabs, Title } from "../ui.js";
import { Lag } from "./lag.js";
import { Settings } from "./settings.js";
import { finding, refusal, t } from "../words.js";

export const Page = ({ path, query }) => (path.length
  ? html`<${Group} name=${path[0]} tab=${path[1] ?? "lag"} query=${query} />`
  : html`<${List} query=${query} />`);

function List({ query }) {
  const [further, setFurther] = useState([]);
  const asked = { state: query.state, type: query.type, limit: 200 };
  const state = useData((signal) => get("/v1/groups", asked, signal), [query.state, query.type]);
  const more = async (token) => setFurther([...further, await get("/v1/groups", { ...asked, page_token: token })]);
  const choose = (changes) => {
    setFurther([]);
    setQuery(changes);
  };
  return html`<${Title} text=${t("Groups")} />
    <div class="filters">
      <${Select} label=${t("State")} value=${query.state ?? ""} onChange=${(one) => choose({ state: one })} options=${[["", t("all")], ...["Stable", "Empty", "PreparingRebalance", "Dead"].map((one) => [one, one])]} />
      <${Select} label=${t("Type")} value=${query.type ?? ""} onChange=${(one) => choose({ type: one })} options=${[["", t("all")], ...["classic", "consumer", "share", "streams"].map((one) => [one, one])]} />
    </div>
    <${Loaded} state=${state}>${(data) => {
      const rows = [data, ...further].flatMap((one) => one.groups);
      if (rows.length === 0) return html`<${Empty} text=${t("No group yet. Consume with one:")} command="headrace consume orders --group billing" />`;
      return html`<${Table} label=${t("Groups")} rows=${rows} keyOf=${(one) => one.group} columns=${[
        { name: t("Name"), cell: (one) => html`<a href=${link(["groups", one.group])}><bdi>${visible(one.group, 200)}</bdi></a>` },
        { name: t("State"), cell: (one) => one.state },
        { name: t("Type"), cell: (one) => one.type },
      ]} /><${More} token=${(further.at(-1) ?? data).next_page_token} load=${more} />`;
    }}<//>`;
}

function Group({ name, tab, query }) {
  // A page loads no partition; a reset does in any case, and counts from what is there.
  const asked = tab === "reset" ? {} : { loaded: true };
  const state = useData((signal) => Promise.all([
    get(at("groups", name), {}, signal), get(at("groups", name, "offsets"), asked, signal),
  ]).then(([group, { offsets, failed }]) => ({ ...group, offsets, failed })), [name, tab === "reset"]);
  const [dialog, start] = useAction();
  const remove = () => start({
    title: t("Delete the group"), verb: t("Delete"), method: "DELETE", path: at("groups", name), hasDryRun: true, confirm: name,
    cli: words("headrace", "group", "delete", name),
    preview: () => t("Deletes the group with its offsets in {n} partitions: its consumers will start anew.", { n: state.data?.offsets.length ?? 0 }),
    after: () => go(["groups"]),
  });
  const tabs = [["lag", t("Lag")], ["members", t("Members")], ["slow", t("Why is it slow?")], ["reset", t("Reset offsets")], ["settings", t("Settings")]];
  return html`<${Title} text=${visible(name, 200)}>${state.data && html`<button onClick=${remove}>${t("Delete the group")}</button>`}<//>
    <${Tabs} label=${t("Parts of the group")} tabs=${tabs} chosen=${tab} href=${(one) => link(["groups", name, one])} />
    <${Loaded} state=${state}>${(group) => html`
      ${tab === "lag" && html`<${Lag} group=${group} query=${query} again=${state.again} />`}
      ${tab === "members" && html`<${Members} group=${group} />`}
      ${tab === "slow" && html`<${Diagnosis} name=${name} />`}
      ${tab === "reset" && html`<${Reset} group=${group} query=${query} start=${start} again=${state.again} />`}
      ${tab === "settings" && html`<${Settings} kind="groups" name=${name} query=${query} start=${start}
        cli=${([verb, change]) => words("headrace", "config", verb === "--set" ? "set" : "unset", change, "--group", name)} />`}
    `}<//>
    ${dialog}`;
}

// Of a streams group's tasks, which are called subtopology_partition.
const roleName = (role) => ({ active: t("active tasks"), standby: t("standby tasks"), warmup: t("warm-up tasks") })[role] ?? role;

function Members({ group }) {
  if (group.members.length === 0) return html`<${Empty} text=${t("The group has no members. Start a consumer:")} command=${words("headrace", "consume", group.offsets[0]?.topic ?? "orders", "--group", group.group)} />`;
  return html`<${Table} label=${t("Members")} rows=${group.members} keyOf=${(one) => one.id} columns=${[
    { name: t("Client"), cell: (one) => html`<bdi>${visible(one.client_id, 200)}</bdi>` },
    { name: t("Host"), cell: (one) => one.host },
    { name: t("Assigned partitions"), cell: (one) => (one.assignments.length + (one.tasks?.length ?? 0) === 0 ? t("none") : html`
      ${one.assignments.map(({ topic, partitions }) => html`<div><a href=${link(["topics", topic, "partitions"])}><bdi>${visible(topic, 250)}</bdi></a> ${partitions.join(", ")}</div>`)}
      ${one.tasks?.map(({ role, subtopology, partitions }) => html`<div>${roleName(role)}: ${partitions.map((number) => `${visible(subtopology, 100)}_${number}`).join(", ")}</div>`)}`) },
    { name: t("Member"), cell: (one) => html`<bdi class="line">${visible(one.id, 200)}</bdi>` },
    { name: t("Instance"), cell: (one) => html`<bdi>${visible(one.instance_id ?? "–", 200)}</bdi>` },
  ]} />`;
}

const LOOK_MS = 6_000;
const STEP_MS = 250;

function Looking() {
  const [passed, setPassed] = useState(0);
  useEffect(() => {
    const begun = performance.now();
    const timer = setInterval(() => setPassed(Math.min(performance.now() - begun, LOOK_MS)), STEP_MS);
    return () => clearInterval(timer);
  }, []);
  return html`<p class="quiet"><span role="status">${t("Looking at the group for six seconds")} …</span> <progress aria-label=${t("Progress")} max=${LOOK_MS} value=${passed} /></p>`;
}

function Diagnosis({ name }) {
  const path = at("groups", name, "diagnosis");
  const state = useData((signal) => get(path, {}, signal), [name]);
  return html`${state.isLoading && html`<${Looking} />`}
    ${!state.isLoading && html`<${Loaded} state=${state}>${({ findings, lag }) => html`
      <p class="quiet">${t("Lag")}: ${count(lag)}</p>
      ${findings.map((one) => [one, ...finding(one)]).map(([one, sentence, step], index) => html`<section class=${`note ${one.kind === "no_lag" || one.kind === "catching_up" ? "good" : index === 0 ? "bad" : ""}`}>
        <strong>${sentence}</strong>
        <p>${t("Next")}: ${step}</p>
        <p class="quiet">${t("Evidence")}: ${Object.entries(one.evidence).map(([key, value]) => `${key} ${value}`).join(", ")}</p>
      </section>`)}
      <button onClick=${state.again}>${t("Look again")}</button>`}<//>`}`;
}

// `places`: the group's offsets in one topic, which all go to `target`, or each to its own; `to`: as the command says it.
export function resetAction(name, places, target, to, after) {
  const { topic } = places[0];
  const moves = (answer) => html`<${Moves} before=${places} results=${answer.results} />`;
  return {
    title: t("Reset offsets"), verb: t("Reset"), method: "PUT", path: at("groups", name, "offsets"), hasDryRun: true, confirm: name,
    body: { offsets: places.map((one) => ({ topic, partition: one.partition, ...(one.target ?? target) })) },
    cli: words("headrace", "group", "reset", name, "--topic", topic, ...to),
    preview: moves, done: moves, after,
  };
}

function Reset({ group, query, start, again }) {
  const topics = [...new Set(group.offsets.map((one) => one.topic))];
  const topic = topics.includes(query.topic) ? query.topic : topics[0] ?? "";
  const { to: kind = "earliest", value = "" } = query;
  const setValue = (event) => setQuery({ value: event.target.value });
  const submit = (event) => {
    event.preventDefault();
    const target = {
      earliest: { position: "earliest" }, latest: { position: "latest" },
      offset: { offset: Number(value) }, time: { timestamp_ms: Date.parse(value) },
    }[kind];
    const places = group.offsets.filter((one) => one.topic === topic);
    const to = kind === "offset" ? value : kind === "time" ? new Date(value).toISOString() : kind;
    start(resetAction(group.group, places, target, ["--to", to], again));
  };
  if (topics.length === 0) return html`<${Empty} text=${t("The group has no offsets: its consumers have not committed any.")} />`;
  return html`${group.members.length > 0 && html`<${Refusal} problem=${{ message: t("The group has members."), nextStep: t("stop its consumers first") }} />`}
    <form class="filters" onSubmit=${submit}>
      <${Select} label=${t("Topic")} value=${topic} options=${topics.map((one) => [one, one])} onChange=${(one) => setQuery({ topic: one })} />
      <${Select} label=${t("To")} value=${kind} onChange=${(to) => setQuery({ to, value: "" })} options=${[["earliest", t("the start")], ["latest", t("the end")], ["offset", t("an offset")], ["time", t("a time")]]} />
      ${kind === "offset" && html`<${Field} label=${t("Offset")}><input type="number" min="0" required value=${value} onInput=${setValue} /><//>`}
      ${kind === "time" && html`<${Field} label=${t("Time")}><input type="datetime-local" step="1" required value=${value} onInput=${setValue} /><//>`}
      <button class="main">${t("Check")}</button>
    </form>`;
}

function Moves({ before, results }) {
  const from = new Map(before.map((one) => [one.partition, one.offset]));
  const moved = results.filter((one) => one.ok);
  const back = moved.reduce((sum, one) => sum + Math.max((from.get(one.partition) ?? 0) - one.offset, 0), 0);
  const ahead = moved.reduce((sum, one) => sum + Math.max(one.offset - (from.get(one.partition) ?? 0), 0), 0);
  return html`<p>${t("{again} records are consumed again, {skipped} are skipped.", { again: count(back), skipped: count(ahead) })}</p>
    <ul>${results.map((one) => html`<li>${one.topic}-${one.partition}: ${one.ok ? `${count(from.get(one.partition))} → ${count(one.offset)}` : refusal(one.error)}</li>`)}</ul>`;
}
