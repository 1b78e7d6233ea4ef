// An action: what it will do, how it is done elsewhere, a dry run before, a name for what destroys.
//
// {title, verb, method, path, body, shown, cli, hasDryRun, confirm, preview(dryRunAnswer), done(answer),
// after(answer), dryRun(), run()}: `confirm` is the name that must be typed; `preview` and `done`
// return what is shown; `dryRun` and `run` stand for more than one request (a task); `shown` is the
// body without its secrets, in its place wherever it is shown.
import { html, useEffect, useState } from "./vendor/preact.js";
import { address, ask } from "./api.js";
import { Dialog, Forms, Refusal } from "./ui.js";
import { t } from "./words.js";

export function ActionDialog({ action, close }) {
  const dryRun = action.dryRun ?? (action.hasDryRun
    && (() => ask(action.method, action.path, { query: { dry_run: true }, body: action.body })));
  const [dry, setDry] = useState(dryRun ? null : { answer: null });
  const [typed, setTyped] = useState("");
  const [outcome, setOutcome] = useState(null);
  const [isRunning, setRunning] = useState(false);
  useEffect(() => {
    if (!dryRun) return;
    dryRun().then(
      (answer) => setDry({ answer }),
      (problem) => setDry({ problem }),
    );
  }, []);
  const run = async (event) => {
    event.preventDefault();
    setRunning(true);
    try {
      const answer = await (action.run?.() ?? ask(action.method, action.path, { body: action.body }));
      setOutcome({ answer });
      action.after?.(answer);
    } catch (problem) {
      setOutcome({ problem });
    }
    setRunning(false);
  };
  const isReady = dry && !dry.problem && (!action.confirm || typed === action.confirm);
  return html`<${Dialog} title=${action.title} close=${close}>
    <form onSubmit=${run}>
      <section aria-live="polite">
        ${dry === null && html`<p class="quiet">${t("Dry run")} …</p>`}
        ${dry?.problem && html`<${Refusal} problem=${dry.problem} />`}
        ${dry && !dry.problem && !outcome && html`<div class="note">
          ${dryRun && html`<strong>${t("Dry run: nothing has changed yet")}</strong>`}
          ${action.preview?.(dry.answer)}</div>`}
        ${outcome?.problem && html`<${Refusal} problem=${outcome.problem} />`}
        ${outcome?.answer !== undefined && html`<div class="note good"><strong>${t("Done")}</strong>
          ${action.done?.(outcome.answer)}</div>`}
      </section>
      <details><summary>${t("The same elsewhere: command line, HTTP, Python")}</summary>
        <${Forms} cli=${action.cli} method=${action.method} path=${address(action.path)} body=${action.shown ?? action.body} />
      </details>
      ${action.confirm && outcome?.answer === undefined && html`<label class="field">
        <span>${t("Type {name} to confirm", { name: action.confirm })}</span>
        <input value=${typed} onInput=${(event) => setTyped(event.target.value)} autocomplete="off" /></label>`}
      <footer>
        ${outcome?.answer === undefined
          ? html`<button class=${action.confirm ? "danger" : "main"} disabled=${!isReady || isRunning}>${action.verb ?? action.title}</button>
            <button type="button" onClick=${close}>${t("Cancel")}</button>`
          : html`<button type="button" class="main" onClick=${close}>${t("Close")}</button>`}
      </footer>
    </form>
  <//>`;
}

// [a dialog or nothing, start(action)]: what a page needs to have actions.
export function useAction() {
  const [action, setAction] = useState(null);
  const dialog = action && html`<${ActionDialog} action=${action} close=${() => setAction(null)} />`;
  return [dialog, setAction];
}
