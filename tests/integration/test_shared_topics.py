"""A topic that one tenant shares with another, read by clients of the other one."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from tests.integration.clients import admin, create_topic
from tests.integration.java import session
from tests.integration.tenants import ask, share, started, unshare
from tests.integration.test_transactions import fresh
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SOURCE, NAME = "canary-orders", "partner-orders"
PARTITIONS, COUNT, TIMEOUT_S = 3, 30, 60
END = 1_000_000
"""The last value."""
FOLLOWED_S = 1.5
"""After this every broker has followed a change."""


class Shared:
    """A broker with a listener for each of two tenants, and an operator over HTTP."""

    def __init__(self, folder: Path) -> None:
        self.broker = started(folder, "acme", "beta")
        self.acme, self.beta = (self.broker.listeners[one] for one in ("ACME", "BETA"))

    def share(self) -> None:
        share(self.broker, SOURCE, NAME)

    def unshare(self) -> None:
        unshare(self.broker, SOURCE)

    def produce(self, first: int, count: int, source: str = SOURCE) -> None:
        producer = Producer({"bootstrap.servers": self.acme, "log_level": 0})
        for number in range(first, first + count):
            producer.produce(source, str(number).encode(), key=str(number).encode())
        assert producer.flush(TIMEOUT_S) == 0


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Iterator[Shared]:
    found = Shared(tmp_path_factory.mktemp("shared"))
    create_topic(found.acme, SOURCE, PARTITIONS)
    found.produce(0, COUNT)
    yield found
    found.broker.stop()


@pytest.fixture
def shared(place: Shared) -> Shared:
    place.share()
    return place


def consumer(place: Shared, group: str, **more: str) -> Consumer:
    settings = {"group.id": group, "auto.offset.reset": "earliest", "enable.auto.commit": "false"}
    settings |= {name.replace("_", "."): value for name, value in more.items()}
    settings |= {"topic.metadata.refresh.interval.ms": "1000"}
    return Consumer({"bootstrap.servers": place.beta, "log_level": 0, **settings})


def read(reader: Consumer, count: int) -> list[int]:
    found: list[int] = []
    deadline = time.monotonic() + TIMEOUT_S
    while len(found) < count and time.monotonic() < deadline:
        message = reader.poll(0.2)
        if message is not None and not message.error():
            assert message.topic() == NAME
            found.append(int(message.value()))
    return found


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
@pytest.mark.parametrize("wanted", [NAME, "^partner-.*"])
def test_consumers_read_it_by_the_readers_name(shared, protocol, wanted):
    topics = admin(shared.beta).list_topics(timeout=TIMEOUT_S).topics
    assert NAME in topics
    assert SOURCE not in topics
    group = f"{protocol}-{len(wanted)}"
    reader = consumer(shared, group, group_protocol=protocol)
    reader.subscribe([wanted])
    assert sorted(read(reader, COUNT)) == [*range(COUNT)]
    reader.commit(asynchronous=False)
    reader.close()
    again = consumer(shared, group)
    places = [TopicPartition(NAME, number) for number in range(PARTITIONS)]
    assert sum(one.offset for one in again.committed(places, TIMEOUT_S)) == COUNT
    again.close()


@pytest.mark.java
def test_javas_consumer_reads_what_a_pattern_matches(shared):
    asked = ["--include", "partner.*", "--group", "java", "--from-beginning"]
    assert {*range(COUNT)} <= read_by("ConsoleConsumer", shared, asked)


@pytest.mark.java
def test_javas_share_consumer_reads_what_comes(shared):
    has_ended = threading.Event()

    def produce() -> None:
        while not has_ended.is_set():
            shared.produce(100, 1)

    thread = threading.Thread(target=produce)
    thread.start()
    try:
        found = read_by("ConsoleShareConsumer", shared, ["--topic", NAME, "--group", "shares"])
    finally:
        has_ended.set()
        thread.join()
    assert 100 in found


@pytest.mark.java
def test_javas_share_consumer_reads_nothing_while_it_is_not_shared(place):
    """And what was written meanwhile once it is shared again."""
    session().require_compiler()
    source, name, group = fresh("canary-revoked"), fresh("partner-revoked"), fresh("shares")
    create_topic(place.acme, source, 1)
    share(place.broker, source, name)
    settings = {"set": {"share.auto.offset.reset": "earliest"}}
    ask(place.broker, "PATCH", f"/v1/groups/beta%2F{group}/config", settings)
    out: list[str] = []
    thread = threading.Thread(
        target=lambda: out.append(
            session().run("ShareScenarios", place.beta, "until", name, group, str(END))
        )
    )
    thread.start()

    def has_read(count: int) -> bool:
        answer = ask(place.broker, "GET", f"/v1/queues/beta%2F{name}/beta%2F{group}")
        return [one["start_offset"] for one in answer["partitions"]] == [count]

    try:
        place.produce(0, COUNT, source)
        wait_until(lambda: has_read(COUNT))
        unshare(place.broker, source)
        time.sleep(FOLLOWED_S)
        ended_ms = time.time_ns() // 1_000_000
        place.produce(COUNT, COUNT, source)
        time.sleep(FOLLOWED_S)
        shared_ms = time.time_ns() // 1_000_000
    finally:
        share(place.broker, source, name)
        place.produce(END, 1, source)
        thread.join(TIMEOUT_S)
    assert not thread.is_alive()
    lines = [line.split() for line in out[0].splitlines() if line[:1].isdigit()]
    came = [(int(at_ms), int(value)) for at_ms, value in lines]
    assert {value for _at_ms, value in came} == {*range(2 * COUNT), END}
    assert not [one for one in came if ended_ms <= one[0] < shared_ms]


def read_by(tool: str, place: Shared, asked: list[str]) -> set[int]:
    limits = ["--max-messages", str(COUNT), "--timeout-ms", "90000"]
    main = f"org.apache.kafka.tools.consumer.{tool}"
    out = session().run(main, "--bootstrap-server", place.beta, *asked, *limits)
    return {int(line) for line in out.split() if line.isdigit()}


@pytest.mark.parametrize(("protocol", "first"), [("classic", 1_000), ("consumer", 3_000)])
def test_nothing_is_read_once_it_is_shared_no_longer(shared, protocol, first):
    """While it is written and read."""
    reader = consumer(shared, f"revoked-{protocol}", group_protocol=protocol)
    reader.subscribe([NAME])
    found, has_ended = [read(reader, COUNT)], threading.Event()

    def follow() -> None:
        while not has_ended.is_set():
            message = reader.poll(0.1)
            if message is not None and not message.error():
                found.append([int(message.value())])

    thread = threading.Thread(target=follow)
    thread.start()
    try:
        shared.produce(first, 100)
        shared.unshare()
        time.sleep(FOLLOWED_S)
        before = len(found)
        shared.produce(first + 1_000, 100)
        time.sleep(FOLLOWED_S)
        assert len(found) == before
        assert NAME not in admin(shared.beta).list_topics(timeout=TIMEOUT_S).topics
    finally:
        has_ended.set()
        thread.join()
        reader.close()
    numbers = {number for part in found for number in part}
    assert numbers >= {*range(COUNT)}
    assert not numbers & {*range(first + 1_000, first + 1_100)}
