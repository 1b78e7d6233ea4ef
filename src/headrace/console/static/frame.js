// The frame around each page: navigation, palette, language, and whether the stream is live.
import { html, useEffect, useRef, useState } from "./vendor/preact.js";
import { get } from "./api.js";
import { health, isLive, startLive } from "./live.js";
import { Palette } from "./palette.js";
import { link, route } from "./route.js";
import { language, t, toggleLanguage } from "./words.js";

// The pages, in the order of the navigation: [first part of the path, title, module].
// A page with names in its path decides itself what it shows of them.
export const PAGES = [
  ["", () => t("Overview"), () => import("./pages/overview.js")],
  ["topics", () => t("Topics"), () => import("./pages/topics.js")],
];

function Page() {
  const name = route.value.path[0] ?? "";
  const known = PAGES.find(([path]) => path === name);
  const [shown, setShown] = useState({});
  const hasMoved = useRef(false);
  useEffect(() => {
    let isOver = false;
    known?.[2]().then(
      ({ Page: part }) => isOver || setShown({ name, part }),
      () => location.reload(), // another version of the console is served by now
    );
    return () => (isOver = true);
  }, [name]);
  const where = route.value.path.join("/");
  useEffect(() => {
    document.title = `${route.value.path.at(-1) ?? t("Overview")} · Headrace`;
    if (hasMoved.current) document.querySelector("main")?.focus();
    hasMoved.current = true;
  }, [where, shown.name]);
  if (!known) return html`<h1>${t("There is no such page")}</h1><p><a href="#/">${t("Overview")}</a></p>`;
  if (shown.name !== name) return html`<p class="quiet" role="status">${t("Loading")} …</p>`;
  return html`<${shown.part} path=${route.value.path.slice(1)} query=${route.value.query} key=${where} />`;
}

export function Frame() {
  const [isSearching, setSearching] = useState(false);
  const [cluster, setCluster] = useState(null);
  useEffect(() => {
    startLive();
    get("/v1/cluster").then(setCluster, () => {});
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
        <button onClick=${() => setSearching(true)}>${t("Go to")} <kbd>Ctrl K</kbd></button>
        <button lang=${language.value === "zh" ? "en" : "zh-CN"} onClick=${toggleLanguage}>${language.value === "zh" ? "English" : "中文"}</button>
      </div>
    </header>
    <main id="main" tabindex="-1"><${Page} /></main>
    ${isSearching && html`<${Palette} pages=${PAGES} close=${() => setSearching(false)} />`}
  </div>`;
}
