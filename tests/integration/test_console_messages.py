"""What the console tells of single messages, in a real browser: their life, their contents."""

from __future__ import annotations

import json

import pytest
from tests.integration.broker import Broker, wait_until
from tests.integration.browser import (
    NEEDS_CHROMIUM,
    accessibility_violations,
    chromium,
    overflow_px,
)
from tests.integration.clients import Confluent, Rec, create_topic
from tests.integration.test_console import HOSTILE, ask, run

pytestmark = NEEDS_CHROMIUM
TRACE = "0af7651916cd43dd8448eb211c80319c"
QUEUE = "/v1/queues/orders/workers"


@pytest.fixture(scope="module")
def message_broker(tmp_path_factory):
    broker = Broker(tmp_path_factory.mktemp("messages"))
    broker.start()
    for name in ("orders", "orders.dead"):
        create_topic(broker.kafka, name)
    change = {
        "share.auto.offset.reset": "earliest",
        "errors.deadletterqueue.topic.name": "orders.dead",
    }
    ask(broker, "PATCH", "/v1/groups/workers/config", {"set": change})
    headers = [("traceparent", f"00-{TRACE}-b7ad6b7169203331-01".encode())]
    Confluent.produce(broker.kafka, "orders", [Rec(b"k0", b"{}", headers), Rec(b"k1", b"{}")])
    yield broker
    broker.stop()


@pytest.fixture(scope="module")
def browser(message_broker):
    with chromium(f"http://{message_broker.http}") as started:
        yield started


def receive(broker) -> str:
    """The receipt of the next message of the queue."""
    return ask(broker, "POST", f"{QUEUE}/receive", {"max": 1})["messages"][0]["receipt"]


def test_a_message_is_found_by_its_trace_and_its_life_is_told(browser, message_broker):
    """Given back once, then made a dead letter for a hostile reason; the command says the same."""
    ask(message_broker, "POST", f"{QUEUE}/settle", {"nack": [receive(message_broker)]})
    letter = {"receipt": receive(message_broker), "reason": HOSTILE}
    ask(message_broker, "POST", f"{QUEUE}/settle", {"dead_letter": [letter]})
    path = "/v1/topics/orders/trace?partition=0&offset=0"
    wait_until(
        lambda: "dead_lettered" in {e["event"] for e in ask(message_broker, "GET", path)["events"]}
    )
    with browser.page("topics/orders/life") as page:
        page.get_by_label("Find by").select_option("trace")
        page.get_by_label("Value").fill(TRACE)
        page.get_by_role("button", name="Show", exact=True).click()
        page.wait_for_url(f"**trace={TRACE}**")
        page.get_by_role("link", name="orders 0:0").click()
        steps = page.get_by_role("region", name="Timeline").locator("tbody tr")
        steps.first.wait_for()
        events = steps.locator("td:nth-child(3)").all_inner_texts()
        assert events == ["stored", "delivery failed", "given up", "made a dead letter"]
        assert steps.nth(1).locator("td:nth-child(6)").inner_text() == "1"
        assert page.get_by_label("Value").input_value() == "0:0"
        page.reload()
        steps.first.wait_for()
        assert steps.locator("td:nth-child(3)").all_inner_texts() == events
        assert page.get_by_role("link", name=TRACE).is_visible()
        assert accessibility_violations(page) == []
        page.set_viewport_size({"width": 360, "height": 740})
        assert overflow_px(page) <= 0
        page.locator("details.foot summary").click()
        command = page.locator(".foot .forms pre").first.inner_text()
    told = run(f"{command} --json --http {message_broker.http}", message_broker)
    assert [one["event"] for one in json.loads(told)["events"]] == [
        "stored",
        "delivery_failed",
        "given_up",
        "dead_lettered",
    ]


def test_the_life_of_a_message_is_one_step_from_the_message(browser):
    with browser.page("topics/orders?from=key&key=k1") as page:
        page.get_by_role("button", name="Open 0:1").click()
        page.get_by_role("link", name="A message's life").last.click()
        page.get_by_role("region", name="Timeline").get_by_text("stored").wait_for()
        page.get_by_label("Find by").select_option("key")
        page.get_by_label("Value").fill("k1")
        page.keyboard.press("Enter")
        page.get_by_role("link", name="orders 0:1").wait_for()
        page.get_by_label("Value").fill("nobody")
        page.keyboard.press("Enter")
        page.get_by_text("No message is found.").wait_for()
