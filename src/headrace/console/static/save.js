// A page as one HTML file: what it shows, its style and its pictures, without scripts or requests.
const POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:";
const CONTROLS = "button, summary, .foot, .secret, script";

function shownOf(main) {
  const copy = main.cloneNode(true);
  const canvases = main.querySelectorAll("canvas");
  copy.querySelectorAll("canvas").forEach((one, number) => {
    const picture = document.createElement("img");
    picture.src = canvases[number].toDataURL();
    picture.alt = one.closest("[aria-label]")?.getAttribute("aria-label") ?? "";
    one.replaceWith(picture);
  });
  const given = main.querySelectorAll("input, select, textarea");
  copy.querySelectorAll("input, select, textarea").forEach((one, number) => {
    const text = given[number].selectedOptions?.[0]?.textContent ?? given[number].value;
    one.replaceWith(given[number].type === "password" ? "" : text);
  });
  copy.querySelectorAll("button.plain").forEach((one) => one.replaceWith(one.textContent));
  copy.querySelectorAll(CONTROLS).forEach((one) => one.remove());
  copy.querySelectorAll("a[href]").forEach((one) => one.setAttribute("href", one.href)); // whole addresses
  return copy;
}

// The text of the file. Contents of messages stay text: the serializer escapes them.
export function pageAsFile() {
  const file = document.implementation.createHTMLDocument(document.title);
  file.documentElement.lang = document.documentElement.lang;
  for (const [name, value] of [["charset", "utf-8"], ["http-equiv", "Content-Security-Policy"]]) {
    const meta = file.createElement("meta");
    meta.setAttribute(name, value);
    if (name === "http-equiv") meta.setAttribute("content", POLICY);
    file.head.prepend(meta);
  }
  const origin = file.createElement("p");
  origin.textContent = `${location.href} · ${new Date().toISOString()}`;
  file.body.append(file.importNode(shownOf(document.querySelector("main")), true), origin);
  const rules = [...document.styleSheets].flatMap((sheet) => [...sheet.cssRules].map((rule) => rule.cssText)).join("\n");
  // Text of a style is raw in HTML: the serializer, which writes XML, must not escape it.
  const text = new XMLSerializer().serializeToString(file).replace("</head>", () => `<style>${rules}</style></head>`);
  return text.startsWith("<!DOCTYPE") ? text : `<!DOCTYPE html>\n${text}`;
}

export function savePage() {
  const anchor = document.createElement("a");
  anchor.href = URL.createObjectURL(new Blob([pageAsFile()], { type: "text/html" }));
  anchor.download = `${document.title.replace(/[^\p{L}\p{N}.-]+/gu, "-")}.html`;
  anchor.click();
  setTimeout(() => URL.revokeObjectURL(anchor.href), 10_000);
}
