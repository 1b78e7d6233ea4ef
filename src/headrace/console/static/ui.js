// The parts that pages are made of.
import { html, useEffect, useRef, useState } from "./vendor/preact.js";
import { asCurl, asPython } from "./api.js";
import { t } from "./words.js";

const RETRY_MS = 5_000;

// Of an input for a topic's name, as the API takes it: operators write acme/orders of a tenant's.
const TENANT = "[a-z0-9][a-z0-9\\-]{0,31}";
export const TOPIC_NAME = { pattern: `(\u00ab${TENANT}\u00bb|${TENANT}/)?[a-zA-Z0-9._\\-]{1,249}`, maxlength: 283, spellcheck: false, autocomplete: "off" };

export function Title({ text, children }) {
  return html`<div class="title"><h1 tabindex="-1">${text}</h1><div class="tools">${children}</div></div>`;
}

// What was refused, why, and what to do.
export function Refusal({ problem, again }) {
  return html`<div class="note bad" role="alert">
    <strong>${problem.message}</strong>
    ${problem.nextStep && html`<p>${t("Next")}: ${problem.nextStep}</p>`}
    ${again && html`<button onClick=${again}>${t("Try again")}</button>`}
  </div>`;
}

export function Loaded({ state, children }) {
  if (state.problem) return html`<${Refusal} problem=${state.problem} again=${state.again} />`;
  if (!state.data) return html`<p class="quiet" role="status">${t("Loading")} …</p>`;
  return children(state.data);
}

// The brokers that an answer lacks. What is not worth trying again is lasting: no HTTP listener, or
// another version.
export function Missing({ failed = [] }) {
  const brokers = (isPassing) => [...new Set(failed.filter((one) => one.error.retriable === isPassing).map((one) => one.broker))].join(", ");
  const [silent, without] = [brokers(true), brokers(false)];
  return html`${silent && html`<div class="note bad">${t("Brokers that do not answer")}: ${silent}</div>`}
    ${without && html`<div class="note">${t("Brokers that have no figures, because they have no HTTP listener or another version")}: ${without}</div>`}`;
}

// An empty list teaches how to fill it.
export function Empty({ text, command }) {
  return html`<div class="note"><p>${text}</p>${command && html`<${Code} text=${command} />`}</div>`;
}

export function Code({ text }) {
  const [isCopied, setCopied] = useState(false);
  const copy = async () => {
    await navigator.clipboard?.writeText(text);
    setCopied(true);
  };
  return html`<div class="code"><pre tabindex="0" dir="ltr">${text}</pre>
    <button onClick=${copy}>${isCopied ? t("Copied") : t("Copy")}</button></div>`;
}

// What a broker tells once. A saved page leaves it out.
export function Secret({ name, text }) {
  return html`<div class="secret"><p>${t("{name}, which is shown now and never again:", { name })}</p><${Code} text=${text} /></div>`;
}

// The forms of one request outside the console. A stream never ends: it is none of JSON.
export function Forms({ cli, method = "GET", path, body, isStream = false }) {
  return html`<dl class="forms">
    ${cli && html`<dt>${t("Command line")}</dt><dd><${Code} text=${cli} /></dd>`}
    <dt>HTTP</dt><dd><${Code} text=${asCurl(method, path, body, isStream)} /></dd>
    ${!isStream && html`<dt>Python</dt><dd><${Code} text=${asPython(method, path, body)} /></dd>`}
  </dl>`;
}

// columns: [{name, cell(row), isNumber}]. A table scrolls sideways on a small screen.
export function Table({ label, columns, rows, keyOf }) {
  return html`<div class="scroll" tabindex="0" role="region" aria-label=${label}><table>
    <thead><tr>${columns.map((one) => html`<th scope="col" class=${one.isNumber ? "number" : ""}>${one.name}</th>`)}</tr></thead>
    <tbody>${rows.map((row) => html`<tr key=${keyOf(row)}>${columns.map((one) =>
      html`<td class=${one.isNumber ? "number" : ""}>${one.cell(row)}</td>`)}</tr>`)}</tbody>
  </table></div>`;
}

export function Figure({ name, value, note }) {
  return html`<div class="figure"><dt>${name}</dt><dd>${value}${note && html`<small>${note}</small>`}</dd></div>`;
}

export function Field({ label, children }) {
  return html`<label class="field"><span>${label}</span>${children}</label>`;
}

export function Select({ label, value, options, onChange }) {
  return html`<${Field} label=${label}><select value=${value} onChange=${(event) => onChange(event.target.value)}>
    ${options.map(([name, text]) => html`<option value=${name} selected=${String(name) === String(value)}>${text}</option>`)}
  </select><//>`;
}

export function Tabs({ label, tabs, chosen, href }) {
  return html`<nav class="tabs" aria-label=${label}>${tabs.map(([name, text]) =>
    html`<a href=${href(name)} aria-current=${name === chosen ? "page" : undefined}>${text}</a>`)}</nav>`;
}

// A list that comes in pages: each further page is asked for.
export function More({ token, load }) {
  return token ? html`<p><button onClick=${() => load(token)}>${t("More")}</button></p>` : null;
}

export function Dialog({ title, close, children }) {
  const box = useRef(null);
  useEffect(() => {
    const before = document.activeElement;
    box.current.showModal();
    return () => before?.focus?.();
  }, []);
  return html`<dialog ref=${box} onClose=${close} aria-label=${title}>
    <header><h2>${title}</h2><button class="plain" onClick=${() => box.current.close()} aria-label=${t("Close")}>✕</button></header>
    ${children}
  </dialog>`;
}

// A chart of one or two series over time, described in words for who cannot see it.
export function Chart({ title, points, series, format }) {
  const place = useRef(null);
  const drawn = useRef(null);
  const latest = useRef(points);
  latest.current = points;
  const data = () => [
    latest.current.map((one) => one.at_ms / 1000),
    ...series.map(({ of }) => latest.current.map((one) => one[of])),
  ];
  useEffect(() => {
    let isOver = false;
    let observer;
    let timer = 0;
    const load = (tries = 0) => import(tries ? `./vendor/uplot.js?${tries}` : "./vendor/uplot.js").then(
      ({ default: uPlot }) => isOver || !place.current || draw(uPlot), // unless the page was left meanwhile
      () => isOver || (timer = setTimeout(load, RETRY_MS, tries + 1)), // a browser keeps the failure of an address
    );
    const draw = (uPlot) => {
      const style = getComputedStyle(document.documentElement);
      const colour = (name) => style.getPropertyValue(name).trim();
      const axis = { stroke: colour("--quiet"), grid: { stroke: colour("--line"), width: 1 }, ticks: { show: false } };
      const box = place.current;
      const sized = () => ({ width: Math.max(box.clientWidth, 200), height: 130 });
      const clock = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit", second: "2-digit" });
      drawn.current = new uPlot({
        ...sized(), legend: { show: false }, cursor: { y: false },
        axes: [{ ...axis, space: 90, values: (_, values) => values.map((one) => clock.format(one * 1000)) }, { ...axis, size: 64, values: (_, values) => values.map(format) }],
        scales: { y: { range: (_, low, high) => [Math.min(low, 0), high > 0 ? high * 1.1 : 1] } },
        series: [{}, ...series.map(({ name }, at) => ({ label: name, stroke: colour(`--series-${at + 1}`), width: 1.5 }))],
      }, data(), box);
      observer = new ResizeObserver(() => drawn.current?.setSize(sized()));
      observer.observe(box);
    };
    timer = setTimeout(load, 50); // after the figures are drawn: a slow machine takes 0.3 s for it
    return () => {
      isOver = true;
      clearTimeout(timer);
      observer?.disconnect();
      drawn.current?.destroy();
      drawn.current = null;
    };
  }, []);
  useEffect(() => drawn.current?.setData(data()), [points]);
  const now = points.at(-1);
  const said = series.map(({ name, of }) => `${name} ${now ? format(now[of]) : "–"}`).join(", ");
  return html`<figure class="chart"><figcaption>${title} <span>${series.map(({ name, of }, at) =>
    html`<b class=${`key-${at + 1}`}>${name} ${now ? format(now[of]) : "–"}</b> `)}</span></figcaption>
    <div ref=${place} role="img" aria-label=${`${title}: ${said}`}></div></figure>`;
}
