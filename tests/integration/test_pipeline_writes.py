"""The sink's own producer on a real broker: what librdkafka would store, once, whatever fails."""

from __future__ import annotations

import socket
import time
from collections import Counter
from random import Random
from threading import Event, Thread
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from tests.integration.broker import Broker
from tests.integration.test_transactions import fresh
from tests.waiting import wait_until

from headrace.pipeline import direct_writer
from headrace.pipeline.broker_connection import Appended, BrokerConnection
from headrace.pipeline.direct_writer import DirectWriter, is_possible
from headrace.pipeline.errors import DeliveryFailed, RecordRefused
from headrace.pipeline.options import SinkOptions
from headrace.pipeline.written import WRITTEN_HEADER, RowToWrite

if TYPE_CHECKING:
    from collections.abc import Iterator

TIMEOUT_S = 60
LIMIT_BYTES = 1_000_000


@pytest.fixture
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    made = Broker(tmp_path_factory.mktemp("write"))
    made.start()
    yield made
    made.stop()


def create_topic(broker: Broker, stem: str, partitions: int, **config: str) -> str:
    topic = fresh(stem)
    admin = AdminClient({"bootstrap.servers": broker.kafka})
    admin.create_topics([NewTopic(topic, partitions, 1, config=config)])[topic].result(TIMEOUT_S)
    return topic


def writer_of(broker: Broker, timeout_ms: int = 120_000, **client: str) -> DirectWriter:
    settings = {"bootstrap.servers": broker.kafka, **client}
    options = SinkOptions(settings, delivery_timeout_ms=timeout_ms)
    assert is_possible(options.client)
    return DirectWriter(options, lambda _topic: LIMIT_BYTES)


def write(writer: DirectWriter, rows: list[RowToWrite]) -> None:
    """In pieces, each row with a mark of its own."""
    try:
        for at in range(0, len(rows), 100):
            piece = rows[at : at + 100]
            writer.produce(piece, [b"mark-%d" % (at + index) for index in range(len(piece))])
        writer.flush()
    finally:
        writer.close()


def stored(broker: Broker, topic: str, partitions: int) -> dict[int, list[Any]]:
    """What librdkafka reads of each partition, with its CRCs checked."""
    consumer = Consumer({
        "bootstrap.servers": broker.kafka, "group.id": "reader", "check.crcs": True,
        "enable.auto.commit": False, "auto.offset.reset": "earliest",
    })  # fmt: skip
    found: dict[int, list[Any]] = {}
    try:
        for number in range(partitions):
            _, end = consumer.get_watermark_offsets(TopicPartition(topic, number), TIMEOUT_S)
            consumer.assign([TopicPartition(topic, number, 0)])
            messages: list[Any] = []
            while len(messages) < end:
                read = consumer.consume(end - len(messages), TIMEOUT_S)
                assert read, f"{len(messages)} of {end}"
                assert not any(message.error() for message in read)
                messages += read
            found[number] = messages
    finally:
        consumer.close()
    return found


def some_rows(topic: str, count: int) -> list[RowToWrite]:
    """With and without keys, values, headers, times and partitions."""
    return [
        RowToWrite(
            topic,
            number % 3 if number % 5 == 0 else -1,
            None if number % 4 == 0 else b"key-%d" % (number % 17),
            None if number % 7 == 0 else b"%d " % number * (number % 40),
            [("é", None), ("id", b"%d" % number)] if number % 6 == 0 else [],
            1_700_000_000_000 + number if number % 3 == 0 else 0,
        )
        for number in range(count)
    ]


def fields_of(message: Any) -> tuple[Any, ...]:
    return message.key(), message.value(), tuple(message.headers() or ())


def marks_of(part: list[Any]) -> list[int]:
    """The numbers of a partition's rows."""
    return [int(fields_of(each)[2][-1][1][5:]) for each in part]


def check_each_once(found: dict[int, list[Any]], count: int) -> None:
    """Each row is there once, and in its order."""
    for part in found.values():
        marks = marks_of(part)
        assert marks == sorted(set(marks))
    assert sum(map(len, found.values())) == count


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_every_field_is_stored_as_librdkafka_reads_it(broker, codec):
    topic = create_topic(broker, "fields", 3)
    rows = some_rows(topic, 2_000)
    write(writer_of(broker, **{"compression.type": codec, "batch.size": "3000"}), rows)
    found = stored(broker, topic, 3)
    expected = Counter(
        (row.key, row.value, (*row.headers, (WRITTEN_HEADER, b"mark-%d" % number)))
        for number, row in enumerate(rows)
    )
    assert Counter(fields_of(each) for part in found.values() for each in part) == expected
    for number, part in found.items():
        marks = marks_of(part)
        assert marks == sorted(marks)
        for mark, message in zip(marks, part, strict=True):
            row = rows[mark]
            assert row.partition in {-1, number}
            assert message.timestamp()[1] == row.timestamp_ms or row.timestamp_ms == 0
            assert message.timestamp()[1] > 0


def test_a_key_goes_where_librdkafka_sends_it(broker):
    topic = create_topic(broker, "keys", 5)
    keys = [b"", b"a", b"ab", b"abc", b"abcd", *(b"key-%d" % number for number in range(60))]
    producer = Producer({"bootstrap.servers": broker.kafka, "partitioner": "murmur2_random"})
    for key in keys:
        producer.produce(topic, b"library", key)
    assert producer.flush(TIMEOUT_S) == 0
    write(writer_of(broker), [RowToWrite(topic, -1, key, b"own", [], 0) for key in keys])
    for part in stored(broker, topic, 5).values():
        by_value = {value: Counter(m.key() for m in part if m.value() == value) for value in
                    (b"library", b"own")}  # fmt: skip
        assert by_value[b"library"] == by_value[b"own"]


class Cutting(BrokerConnection):
    """Breaks at random: before a request is sent, after it, or after its answer was read."""

    chance: Random
    cuts: int

    def send_produce(self, batches, wait_ms):
        self._cut(0.1)
        super().send_produce(batches, wait_ms)
        self._cut(0.1)

    def receive_produce(self):
        found = super().receive_produce()
        self._cut(0.2)
        return found

    def _cut(self, probability):
        if type(self).chance.random() < probability:
            type(self).cuts += 1
            self.close()
            raise ConnectionResetError("cut")


@pytest.mark.parametrize("seed", range(3))
def test_a_connection_that_breaks_loses_and_repeats_nothing(broker, monkeypatch, seed):
    """Batches are resent with their sequences, some of which were appended."""
    topic = create_topic(broker, "cut", 3)
    rows = some_rows(topic, 3_000)
    Cutting.chance, Cutting.cuts = Random(seed), 0
    monkeypatch.setattr(direct_writer, "BrokerConnection", Cutting)
    monkeypatch.setattr(direct_writer, "_PAUSE_S", 0.01)
    write(writer_of(broker, **{"batch.size": "4000"}), rows)
    assert Cutting.cuts > 5
    check_each_once(stored(broker, topic, 3), len(rows))


class Answering(BrokerConnection):
    """Answers some requests with an error that passes, instead of sending them."""

    chance: Random
    errors: int

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self._answers = []

    @property
    def unanswered_count(self):
        return len(self._answers)

    def send_produce(self, batches, wait_ms):
        code = type(self).chance.choice([0, 0, 0, 0, 3, 6, 7, 15, 19, 20])
        if code:
            type(self).errors += 1
            self._answers.append([Appended(topic, number, code) for topic, number, _ in batches])
        else:
            super().send_produce(batches, wait_ms)
            self._answers.append(None)

    def receive_produce(self):
        return self._answers.pop(0) or super().receive_produce()


@pytest.mark.parametrize("seed", range(3))
def test_errors_that_pass_lose_and_repeat_nothing(broker, monkeypatch, seed):
    """Of a first batch, too: the log would take the second one, and then refuse the first."""
    topic = create_topic(broker, "errors", 3)
    rows = some_rows(topic, 2_000)
    Answering.chance, Answering.errors = Random(seed), 0
    monkeypatch.setattr(direct_writer, "BrokerConnection", Answering)
    monkeypatch.setattr(direct_writer, "_PAUSE_S", 0.01)
    write(writer_of(broker, **{"batch.size": "3000"}), rows)
    assert Answering.errors > 5
    check_each_once(stored(broker, topic, 3), len(rows))


def test_a_task_may_pause_for_longer_than_a_delivery_may_take(broker, monkeypatch):
    topic = create_topic(broker, "pause", 1)
    writer = writer_of(broker, timeout_ms=10_000, **{"batch.size": "100"})
    rows = [RowToWrite(topic, 0, None, b"x" * 90, [], 0) for _ in range(3)]
    writer.produce(rows, [b"1", b"2", b"3"])
    later_ns = direct_writer.monotonic_ns() + 100_000_000_000
    begun_ns = direct_writer.monotonic_ns()
    monkeypatch.setattr(
        direct_writer, "monotonic_ns", lambda: later_ns + time.monotonic_ns() - begun_ns
    )
    for connection in writer._connections.values():
        connection.close()
    writer.flush()
    writer.close()
    assert len(stored(broker, topic, 1)[0]) == 3


def test_a_bootstrap_server_that_does_not_answer_is_passed_over(broker, monkeypatch):
    topic = create_topic(broker, "silent", 1)
    monkeypatch.setattr(direct_writer, "_LOOK_TIMEOUT_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        servers = f"127.0.0.1:{silent.getsockname()[1]},{broker.kafka}"
        writer = writer_of(broker, **{"bootstrap.servers": servers})
        write(writer, [RowToWrite(topic, 0, None, b"x", [], 0)])
    assert len(stored(broker, topic, 1)[0]) == 1


def test_no_batch_is_larger_than_its_topic_takes(broker):
    """With and without keys; and of values that compression makes larger."""
    topic = create_topic(broker, "sizes", 3, **{"max.message.bytes": "20000"})
    chance = Random(1)
    rows = [
        RowToWrite(topic, number % 3 if number % 4 else -1, None, chance.randbytes(size), [], 0)
        for number, size in enumerate([6_000, 6_500, 3_000, 9_000, 13_000, 19_000, 1] * 30)
    ]
    for codec in ("none", "gzip"):
        options = SinkOptions({"bootstrap.servers": broker.kafka, "compression.type": codec})
        write(DirectWriter(options, lambda _topic: 20_000), rows)
    assert sum(map(len, stored(broker, topic, 3).values())) == 2 * len(rows)


def test_a_broker_that_is_killed_and_started_again_loses_and_repeats_nothing(broker):
    topic = create_topic(broker, "killed", 3)
    rows = some_rows(topic, 100)
    writer = writer_of(broker, **{"batch.size": "2000"})
    sent, is_over = 0, Event()
    problems: list[BaseException] = []

    def run() -> None:
        nonlocal sent
        try:
            while not is_over.is_set():
                writer.produce(rows, [b"mark-%d" % (sent + index) for index in range(100)])
                sent += 100
            writer.flush()
        except BaseException as error:
            problems.append(error)
            raise
        finally:
            writer.close()

    writing = Thread(target=run)
    writing.start()
    try:
        for _ in range(2):
            before = sent
            wait_until(lambda before=before: problems or sent > before + 1_000)
            broker.crash()
    finally:
        is_over.set()
        writing.join()
    assert not problems
    found = stored(broker, topic, 3)
    for part in found.values():
        marks = [int(fields_of(each)[2][-1][1][5:]) for each in part]
        assert marks == sorted(set(marks))
    assert sum(map(len, found.values())) == sent


def test_many_partitions_are_flushed_together(broker):
    topic = create_topic(broker, "many", 200)
    rows = [RowToWrite(topic, number % 200, None, b"%d" % number, [], 0) for number in range(600)]
    write(writer_of(broker), rows)
    assert {len(part) for part in stored(broker, topic, 200).values()} == {3}


def test_what_the_broker_refuses_is_named(broker):
    topic = create_topic(broker, "refused", 2, **{"max.message.bytes": "1000"})
    with pytest.raises(RecordRefused, match=r"names partition 2 of topic .* which has 2"):
        write(writer_of(broker), [RowToWrite(topic, 2, None, b"", [], 0)])
    with pytest.raises(RecordRefused, match="MSG_SIZE_TOO_LARGE"):
        write(writer_of(broker), [RowToWrite(topic, 0, None, b"x" * 2_000, [], 0)])
    assert not any(stored(broker, topic, 2).values())


def test_a_broker_that_stays_away_ends_the_wait(broker):
    topic = create_topic(broker, "away", 1)
    writer = writer_of(broker, timeout_ms=1_000)
    writer.produce([RowToWrite(topic, 0, None, b"x", [], 0)], [b"mark"])
    broker.kill()
    try:
        with pytest.raises(DeliveryFailed, match="not acknowledged within 1000 ms"):
            writer.flush()
    finally:
        writer.close()
        broker.start()


def test_settings_that_only_librdkafka_knows_go_through_it():
    plain = {"bootstrap.servers": "localhost:9092", "linger.ms": "5", "compression.type": "zstd"}
    assert is_possible(plain)
    assert is_possible({**plain, "security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN"})
    for more in (
        {"partitioner": "consistent"},
        {"message.max.bytes": "10"},
        {"compression.type": "other"},
        {"security.protocol": "SASL_SSL", "sasl.mechanism": "OAUTHBEARER"},
    ):
        assert not is_possible({**plain, **more})
