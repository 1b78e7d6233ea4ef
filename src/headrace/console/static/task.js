// Runs a task of the broker to its end.
import { Problem, ask, get } from "./api.js";

const POLL_MS = 400;

export async function runTask(path, body) {
  let task = await ask("POST", path, { body });
  while (task.state === "running") {
    await new Promise((done) => setTimeout(done, POLL_MS));
    task = await get(`${path}/${encodeURIComponent(task.id)}`);
  }
  if (task.state !== "done") throw new Problem(409, task.error?.detail ?? task.state, task.error?.next_step ?? "");
  return get(`${path}/${encodeURIComponent(task.id)}`);
}
