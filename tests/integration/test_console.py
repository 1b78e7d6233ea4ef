"""The console in a real browser, against a real broker with records, groups and dead letters."""

from __future__ import annotations

import base64
import json
import re
import subprocess
import sys
import urllib.request

import pytest
from tests.documents.commands import parse, words
from tests.integration.broker import Broker
from tests.integration.browser import (
    NEEDS_CHROMIUM,
    accessibility_violations,
    assert_usable,
    browser_of,
    overflow_px,
)
from tests.integration.clients import Confluent, Rec, create_topic
from tests.integration.streams import PARTITIONS, Thread, counting
from tests.waiting import wait_until

from headrace.http.operations import TOPIC

pytestmark = NEEDS_CHROMIUM
HOSTILE = "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>"
CONTROL = "\u202egnp.exe\u202c \x00\x1b[31m\u200b end"
PAGES = [
    "",
    "topics",
    "topics/orders",
    "topics/orders/life",
    "topics/orders/life?message=0:0",
    "topics/orders/time?key=k1",
    "topics/orders/partitions",
    "topics/orders/ledgers",
    "topics/orders/ledgers?partition=0",
    "topics/orders/settings",
    "topics/orders/send",
    "topics/orders?from=where&where=value.order > 390",
    "topics/empty",
    "groups",
    "groups/billing",
    "groups/billing?hot=orders/0",
    "groups/billing/members",
    "groups/billing/slow",
    "groups/billing/reset",
    "queues",
    "queues/orders/workers",
    "queues/orders",
    "dead-letters",
    "dead-letters/orders.dead",
    "cluster",
    "connections",
    "jobs",
]
DEAD = [
    ("__dlq.errors.topic", b"orders"),
    ("__dlq.errors.group", b"workers"),
    ("__dlq.errors.message", HOSTILE.encode()),
    ("__dlq.errors.delivery.count", b"5"),
]


def commit(broker, group: str, offset: int) -> None:
    """Let a group stand at this offset of all partitions of `orders`."""
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer({"bootstrap.servers": broker.kafka, "group.id": group})
    offsets = [TopicPartition("orders", number, offset) for number in range(3)]
    consumer.commit(offsets=offsets, asynchronous=False)
    consumer.close()


def ask(broker, method: str, path: str, body=None):
    """One call of the HTTP API; returns its answer."""
    asked = urllib.request.Request(
        f"http://{broker.http}{path}",
        method=method,
        data=None if body is None else json.dumps(body).encode(),
        headers={"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(asked, timeout=60) as answer:
        return json.loads(answer.read())


@pytest.fixture(scope="module")
def console_broker(tmp_path_factory):
    broker = Broker(tmp_path_factory.mktemp("console"))
    broker.start()
    create_topic(broker.kafka, "orders", 3)
    create_topic(broker.kafka, "empty")
    records = [Rec(b"k%d" % (n % 7), json.dumps({"order": n}).encode()) for n in range(400)]
    records += [
        Rec(b"evil", HOSTILE.encode(), [(HOSTILE, HOSTILE.encode())]),
        Rec(b"evil", CONTROL.encode()),
        Rec(b"\xff\x00", bytes(range(256))),
        Rec(b"large", b"x" * 900_000),
        Rec(None, None),
    ]
    Confluent.produce(broker.kafka, "orders", records)
    commit(broker, "billing", 12)
    create_topic(broker.kafka, "orders.dead")
    Confluent.produce(broker.kafka, "orders.dead", [Rec(b"k", b"dead", DEAD)] * 3)
    change = {
        "share.auto.offset.reset": "earliest",
        "errors.deadletterqueue.topic.name": "orders.dead",
    }
    ask(broker, "PATCH", "/v1/groups/workers/config", {"set": change})
    ask(broker, "POST", "/v1/queues/orders/workers/receive", {"max": 5})
    yield broker
    broker.stop()


browser = browser_of("console_broker")


def run(form: str, broker) -> str:
    """Run a command line that the console shows, in a shell; returns what it writes."""
    form = form.replace(
        "headrace ", f"'{sys.executable}' -m headrace.cli.main --bootstrap {broker.kafka} "
    )
    done = subprocess.run(
        ["sh", "-c", form], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, (form, done.stderr)
    return done.stdout


def names(broker) -> list[str]:
    return [one["name"] for one in json.loads(broker.get("/v1/topics")[1])["topics"]]


# --- every page ----------------------------------------------------------------------------------


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("path", PAGES)
def test_pages_are_accessible_in_light_and_dark_and_fit_a_small_screen(browser, path, scheme):
    with browser.page(path, color_scheme=scheme) as page:
        page.wait_for_load_state("load")
        page.wait_for_selector("main :is(table, .note, form)")
        assert_usable(page, scheme)


def test_a_page_that_cannot_be_loaded_is_asked_for_again_and_then_said(browser):
    with browser.page("") as page:
        asked = []

        def refuse(route):
            asked.append(route.request.url)
            route.abort()

        page.route("**/pages/queues.js", refuse)
        page.goto(f"{browser.base}/#/queues")
        page.get_by_role("heading", name="The page could not be loaded").wait_for()
        assert len(asked) == 3, "with the scripts, as the first page, and twice by the frame"
        page.unroute("**/pages/queues.js")
        page.get_by_role("button", name="Read again").click()
        page.get_by_role("heading", name="Queues").wait_for()


def test_a_page_that_the_broker_never_sends_is_said_and_asked_for_again(browser):
    with browser.page("") as page:
        page.clock.install()
        page.route("**/pages/groups.js", lambda _route: None)
        with page.expect_request("**/pages/groups.js"):
            page.goto(f"{browser.base}/#/groups")
        page.locator("main").get_by_text("Loading").wait_for()
        page.clock.fast_forward(10_000)
        page.get_by_text("The broker has not sent this page for 10 seconds").wait_for()
        assert accessibility_violations(page) == []
        with page.expect_request("**/pages/groups.js"):
            page.get_by_role("button", name="Try again").click()
        page.unroute("**/pages/groups.js")
        page.get_by_role("link", name="billing").wait_for()


def test_a_job_that_runs_is_asked_of_its_broker_alone(browser):
    """All brokers are asked once at the beginning and once at the end, for each kind."""
    task = {
        "id": "0f1e2d3c4b5a6978", "broker": 7, "state": "running", "asked": {"topic": "orders"},
        "started_ms": 1, "progress": {"records": 3}, "result_count": 0,
    }  # fmt: skip
    asked: list[str] = []

    def answer(route):
        path = route.request.url.partition("/v1/")[2]
        asked.append(path)
        kind = path.partition("?")[0]
        route.fulfill(json={kind: [task] if kind == "searches" else []})

    kinds = ["redrives", "searches", "traces"]
    with browser.page("") as page:
        page.clock.install()
        page.route(re.compile(r"/v1/(redrives|searches|traces)([?].*)?$"), answer)
        page.goto(f"{browser.base}/#/jobs")
        page.get_by_text("3 records read").wait_for()
        assert sorted(asked) == kinds
        for records in (4, 5, 6):
            task["progress"] = {"records": records}
            page.clock.fast_forward(1_000)
            page.get_by_text(f"{records} records read").wait_for()
        assert {*asked[3:]} == {"searches?broker=7"}
        task["state"] = "done"
        del asked[:]
        page.clock.fast_forward(1_000)
        page.get_by_text("done", exact=True).wait_for()
        assert asked[0] == "searches?broker=7"
        assert sorted(asked[1:]) == kinds


@pytest.mark.parametrize("path", PAGES)
def test_pages_speak_chinese_and_show_commands_that_the_command_line_takes(browser, path):
    with browser.page(path, locale="zh-CN") as page:
        page.wait_for_selector("main :is(table, .note, form)")
        assert page.locator("html").get_attribute("lang") == "zh-CN"
        assert "概览" in page.locator("header nav").inner_text()
        page.get_by_role("button", name="English").click()
        page.get_by_role("link", name="Overview").wait_for()
        page.get_by_text("This page elsewhere").click()
        page.locator("main .foot pre", has_text="curl").first.wait_for()
        for form in page.locator("main .foot pre").all_inner_texts():
            if form.startswith("headrace "):
                parse(words(form)[1:])


def test_what_a_broker_says_is_shown_in_chinese(browser):
    with browser.page("topics/orders/settings", locale="zh-CN") as page:
        page.get_by_text("删除最新记录早于此时间的账本").wait_for()
    with browser.page("groups/billing/slow", locale="zh-CN") as page:
        page.get_by_text("该组没有成员").wait_for()
        page.get_by_text("启动该组的消费者").wait_for()
    with browser.page("topics/none", locale="zh-CN") as page:
        page.get_by_text("主题不存在").wait_for()
        page.get_by_text("或检查其名称").wait_for()


def test_live_values_update_without_a_reload(browser, console_broker):
    with browser.page("topics/orders/partitions") as page:
        page.get_by_text("Live", exact=True).wait_for()
        before = sum_of_ends(page)
        Confluent.produce(console_broker.kafka, "orders", [Rec(b"more", b"{}")] * 3)
        wait_until(lambda: sum_of_ends(page) == before + 3)


def sum_of_ends(page) -> int:
    texts = page.locator("tbody tr td:nth-child(5)").all_inner_texts()
    return sum(int(one.replace(",", "")) for one in texts)


# --- messages ------------------------------------------------------------------------------------


def test_hostile_contents_are_text(browser):
    with browser.page("topics/orders?from=key&key=evil") as page:
        page.get_by_text("<img src=x").first.wait_for()
        text = page.locator("tbody").inner_text()
        assert "⟨U+202E⟩gnp.exe" in text
        assert "⟨U+0000⟩⟨U+001B⟩[31m" in text
        page.get_by_role("button", name="Open").last.click()
        page.locator("dialog").wait_for()
        assert page.title() == "orders · Headrace"
        assert page.locator("main img, dialog img, dialog script").count() == 0


def test_a_value_is_shown_in_the_form_that_is_asked_for(browser):
    with browser.page("topics/orders?from=key&key=k1") as page:
        page.get_by_role("button", name="Open").first.click()
        dialog = page.locator("dialog")
        assert '"order":' in dialog.inner_text()
        dialog.get_by_label("Decode as").select_option("hex")
        assert "000000  7b 22" in dialog.inner_text()
        dialog.get_by_label("Decode as").select_option("text")
        assert '{"order": ' in dialog.inner_text()


def test_messages_are_found_by_an_expression_and_exported(browser, console_broker):
    with browser.page("topics/orders") as page:
        page.get_by_label("Show").select_option("where")
        page.get_by_label("Expression (CEL)").fill("value.order >= 300 && value.order % 7 == 3")
        page.get_by_label("Expression (CEL)").press("Enter")
        page.get_by_text("records searched").wait_for()
        rows = page.locator("tbody tr")
        wanted = sorted(n for n in range(300, 400) if n % 7 == 3)
        assert (
            sorted(
                json.loads(one)["order"]
                for one in rows.locator("td:last-child bdi").all_inner_texts()
            )
            == wanted
        )
        assert page.get_by_text("The expression has no value for").is_visible()
        page.get_by_text("This page elsewhere").click()
        command = page.locator("pre", has_text="headrace find").inner_text()
        found = run(f"{command} --json --http {console_broker.http}", console_broker)
        assert (
            sorted(json.loads(one["value"])["order"] for one in json.loads(found)["messages"])
            == wanted
        )
        with page.expect_download() as download:
            page.get_by_role("link", name="Export as NDJSON").click()
        lines = download.value.path().read_text().splitlines()
        assert sorted(json.loads(json.loads(one)["value"])["order"] for one in lines) == wanted
        page.get_by_label("Expression (CEL)").fill("value.order >")
        page.get_by_label("Expression (CEL)").press("Enter")
        page.get_by_role("alert").wait_for()
        assert "where=value.order" in page.url


def test_a_search_of_many_results_goes_on_where_its_link_says(browser):
    with browser.page("topics/orders?from=where&where=value.order < 60") as page:
        page.get_by_text("There is more to search.").wait_for()
        assert page.locator("tbody tr").count() == 50
        page.get_by_role("button", name="Search on").click()
        page.wait_for_url("**after=**")
        page.get_by_role("button", name="Search on").wait_for(state="detached")
        assert page.locator("tbody tr").count() == 10
        page.reload()
        page.locator("tbody tr").first.wait_for()
        assert page.locator("tbody tr").count() == 10


def test_a_search_goes_on_as_a_job_and_a_job_where_it_was_cut(browser, console_broker):
    """Each keeps at most so many results; the next one begins after them."""
    with browser.page("topics/orders?from=where&where=value.order < 60") as page:
        page.get_by_role("button", name="Continue as a job").click()
        page.get_by_role("button", name="Search", exact=True).click()
        page.wait_for_url("**/jobs/searches/**")
        page.get_by_text("done", exact=True).wait_for()
        assert page.locator("main pre").first.inner_text().count('"offset"') == 10
    found = {"topic": "orders", "where": "value.order < 60", "max": 40}
    task = ask(console_broker, "POST", "/v1/searches", found)["id"]
    path = f"/v1/searches/{task}"
    wait_until(lambda: ask(console_broker, "GET", path)["state"] == "done")
    with browser.page(f"jobs/searches/{task}") as page:
        page.get_by_role("button", name="Search on").click()
        page.get_by_role("button", name="Search", exact=True).click()
        page.wait_for_url(lambda url: "/jobs/searches/" in url and task not in url)
        page.get_by_text("done", exact=True).wait_for()
        assert page.locator("main pre").first.inner_text().count('"offset"') == 20


def test_a_link_restores_what_a_page_showed(browser, console_broker):
    topic = ask(console_broker, "GET", "/v1/topics/orders")
    full = max(topic["partitions"], key=lambda one: one["end_offset"])["partition"]
    with browser.page("topics/orders") as page:
        page.get_by_label("Show").select_option("offset")
        page.get_by_role("combobox", name="Partition").select_option(str(full))
        page.get_by_label("Offset", exact=True).fill("7")
        page.get_by_label("Offset", exact=True).press("Enter")
        page.wait_for_url("**offset=7**")
        page.get_by_role("button", name=f"Open {full}:7").wait_for()
        link = page.url
        page.goto("about:blank")
        page.goto(link)
        page.get_by_role("button", name=f"Open {full}:7").wait_for()
        assert page.get_by_role("button", name=f"Open {full}:6").count() == 0


@pytest.mark.parametrize(
    "path",
    [
        "topics",
        "topics/orders",
        "topics/orders/life",
        "topics/orders/time",
        "groups",
        "groups/billing/reset",
        "dead-letters/orders.dead",
    ],
)
def test_every_choice_that_changes_what_a_page_shows_is_in_its_link(browser, path):
    with browser.page(path) as page:
        page.locator("main .filters select").first.wait_for()
        labels = page.locator("main .filters .field:has(select) > span").all_inner_texts()
    for label in labels:
        with browser.page(path) as page:
            choice = page.locator("main .filters").get_by_label(label, exact=True)
            values = choice.locator("option").evaluate_all("all => all.map((one) => one.value)")
            if len(values) < 2:
                continue
            choice.select_option(values[-1])
            wait_until(lambda choice=choice: "?" in choice.page.url)
            link = page.url
            page.goto("about:blank")
            page.goto(link)
            choice.locator("option:checked").wait_for(state="attached")
            wait_until(lambda choice=choice, last=values[-1]: choice.input_value() == last)


def test_links_restore_an_opened_message_a_reset_and_a_filter_of_settings(browser):
    with browser.page("topics/orders?from=key&key=k1") as page:
        page.get_by_role("button", name="Open").first.click()
        title = page.locator("dialog h2").inner_text()
        link = page.url
        page.goto("about:blank")
        page.goto(link)
        page.locator("dialog h2", has_text=title).wait_for()
        page.keyboard.press("Escape")
        page.wait_for_url(lambda url: "open=" not in url)
    with browser.page("groups/billing/reset?to=offset&value=5") as page:
        assert page.get_by_label("Offset", exact=True).input_value() == "5"
        page.get_by_label("Offset", exact=True).fill("6")
        page.wait_for_url("**value=6**")
    with browser.page("topics/orders/settings?contains=max.message.bytes") as page:
        page.locator("tbody tr").first.wait_for()
        assert page.locator("tbody tr b").all_inner_texts() == ["max.message.bytes"]
        page.get_by_label("Name contains").fill("retention.bytes")
        page.wait_for_url("**contains=retention.bytes**")


def test_back_and_forward_open_the_message_of_each_link(browser, console_broker):
    topic = ask(console_broker, "GET", "/v1/topics/orders")
    full = max(topic["partitions"], key=lambda one: one["end_offset"])["partition"]
    opened = "topics/orders?from=offset&offset=0&open={}:{}".format
    with browser.page(opened(full, 3)) as page:
        dialog = page.locator("dialog h2")
        dialog.get_by_text(f"orders {full}:3", exact=True).wait_for()
        page.goto(f"{browser.base}/#/{opened(full, 5)}")
        dialog.get_by_text(f"orders {full}:5", exact=True).wait_for()
        page.goto(f"{browser.base}/#/topics/orders?from=offset&offset=0")
        dialog.wait_for(state="detached")
        page.go_back()
        dialog.get_by_text(f"orders {full}:5", exact=True).wait_for()
        page.go_back()
        dialog.get_by_text(f"orders {full}:3", exact=True).wait_for()
        page.go_forward()
        dialog.get_by_text(f"orders {full}:5", exact=True).wait_for()
        page.keyboard.press("Escape")
        dialog.wait_for(state="detached")
        page.wait_for_url(lambda url: "open=" not in url)


def test_what_does_not_exist_cannot_be_deleted(browser):
    for path in ("topics/none", "groups/none"):
        with browser.page(path) as page:
            page.get_by_role("alert").wait_for()
            assert page.get_by_role("button", name="Delete").count() == 0


def test_a_tail_shows_new_messages_and_keeps_its_rows_bounded(browser, console_broker):
    with browser.page("topics/orders?from=live") as page:
        page.get_by_text("Waiting for messages").wait_for()
        records = [Rec(b"tail", b"%d" % n) for n in range(3_000)]
        Confluent.produce(console_broker.kafka, "orders", records)
        page.get_by_text("3,000 messages came").wait_for()
        assert page.locator("tbody tr").count() == 200
        page.get_by_role("button", name="Pause").click()


def test_a_tail_that_is_refused_says_why(browser):
    """A browser does not tell a page why a stream was refused."""
    problem = {"status": 404, "detail": "it is gone", "retriable": False, "next_step": "look away"}
    with browser.page() as page:
        page.route("**/tail*", lambda route: route.fulfill(status=404, json=problem))
        page.goto(f"{browser.base}/#/topics/orders?from=live")
        page.get_by_text("it is gone").wait_for()
        assert page.get_by_text("Connecting").count() == 0


# --- actions -------------------------------------------------------------------------------------


def test_a_topic_is_created_and_deleted_by_keyboard_alone(browser, console_broker):
    with browser.page("topics") as page:
        page.get_by_role("button", name="Create a topic").focus()
        page.keyboard.press("Enter")
        page.get_by_label("Name", exact=True).focus()
        page.keyboard.type("by-keyboard")
        assert page.get_by_label("Name", exact=True).input_value() == "by-keyboard"
        page.keyboard.press("Enter")
        page.get_by_text("Creates by-keyboard with 1 partitions").wait_for()
        assert "by-keyboard" not in names(console_broker)
        page.locator("dialog button.main").focus()
        page.keyboard.press("Enter")
        page.locator("dialog .note.good").wait_for()
        assert "by-keyboard" in names(console_broker)
        page.keyboard.press("Escape")
        page.keyboard.press("Control+k")
        page.get_by_role("combobox", name="Name of a page").wait_for()
        page.keyboard.type("by-key")
        page.get_by_role("option", name="by-keyboard").wait_for()
        page.keyboard.press("Enter")
        page.get_by_text("No messages yet").wait_for()
        page.get_by_role("button", name="Delete the topic").focus()
        page.keyboard.press("Enter")
        page.get_by_text("Deletes by-keyboard: 1 partitions with 0 records").wait_for()
        delete = page.get_by_role("button", name="Delete", exact=True)
        assert delete.is_disabled()
        page.get_by_label("Type by-keyboard to confirm").focus()
        page.keyboard.type("by-keyboar")
        assert delete.is_disabled()
        page.keyboard.type("d")
        page.keyboard.press("Enter")
        page.wait_for_url("**/#/topics")
    assert "by-keyboard" not in names(console_broker)


@pytest.mark.parametrize("form", [0, 1, 2], ids=["command", "curl", "python"])
def test_the_forms_of_an_action_do_what_it_does(browser, console_broker, form):
    """They are run as they are shown; the action itself is cancelled."""
    name = f"by-form-{form}"
    with browser.page("topics") as page:
        page.get_by_role("button", name="Create a topic").click()
        page.get_by_label("Name", exact=True).fill(name)
        page.get_by_role("button", name="Check").click()
        page.get_by_text(f"Creates {name}").wait_for()
        page.locator("dialog summary").click()
        shown = page.locator("dialog .forms pre").nth(form).inner_text()
        page.get_by_role("button", name="Cancel").click()
    assert name not in names(console_broker)
    if form == 2:
        subprocess.run([sys.executable, "-c", shown], check=True, timeout=60, capture_output=True)
    else:
        run(shown, console_broker)
    assert name in names(console_broker)


@pytest.mark.parametrize(
    ("path", "label", "opens"),
    [
        ("dead-letters", "Another topic", False),
        ("queues", "Topic", False),
        ("topics", "Name", True),
    ],
)
def test_the_fields_of_topics_take_the_names_that_the_api_takes(browser, path, label, opens):
    tried = ["orders", "acme/orders", "\u00abacme\u00bborders", "a" * 249, "acme/" + "o" * 249]
    tried += ["a" * 250, "acme/", "/orders", "a/b/c", "Acme/orders", "or ders", "\u00aborders"]
    with browser.page(path) as page:
        if opens:
            page.get_by_role("button", name="Create a topic").click()
        field = page.get_by_label(label, exact=opens).last
        taken = []
        for name in tried:
            field.fill(name)
            if field.evaluate("input => input.checkValidity() && input.value") == name:
                taken.append(name)
    assert taken == [name for name in tried if re.fullmatch(TOPIC["pattern"], name)]


def test_a_message_is_sent_again_with_what_it_had(browser, console_broker):
    value = 'it\'s "quoted" $HOME `x` \\ 中 \x1b[A\x7f\x85\u202e'
    create_topic(console_broker.kafka, "again")
    Confluent.produce(console_broker.kafka, "again", [Rec(b"k", value.encode(), [("h", b"v: w")])])
    with browser.page("topics/again") as page:
        page.get_by_role("button", name="Open 0:0").click()
        page.get_by_role("link", name="Send it again").click()
        page.get_by_text("A copy of 0:0").wait_for()
        value_box = page.locator("textarea").first
        wait_until(value_box.input_value)
        page.get_by_role("button", name="Check").click()
        page.locator("dialog summary").click()
        command = page.locator("dialog .forms pre").first.inner_text()
        page.get_by_role("button", name="Send", exact=True).click()
        page.locator("dialog .note.good").wait_for()
    assert command.isprintable(), "a terminal that it is pasted into acts on nothing in it"
    run(command, console_broker)
    answer = json.loads(console_broker.get("/v1/topics/again/records?offset=0")[1])
    found = [(one["key"], one["value"], one["headers"]) for one in answer["records"]]
    assert found == [("k", value, [["h", "v: w"]])] * 3


def test_a_step_back_from_a_copy_leaves_none_of_it(browser):
    with browser.page("topics/orders/send") as page:
        value_box = page.locator("textarea").first
        value_box.wait_for()
        page.goto(f"{browser.base}/#/topics/orders/send?partition=0&offset=0")
        wait_until(value_box.input_value)
        page.go_back()
        page.get_by_text("A copy of").wait_for(state="detached")
        wait_until(lambda: value_box.input_value() == "")


def test_a_setting_is_changed_and_reset(browser, console_broker):
    def retention() -> dict:
        answer = json.loads(console_broker.get("/v1/topics/empty/config")[1])
        return next(one for one in answer["settings"] if one["name"] == "retention.ms")

    with browser.page("topics/empty/settings") as page:
        page.get_by_label("Name contains").fill("retention.ms")
        page.get_by_role("button", name="Change retention.ms").click()
        page.get_by_role("textbox", name="retention.ms", exact=True).fill("3600000")
        page.get_by_role("button", name="Check").click()
        page.locator("dialog button.main").click()
        page.locator("dialog .note.good").wait_for()
        assert retention()["value"] == "3600000"
        page.keyboard.press("Escape")
        page.get_by_text("set here").wait_for()
        page.get_by_role("button", name="Reset retention.ms").click()
        page.locator("dialog button.main").click()
        page.locator("dialog .note.good").wait_for()
    assert not retention()["is_set"]


# --- groups, dead letters ------------------------------------------------------------------------


def offsets_of(broker, group: str) -> dict[int, int]:
    answer = ask(broker, "GET", f"/v1/groups/{group}/offsets")
    return {one["partition"]: one["offset"] for one in answer["offsets"]}


def test_a_group_with_a_hostile_name_is_text_and_can_be_opened(browser, console_broker):
    name = f"a/b?c#d%2F {HOSTILE} {CONTROL}".replace("\x00", "")
    commit(console_broker, name, 3)
    with browser.page("groups") as page:
        page.get_by_role("link", name="a/b?c#d%2F").click()
        page.get_by_text("Lag in time").first.wait_for()
        assert "⟨U+202E⟩gnp.exe" in page.locator("h1").inner_text()
        page.get_by_role("link", name="Why is it slow?").click()
        page.get_by_text("The group has no members").wait_for()
        assert page.locator("main img, main script").count() == 0


def test_the_lag_of_a_group_is_drawn_in_records_and_in_time(browser):
    known = {"at_ms": 15_000, "lag_records": 1_200, "lag_ms": 90_000, "is_partial": False}
    unknown = known | {"at_ms": 30_000, "lag_ms": None}
    history = {"group": "billing", "interval_ms": 15_000, "lag_is_partial": False, "trend": None}

    def answer(points):
        return lambda route: route.fulfill(json=history | {"points": points})

    for points, drawn, gaps in (([known], "1.5 min", 0), ([known, unknown], "\N{EN DASH}", 1)):
        with browser.page() as page:
            page.route("**/groups/billing/lag", answer(points))
            page.goto(f"{browser.base}/#/groups/billing")
            page.get_by_role("img", name="Lag over the last hour: Lag 1,200").wait_for()
            name = f"Lag in time over the last hour: Lag in time {drawn}"
            page.get_by_role("img", name=name).locator("canvas").wait_for()
            assert page.get_by_text("The lag in time has gaps").count() == gaps


def test_the_list_of_topics_shows_rates_and_the_group_with_most_lag(browser, console_broker):
    create_topic(console_broker.kafka, "rated")
    Confluent.produce(console_broker.kafka, "rated", [Rec(b"k", b"{}")] * 100)  # just now
    with browser.page("topics") as page:
        row = page.locator("tbody tr", has_text="orders").first
        row.get_by_role("link", name="workers").wait_for()
        assert re.search(r"and \d+ more", row.inner_text())  # billing has committed, at least
        rated = page.locator("tbody tr", has_text="rated").first
        records_in = rated.get_by_role("cell").nth(4).inner_text()
        assert re.search(r"[1-9][^/]*/s", records_in), records_in


def test_ledgers_are_shown_as_far_as_they_are_known(browser):
    ledger = {
        "ledger": 17, "base_offset": 0, "end_offset": 4, "size_bytes": 9, "newest_ms": None,
        "is_open": False, "is_local": True, "is_offloaded": False, "copies_missing": 0,
        "is_tabled": False, "object_kept_because": None,
    }  # fmt: skip
    part = {"partition": 1, "broker": 1, "is_loaded": False, "ledger_count": 0, "ledgers": []}
    tabled = ledger | {"ledger": 16, "size_bytes": 0, "is_local": False, "is_tabled": True}
    loaded = part | {"is_loaded": True, "ledger_count": 3, "ledgers": [tabled, ledger]}
    with browser.page("topics/orders/ledgers?partition=0") as page:
        page.locator("h2", has_text="Ledgers of partition").wait_for()
        answers = [part, loaded]
        page.route(
            re.compile(r"/v1/topics/orders/ledgers"),
            lambda route: route.fulfill(json={"topic": "orders", "partitions": [answers.pop(0)]}),
        )
        page.get_by_role("button", name="Read again").click()
        page.get_by_text("which ledgers it has is not known").wait_for()
        assert "no ledger yet" not in page.locator("main").inner_text()
        page.get_by_role("button", name="Read again").click()
        page.locator("h2", has_text="Ledgers of partition 1").wait_for()
        assert "≥ 9" in page.locator("main").inner_text()
        assert page.get_by_role("cell", name="in the topic's table alone", exact=True).count() == 1
        strip = page.get_by_role("img", name="1 in the ledger store, 1 in the topic's table alone")
        assert strip.locator("rect.tabled").count() == 1
        assert page.get_by_text("this broker's disk").count() == 0
        assert page.get_by_role("columnheader", name="Bookies").count() == 0


def test_delayed_messages_are_shown_by_day_and_delivered_now(browser, console_broker):
    config = {"headrace.message.attributes": "read", "headrace.delay.max.ms": "864000000"}
    ask(console_broker, "POST", "/v1/topics", {"name": "later", "config": config})
    records = [
        {"value": name, "headers": [["headrace-delay", str(days * 86_400_000)]]}
        for name, days in (("two", 2), ("nine", 9))
    ]
    ask(console_broker, "POST", "/v1/topics/later/records", {"records": records})
    with browser.page("queues/later") as page:
        days = page.locator("table", has_text="Sun").get_by_role("link")
        days.first.wait_for()
        assert days.count() == 2
        days.last.click()
        page.get_by_role("link", name="All days").wait_for()
        assert accessibility_violations(page) == []
        page.set_viewport_size({"width": 360, "height": 740})
        assert overflow_px(page) <= 0
        page.set_viewport_size({"width": 1200, "height": 740})
        page.get_by_role("button", name="Deliver now").click()
        page.locator("dialog").get_by_text("is delivered at once").wait_for()
        page.locator("dialog footer button.main").click()
        read = "/v1/topics/later/records?partition=0&offset=0&wait_ms=30000"
        (record,) = ask(console_broker, "GET", read)["records"]
        assert record["value"] == "nine"
        page.locator("dialog").press("Escape")
        page.get_by_role("link", name="All days").click()
        wait_until(lambda: days.count() == 1)
        cancel = page.get_by_role("button", name="Cancel the message")
        cancel.click()
        page.locator("dialog").get_by_text("will not be delivered").wait_for()
        page.locator("dialog summary").click()
        command = page.locator("dialog .forms pre").first.inner_text()
        assert "1" in run(f"{command} --dry-run", console_broker)
        run(command, console_broker)
        page.keyboard.press("Escape")
        cancel.click()
        page.locator("dialog").get_by_text("Nothing would change").wait_for()


def test_half_messages_are_settled_by_hand_after_a_dry_run(browser, console_broker):
    config = {"headrace.message.attributes": "read"}
    ask(console_broker, "POST", "/v1/topics", {"name": "payments", "config": config})
    records = [
        {"value": name, "headers": [["headrace-half", "shop"], ["headrace-message-id", name]]}
        for name in ("pay-1", "pay-2")
    ]
    ask(console_broker, "POST", "/v1/topics/payments/records", {"records": records})

    def pending() -> list[str]:
        found = ask(console_broker, "GET", "/v1/topics/payments/half")["half"]
        return [one["message_id"] for one in found]

    with browser.page("queues/payments") as page:
        rows = page.get_by_role("region", name="Half messages").locator("tbody tr")
        rows.nth(1).wait_for()
        ages = [row.locator("td").first.inner_text() for row in rows.all()]
        assert all(re.fullmatch(r"[\d.]+ (ms|s|min)", one) for one in ages), ages
        assert accessibility_violations(page) == []
        rows.filter(has_text="pay-1").get_by_role("button", name="Commit").click()
        page.locator("dialog").get_by_text("Settles a half message of shop by hand").wait_for()
        assert len(pending()) == 2, "a dry run changes nothing"
        page.get_by_label("Type payments to confirm").fill("payments")
        page.locator("dialog footer button.danger").click()
        page.locator("dialog .note.good").wait_for()
        read = "/v1/topics/payments/records?partition=0&offset=0&wait_ms=30000"
        (record,) = ask(console_broker, "GET", read)["records"]
        assert record["value"] == "pay-1"
        page.keyboard.press("Escape")
        wait_until(lambda: rows.count() == 1)
        rows.first.get_by_role("button", name="Roll back").click()
        page.locator("dialog summary").click()
        run(page.locator("dialog .forms pre").first.inner_text(), console_broker)
    assert pending() == []


def test_a_key_is_parked_and_unparked_and_the_command_does_the_same(browser, console_broker):
    def parked() -> list[str]:
        found = ask(console_broker, "GET", "/v1/queues/orders/parking/parked")
        return [one["key"] for one in found["parked"]]

    change = {"set": {"headrace.share.key.order": "true"}}
    ask(console_broker, "PATCH", "/v1/groups/parking/config", change)
    ask(console_broker, "POST", "/v1/queues/orders/parking/receive", {"max": 1})
    with browser.page("queues/orders/parking") as page:
        page.get_by_label("Key").fill("-k 1")
        page.get_by_role("button", name="Park the key").click()
        page.get_by_text("Messages with the key -k 1 are set aside").wait_for()
        page.get_by_text("0 of them are known now").wait_for()
        assert parked() == [], "a dry run parks none"
        page.locator("dialog summary").click()
        command = page.locator("dialog .forms pre").first.inner_text()
        page.locator("dialog footer button.main").click()
        page.locator("dialog .note.good").wait_for()
        assert "-k 1" in parked()
        page.keyboard.press("Escape")
        keys = page.get_by_role("region", name="Parked keys")
        keys.get_by_role("button", name="Unpark the key").first.click()
        page.get_by_text("Its 0 known messages are delivered again").wait_for()
        page.locator("dialog footer button.main").click()
        page.locator("dialog .note.good").wait_for()
    assert parked() == []
    run(command, console_broker)
    assert "-k 1" in parked()


def test_a_queue_says_how_old_its_oldest_message_is(browser):
    with browser.page("queues/orders/workers") as page:
        oldest = page.locator(".figure", has_text="Oldest").locator("dd")
        oldest.wait_for()
        assert re.match(r"[\d.]+ (ms|s|min|h)\b", oldest.inner_text())
        calls = page.evaluate("performance.getEntriesByType('resource').map((one) => one.name)")
        assert [one for one in calls if "offsets?loaded=true" in one], "which reads no record"
        assert not [one for one in calls if "times=true" in one]
    with browser.page("queues/orders/nobody") as page:
        page.locator(".figure", has_text="Oldest").get_by_text("\N{EN DASH}").wait_for()


def test_offsets_are_reset_after_a_dry_run_that_counts(browser, console_broker):
    commit(console_broker, "resetting", 12)
    with browser.page("groups/resetting/reset") as page:
        page.get_by_role("button", name="Check").click()
        page.get_by_text("36 records are consumed again, 0 are skipped").wait_for()
        assert set(offsets_of(console_broker, "resetting").values()) == {12}
        page.locator("dialog summary").click()
        command = page.locator("dialog .forms pre").first.inner_text()
        page.get_by_label("Type resetting to confirm").fill("resetting")
        page.get_by_role("button", name="Reset", exact=True).click()
        page.locator("dialog .note.good").wait_for()
    assert set(offsets_of(console_broker, "resetting").values()) == {0}
    commit(console_broker, "resetting", 12)
    run(command, console_broker)
    assert set(offsets_of(console_broker, "resetting").values()) == {0}


def test_members_are_shown_with_the_partitions_that_they_are_assigned(browser, console_broker):
    from confluent_kafka import Consumer

    client = Consumer({"bootstrap.servers": console_broker.kafka, "group.id": "assigned"})
    client.subscribe(["orders"])
    wait_until(lambda: client.poll(0.1) is not None or client.assignment())
    with browser.page("groups/assigned/members") as page:
        page.get_by_role("cell", name="orders 0, 1, 2").wait_for()
    client.close()


def test_members_of_streams_groups_are_shown_with_their_tasks(browser, console_broker):
    create_topic(console_broker.kafka, "counted", PARTITIONS)
    thread = Thread(console_broker.address, "counting", counting("counted", "counting"))
    wait_until(thread.has_all)
    with browser.page("groups/counting/members") as page:
        tasks = ", ".join(f"{part}_{number}" for part in "01" for number in range(PARTITIONS))
        shown = page.get_by_role("region", name="Members").locator("tbody td").nth(2)
        shown.wait_for()
        assert shown.inner_text().replace("\nactive tasks:", ",") == f"active tasks: {tasks}"
    thread.beat(member_epoch=-1)


def test_the_page_of_a_group_loads_no_partition(browser, make_broker):
    broker = make_broker()
    create_topic(broker.kafka, "orders", 3)
    Confluent.produce(broker.kafka, "orders", [Rec(b"k%d" % n, b"x") for n in range(9)])
    commit(broker, "billing", 0)
    broker.stop()
    broker.start()
    with browser.page("groups/billing", base=f"http://{broker.http}") as page:
        page.get_by_text("This page loads none").wait_for()
        lag = page.locator(".figure", has_text="records not consumed yet").locator("dd")
        assert lag.inner_text().startswith("\N{EN DASH}")
        for name in ("Members", "Settings", "Lag"):
            page.get_by_role("link", name=name, exact=True).click()
            page.locator("main :is(table, .note)").first.wait_for()
        topic = ask(broker, "GET", "/v1/topics/orders")
        assert {one.get("end_offset") for one in topic["partitions"]} == {None}
        page.get_by_role("link", name="Reset offsets").click()
        page.get_by_role("button", name="Check").click()
        page.get_by_text("0 records are consumed again, 0 are skipped").wait_for()


def test_clients_are_grouped_by_software_and_shown_with_their_quotas(browser, console_broker):
    from confluent_kafka import Consumer, TopicPartition

    quota = {"client_id": "loader", "set": {"producer_byte_rate": 1_000_000}}
    ask(console_broker, "PATCH", "/v1/quotas", quota)
    # One that reads: librdkafka closes the connection that it only looked topics up with.
    client = Consumer({
        "bootstrap.servers": console_broker.kafka, "client.id": "loader", "group.id": "loaders",
        "enable.auto.commit": False,
    })  # fmt: skip
    client.assign([TopicPartition("orders", 0, 0)])
    assert client.consume(1, 60)
    with browser.page("connections?client_id=loader") as page:
        each = page.get_by_role("region", name="Each connection")
        each.get_by_text("producer_byte_rate: 1,000,000").first.wait_for()
        kinds = page.get_by_role("region", name="By software and user")
        kinds.get_by_role("link", name="confluent-kafka-python").click()
        page.wait_for_url("**software=confluent-kafka-python**")
        page.get_by_label("Software").and_(page.locator("input")).fill("nobody's")
        page.keyboard.press("Enter")
        page.get_by_text("No such Kafka client").wait_for()
        page.go_back()
        each.wait_for()
        page.locator("details.foot summary").click()
        command = page.locator(".foot pre", has_text="headrace connections").inner_text()
    told = run(f"{command} --json --http {console_broker.http}", console_broker)
    assert {one["software"] for one in json.loads(told)} == {"confluent-kafka-python"}
    ask(console_broker, "DELETE", "/v1/quotas?client_id=loader")
    client.close()


def test_a_slow_group_is_explained_and_the_command_says_the_same(browser, console_broker):
    with browser.page("groups/billing/slow") as page:
        looking = page.get_by_role("progressbar", name="Progress")
        looking.wait_for()
        wait_until(lambda: float(looking.get_attribute("value", timeout=5_000)) > 1_000)
        page.get_by_text("The group has no members").wait_for()
        page.get_by_text("start the group's consumers").wait_for()
        page.locator("details.foot summary").click()
        command = page.locator(".foot pre", has_text="headrace group diagnose").inner_text()
    said = run(command, console_broker)
    assert said.startswith("The group has no members")
    assert "next: start the group's consumers" in said


def test_dead_letters_are_sent_back_after_a_dry_run(browser, console_broker):
    """Their reason is hostile: it is shown, and given to the command, as text."""
    with browser.page("dead-letters/orders.dead") as page:
        page.get_by_text("3 dead letters").wait_for()
        causes = page.get_by_role("region", name="Causes")
        assert HOSTILE[:40] in causes.inner_text()
        causes.get_by_role("button").click()
        page.get_by_text("Dry run: nothing has changed yet").wait_for()
        assert page.title() == "orders.dead · Headrace"
        page.get_by_label("Type orders.dead to confirm").fill("orders.dead")
        page.locator("dialog footer button").first.click()
        page.locator("dialog .note.good").wait_for()
        page.keyboard.press("Escape")
        page.get_by_text("There are no dead letters").wait_for()


# --- signing in ----------------------------------------------------------------------------------


def add_user(tmp_path, name: str) -> None:
    users = [sys.executable, "-m", "headrace.cli.main", "user", "add", name, "--data-dir"]
    folder = tmp_path / "broker-0" / "data"
    command = [*users, str(folder), "--password-file", "-"]
    subprocess.run(command, input=b"correct horse", check=True, timeout=60, capture_output=True)


def sign_in(page, user: str) -> None:
    page.get_by_label("User").fill(user)
    page.get_by_label("Password").fill("correct horse")
    page.keyboard.press("Enter")


def test_a_user_signs_in_and_out_and_changes_something(browser, tmp_path, make_broker):
    add_user(tmp_path, "root")
    broker = make_broker(
        "--http-security-protocol", "SASL_PLAINTEXT", "--super-users", "User:root;User:ANONYMOUS"
    )
    with browser.page("topics", base=f"http://{broker.http}") as page:
        assert accessibility_violations(page) == []
        page.get_by_label("User").fill("root")
        page.get_by_label("Password").fill("wrong")
        page.keyboard.press("Enter")
        page.get_by_role("alert").wait_for()
        page.get_by_label("Password").fill("correct horse")
        page.keyboard.press("Enter")
        page.get_by_text("No topic yet").wait_for()
        page.get_by_text("Live", exact=True).wait_for()
        page.get_by_role("button", name="Create a topic").click()
        page.get_by_label("Name", exact=True).fill("by-session")
        page.get_by_role("button", name="Check").click()
        page.locator("dialog button.main").click()
        page.locator("dialog .note.good").wait_for()
        page.keyboard.press("Escape")
        page.reload()
        page.get_by_role("link", name="by-session").wait_for()
        page.get_by_role("button", name="Sign out root").click()
        page.get_by_label("Password").wait_for()
        page.reload()
        page.get_by_label("Password").wait_for()


def test_a_tenants_user_sees_its_topic_live_and_no_figures_of_the_cluster(
    browser, tmp_path, make_broker
):
    for user in ("root", "dora"):
        add_user(tmp_path, user)
    secured = ("--http-security-protocol", "SASL_PLAINTEXT")
    broker = make_broker(*secured, "--super-users", "User:root")
    login = base64.b64encode(b"root:correct horse").decode()

    def as_root(path: str, body) -> None:
        headers = {"Authorization": f"Basic {login}", "Content-Type": "application/json"}
        asked = urllib.request.Request(
            f"http://{broker.http}{path}", json.dumps(body).encode(), headers
        )
        urllib.request.urlopen(asked, timeout=30).close()

    as_root("/v1/tenants", {"name": "acme", "principals": ["User:dora"]})
    as_root("/v1/topics", {"name": "acme/mine"})
    as_root("/v1/topics/acme%2Fmine/records", {"records": [{"value": "x"}] * 3})
    with browser.page("topics/mine/partitions", base=f"http://{broker.http}") as page:
        sign_in(page, "root")
        page.get_by_text("acme/mine").or_(page.get_by_text("does not exist")).first.wait_for()
        page.get_by_role("button", name="Sign out root").click()
        sign_in(page, "dora")
        page.get_by_text("Live", exact=True).wait_for()
        wait_until(lambda: sum_of_ends(page) == 3)
        as_root("/v1/topics/acme%2Fmine/records", {"records": [{"value": "x"}] * 3})
        wait_until(lambda: sum_of_ends(page) == 6)


# --- what is refused -----------------------------------------------------------------------------


def test_a_broker_that_stops_is_said_and_followed_again(browser, make_broker):
    broker = make_broker()
    with browser.page(base=f"http://{broker.http}") as page:
        page.get_by_text("Live", exact=True).wait_for()
        broker.stop()
        page.get_by_text("Not live").wait_for()
        broker.start()
        page.get_by_text("Live", exact=True).wait_for()


def test_a_broker_that_accepts_and_does_not_answer_is_said_and_asked_again(browser):
    """First at the start, of which nothing else would be seen, then of what a page asks for."""
    with browser.page("groups") as page:
        page.clock.install()
        for path, seconds in (("**/v1/session", 15), ("**/v1/groups?*", 90)):
            page.route(path, lambda _route: None)
            with page.expect_request(path):  # its time begins
                page.reload(wait_until="commit")
            page.locator("main").get_by_text("Loading").wait_for()
            page.clock.fast_forward(seconds * 1_000)
            page.get_by_role("alert").get_by_text("has not answered").wait_for()
            assert accessibility_violations(page) == []
            page.unroute(path)
            page.get_by_role("button", name="Try again").click()
            page.get_by_role("link", name="billing").wait_for()


def test_charts_are_drawn_once_their_script_comes(browser):
    """A broker that stops while a page loads leaves no fault, and the page needs no reload."""
    with browser.page("topics") as page:
        page.route("**/uplot.js", lambda route: route.abort(), times=1)
        with page.expect_event("requestfailed", lambda one: one.url.endswith("uplot.js")):
            page.get_by_role("link", name="Overview").click()
        page.locator("main canvas").first.wait_for()


def test_a_tail_continues_after_its_connection_was_lost(browser, make_broker):
    """What came meanwhile is shown, once; without its place the tail would begin at the end."""
    broker = make_broker()
    create_topic(broker.kafka, "followed", 2)
    with browser.page("topics/followed?from=live", base=f"http://{broker.http}") as page:
        page.get_by_text("Waiting for messages").wait_for()
        Confluent.produce(broker.kafka, "followed", [Rec(b"k%d" % n, b"before") for n in range(3)])
        page.get_by_text("3 messages came").wait_for()
        broker.stop()
        page.get_by_text("Connecting").wait_for()
        broker.start()
        Confluent.produce(broker.kafka, "followed", [Rec(b"k%d" % n, b"after") for n in range(5)])
        page.get_by_text("8 messages came").wait_for()
        wait_until(lambda: page.locator("tbody tr").count() == 8)
        assert page.locator("tbody").get_by_text("before").count() == 3
