// A stream of events that comes back by itself: after a connection that was lost, a broker that
// restarts, or a problem that passes.
const RETRY_MS = 5_000;

// `place()` is the address to continue at; `events`: what takes each kind. `changed(isOpen, problem)`
// is called when it opens, is lost, or is refused. Returns what ends it.
export function openStream(place, events, changed) {
  let stream = null;
  let timer = 0;
  const retry = () => {
    stream.close();
    clearTimeout(timer);
    timer = setTimeout(open, RETRY_MS);
  };
  function open() {
    stream = new EventSource(place());
    for (const [name, take] of Object.entries(events)) stream.addEventListener(name, take);
    stream.addEventListener("open", () => changed(true));
    stream.addEventListener("problem", (event) => {
      const problem = JSON.parse(event.data);
      changed(false, problem);
      if (problem.retriable) retry();
      else stream.close();
    });
    stream.addEventListener("error", () => {
      changed(false);
      if (stream.readyState === EventSource.CLOSED) retry(); // else the browser tries again by itself
    });
  }
  open();
  return () => {
    clearTimeout(timer);
    stream.close();
  };
}
