"""The console's looks: golden pictures of its pages, which the documentation shows.

Invariants: a real broker with records of fixed times, and a font that comes with matplotlib, so
that another machine's fonts change nothing. What differs from run to run (charts, disk) is left out
of the comparison. `HEADRACE_GOLDEN=write` takes them anew: look at them before you commit.
"""

from __future__ import annotations

import base64
import importlib.util
import json
import os
import re
from pathlib import Path

import pytest
from tests.integration.broker import Broker
from tests.integration.browser import NEEDS_CHROMIUM, browser_of
from tests.integration.clients import create_topic
from tests.integration.test_console import ask, commit

_PLOTS = importlib.util.find_spec("matplotlib")
pytestmark = [
    NEEDS_CHROMIUM,
    pytest.mark.skipif(_PLOTS is None, reason="the pictures' font comes with matplotlib"),
]
PICTURES = Path(__file__).parents[2] / "docs" / "pictures"
NOON = 1_767_268_800_000
"""1 January 2026, 12:00 UTC."""
FOUND = "topics/orders?from=where&where=value.amount > 90"
THEN = f"topics/orders/time?at={NOON + 60_000}&key=customer-3"
PAGES = {
    "overview": ("", "reports", "light", 1200),
    "overview-dark": ("", "reports", "dark", 1200),
    "messages": (FOUND, "Export as CSV", "light", 1200),
    "dead-letters": ("dead-letters/orders.dead", "Send the 8 shown back", "dark", 1200),
    "time-travel": (THEN, "It has changed since", "light", 1200),
    "small-screen": ("topics/orders?from=key&key=customer-3", "Export as CSV", "light", 360),
}
"""By name: the page, what it shows last, colours, and width."""
VARYING = "canvas, .charts b, .figure dd, .dot, input[type=range]"
"""What is not compared: rates, free space of this machine's disk, where now lies on a slider."""
BLOCK_PX = 8
COLOUR_MAX = 40
"""Of 255: by how much the mean colour of a block may differ, before the block does."""
DIFFERENT_MAX = 0.01
"""Of all blocks. The same Chromium differs in none; letters that are one pixel larger in 5 to 18 %,
another accent colour in 2 %. Another release may draw controls and edges of letters otherwise."""
SET_FONT = """async ([plain, bold, mono]) => {
  const faces = [["Golden", plain, "400"], ["Golden", bold, "700"], ["GoldenMono", mono, "400"]];
  for (const [name, data, weight] of faces) {
    const bytes = Uint8Array.from(atob(data), (one) => one.charCodeAt(0));
    document.fonts.add(await new FontFace(name, bytes, { weight }).load());
  }
  const sheet = new CSSStyleSheet();
  sheet.replaceSync(`* { font-family: Golden !important; }
    pre, code, textarea, .line, .line * { font-family: GoldenMono !important; }
    .state button[lang] { visibility: hidden; }`); // its Chinese is of another font
  document.adoptedStyleSheets = [sheet];
  await document.fonts.ready;
}"""
ENCODE = """async (picture) => {
  const image = await createImageBitmap(await (await fetch(picture)).blob());
  const canvas = new OffscreenCanvas(image.width, image.height);
  canvas.getContext("2d").drawImage(image, 0, 0);
  const packed = await canvas.convertToBlob({ type: "image/webp", quality: 0.6 });
  const bytes = new Uint8Array(await packed.arrayBuffer());
  return btoa(Array.from(bytes, (one) => String.fromCharCode(one)).join(""));
}"""
DIFFERENCE = """async ([left, right, skipped, block, most]) => {
  const blocks = async (picture) => {
    const whole = await createImageBitmap(await (await fetch(picture)).blob());
    const [width, height] = [Math.floor(whole.width / block), Math.floor(whole.height / block)];
    const size = { resizeWidth: width, resizeHeight: height, resizeQuality: "high" };
    const means = await createImageBitmap(whole, 0, 0, width * block, height * block, size);
    const context = new OffscreenCanvas(width, height).getContext("2d");
    context.drawImage(means, 0, 0);
    return { width, height, data: context.getImageData(0, 0, width, height).data };
  };
  const [one, other] = [await blocks(left), await blocks(right)];
  if (one.width !== other.width || one.height !== other.height) return 1;
  let [different, compared] = [0, 0];
  for (let at = 0; at < one.width * one.height; at += 1) {
    const [x, y] = [(at % one.width) * block, Math.floor(at / one.width) * block];
    const isIn = (box) => x + block > box.x && x < box.x + box.width
      && y + block > box.y && y < box.y + box.height;
    if (skipped.some(isIn)) continue;
    compared += 1;
    const differs = (part) => Math.abs(one.data[at * 4 + part] - other.data[at * 4 + part]) > most;
    if ([0, 1, 2].some(differs)) different += 1;
  }
  return different / compared;
}"""


@pytest.fixture(scope="module")
def pictured(tmp_path_factory):
    """A broker with orders of one customer after another, and dead letters of two causes."""
    broker = Broker(tmp_path_factory.mktemp("pictures"))
    broker.start()
    for name, partitions in (("orders", 3), ("payments", 6), ("orders.dead", 1)):
        create_topic(broker.kafka, name, partitions)
        for_ever = {"set": {"retention.ms": "-1"}}
        ask(broker, "PATCH", f"/v1/topics/{name}/config", for_ever)

    def send(topic, records):
        answer = ask(broker, "POST", f"/v1/topics/{topic}/records", {"records": records})
        assert all(one["ok"] for one in answer["results"]), answer

    states = ["made", "paid", "sent"]
    send("orders", [
        {"key": f"customer-{n % 7}", "partition": n % 7 % 3, "timestamp_ms": NOON + n * 1_000,
         "value": json.dumps({"order": n // 3, "state": states[n % 3], "amount": n * 37 % 100})}
        for n in range(120)
    ])  # fmt: skip
    causes = ["card declined", "timeout after 30 s"]
    send("orders.dead", [
        {"key": f"customer-{n}", "timestamp_ms": NOON + n * 1_000, "value": f'{{"order": {n}}}',
         "headers": [["__dlq.errors.topic", "orders"], ["__dlq.errors.group", "billing"],
                     ["__dlq.errors.message", causes[n % 3 // 2]],
                     ["__dlq.errors.delivery.count", "5"]]}
        for n in range(8)
    ])  # fmt: skip
    commit(broker, "reports", 12)
    yield broker
    broker.stop()


browser = browser_of("pictured")


def data_url(data: bytes, kind: str) -> str:
    return f"data:image/{kind};base64,{base64.b64encode(data).decode()}"


def fonts() -> list[str]:
    """Two weights of the plain font and one of the other, in base64."""
    folder = Path(_PLOTS.origin).parent / "mpl-data" / "fonts" / "ttf"
    names = ("DejaVuSans", "DejaVuSans-Bold", "DejaVuSansMono")
    return [base64.b64encode((folder / f"{one}.ttf").read_bytes()).decode() for one in names]


@pytest.mark.parametrize("name", PAGES)
def test_a_page_looks_as_its_golden_picture(browser, pictured, name):
    from playwright.sync_api import expect

    path, last, scheme, width = PAGES[name]
    size = {"width": width, "height": 740}
    with browser.page(path, color_scheme=scheme, viewport=size, timezone_id="UTC") as page:
        page.evaluate(SET_FONT, fonts())
        page.get_by_text(last).first.wait_for()
        page.get_by_text("Live", exact=True).wait_for()
        for rate in page.locator(".charts b").all():
            expect(rate).to_contain_text(re.compile(r"\d"), timeout=60_000)
        taken = data_url(page.screenshot(), "png")
        skipped = [one.bounding_box() for one in page.locator(VARYING).all()]
        page.goto("about:blank")
        if found := ask(pictured, "GET", "/v1/overview")["problems"]:
            pytest.skip(f"this machine is not well, which the page says: {found}")
        golden = PICTURES / f"console-{name}.webp"
        if os.environ.get("HEADRACE_GOLDEN") == "write":
            golden.parent.mkdir(exist_ok=True)
            golden.write_bytes(base64.b64decode(page.evaluate(ENCODE, taken)))
        kept = data_url(golden.read_bytes(), "webp")
        given = [taken, kept, [one for one in skipped if one], BLOCK_PX, COLOUR_MAX]
        different = page.evaluate(DIFFERENCE, given)
    assert different <= DIFFERENT_MAX, f"{different:.1%} differ: HEADRACE_GOLDEN=write, and look"
