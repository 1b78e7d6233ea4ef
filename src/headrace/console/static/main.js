// Starts the console: one root component, drawn again when a signal that it reads changes.
import { html, render } from "./vendor/preact.js";
import { Frame, firstPage } from "./frame.js";
import { startSession } from "./session.js";
import { startWords } from "./words.js";

// All are on their way already: drawn step by step, each would wait for the picture of the one before.
await Promise.all([startWords(), startSession(), firstPage]);
render(html`<${Frame} />`, document.getElementById("app"));
