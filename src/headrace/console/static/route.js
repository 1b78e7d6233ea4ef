// Where the console is: the hash of the address, so that each page has a link that restores it.
import { signal } from "./vendor/preact.js";

function read() {
  const [path, query] = location.hash.replace(/^#\/?/, "").split("?");
  return {
    path: path.split("/").filter(Boolean).map(decode),
    query: Object.fromEntries(new URLSearchParams(query ?? "")),
  };
}

function decode(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part; // an address that a person has cut off
  }
}

export const route = signal(read());
addEventListener("hashchange", () => {
  route.value = read();
});

// A link to a page: names of its path, and what else it shows. Empty values are left out.
export function link(path, query = {}) {
  const given = Object.entries(query).filter(([, value]) => value !== "" && value != null);
  const search = new URLSearchParams(given).toString();
  return `#/${path.map(encodeURIComponent).join("/")}${search ? `?${search}` : ""}`;
}

export function go(path, query) {
  location.hash = link(path, query);
}

// Changes what the current page shows, in place of its entry in the browser's history.
export function setQuery(changes) {
  const { path, query } = route.value;
  history.replaceState(null, "", link(path, { ...query, ...changes }));
  route.value = read();
}
