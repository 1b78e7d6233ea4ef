"""What the console shows of single messages, in a real browser: their life, their contents."""

from __future__ import annotations

import json
import re
import time
from types import SimpleNamespace
from uuid import UUID

import pytest
from crc32c import crc32c
from tests.documents.commands import parse, words
from tests.integration.broker import Broker
from tests.integration.browser import (
    NEEDS_CHROMIUM,
    accessibility_violations,
    browser_of,
    overflow_px,
)
from tests.integration.clients import Confluent, Rec, create_topic
from tests.integration.test_console import HOSTILE, ask, run
from tests.unit.schemas.registry_rig import AVRO as AVRO_SCHEMA
from tests.unit.schemas.registry_rig import JSON_SCHEMA, ORDER, avro_bytes, registry
from tests.waiting import wait_until

from headrace.records.identifiers import kafka_uuid
from headrace.records.table_marks import TableMark

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


browser = browser_of("message_broker")


def receive(broker) -> str:
    """The receipt of the next message of the queue."""
    return ask(broker, "POST", f"{QUEUE}/receive", {"max": 1})["messages"][0]["receipt"]


def test_a_message_is_found_by_its_trace_and_its_history_is_shown(browser, message_broker):
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
        command = page.locator(".foot pre", has_text="headrace trace").inner_text()
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


def test_a_message_that_only_a_table_has_comes_with_the_command_that_finds_it(
    browser, message_broker
):
    from confluent_kafka import Consumer, TopicPartition
    from confluent_kafka.admin import AdminClient

    create_topic(message_broker.kafka, "kept")
    Confluent.produce(message_broker.kafka, "kept", [Rec(b"k", b"v")] * 2)
    topic_id = UUID(ask(message_broker, "GET", "/v1/topics/kept")["id"])
    mark = TableMark("headrace.shop.kept", "uuid", 1, "append", kafka_uuid(topic_id)).encode()
    address = {"bootstrap.servers": message_broker.kafka}
    archive = Consumer(address | {"group.id": "headrace-table.headrace.shop.kept"})
    place = TopicPartition("kept", 0, 1, metadata=mark)
    archive.commit(offsets=[place], asynchronous=False)
    archive.close()
    admin = AdminClient(address)  # its futures end with it
    (deleted,) = admin.delete_records([TopicPartition("kept", 0, 2)]).values()
    deleted.result(60)
    with browser.page("topics/kept/life?message=0:0") as page:
        page.get_by_text("The table headrace.shop.kept may").wait_for()
        command = page.locator("main pre", has_text="headrace find").first.inner_text()
        assert "--partition=0 --offset=0 --table=headrace.shop.kept" in command
        parse(words(command)[1:])
    with browser.page("topics/kept/life?message=0:1") as page:
        page.get_by_role("alert").wait_for()


def packed() -> bytes:
    """MessagePack of each kind, by its specification."""
    big = (2**60).to_bytes(8, "big")
    pairs = [
        (b"\xa3big", b"\xcf" + big),
        (b"\xa3neg", b"\xe0"),
        (b"\xa4list", b"\x93\xc3\xc0\xcb\x3f\xf8" + bytes(6)),
        (b"\xa2at", b"\xd6\xff" + (1_700_000_000).to_bytes(4, "big")),
        (b"\xa3raw", b"\xc4\x02\xff\x00"),
        (b"\xa9__proto__", b"\x01"),
    ]
    return b"\x86" + b"".join(key + value for key, value in pairs)


EVENT = {"specversion": "1.0", "id": "7", "source": "/orders", "type": "made"}
BINARY_EVENT = [(f"ce_{name}", value.encode()) for name, value in EVENT.items()]


@pytest.mark.parametrize(
    ("value", "headers", "kind", "shown"),
    [
        (packed(), [], "MessagePack", {
            "big": str(2**60), "neg": -32, "list": [True, None, 1.5],
            "at": "2023-11-14T22:13:20.000Z", "raw": "0xff00", "__proto__": 1,
        }),
        (b'{"a": 1}', [*BINARY_EVENT, ("content-type", b"application/json")], "CloudEvent",
         {**EVENT, "datacontenttype": "application/json", "data": {"a": 1}}),
        (json.dumps({**EVENT, "data": "x"}).encode(),
         [("content-type", b"application/cloudevents+json; charset=utf-8")], "CloudEvent",
         {**EVENT, "data": "x"}),
        (b'\x00\x00\x00\x00\x11{"a": 1}', [], "JSON, schema 17", {"a": 1}),
    ],
    ids=["msgpack", "event-in-headers", "event-as-json", "schema-id"],
)  # fmt: skip
def test_a_value_is_decoded_by_what_its_bytes_and_headers_say(
    browser, message_broker, value, headers, kind, shown
):
    name = "decoded-" + kind.split(",")[0].lower() + f"-{len(headers)}"
    create_topic(message_broker.kafka, name)
    Confluent.produce(message_broker.kafka, name, [Rec(b"k", value, headers)])
    with browser.page(f"topics/{name}") as page:
        page.get_by_role("button", name="Open 0:0").click()
        dialog = page.locator("dialog")
        dialog.get_by_role("heading", name=f"Value ({kind})").wait_for()
        assert json.loads(dialog.locator("pre").nth(1).inner_text()) == shown


@pytest.mark.parametrize(
    ("value", "form", "why"),
    [
        (b"\x92\x01", "msgpack", "not MessagePack at byte 2: the bytes end before the value does"),
        (b"\x01\x01", "msgpack", "not MessagePack at byte 1: the value ends before the bytes do"),
        (b"\xdd\xff\xff\xff\xff", "msgpack", "not MessagePack at byte 5: the bytes end"),
        (b"\x91" * 5_000, "msgpack", "nested too deeply"),
        (b'{"id": "7"}', "cloudevents", "not a CloudEvent: it lacks source, specversion, type"),
        (b"\x00\x00\x00\x00\x11\x02\x04ab", "auto", "the schema 17 of a registry"),
    ],
)
def test_a_decoder_that_fails_says_why(browser, message_broker, value, form, why):
    name = f"undecodable-{crc32c(value)}"
    create_topic(message_broker.kafka, name)
    Confluent.produce(message_broker.kafka, name, [Rec(b"k", value)])
    with browser.page(f"topics/{name}?as={form}") as page:
        page.get_by_role("button", name="Open 0:0").click()
        page.locator("dialog").get_by_text(why).wait_for()


def test_values_of_ten_megabytes_are_cut_and_a_tail_keeps_few_of_them(browser, message_broker):
    from confluent_kafka import Producer

    create_topic(message_broker.kafka, "huge")
    larger = {"set": {"max.message.bytes": "12000000"}}
    ask(message_broker, "PATCH", "/v1/topics/huge/config", larger)
    limits = {"message.max.bytes": 12_000_000, "batch.size": 12_000_000}
    producer = Producer({"bootstrap.servers": message_broker.kafka, **limits})

    def send(letter: bytes) -> None:
        producer.produce("huge", letter * 10_000_000, b"k")
        assert producer.flush(120) == 0

    send(b"<")
    with browser.page("topics/huge") as page:
        page.get_by_role("button", name="Open 0:0").click()
        dialog = page.locator("dialog")
        dialog.get_by_text("10,000,000 characters").wait_for()
        assert len(dialog.inner_text()) < 101_000
        dialog.get_by_label("Decode as").select_option("hex")
        dialog.get_by_text("003ff0  3c 3c").wait_for()
        assert len(dialog.inner_text()) < 100_000
        page.keyboard.press("Escape")
        page.get_by_label("Show").select_option("live")
        page.get_by_text("Waiting for messages").wait_for()
        for letter in (b"a", b"b", b"c", b"d", b"e"):
            send(letter)
        page.get_by_text("5 messages came").wait_for()
        page.get_by_text("eeee").wait_for()
        assert page.locator("tbody tr").count() == 3


def test_secrets_in_headers_are_shown_only_when_asked_and_sent_again_unseen(
    browser, message_broker
):
    create_topic(message_broker.kafka, "secrets")
    headers = [("Authorization", b"Bearer s3cret"), ("region", b"eu")]
    Confluent.produce(message_broker.kafka, "secrets", [Rec(b"k", b"v", headers)])
    with browser.page("topics/secrets") as page:
        page.get_by_role("button", name="Open 0:0").click()
        dialog = page.locator("dialog")
        dialog.get_by_text("••••••").wait_for()
        assert "s3cret" not in dialog.inner_text()
        dialog.get_by_role("button", name="Show hidden values").click()
        dialog.get_by_text("Bearer s3cret").wait_for()
        dialog.get_by_role("link", name="Send it again").click()
        page.get_by_text("Sent as they are, with hidden values: Authorization").wait_for()
        assert page.locator("textarea").nth(1).input_value() == "region: eu"
        page.get_by_role("button", name="Check").click()
        page.get_by_role("button", name="Send", exact=True).click()
        page.locator("dialog .note.good").wait_for()
    sent = ask(message_broker, "GET", "/v1/topics/secrets/records?offset=1")["records"][0]
    assert sorted(sent["headers"]) == [["Authorization", "Bearer s3cret"], ["region", "eu"]]


# --- time travel, pages as files -----------------------------------------------------------------


@pytest.fixture(scope="module")
def travelled(message_broker):
    """A topic whose key changed at known times, and a group at its end."""
    from confluent_kafka import Consumer, TopicPartition

    create_topic(message_broker.kafka, "travel")
    for ms, key, value in (
        (1_700_000_000_000, "k", {"state": "made"}),
        (1_700_000_100_000, "other", {}),
        (1_700_000_200_000, "k", {"state": "paid"}),
        (1_700_000_300_000, "k", {"state": "sent"}),
    ):
        record = {"key": key, "value": json.dumps(value), "timestamp_ms": ms}
        ask(message_broker, "POST", "/v1/topics/travel/records", {"records": [record]})
    consumer = Consumer({"bootstrap.servers": message_broker.kafka, "group.id": "traveller"})
    consumer.commit(offsets=[TopicPartition("travel", 0, 4)], asynchronous=False)
    consumer.close()
    return message_broker


def test_a_key_is_shown_at_a_past_time_and_now_and_a_group_is_reset_to_that_time(
    browser, travelled
):
    path = "topics/travel/time?at=1700000150000&group=traveller&key=k"
    with browser.page(path) as page:
        row = page.get_by_role("region", name="Offsets").locator("tbody tr")
        row.get_by_text("4", exact=True).wait_for()
        assert row.locator("td").all_inner_texts() == ["0", "2", "2", "4"]
        page.get_by_text("It has changed since, 2 times.").wait_for()
        states = page.locator("main bdi pre").all_inner_texts()
        assert [json.loads(one)["state"] for one in states] == ["made", "sent"]
        assert accessibility_violations(page) == []
        page.get_by_role("button", name="Reset the group to this moment").click()
        page.get_by_text("2 records are consumed again, 0 are skipped.").wait_for()
        page.get_by_label("Type traveller to confirm").fill("traveller")
        page.get_by_role("button", name="Reset", exact=True).click()
        page.locator("dialog .note.good").wait_for()
        page.keyboard.press("Escape")
        offsets = ask(travelled, "GET", "/v1/groups/traveller/offsets")["offsets"]
        assert [one["offset"] for one in offsets] == [2]
        page.locator("details.foot summary").click()
        command = page.locator(".foot pre", has_text="headrace consume").last.inner_text()
        page.set_viewport_size({"width": 360, "height": 740})
        assert overflow_px(page) <= 0
    told = run(f"{command} --http {travelled.http}".partition(" --http")[0], travelled)
    assert [json.loads(one).get("state") for one in told.splitlines()] == ["paid"]


def test_a_group_is_reset_to_what_it_had_committed_at_a_past_time(browser, travelled):
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer({"bootstrap.servers": travelled.kafka, "group.id": "returner"})
    times = []
    for offset in (1, 3):
        consumer.commit(offsets=[TopicPartition("travel", 0, offset)], asynchronous=False)
        times.append(time.time_ns() // 1_000_000 + 2)
        wait_until(lambda: time.time_ns() // 1_000_000 > times[-1] + 2)
    consumer.close()
    at_ms = times[0]
    form = f"headrace group past travel --at @{at_ms} -g returner --json"
    past = json.loads(run(form, travelled))
    ((one,),) = [group["offsets"] for group in past["groups"]]
    assert (one["state"], one["offset"]) == ("committed", 1)
    told = run(f"headrace group past travel --at @{at_ms - 60_000} -g returner", travelled)
    assert "none" in told
    with browser.page(f"topics/travel/time?at={at_ms}") as page:
        page.get_by_role("button", name="Reset returner to these offsets").wait_for()
        row = page.get_by_role("region", name="What groups had").locator("tr", has_text="returner")
        row.get_by_text("0: 1", exact=True).wait_for()
        assert accessibility_violations(page) == []
        row.get_by_role("button").click()
        page.get_by_text("2 records are consumed again, 0 are skipped.").wait_for()
        page.locator("dialog summary").click()
        command = page.locator("dialog .forms pre").first.inner_text()
        dry = json.loads(run(f"{command} --dry-run --json", travelled))["partitions"]
        assert [(row["before"], row["after"], row["delta"]) for row in dry] == [(3, 1, -2)]
        page.get_by_label("Type returner to confirm").fill("returner")
        page.get_by_role("button", name="Reset", exact=True).click()
        page.locator("dialog .note.good").wait_for()
    offsets = ask(travelled, "GET", "/v1/groups/returner/offsets")["offsets"]
    assert [one["offset"] for one in offsets] == [1]


def test_the_slider_moves_by_keyboard_and_its_link_restores_it(browser, travelled):
    with browser.page("topics/travel/time") as page:
        slider = page.get_by_label("Moment")
        page.get_by_text("0", exact=True).first.wait_for()
        slider.focus()
        page.keyboard.press("Home")
        page.wait_for_url("**at=1700000000000**")
        row = page.get_by_role("region", name="Offsets").locator("tbody tr")
        row.get_by_text("4", exact=True).wait_for()
        assert row.locator("td").all_inner_texts() == ["0", "0", "4"]
        page.reload()
        assert slider.input_value() == "1700000000000"


def test_a_page_is_saved_as_one_file_that_is_harmless(browser, message_broker, tmp_path):
    create_topic(message_broker.kafka, "saved")
    Confluent.produce(message_broker.kafka, "saved", [Rec(b"k", HOSTILE.encode())])
    with browser.page("topics/saved") as page:
        page.get_by_text("<img src=x").wait_for()
        page.locator("details.foot summary").click()
        with page.expect_download() as download:
            page.get_by_role("button", name="Save this page as one HTML file").click()
        file = tmp_path / "page.html"
        download.value.save_as(file)
        assert download.value.suggested_filename == "saved-Headrace.html"
        saved = page.context.new_page()
        asked: list[str] = []
        saved.on("request", lambda request: asked.append(request.url))
        saved.goto(file.as_uri())
        saved.get_by_text("<img src=x").wait_for()
        assert saved.title() == "saved · Headrace"
        assert saved.locator("script, button, input, main img").count() == 0
        assert saved.evaluate("getComputedStyle(document.querySelector('th')).fontWeight") == "600"
        assert asked == [file.as_uri()]


# --- more than one broker ------------------------------------------------------------------------


def test_one_broker_of_several_shows_the_messages_of_all(browser, make_broker):
    """Their life, a search and an offset at a time, whichever broker serves the partition."""
    workers = make_broker("--workers", "2")
    several = SimpleNamespace(http=workers.http.partition(",")[0])
    create_topic(workers.kafka, "spread", 4)

    def leaders() -> list[int]:
        partitions = ask(several, "GET", "/v1/topics/spread")["partitions"]
        return [one["leader"] for one in partitions]

    wait_until(lambda: set(leaders()) == {0, 1})
    records = [{"key": f"k{n}", "value": "{}", "partition": n} for n in range(4)]
    sent = ask(several, "POST", "/v1/topics/spread/records", {"records": records})["results"]
    assert all(one["ok"] for one in sent), sent
    base = f"http://{several.http}"
    with browser.page("topics/spread", base=base) as page:
        rows = page.get_by_role("region", name="Messages").locator("tbody tr")
        rows.nth(3).wait_for()
        assert sorted(rows.locator("td:first-child").all_inner_texts()) == ["0", "1", "2", "3"]
    for number in range(4):
        with browser.page(f"topics/spread/life?message={number}:0", base=base) as page:
            page.get_by_role("region", name="Timeline").get_by_text("stored").wait_for()
    with browser.page("topics/spread/time", base=base) as page:
        rows = page.get_by_role("region", name="Offsets").locator("tbody tr")
        rows.nth(3).wait_for()
        assert rows.locator("td:nth-child(2)").all_inner_texts() == ["1"] * 4
    with browser.page("cluster", base=base) as page:
        rows = page.get_by_role("region", name="Brokers").locator("tbody tr")
        rows.nth(1).wait_for()
        assert rows.count() == 2


# --- values by their schemas ---------------------------------------------------------------------


AVRO = b"\0\0\0\0\2" + avro_bytes(ORDER)
PROTO = b"\2\2\x08\7\x12\1n"
"""The second message of its file: id 7, note "n"."""


def open_message(page, offset: int):
    """The open dialog of a message."""
    page.get_by_role("button", name=re.compile(f"0:{offset}$")).click()
    return page.locator("dialog")


def test_values_are_shown_by_the_schemas_of_a_registry_or_why_not(browser, make_broker, tmp_path):
    """Avro, JSON Schema and Protobuf; beside them values that their schemas do not fit."""
    login = tmp_path / "login"
    login.write_text("me:hidden")
    values = {
        AVRO: ("avro, schema 2", '"price": "12.50"'),
        b'\0\0\0\0\3{"id":1,"name":"\xc3\xa9"}': ("json, schema 3", '"name": "é"'),
        b"\0\0\0\0\4" + PROTO: ("protobuf, schema 4", '"id": "7"'),
        AVRO[:-3]: ("Value (hexadecimal)", "tags: 1 bytes are missing"),
        b'\0\0\0\0\3{"id":-1}': ("JSON, schema 3", "id: -1 is less than the minimum"),
        b"\0\0\0\0\x63x": ("Value (hexadecimal)", "the registry has no schema at /schemas/ids/99"),
    }
    with registry() as url:
        broker = make_broker(
            "--schema-registry-url", url, "--schema-registry-credential-file", str(login)
        )
        create_topic(broker.kafka, "orders")
        Confluent.produce(broker.kafka, "orders", [Rec(b"k", value) for value in values])
        with browser.page("topics/orders", base=f"http://{broker.http}") as page:
            page.get_by_label("Decode as").select_option("schema")
            page.locator("tbody").get_by_text('"price":"12.50"').wait_for()
            page.locator("tbody").get_by_text("Not decoded: tags: 1 bytes are missing").wait_for()
            for offset, (kind, shown) in enumerate(values.values()):
                dialog = open_message(page, offset)
                text = dialog.inner_text()
                assert shown in text, (offset, text)
                assert kind in text, (offset, text)
                assert accessibility_violations(page) == []
                page.keyboard.press("Escape")
                dialog.wait_for(state="detached")


def test_values_are_shown_by_the_schemas_of_a_folder(browser, make_broker, tmp_path):
    """What names no schema is read by the file of its topic; by a link, and in Chinese, too."""
    folder = tmp_path / "schemas"
    folder.mkdir()
    (folder / "paid.avsc").write_text(json.dumps(AVRO_SCHEMA))
    (folder / "made.json").write_text(json.dumps(JSON_SCHEMA))
    broker = make_broker("--schema-folder", str(folder))
    for topic, value in (("paid", avro_bytes(ORDER)), ("made", b'{"id": -1}'), ("other", b"1")):
        create_topic(broker.kafka, topic)
        Confluent.produce(broker.kafka, topic, [Rec(b"k", value)])
    base = f"http://{broker.http}"
    with browser.page("topics/paid?as=schema", base=base, locale="zh-CN") as page:
        assert '"state": "PAID"' in open_message(page, 0).inner_text()
    with browser.page("topics/made?as=schema", base=base) as page:
        assert "id: -1 is less than the minimum" in open_message(page, 0).inner_text()
    with browser.page("topics/other?as=schema", base=base) as page:
        assert "other" in open_message(page, 0).inner_text()


def test_a_broker_without_schemas_says_what_to_set(browser, message_broker):
    create_topic(message_broker.kafka, "no-schemas")
    Confluent.produce(message_broker.kafka, "no-schemas", [Rec(b"k", b"v")])
    with browser.page("topics/no-schemas?as=schema") as page:
        alert = page.get_by_role("alert")
        alert.wait_for()
        assert "decodes no values" in alert.inner_text()
        assert "schema" in alert.get_by_text("Next").inner_text()
