// Runs a task of the broker to its end.
import { nextStep, refusal } from "./words.js";
import { Problem, ask, get } from "./api.js";

const POLL_MS = 400;
const PAGE = 1000;

// `started(task)` is called when it runs.
export async function runTask(path, body, started = () => {}) {
  let task = await ask("POST", path, { body });
  started(task);
  while (task.state === "running") {
    await new Promise((done) => setTimeout(done, POLL_MS));
    task = await get(`${path}/${encodeURIComponent(task.id)}`);
  }
  if (task.state !== "done") throw new Problem(409, task.error ? refusal(task.error) : task.state, nextStep(task.error?.next_step ?? ""));
  return get(`${path}/${encodeURIComponent(task.id)}`);
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
