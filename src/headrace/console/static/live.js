// Live values: one stream of events for the whole page, closed while the page is hidden.
//
// A browser holds six connections to one broker, so each tab has one stream, and only while somebody
// can see it; it continues after the last event that came.
import { effect, signal } from "./vendor/preact.js";
import { address, get } from "./api.js";
import { openStream } from "./stream.js";

export const POINTS_MAX = 720;
export const points = signal([]);
export const health = signal(null);
export const offsets = signal(null);
export const isLive = signal(false);
export const watchedTopic = signal("");

let end = () => {};
let last = "";

function add(point) {
  points.value = [...points.value, point].slice(-POINTS_MAX);
}

async function loadHistory() {
  try {
    const found = await get("/v1/history", { points: POINTS_MAX });
    points.value = found.points;
    last = found.last_event_id;
  } catch {
    points.value = []; // the page says why by its own request
  }
}

// Ends the stream: nobody is signed in any more, and who comes next may see less.
export function stopLive() {
  close();
  health.value = null;
  points.value = [];
  last = "";
}

function close() {
  end();
  end = () => {};
  isLive.value = false;
}

function open() {
  close();
  if (document.hidden) return;
  end = openStream(
    () => address("/v1/events", { topic: watchedTopic.value, after: last }),
    {
      rates: (event) => {
        last = event.lastEventId;
        add(JSON.parse(event.data));
      },
      health: (event) => (health.value = JSON.parse(event.data)),
      topic: (event) => (offsets.value = JSON.parse(event.data)),
    },
    (isOpen) => (isLive.value = isOpen),
  );
}

let hasStarted = false;
export async function startLive() {
  await loadHistory();
  if (hasStarted) {
    open(); // somebody signed in again
    return;
  }
  hasStarted = true;
  effect(() => {
    watchedTopic.value; // another topic is another stream
    offsets.value = null;
    open();
  });
  document.addEventListener("visibilitychange", () => (document.hidden ? close() : open()));
}
