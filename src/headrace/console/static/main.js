// Starts the console: one root component, drawn again when a signal that it reads changes.
import { html, render } from "./vendor/preact.js";
import { Frame, firstPage } from "./frame.js";
import { startSession } from "./session.js";
import { startWords } from "./words.js";

// All are on their way already: drawn step by step, each would wait for the picture of the one before. A broker
// that does not answer must not leave the page blank: the frame says what it waits for, and what has failed.
const DRAWN_MS = 2_000;
await Promise.race([Promise.all([startWords(), startSession(), firstPage]), new Promise((done) => setTimeout(done, DRAWN_MS))]);
render(html`<${Frame} />`, document.getElementById("app"));
