// The palette (Ctrl-K): pages, topics and groups by a part of their name, by keyboard alone.
import { html, useEffect, useState } from "./vendor/preact.js";
import { get } from "./api.js";
import { visible } from "./format.js";
import { link } from "./route.js";
import { Dialog } from "./ui.js";
import { t } from "./words.js";

const SHOWN_MAX = 12;

export function Palette({ pages, close }) {
  const [typed, setTyped] = useState("");
  const [found, setFound] = useState([]);
  const [chosen, setChosen] = useState(0);
  useEffect(() => {
    const read = (path, list, name) => get(path, { limit: 1000 }).then(
      (answer) => answer[list].map((one) => one[name]), () => []);
    Promise.all([read("/v1/topics", "topics", "name"), read("/v1/groups", "groups", "group")]).then(
      ([topics, groups]) => setFound([
        ...topics.map((name) => ({ kind: t("Topic"), name, href: link(["topics", name]) })),
        ...(pages.some(([path]) => path === "groups") ? groups : []).map((name) => (
          { kind: t("Group"), name, href: link(["groups", name]) })),
      ]));
  }, []);
  const entries = [
    ...pages.map(([path, title]) => ({ kind: t("Page"), name: title(), href: link(path ? [path] : []) })),
    ...found,
  ].filter(({ name }) => name.toLowerCase().includes(typed.toLowerCase())).slice(0, SHOWN_MAX);
  const at = Math.min(chosen, entries.length - 1);
  const pressed = (event) => {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (step && entries.length) {
      event.preventDefault();
      setChosen((at + step + entries.length) % entries.length);
    } else if (event.key === "Enter" && entries[at]) {
      event.preventDefault();
      location.hash = entries[at].href;
      close();
    }
  };
  return html`<${Dialog} title=${t("Go to")} close=${close}>
    <input role="combobox" aria-expanded="true" aria-controls="palette" aria-label=${t("Name of a page, topic or group")}
      aria-activedescendant=${entries[at] ? `palette-${at}` : undefined} placeholder=${t("Name of a page, topic or group")}
      value=${typed} autofocus onInput=${(event) => { setTyped(event.target.value); setChosen(0); }} onKeyDown=${pressed} />
    <ul role="listbox" id="palette" aria-label=${t("Found")}>${entries.map((one, number) =>
      html`<li role="option" id=${`palette-${number}`} aria-selected=${number === at}
        onClick=${() => { location.hash = one.href; close(); }}><span>${visible(one.name, 120)}</span> <small>${one.kind}</small></li>`)}</ul>
    ${entries.length === 0 && html`<p class="quiet">${t("Nothing has such a name")}</p>`}
  <//>`;
}
