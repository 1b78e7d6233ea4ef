"""Delayed delivery through real clients: never early, exactly once, over kill -9, cancelled.

HEADRACE_KILL_CYCLES sets how often the kill -9 test kills.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
import threading
import time
import urllib.request

import pytest
from tests.integration.broker import Broker, kill_cycles
from tests.integration.clients import TIMEOUT_S, create_topic

TOPIC = "later"
EARLY_MS = 1
"""Clients and broker read one clock, in whole milliseconds."""


def make_topic(broker: Broker, partitions: int = 1) -> None:
    create_topic(broker.kafka, TOPIC, partitions, headrace_message_attributes="true")


def producer(broker: Broker, **options):
    from confluent_kafka import Producer

    return Producer({"bootstrap.servers": broker.kafka, "linger.ms": 5, **options})


def consume(broker: Broker, count: int, timeout_s: float = TIMEOUT_S) -> list[tuple]:
    """(value, receive time, timestamp, headers) of the first `count` records."""
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer(
        {"bootstrap.servers": broker.kafka, "group.id": "r", "auto.offset.reset": "earliest"}
    )
    partitions = consumer.list_topics(TOPIC, TIMEOUT_S).topics[TOPIC].partitions
    consumer.assign([TopicPartition(TOPIC, number, 0) for number in partitions])
    found = []
    deadline = time.monotonic() + timeout_s
    while len(found) < count and time.monotonic() < deadline:
        for message in consumer.consume(1_000, 0.2):
            assert message.error() is None, message.error()
            now_ms = time.time_ns() // 1_000_000
            found.append(
                (message.value(), now_ms, message.timestamp()[1], dict(message.headers() or []))
            )
    consumer.close()
    return found


@pytest.mark.parametrize("is_idempotent", [False, True])
def test_records_come_when_they_are_due_in_the_order_of_their_times(own_broker, is_idempotent):
    make_topic(own_broker)
    client = producer(own_broker, **{"enable.idempotence": is_idempotent})
    failures = []
    now_ms = time.time_ns() // 1_000_000
    due = {}
    for index in range(300):
        value = b"%d" % index
        delay_ms = index * 37 % 1_500 + 1_000
        due[value] = now_ms + delay_ms
        header = {"headrace-deliver-at": str(due[value])}
        if index % 3 == 0:
            header = {}  # at once, between the others
            due[value] = 0
        client.produce(
            TOPIC, value, headers=header, callback=lambda error, _: failures.append(error)
        )
    client.produce(TOPIC, b"relative", headers={"headrace-delay": "1200"})
    assert client.flush(TIMEOUT_S) == 0
    assert not any(failures), failures[:3]
    found = consume(own_broker, 301)
    assert sorted(value for value, *_ in found) == sorted([*due, b"relative"])
    for value, received_ms, timestamp_ms, headers in found:
        if due.get(value):
            assert received_ms >= due[value] - EARLY_MS, "delivered early"
            assert timestamp_ms == due[value]
            assert headers["headrace-deliver-at"] == b"%d" % due[value]
    order = [due[value] for value, *_ in found if due.get(value)]
    assert order == sorted(order)


def test_delivery_times_too_late_or_malformed_are_refused_and_nothing_is_stored(own_broker):
    make_topic(own_broker)
    client = producer(own_broker)
    errors = {}
    for value, due in ((b"far", "9" * 15), (b"odd", "soon"), (b"past", "5")):
        client.produce(
            TOPIC,
            value,
            headers={"headrace-deliver-at": due},
            callback=lambda error, message: errors.update({message.value(): error}),
        )
        client.flush(TIMEOUT_S)
    assert errors[b"far"] is not None
    assert errors[b"odd"] is not None
    assert errors[b"past"] is None
    assert [value for value, *_ in consume(own_broker, 1)] == [b"past"]


def test_everything_is_delivered_once_in_time_over_kill_9(own_broker):
    """A producer sends all the time, the broker is killed at random moments, and at the end every
    acknowledged record was delivered exactly once, and none before it was due."""
    rng = random.Random(7)
    make_topic(own_broker, 2)
    client = producer(own_broker, **{"enable.idempotence": True, "message.timeout.ms": 120_000})
    due: dict[bytes, int] = {}
    acknowledged: set[bytes] = set()
    over = threading.Event()

    def acknowledge(error, message):
        if error is None:
            acknowledged.add(message.value())

    def produce():
        index = 0
        while not over.is_set():
            value = b"%d" % index
            due[value] = time.time_ns() // 1_000_000 + rng.choice([20, 300, 1_500, 4_000])
            header = {"headrace-deliver-at": str(due[value])}
            client.produce(TOPIC, value, headers=header, on_delivery=acknowledge)
            client.poll(0)
            index += 1
            over.wait(0.002)

    thread = threading.Thread(target=produce)
    thread.start()
    try:
        for _ in range(kill_cycles(3)):
            time.sleep(rng.uniform(0.5, 2.5))
            own_broker.crash()
    finally:
        time.sleep(1)
        over.set()
        thread.join()
    assert client.flush(TIMEOUT_S) == 0
    found = consume(own_broker, len(acknowledged))
    time.sleep(0.5)
    found = consume(own_broker, len(found) + 1, 3)  # nothing comes twice later on
    values = [value for value, *_ in found]
    assert len(values) == len(set(values)), "delivered twice"
    assert acknowledged <= set(values), "lost"
    assert all(timestamp >= due[value] for value, _, timestamp, _ in found)
    assert len(acknowledged) > 100


def call(broker: Broker, path: str, body=None) -> dict:
    data = None if body is None else json.dumps(body).encode()
    headers = {"Content-Type": "application/json"} if data else {}
    request = urllib.request.Request(f"http://{broker.http}/v1{path}", data, headers)
    with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
        return json.load(answer)


def send(broker: Broker, records: list[tuple[bytes, dict[str, str]]], **options) -> None:
    client = producer(broker, **options)
    failures = []
    for value, headers in records:
        client.produce(
            TOPIC, value, headers=headers, callback=lambda error, _: failures.append(error)
        )
    assert client.flush(TIMEOUT_S) == 0
    assert not any(failures), failures[:3]


def test_pending_records_are_listed_in_pages_and_cancelled_also_after_a_crash(own_broker):
    make_topic(own_broker, 2)
    due_ms = time.time_ns() // 1_000_000 + 365 * 24 * 3_600_000
    send(
        own_broker,
        [
            (b"%d" % n, {"headrace-deliver-at": str(due_ms + n), "headrace-message-id": f"id-{n}"})
            for n in range(25)
        ],
    )
    own_broker.crash()
    path = f"/topics/{TOPIC}/delayed"
    found, token = [], ""
    while True:
        page = call(own_broker, f"{path}?limit=7{token}")
        assert len(page["delayed"]) <= 7
        found += page["delayed"]
        if "next_page_token" not in page:
            break
        token = f"&page_token={page['next_page_token']}"
    assert sorted(one["message_id"] for one in found) == sorted(f"id-{n}" for n in range(25))
    assert all(one["due_ms"] == due_ms + int(one["message_id"][3:]) for one in found)
    receipt = next(one["receipt"] for one in found if one["message_id"] == "id-3")
    body = {"receipts": [receipt], "message_ids": ["id-4", "none"]}
    results = call(own_broker, f"{path}/cancel", body)["results"]
    assert [one["cancelled"] for one in results] == [1, 1, 0]
    again = call(own_broker, f"{path}/cancel", {"receipts": [receipt]})["results"]
    assert [one["cancelled"] for one in again] == [0]
    own_broker.crash()
    left = {one["message_id"] for one in call(own_broker, f"{path}?limit=100")["delayed"]}
    assert left == {f"id-{n}" for n in range(25)} - {"id-3", "id-4"}


def half(name: str, **more: str) -> tuple[bytes, dict[str, str]]:
    headers = {"headrace-half": "shop", "headrace-message-id": name, **more}
    return name.encode(), headers


def test_a_half_message_is_seen_once_it_is_committed_and_its_outcome_is_kept(own_broker):
    make_topic(own_broker)
    send(own_broker, [half("kept"), half("dropped"), half("waits"), (b"plain", {})])
    own_broker.crash()
    path = f"/topics/{TOPIC}/half"
    pending = call(own_broker, path)["half"]
    assert [one["message_id"] for one in pending] == ["kept", "dropped", "waits"]
    assert [value for value, *_ in consume(own_broker, 2, 2)] == [b"plain"]
    body = {
        "commit": [{"message_id": "kept"}],
        "rollback": [{"receipt": pending[1]["receipt"], "reason": "no money"}],
    }
    for _ in range(2):  # a retry gets the same answer, and changes nothing
        results = call(own_broker, f"{path}/settle", body)["results"]
        assert [one["outcome"] for one in results] == ["committed", "rolled back"]
    contrary = {"rollback": [{"message_id": "kept"}], "commit": [{"message_id": "unknown"}]}
    assert not any(one["ok"] for one in call(own_broker, f"{path}/settle", contrary)["results"])
    found = consume(own_broker, 2)
    assert [value for value, *_ in found] == [b"plain", b"kept"]
    assert "headrace-half" not in found[1][3]
    own_broker.crash()
    assert [value for value, *_ in consume(own_broker, 3, 2)] == [b"plain", b"kept"]
    settled = call(own_broker, f"{path}?state=settled")["half"]
    assert [(one["message_id"], one["state"], one["reason"]) for one in settled] == [
        ("kept", "committed", ""),
        ("dropped", "rolled back", "no money"),
    ]
    assert [one["message_id"] for one in call(own_broker, path)["half"]] == ["waits"]


def test_a_silent_producer_is_asked_and_at_last_the_message_is_rolled_back(own_broker):
    settings = {
        "headrace.message.attributes": "true",
        "headrace.half.check.first.ms": "200",
        "headrace.half.check.interval.ms": "400",
        "headrace.half.check.max": "3",
    }
    create_topic(own_broker.kafka, TOPIC, 1, **settings)
    send(own_broker, [half("silent"), half("answered")])
    checks = []
    while not any(one["message_id"] == "answered" for one in checks):
        asked = call(own_broker, "/half/shop/checks", {"max": 10, "wait_ms": 20_000})["checks"]
        assert asked, "the producer group is asked"
        checks += asked
    (check,) = [one for one in checks if one["message_id"] == "answered"]
    assert (check["value"], check["topic"], check["checks"]) == ("answered", TOPIC, 1)
    path = f"/topics/{TOPIC}/half"
    body = {"commit": [{"receipt": check["receipt"]}]}
    assert call(own_broker, f"{path}/settle", body)["results"][0]["ok"]
    deadline = time.monotonic() + TIMEOUT_S
    while time.monotonic() < deadline and call(own_broker, path)["half"]:
        call(own_broker, "/half/shop/checks", {"wait_ms": 100})
    settled = call(own_broker, f"{path}?state=settled")["half"]
    assert {one["message_id"]: one["state"] for one in settled} == {
        "answered": "committed",
        "silent": "expired",
    }
    assert [value for value, *_ in consume(own_broker, 2, 2)] == [b"answered"]


def headrace(broker: Broker, *arguments: str) -> tuple[int, str]:
    command = [
        sys.executable,
        "-m",
        "headrace.cli.main",
        "-b",
        broker.kafka,
        *arguments,
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    return done.returncode, done.stdout + done.stderr


def test_the_command_line_lists_cancels_and_settles(own_broker):
    make_topic(own_broker)
    later = {"headrace-delay": "3600000", "headrace-message-id": "order-17"}
    send(own_broker, [(b"v", later), half("order-18"), half("order-19")])
    code, shown = headrace(own_broker, "delayed", "list", TOPIC)
    assert code == 0
    assert "order-17" in shown
    code, shown = headrace(own_broker, "delayed", "list", TOPIC, "--json")
    (one,) = json.loads(shown)
    for verb in ("cancel", "deliver"):
        code, shown = headrace(own_broker, "delayed", verb, TOPIC, one["receipt"], "--dry-run")
        assert (code, "nothing was changed" in shown) == (0, True), shown
    assert headrace(own_broker, "delayed", "cancel", TOPIC, one["receipt"])[0] == 0
    code, shown = headrace(own_broker, "delayed", "cancel", TOPIC, "--message-id", "order-17")
    assert code == 3
    assert "are no longer pending" in shown
    for verb in ("commit", "rollback"):
        code, shown = headrace(own_broker, "half", verb, TOPIC, "order-18", "--dry-run")
        assert (code, "nothing was changed" in shown) == (0, True), shown
    assert headrace(own_broker, "half", "commit", TOPIC, "order-18")[0] == 0
    assert headrace(own_broker, "half", "rollback", TOPIC, "order-19", "--reason", "r")[0] == 0
    assert headrace(own_broker, "half", "commit", TOPIC, "order-19")[0] == 5
    code, shown = headrace(own_broker, "half", "list", TOPIC, "--settled")
    assert code == 0
    assert "rolled back" in shown
    code, shown = headrace(own_broker, "delayed", "list", "missing")
    assert code == 3
    assert "does not exist" in shown
    assert [value for value, *_ in consume(own_broker, 1)] == [b"order-18"]


def test_the_command_line_sees_what_waits_on_every_worker(tmp_path):
    broker = Broker(tmp_path, "--workers", "2")
    broker.start()
    try:
        make_topic(broker, 6)
        client = producer(broker)
        for number in range(6):
            later = {"headrace-delay": "3600000", "headrace-message-id": f"order-{number}"}
            client.produce(TOPIC, b"v", partition=number, headers=later)
            value, headers = half(f"half-{number}")
            client.produce(TOPIC, value, partition=number, headers=headers)
        assert client.flush(TIMEOUT_S) == 0
        code, shown = headrace(broker, "delayed", "list", TOPIC, "--json")
        assert [one["partition"] for one in json.loads(shown)] == [*range(6)], shown
        receipts = [one["receipt"] for one in json.loads(shown)]
        code, shown = headrace(broker, "delayed", "cancel", TOPIC, *receipts[:3])
        assert code == 0, shown
        names = [f"--message-id=order-{number}" for number in range(3, 6)]
        code, shown = headrace(broker, "delayed", "cancel", TOPIC, *names)
        assert code == 0, shown
        assert json.loads(headrace(broker, "delayed", "list", TOPIC, "--json")[1]) == []
        names = [f"half-{number}" for number in range(6)]
        assert len(json.loads(headrace(broker, "half", "list", TOPIC, "--json")[1])) == 6
        code, shown = headrace(broker, "half", "commit", TOPIC, *names)
        assert code == 0, shown
        code, shown = headrace(broker, "half", "list", TOPIC, "--settled", "--json")
        assert {one["state"] for one in json.loads(shown)} == {"committed"}, shown
        assert len(json.loads(shown)) == 6
    finally:
        broker.stop()
