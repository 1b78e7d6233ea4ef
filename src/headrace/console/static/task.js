// Runs a task of the broker to its end.
import { nextStep, refusal } from "./words.js";
import { Problem, ask, get } from "./api.js";

const POLL_MS = 1000;
const PAGE = 1000;

// Calls in a second, or when the page is seen again after that. Returns what prevents it.
export function soon(call) {
  const stop = () => {
    clearTimeout(timer);
    document.removeEventListener("visibilitychange", ready);
  };
  const ready = () => {
    if (document.hidden) return;
    stop();
    call();
  };
  const timer = setTimeout(() => {
    document.addEventListener("visibilitychange", ready);
    ready();
  }, POLL_MS);
  return stop;
}

// `started(task)` is called when it runs.
export async function runTask(path, body, started = () => {}) {
  let task = await ask("POST", path, { body });
  const one = `${path}/${encodeURIComponent(task.id)}`;
  started(task);
  while (task.state === "running") {
    await new Promise(soon);
    task = await get(one, { broker: task.broker });
  }
  if (task.state !== "done") throw new Problem(409, task.error ? refusal(task.error) : task.state, nextStep(task.error?.next_step ?? ""));
  return get(one, { broker: task.broker });
}

// All results of a task that the broker has kept.
export async function resultsOf(path) {
  const found = [];
  let token = "";
  do {
    const answer = await get(path, { limit: PAGE, page_token: token });
    found.push(...answer.results);
    token = answer.next_page_token ?? "";
  } while (token);
  return found;
}
