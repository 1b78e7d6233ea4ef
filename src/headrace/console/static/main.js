// Starts the console: one root component, drawn again when a signal that it reads changes.
import { html, render } from "./vendor/preact.js";
import { Frame } from "./frame.js";
import { startWords } from "./words.js";

await startWords();
render(html`<${Frame} />`, document.getElementById("app"));
