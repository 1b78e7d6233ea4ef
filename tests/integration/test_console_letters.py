"""The console's desk of dead letters and its jobs in a real browser, against a real broker."""

from __future__ import annotations

import json
import re

import pytest
from tests.integration.broker import Broker
from tests.integration.browser import (
    NEEDS_CHROMIUM,
    accessibility_violations,
    browser_of,
    overflow_px,
)
from tests.integration.clients import Confluent, Rec, create_topic
from tests.integration.test_console import HOSTILE, ask, run

from headrace.cli.failures import CommandFailed
from headrace.cli.pipeline_session import keep_result
from headrace.cli.session import CliSession

pytestmark = NEEDS_CHROMIUM
TOPIC = "orders.dead"
PATH = f"/v1/dead-letters/{TOPIC}"


def share_letter(number: int, reason: str, **more: bytes) -> Rec:
    """A letter that the group `billing` gave up."""
    headers = [
        ("trace", b"abc"),
        ("__dlq.errors.topic", b"orders"),
        ("__dlq.errors.partition", b"0"),
        ("__dlq.errors.offset", b"%d" % number),
        ("__dlq.errors.group", b"billing"),
        ("__dlq.errors.message", reason.encode()),
        ("__dlq.errors.delivery.count", b"5"),
    ]
    return Rec(b"k%d" % number, json.dumps({"order": number}).encode(), headers)


SPRING = Rec(
    b"\xff\x00",
    b"spring",
    [
        ("kafka_dlt-original-topic", b"invoices"),
        ("kafka_dlt-original-consumer-group", b"printer"),
        ("kafka_dlt-exception-message", b"no paper"),
        ("kafka_dlt-exception-fqcn", b"org.example.NoPaper"),
    ],
)


@pytest.fixture
def letters_broker(tmp_path):
    broker = Broker(tmp_path)
    broker.start()
    for name in ("orders", "invoices", TOPIC):
        create_topic(broker.kafka, name)
    change = {"errors.deadletterqueue.topic.name": TOPIC, "share.auto.offset.reset": "earliest"}
    ask(broker, "PATCH", "/v1/groups/billing/config", {"set": change})
    ask(broker, "POST", "/v1/queues/orders/billing/receive", {"max": 1})
    records = [share_letter(number, "timeout") for number in range(3)]
    records += [share_letter(3, HOSTILE), SPRING]
    Confluent.produce(broker.kafka, TOPIC, records)
    yield broker
    broker.stop()


browser = browser_of("letters_broker", scope="function")


def listed(broker) -> list[dict]:
    return ask(broker, "GET", f"{PATH}/letters")["letters"]


def act(page) -> None:
    """Do what the open dialog has previewed, and close it."""
    page.get_by_text("Dry run: nothing has changed yet").wait_for()
    confirm = page.get_by_label(re.compile("^Type .* to confirm"))
    if confirm.count():
        confirm.fill(TOPIC)
    page.locator("dialog footer button").first.click()
    page.locator("dialog .note.good").wait_for()


def form(page, number: int = 0) -> str:
    page.locator("dialog summary").click()
    return page.locator("dialog details .forms pre").nth(number).inner_text()


def test_letters_are_found_by_reason_source_group_and_time_and_a_link_restores_them(
    browser, letters_broker
):
    places = page_places
    with browser.page(f"dead-letters/{TOPIC}") as page:
        page.get_by_role("region", name="Letters").wait_for()
        assert places(page) == ["0:0", "0:1", "0:2", "0:3", "0:4"]
        page.get_by_label("Reason contains").fill("timeout")
        page.get_by_label("Reason contains").press("Enter")
        page.get_by_text("Send the 3 shown back").wait_for()
        assert places(page) == ["0:0", "0:1", "0:2"]
        page.get_by_label("Message since").fill("2030-01-01T00:00:00")
        page.get_by_label("Message since").blur()
        page.get_by_text("No letter is like that").wait_for()
        restored = page.url.partition("#/")[2]
    assert "since=" in restored
    with browser.page(restored.replace("2030", "2020")) as page:
        page.get_by_text("Send the 3 shown back").wait_for()
        page.get_by_text("These letters elsewhere").click()
        command = page.locator("details .forms pre").first.inner_text()
        page.get_by_role("link", name="All letters").click()
        page.get_by_text("Send the 5 shown back").wait_for()
        page.get_by_label("Consumer").select_option("printer")
        page.get_by_text("Send the 1 shown back").wait_for()
        assert places(page) == ["0:4"]
        page.get_by_label("Consumer").select_option("")
        page.get_by_label("Origin").select_option("orders")
        page.get_by_text("Send the 4 shown back").wait_for()
        page.locator("td a", has_text="<img").click()
        page.get_by_text("Send the 1 shown back").wait_for()
        assert places(page) == ["0:3"]
    assert "timeout" in run(command, letters_broker)


def page_places(page) -> list[str]:
    """The letters that the page lists."""
    links = page.get_by_role("region", name="Letters").locator("td a[href*='dead-letters']")
    return links.all_inner_texts()


def test_a_letter_is_looked_at_edited_and_sent_on(browser, letters_broker):
    with browser.page(f"dead-letters/{TOPIC}/0/1") as page:
        page.get_by_text("Given up after 5 deliveries").wait_for()
        shown = page.locator("main").inner_text()
        assert "timeout" in shown
        assert "__dlq.errors.group" in shown
        assert page.get_by_role("link", name="orders 0:1").count() == 1
        page.get_by_label("Value", exact=True).fill('{"order": "mended"}')
        page.get_by_label("Headers, one a line").fill("trace: xyz\nby: hand")
        page.get_by_role("button", name="Check the edit").click()
        page.get_by_text("Value after").wait_for()
        assert '"order": 1' in page.locator("dialog").inner_text()
        command = form(page)
        assert listed(letters_broker)[1]["edits"] == []
        act(page)
        page.keyboard.press("Escape")
        page.get_by_text("Edited by User:ANONYMOUS: value,headers").wait_for()
        assert listed(letters_broker)[1]["record"]["value"] == '{"order": "mended"}'
        page.get_by_role("button", name="Send back").click()
        page.get_by_text("1 would go back to orders").wait_for()
        act(page)
        page.get_by_text("1 went back to orders").wait_for()
        page.keyboard.press("Escape")
        page.get_by_role("link", name="All letters").click()
        page.get_by_role("button", name="Take back").click()
        page.get_by_text("1 of 1 messages can be taken back").wait_for()
        undo = form(page)
    answer = ask(letters_broker, "GET", "/v1/topics/orders/records?offset=0")
    (record,) = answer["records"]
    assert record["value"] == '{"order": "mended"}'
    headers = {name: value for name, value, *_ in record["headers"]}
    assert (headers["trace"], headers["by"]) == ("xyz", "hand")
    assert "headrace-edited" in headers
    (letter,) = [one for one in listed(letters_broker) if one["record"]["key"] == "k0"]
    assert len(listed(letters_broker)) == 4
    assert "yes" in run(undo, letters_broker)
    assert len(listed(letters_broker)) == 5
    moved = f"{letter['partition']}:{letter['letter_offset']}"
    run(command.replace(" 0:1 ", f" {moved} "), letters_broker)  # the same on the command line
    (letter,) = [one for one in listed(letters_broker) if one["record"]["key"] == "k0"]
    assert letter["record"]["value"] == '{"order": "mended"}'


def test_chosen_letters_are_sent_back_and_taken_back_by_keyboard(browser, letters_broker):
    with browser.page(f"dead-letters/{TOPIC}") as page:
        page.get_by_label("Choose 0:0").focus()
        page.keyboard.press("Space")
        page.get_by_label("Choose 0:2").focus()
        page.keyboard.press("Space")
        page.get_by_label("Sent back at most (times)").fill("7")
        page.get_by_role("button", name="Send the 2 chosen back").focus()
        page.keyboard.press("Enter")
        page.get_by_text("2 would go back to orders").wait_for()
        assert "--loop-max=7 --letter=0:0 --letter=0:2" in form(page)
        page.get_by_text("3 would stay dead letters").wait_for()
        page.get_by_label(f"Type {TOPIC} to confirm").focus()
        page.keyboard.type(TOPIC)
        page.keyboard.press("Enter")
        page.get_by_role("region", name="What became of each letter").wait_for()
        page.keyboard.press("Escape")
        page.get_by_text("3 dead letters that were not sent back").wait_for()
        page.get_by_role("button", name="Take back").focus()
        page.keyboard.press("Enter")
        page.get_by_text("2 of 2 messages can be taken back").wait_for()
        assert len(listed(letters_broker)) == 3
        act(page)
        page.get_by_text("2 of 2 messages were taken back").wait_for()
        page.keyboard.press("Escape")
        page.get_by_text("5 dead letters that were not sent back").wait_for()
    assert len(listed(letters_broker)) == 5
    got = ask(letters_broker, "POST", "/v1/queues/orders/billing/receive", {"max": 10})
    assert got["messages"] == []


def test_a_redrive_is_followed_and_stopped(browser, letters_broker):
    records = [share_letter(number, "later") for number in range(300)]
    Confluent.produce(letters_broker.kafka, TOPIC, records)
    with browser.page("jobs") as page:
        page.get_by_text("No job has run since").wait_for()
        ask(letters_broker, "POST", "/v1/redrives", {"topic": TOPIC, "rate": 5})
        page.reload()
        page.get_by_role("link", name="Redrive").wait_for()
        page.get_by_role("button", name="Stop").click()
        page.get_by_text("What it has sent stays sent").wait_for()
        page.get_by_role("button", name="Stop", exact=True).last.click()
        page.locator("dialog .note.good").wait_for()
        page.keyboard.press("Escape")
        page.get_by_role("cell", name="stopped").wait_for()
        page.get_by_role("link", name="Redrive").click()
        page.get_by_text("Results").wait_for()


def test_a_page_asks_for_running_jobs_only_while_it_is_seen(browser, letters_broker):
    records = [share_letter(number, "later") for number in range(300)]
    Confluent.produce(letters_broker.kafka, TOPIC, records)
    ask(letters_broker, "POST", "/v1/redrives", {"topic": TOPIC, "rate": 1})
    asked = []
    with browser.page("jobs") as page:
        page.clock.install()
        page.reload()  # from here on, all of its timers are of this clock
        page.get_by_role("button", name="Stop").wait_for()
        page.on("request", lambda one: asked.append(one.url) if "/v1/redrives" in one.url else None)
        with page.expect_request("**/v1/redrives?*"):
            page.clock.run_for(1000)
        show(page, is_hidden=True)
        asked.clear()
        page.clock.run_for(60_000)
        assert asked == []
        with page.expect_request("**/v1/redrives?*"):
            show(page, is_hidden=False)


def show(page, *, is_hidden: bool) -> None:
    page.evaluate(
        "is => { Object.defineProperty(document, 'hidden', { value: is, configurable: true });"
        " document.dispatchEvent(new Event('visibilitychange')) }",
        is_hidden,
    )


def test_results_of_spark_jobs_are_shown_from_the_topic_that_keeps_them(browser, letters_broker):
    with browser.page("jobs") as page:
        page.get_by_text("No result is in this topic").wait_for()
    forecast = {"verdict": "empty", "arrival_per_s": 2.0, "drain_per_s": 9.0, "empty_at_ms": 0}
    create_topic(letters_broker.kafka, "headrace.results")
    Confluent.produce(letters_broker.kafka, "headrace.results", [Rec(b"other", b"[]")])
    session = CliSession(letters_broker.kafka)
    for job, of, summary, found in (
        ("proof", "orders", "missing: 3 gaps", {"problems": [HOSTILE], "not_proven": []}),
        ("backlog", "billing", "empty soon", {"lag": 7, "forecast": forecast}),
    ):
        keep_result(session, "headrace.results", job, of, summary, found)
    with pytest.raises(CommandFailed, match=r"is not in headrace.results: .* too large"):
        keep_result(session, "headrace.results", "proof", "orders", "", "x" * 2_000_000)
    with browser.page("jobs") as page:
        rows = page.get_by_role("region", name="Results of Spark jobs").locator("tbody tr")
        rows.first.wait_for()
        assert sorted(rows.locator("td:nth-child(3)").all_inner_texts()) == [
            "empty soon",
            "missing: 3 gaps",
        ]
        page.get_by_role("link", name="backlog billing").click()
        page.get_by_text("9/s").wait_for()
        page.get_by_role("link", name="Jobs", exact=True).last.click()
        page.get_by_role("link", name="proof orders").click()
        page.get_by_role("listitem").get_by_text("<img src=x").wait_for()
        assert page.title() != "owned"
        assert accessibility_violations(page) == []
        page.set_viewport_size({"width": 360, "height": 740})
        assert overflow_px(page) <= 0


PAGES = [f"dead-letters/{TOPIC}", f"dead-letters/{TOPIC}/0/3", f"dead-letters/{TOPIC}/0/4", "jobs"]


def test_pages_are_accessible_in_both_schemes_fit_a_small_screen_and_speak_chinese(
    browser, letters_broker
):
    ask(letters_broker, "POST", "/v1/searches", {"topic": TOPIC, "key": "k1"})
    task = ask(letters_broker, "GET", "/v1/searches")["searches"][0]["id"]
    for path in [*PAGES, f"jobs/searches/{task}"]:
        for scheme in ("light", "dark"):
            with browser.page(path, color_scheme=scheme) as page:
                page.wait_for_selector("main :is(table, pre)")
                assert accessibility_violations(page) == [], (path, scheme)
                page.set_viewport_size({"width": 360, "height": 740})
                assert overflow_px(page) <= 0, path
        with browser.page(path, locale="zh-CN") as page:
            page.wait_for_selector("main :is(table, pre)")
            shown = page.locator("main h2, main th, main button").all_inner_texts()
            assert any(re.search("[\u4e00-\u9fff]", one) for one in shown), (path, shown)
            assert page.title() != "owned"
