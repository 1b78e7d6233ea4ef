"""What was acknowledged survives a clean stop and kill -9: records, groups, offsets, sequences.

HEADRACE_KILL_CYCLES sets how often the kill -9 tests kill (a few by default; 200 for a proof).
"""

from __future__ import annotations

import os
import random
import threading
import time

import pytest
from tests.integration.broker import Broker, kill_cycles
from tests.integration.clients import (
    CODECS,
    RECORDS,
    TIMEOUT_S,
    Confluent,
    Rec,
    admin,
    create_topic,
    watermarks,
)
from tests.integration.raw import Raw
from tests.waiting import wait_until

CYCLES = kill_cycles(3)
SEED = int(os.environ.get("HEADRACE_SEED", "20261121"))


def committed(broker: Broker, group: str, topic: str, partitions: int) -> list[tuple]:
    """(offset, metadata) of each partition, read off the answer's bytes.

    confluent-kafka 2.16 commits metadata followed by a zero byte, which is left out here, and
    returns whatever follows it in its memory.
    """
    wanted = [{"name": topic, "partition_indexes": tuple(range(partitions))}]
    with Raw(broker.address) as raw:
        told = raw.call(9, 8, groups=[{"group_id": group, "topics": wanted}])
    found = sorted(told.groups[0].topics[0].partitions, key=lambda at: at.partition_index)
    return [(at.committed_offset, at.metadata.removesuffix("\0")) for at in found]


@pytest.mark.parametrize("how", ["restart", "crash"])
def test_everything_that_was_acknowledged_is_there_again(own_broker, how):
    from confluent_kafka import Consumer, TopicPartition
    from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource

    at = own_broker.kafka
    create_topic(at, "kept", 2, retention_ms=-1)
    create_topic(at, "empty", 3)
    for codec in CODECS:
        Confluent.produce(at, "kept", RECORDS, codec)
    create_topic(at, "gone")
    client = admin(at)
    client.delete_topics(["gone"])["gone"].result(TIMEOUT_S)
    change = ConfigEntry("flush.ms", "77", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource("TOPIC", "kept", incremental_configs=[change])
    client.incremental_alter_configs([resource])[resource].result(TIMEOUT_S)
    client.delete_records([TopicPartition("kept", 0, 5)])[TopicPartition("kept", 0, 5)].result(
        TIMEOUT_S
    )
    cluster = client.describe_cluster().result(TIMEOUT_S)
    consumer = Consumer({"bootstrap.servers": at, "group.id": "g"})
    offsets = [TopicPartition("kept", 0, 11, "métadonnées"), TopicPartition("kept", 1, 0)]
    consumer.commit(offsets=offsets, asynchronous=False)
    consumer.close()

    for _ in range(3):
        getattr(own_broker, how)()
        assert own_broker.kafka == at
        client = admin(at)
        topics = client.list_topics(timeout=TIMEOUT_S).topics
        assert {name: len(topic.partitions) for name, topic in topics.items()} | {
            "__consumer_offsets": 0
        } == {"kept": 2, "empty": 3, "__consumer_offsets": 0}
        resource = ConfigResource("TOPIC", "kept")
        configs = client.describe_configs([resource])[resource].result(TIMEOUT_S)
        assert configs["flush.ms"].value == "77"
        assert configs["retention.ms"].value == "-1"
        assert client.describe_cluster().result(TIMEOUT_S).cluster_id == cluster.cluster_id
        assert watermarks(at, "kept") == (5, len(RECORDS) * len(CODECS))
        assert committed(own_broker, "g", "kept", 2) == [(11, "métadonnées"), (0, "")]
    expected = [*RECORDS] * len(CODECS)
    assert consume_from(at, "kept", 5, len(expected) - 5) == expected[5:]
    Confluent.produce(at, "kept", RECORDS)
    assert watermarks(at, "kept") == (5, len(expected) + len(RECORDS))


def consume_from(bootstrap: str, topic: str, offset: int, count: int) -> list[Rec]:
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "reader"})
    try:
        consumer.assign([TopicPartition(topic, 0, offset)])
        found = []
        while len(found) < count:
            message = consumer.poll(TIMEOUT_S)
            assert message is not None
            assert message.error() is None, message.error()
            headers = tuple(message.headers() or ())
            found.append(Rec(message.key(), message.value(), headers))
        return found
    finally:
        consumer.close()


class Writer:
    """An idempotent librdkafka producer that numbers its records, one partition after the other."""

    def __init__(self, bootstrap: str, topic: str, partitions: int, **settings: object) -> None:
        from confluent_kafka import Producer

        defaults = {
            "bootstrap.servers": bootstrap,
            "enable.idempotence": True,
            "linger.ms": 1,
            "reconnect.backoff.max.ms": 200,
            "message.timeout.ms": 300_000,
            "log_level": 0,
        }
        self.producer = Producer(defaults | settings)
        self.topic = topic
        self.partitions = partitions
        self.acknowledged: dict[int, dict[int, int]] = {n: {} for n in range(partitions)}
        self.failed: list[object] = []
        self.sent = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def start(self) -> Writer:
        self._thread.start()
        return self

    def acknowledgements(self) -> int:
        return sum(map(len, self.acknowledged.values()))

    def stop(self) -> None:
        """Send no more, and wait until all that was sent is acknowledged."""
        self._stop.set()
        self._thread.join(TIMEOUT_S)
        assert self.producer.flush(240) == 0

    def _run(self) -> None:
        while not self._stop.is_set():
            partition = self.sent % self.partitions
            value = str(self.sent // self.partitions).encode()
            try:
                self.producer.produce(
                    self.topic, value, partition=partition, on_delivery=self._delivered
                )
            except BufferError:
                self.producer.poll(0.05)
                continue
            self.sent += 1
            if self.sent % 200 == 0:
                self.producer.poll(0.005)

    def _delivered(self, error: object, message: object) -> None:
        if error:
            self.failed.append(error)
        else:
            offsets = self.acknowledged[message.partition()]
            offsets[int(message.value())] = message.offset()


def partition_values(bootstrap: str, topic: str, partition: int) -> list[int]:
    """All values of a partition, its offsets checked to be dense."""
    from confluent_kafka import Consumer, TopicPartition

    _, end = watermarks(bootstrap, topic, partition)
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "check", "log_level": 0})
    try:
        consumer.assign([TopicPartition(topic, partition, 0)])
        found: list[int] = []
        while len(found) < end:
            messages = consumer.consume(min(10_000, end - len(found)), TIMEOUT_S)
            assert messages, f"{len(found)} of {end} records came"
            for message in messages:
                assert message.error() is None, message.error()
                assert message.offset() == len(found), "offsets are dense"
                found.append(int(message.value()))
        return found
    finally:
        consumer.close()


@pytest.mark.timeout(600 + 60 * CYCLES)
def test_an_idempotent_producer_writes_through_kills_without_loss_or_duplicate(own_broker):
    create_topic(own_broker.kafka, "through", 3)
    rng = random.Random(SEED)
    writer = Writer(own_broker.kafka, "through", 3).start()
    try:
        for _ in range(CYCLES):
            before = writer.acknowledgements()
            wait_until(lambda floor=before: writer.acknowledgements() > floor + 500, 120)
            time.sleep(rng.random() * 0.3)
            own_broker.crash()
    finally:
        writer.stop()
    assert not writer.failed, writer.failed[:3]
    for partition in range(3):
        values = partition_values(own_broker.kafka, "through", partition)
        assert values == list(range(len(values))), "each once and in order"
        acknowledged = writer.acknowledged[partition]
        assert len(acknowledged) == len(values)
        assert all(values[offset] == value for value, offset in acknowledged.items())


@pytest.mark.timeout(600 + 60 * CYCLES)
def test_plain_producers_and_groups_under_kills_lose_nothing_that_was_acknowledged(own_broker):
    """Four plain producers, one of them with compression, and a committing group, killed under."""
    from confluent_kafka import Consumer, KafkaException, TopicPartition

    topic, group = "load", "load-group"
    create_topic(own_broker.kafka, topic, 4, segment_bytes=200_000)
    rng = random.Random(SEED + 1)
    codecs = ("none", "zstd", "lz4", "gzip")
    writers = [
        Writer(
            own_broker.kafka,
            topic,
            4,
            **{
                "enable.idempotence": False,
                "compression.type": codec,
                "message.timeout.ms": 20_000,
            },
        ).start()
        for codec in codecs
    ]
    commits: dict[int, int] = {}
    stop = threading.Event()

    def read() -> None:
        consumer = Consumer(
            {
                "bootstrap.servers": own_broker.kafka,
                "group.id": group,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "session.timeout.ms": 6000,
                "reconnect.backoff.max.ms": 200,
                "log_level": 0,
            }
        )
        consumer.subscribe([topic])
        while not stop.is_set():
            messages = [m for m in consumer.consume(500, 0.2) if m.error() is None]
            ends = {m.partition(): m.offset() + 1 for m in messages}
            offsets = [TopicPartition(topic, number, end) for number, end in ends.items()]
            try:
                done = consumer.commit(offsets=offsets, asynchronous=False) if offsets else ()
                commits.update({at.partition: at.offset for at in done if at.error is None})
            except KafkaException:
                continue  # the broker is away, or the group gathers again
        consumer.close()

    reader = threading.Thread(target=read)
    reader.start()
    try:
        for _ in range(CYCLES):
            before = sum(writer.acknowledgements() for writer in writers)
            wait_until(
                lambda floor=before: sum(w.acknowledgements() for w in writers) > floor + 500, 120
            )
            time.sleep(rng.random() * 0.3)
            own_broker.crash()
        wait_until(lambda: len(commits) == 4, 120)
    finally:
        for writer in writers:
            writer.stop()
        stop.set()
        reader.join(TIMEOUT_S)
    for partition in range(4):
        values = partition_values(own_broker.kafka, topic, partition)
        for writer in writers:
            wrong = {v: o for v, o in writer.acknowledged[partition].items() if values[o] != v}
            assert not wrong, "an acknowledged record is where it was said to be"
    found = committed(own_broker, group, topic, 4)
    for partition, offset in commits.items():
        assert found[partition][0] >= offset, "an acknowledged commit is kept"
    assert " ERROR " not in own_broker.log()


def test_a_group_goes_on_where_it_was_when_the_broker_comes_back(own_broker):
    """The members keep their generation: a restart makes no member join again."""
    from confluent_kafka import Consumer

    create_topic(own_broker.kafka, "on", 2)
    Confluent.produce(own_broker.kafka, "on", [Rec(None, b"1")])
    rebalances = []
    consumer = Consumer(
        {
            "bootstrap.servers": own_broker.kafka,
            "group.id": "on",
            "auto.offset.reset": "earliest",
            "session.timeout.ms": 120_000,
            "heartbeat.interval.ms": 300,
            "reconnect.backoff.max.ms": 200,
            "log_level": 0,
        }
    )
    try:
        consumer.subscribe(["on"], on_assign=lambda _c, assigned: rebalances.append(assigned))

        def value() -> bytes | None:
            message = consumer.poll(0.5)
            return message.value() if message and not message.error() else None

        assert wait_until(value) == b"1"
        consumer.commit(asynchronous=False)
        own_broker.crash()
        Confluent.produce(own_broker.kafka, "on", [Rec(None, b"2")])
        assert wait_until(value) == b"2"
        own_broker.restart()
        Confluent.produce(own_broker.kafka, "on", [Rec(None, b"3")])
        assert wait_until(value) == b"3"
        consumer.commit(asynchronous=False)
        assert len(rebalances) == 1
    finally:
        consumer.close()
    assert committed(own_broker, "on", "on", 1) == [(3, "")]


def test_a_second_broker_on_the_same_folder_is_refused_and_the_first_goes_on(own_broker):
    import subprocess
    import sys

    command = [sys.executable, "-m", "headrace.cli.main", "serve", "--kafka", "127.0.0.1:0"]
    command += ["--http", "127.0.0.1:0", "--data-dir", str(own_broker.data_dir)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=90)
    assert done.returncode not in {0, -6, -11}
    assert "Traceback" not in done.stderr
    assert str(own_broker.data_dir) in done.stderr
    create_topic(own_broker.kafka, "still-here")


def test_stopping_is_quick_with_clients_in_long_polls(own_broker):
    from tests.integration.raw import fetch_values, frame

    create_topic(own_broker.kafka, "polled")
    with Raw(own_broker.address) as raw:
        raw.send(frame(1, 4, fetch_values("polled", None, 0, min_bytes=1, max_wait=60_000)))
        started = time.monotonic()
        own_broker.stop()
        assert time.monotonic() - started < 30
