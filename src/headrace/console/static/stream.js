// A stream of events that comes back by itself: after a connection that was lost, a broker that
// restarts, or a problem that passes.
import { forgetCalls, noteCall } from "./api.js";

const RETRY_MS = 5_000;

// Why a broker refuses a stream, which a browser does not tell; null if it does not any more, or does
// not answer.
async function refusal(place, signal) {
  try {
    const answer = await fetch(place, { signal });
    return answer.ok ? null : await answer.json();
  } catch {
    return null;
  }
}

// `place()` is the address to continue at; `events`: what takes each kind. `changed(isOpen, problem)`
// is called when it opens, is lost, or is refused. Returns what ends it.
export function openStream(place, events, changed) {
  const owner = {};
  noteCall({ owner, path: place().replace(/[?&]after=[^&]*$/, ""), isStream: true });
  let stream = null;
  let timer = 0;
  let asking = null;
  const retry = () => {
    stream.close();
    clearTimeout(timer);
    timer = setTimeout(open, RETRY_MS);
  };
  const refused = (problem) => {
    changed(false, problem);
    if (problem.retriable) retry();
    else stream.close();
  };
  async function ask() {
    asking = new AbortController();
    const { signal } = asking;
    const problem = await refusal(place(), signal);
    if (signal.aborted) return;
    asking.abort(); // a stream that is open now
    if (problem) refused(problem);
    else retry();
  }
  function open() {
    stream = new EventSource(place());
    for (const [name, take] of Object.entries(events)) stream.addEventListener(name, take);
    stream.addEventListener("open", () => changed(true));
    stream.addEventListener("problem", (event) => refused(JSON.parse(event.data)));
    stream.addEventListener("error", () => {
      changed(false);
      if (stream.readyState === EventSource.CLOSED) ask(); // else the browser tries again by itself
    });
  }
  open();
  return () => {
    clearTimeout(timer);
    asking?.abort();
    stream.close();
    forgetCalls([owner]);
  };
}
