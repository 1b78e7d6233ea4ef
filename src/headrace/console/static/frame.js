// The frame around each page: navigation, palette, language, and whether the stream is live.
import { html, useEffect, useRef, useState } from "./vendor/preact.js";
import { get } from "./api.js";
import { Elsewhere } from "./elsewhere.js";
import { health, isLive, startLive } from "./live.js";
import { Palette } from "./palette.js";
import { link, route } from "./route.js";
import { SignIn, Unknown, mustSignIn, session, signOut } from "./session.js";
import { language, t, toggleLanguage } from "./words.js";

// The pages, in the order of the navigation: [first part of the path, title, module].
// A page with names in its path decides itself what it shows of them.
export const PAGES = [
  ["", () => t("Overview"), () => import("./pages/overview.js")],
  ["topics", () => t("Topics"), () => import("./pages/topics.js")],
  ["groups", () => t("Groups"), () => import("./pages/groups.js")],
  ["queues", () => t("Queues"), () => import("./pages/queues.js")],
  ["dead-letters", () => t("Dead letters"), () => import("./pages/dead_letters.js")],
  ["cluster", () => t("Cluster"), () => import("./pages/cluster.js")],
  ["connections", () => t("Connections"), () => import("./pages/connections.js")],
  ["acls", () => t("Access"), () => import("./pages/acls.js")],
  ["jobs", () => t("Jobs"), () => import("./pages/jobs.js")],
];

const RELOADED = "headrace-reloaded";
const pageOf = ([name = ""]) => PAGES.find(([path]) => path === name);

// The page that was asked for, loaded at once, and not after the session is known. If that fails, the page tries again.
const first = {};
const [firstName = ""] = route.peek().path;
export const firstPage = pageOf([firstName])?.[2]().then(({ Page: part }) => Object.assign(first, { name: firstName, part }), () => {});

// A page that could not be loaded, and neither after the console was read again.
const Unloaded = () => html`<h1>${t("The page could not be loaded")}</h1>
  <p>${t("The broker did not send it, twice. Its log may say why.")} <button onClick=${() => location.reload()}>${t("Read again")}</button></p>`;

// A browser does not give up a module that a broker never sends.
const LATE_MS = 10_000;
const Waiting = () => {
  const [isLate, setLate] = useState(false);
  useEffect(() => {
    const timer = setTimeout(() => setLate(true), LATE_MS);
    return () => clearTimeout(timer);
  }, []);
  return isLate
    ? html`<div class="note" role="status">${t("The broker has not sent this page for {n} seconds.", { n: LATE_MS / 1_000 })}
        <button onClick=${() => location.reload()}>${t("Try again")}</button></div>`
    : html`<p class="quiet" role="status">${t("Loading")} …</p>`;
};

function Page() {
  const name = route.value.path[0] ?? "";
  const known = pageOf(route.value.path);
  const [shown, setShown] = useState(first);
  const seen = useRef(null);
  useEffect(() => {
    let isOver = false;
    known?.[2]().then(
      ({ Page: part }) => {
        sessionStorage.removeItem(RELOADED);
        if (!isOver) setShown({ name, part });
      },
      () => {
        if (isOver) return;
        if (sessionStorage.getItem(RELOADED) === name) return setShown({ name, part: Unloaded });
        sessionStorage.setItem(RELOADED, name);
        location.reload(); // another version of the console is served by now
      },
    );
    return () => (isOver = true);
  }, [name]);
  const where = route.value.path.join("/");
  useEffect(() => {
    if (shown.name !== name) return;
    document.title = `${route.value.path.at(-1) ?? t("Overview")} · Headrace`;
    if (seen.current !== null && seen.current !== where) document.querySelector("main")?.focus();
    seen.current = where; // the first page takes no focus: somebody may be typing already
  }, [where, shown.name]);
  if (!known) return html`<h1>${t("There is no such page")}</h1><p><a href="#/">${t("Overview")}</a></p>`;
  if (shown.name !== name) return html`<${Waiting} key=${name} />`;
  return html`<${shown.part} path=${route.value.path.slice(1)} query=${route.value.query} key=${where} />
    <${Elsewhere} key=${`elsewhere ${where}`} />`;
}

export function Frame() {
  const [isSearching, setSearching] = useState(false);
  const [cluster, setCluster] = useState(null);
  const isKnown = session.value !== null && !session.value.problem;
  const isIn = isKnown && !mustSignIn();
  useEffect(() => {
    if (!isIn) return;
    startLive();
    get("/v1/cluster").then(setCluster, () => {});
  }, [isIn]);
  useEffect(() => {
    const open = (event) => {
      if ((event.ctrlKey || event.metaKey) && event.key.toLowerCase() === "k") {
        event.preventDefault();
        setSearching(true);
      }
    };
    document.addEventListener("keydown", open);
    return () => document.removeEventListener("keydown", open);
  }, []);
  const current = route.value.path[0] ?? "";
  const isWell = health.value?.is_well;
  return html`<div class="frame" key=${language.value}>
    <a class="skip" href="#main" onClick=${(event) => {
      event.preventDefault();
      document.querySelector("main").focus();
    }}>${t("Skip to the page")}</a>
    <header class="top">
      <a class="name" href="#/">Headrace</a>
      <nav aria-label=${t("Pages")}>${PAGES.map(([path, title]) =>
        html`<a href=${link(path ? [path] : [])} aria-current=${current === path ? "page" : undefined}>${title()}</a>`)}</nav>
      <div class="state">
        ${cluster && html`<span title=${t("Cluster {id}", { id: cluster.cluster_id })}>${t("Broker {id}", { id: cluster.broker })}</span>`}
        <span class=${`dot ${isLive.value ? (isWell === false ? "bad" : "good") : ""}`} role="status">${
          isLive.value ? (isWell === false ? t("Has problems") : t("Live")) : t("Not live")}</span>
        ${session.value?.by === "session" && html`<button onClick=${signOut}>${t("Sign out {user}", { user: session.value.principal.replace("User:", "") })}</button>`}
        <button onClick=${() => setSearching(true)} disabled=${!isIn}>${t("Go to")} <kbd>Ctrl K</kbd></button>
        <button lang=${language.value === "zh" ? "en" : "zh-CN"} onClick=${toggleLanguage}>${language.value === "zh" ? "English" : "中文"}</button>
      </div>
    </header>
    <main id="main" tabindex="-1">${isIn ? html`<${Page} />` : html`<${isKnown ? SignIn : Unknown} />`}</main>
    ${isSearching && isIn && html`<${Palette} pages=${PAGES} close=${() => setSearching(false)} />`}
  </div>`;
}
