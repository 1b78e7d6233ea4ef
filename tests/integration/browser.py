"""Chromium for the console's tests, and what it must never report.

Invariants: a real browser of the machine, at most one at a time. Every page that a test opens is
watched: a script error, a report of the content security policy, or a request to another host
fails the test.
"""

from __future__ import annotations

import contextlib
import shutil
from importlib.resources import files
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
NEEDS_CHROMIUM = pytest.mark.skipif(CHROMIUM is None, reason="no chromium: apt install chromium")
LANGUAGE = "en-GB"
_WATCH = """
window.violations = [];
document.addEventListener("securitypolicyviolation",
  (event) => window.violations.push(`${event.violatedDirective} ${event.blockedURI}`));
"""


class Browser:
    """One browser, and the console of one broker in it."""

    def __init__(self, chromium: Any, base: str) -> None:
        self._chromium = chromium
        self.base = base

    @contextlib.contextmanager
    def page(self, path: str = "", base: str = "", **context: Any) -> Iterator[Any]:
        """A page of the console; what it may not do fails the test at its end."""
        base = base or self.base
        faults: list[str] = []
        fetched: list[str] = []

        def said(message: Any) -> None:
            if message.type == "error" and "Failed to load resource" not in message.text:
                faults.append(message.text)  # a refusal by the API is shown by the page

        given = {"viewport": {"width": 1200, "height": 900}, "locale": LANGUAGE, **context}
        opened = self._chromium.new_context(**given)
        opened.add_init_script(_WATCH)
        page = opened.new_page()
        page.set_default_timeout(60_000)  # of a slow and busy machine
        page.on("pageerror", lambda error: faults.append(str(error)))
        page.on("console", said)
        page.on("request", lambda request: fetched.append(request.url))
        try:
            page.goto(f"{base}/#/{path}")
            page.wait_for_selector("main h1")
            yield page
            faults += page.evaluate("window.violations")
        except Exception as error:
            shown = page.evaluate("document.body.innerText")
            error.add_note(f"the page showed:\n{shown[:2_000]}\nfaults: {faults}")
            raise
        finally:
            opened.close()
        away = [url for url in fetched if not url.startswith(base)]
        assert not away, "the console asks another host"
        assert not faults, faults


@contextlib.contextmanager
def chromium(base: str) -> Iterator[Browser]:
    """Start the browser."""
    playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright (dev)")
    with playwright.sync_playwright() as driver:
        started = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        try:
            yield Browser(started, base)
        finally:
            started.close()


def browser_of(broker: str, scope: Any = "module") -> Any:
    """The fixture `browser`: Chromium with the console of the broker that this fixture makes."""

    @pytest.fixture(scope=scope)
    def browser(request: Any) -> Iterator[Browser]:
        with chromium(f"http://{request.getfixturevalue(broker).http}") as started:
            yield started

    return browser


def accessibility_violations(page: Any) -> list[str]:
    """What axe-core finds against WCAG 2.2 A and AA."""
    source = (files("axe_playwright_python") / "axe.min.js").read_text()
    page.evaluate(f"{source}\n;undefined")
    found = page.evaluate(
        "axe.run({runOnly: ['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa', 'wcag22aa']})"
    )
    return [
        f"{one['id']}: {node['html'][:200]} {node['failureSummary'][:300]}"
        for one in found["violations"]
        for node in one["nodes"]
    ]


_WALK = """() => {
  const kinds = "a[href], button, input, select, textarea, summary, [tabindex]";
  const here = () => [...document.querySelectorAll(kinds)].filter((one) =>
    one.checkVisibility({ visibilityProperty: true }) && !one.disabled && one.tabIndex >= 0);
  const shown = (one) => one.outerHTML.slice(0, 200);
  const wanted = here();
  const walked = [];
  const note = ({ target }) => {
    const at = wanted.indexOf(target);
    if (at < 0) return; // a box that scrolls
    walked.push(at);
    const isSeen = getComputedStyle(target).outlineStyle !== "none";
    if (!isSeen) walked.push(`no focus is seen: ${shown(target)}`);
  };
  addEventListener("focusin", note);
  wanted[0].focus();
  window.walk = () => {
    removeEventListener("focusin", note);
    const end = walked.indexOf(wanted.length - 1) + 1;
    const now = here();
    const isSame = now.length === wanted.length && now.every((one, at) => one === wanted[at]);
    const reached = walked.slice(0, end || undefined).filter((one) => typeof one === "number");
    const missed = wanted.filter((_, at) => !reached.includes(at)).map((one) =>
      `not reached: ${shown(one)}`);
    const isInOrder = reached.every((one, at) => one === at);
    const order = isInOrder ? [] : [`not in the order of the page: ${reached}`];
    return [isSame, [...missed, ...order, ...walked.filter((one) => typeof one === "string")]];
  };
  return wanted.length;
}"""


def keyboard_faults(page: Any) -> list[str]:
    """What cannot be reached by the tab key in the order of the page, or does not show that it has
    the focus; and whether the palette gives the focus back."""
    while True:
        for _ in range(2 * page.evaluate(_WALK) + 20):  # boxes that scroll are stops, too
            page.keyboard.press("Tab")
        is_same, faults = page.evaluate("window.walk()")
        if is_same:  # else what was loaded meanwhile belongs to the page, too
            break
    page.locator("header a").first.focus()
    page.keyboard.press("Control+k")
    page.locator("dialog[open] input").wait_for()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Escape")
    page.locator("dialog[open]").wait_for(state="detached")
    if not page.evaluate("document.activeElement.matches('header a')"):
        faults.append("the palette does not give the focus back")
    return list(faults)


def assert_usable(page: Any, scheme: str) -> None:
    """That people with any eyes, hands and windows can use a page; the keyboard in one scheme."""
    assert accessibility_violations(page) == [], scheme
    if scheme == "light":
        assert keyboard_faults(page) == []
    page.set_viewport_size({"width": 360, "height": 740})
    assert overflow_px(page) <= 0


def overflow_px(page: Any) -> int:
    """By how much the page is wider than its window."""
    root = "document.documentElement"
    return int(page.evaluate(f"{root}.scrollWidth - {root}.clientWidth"))
