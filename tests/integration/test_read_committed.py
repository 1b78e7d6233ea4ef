"""What consumers of every client show of transactions that overlap, end both ways, or stay open."""

from __future__ import annotations

import asyncio
import json
from random import Random

import pytest
from confluent_kafka import Consumer, TopicPartition
from tests.integration.clients import TIMEOUT_S, create_topic
from tests.integration.java import session
from tests.integration.raw import Raw, batch, error_codes, produce_values

PRODUCE, INIT_PRODUCER_ID, FIND_COORDINATOR = 0, 22, 10
ADD_PARTITIONS, END_TXN = 24, 26
PRODUCERS = 4
RETRIABLE = {14, 15, 16, 19, 51}


class Transactions:
    """Producers that write batches of a few records, one request each."""

    def __init__(self, raw: Raw, topic: str, rng: Random) -> None:
        self.raw = raw
        self.topic = topic
        self.rng = rng
        self.count = 0
        self.ids = [f"{topic}-{number}" for number in range(PRODUCERS)]
        self.producers = [self._init(name) for name in self.ids]
        self.sequences = [0] * PRODUCERS
        self.open: dict[int, list[int]] = {}
        """Producer -> the places in `shown` of what it has written in its open transaction."""
        self.sent: list[bytes] = []
        self.shown: list[bytes | None] = []
        """What is shown to who reads what is committed; None where nothing is (yet)."""

    def _ask(self, api: int, version: int, **values: object) -> object:
        """Ask until it is no longer refused for a moment."""
        for _ in range(300):
            answer = self.raw.call(api, version, **values)
            if not RETRIABLE.intersection(error_codes(answer)):
                assert set(error_codes(answer)) <= {0}, answer
                return answer
        raise AssertionError("no lasting answer")

    def _init(self, name: str) -> tuple[int, int]:
        self._ask(FIND_COORDINATOR, 2, key=name, key_type=1)
        made = self._ask(INIT_PRODUCER_ID, 1, transactional_id=name, transaction_timeout=600_000)
        return made.producer_id, made.producer_epoch

    def _produce(self, records: bytes, transactional_id: str | None = None) -> None:
        values = produce_values(self.topic, None, records)
        self._ask(PRODUCE, 7, **values, transactional_id=transactional_id)

    def _values(self) -> list[bytes]:
        self.count += 1
        return [b"%d.%d" % (self.count, at) for at in range(self.rng.randrange(1, 4))]

    def plain(self) -> None:
        values = self._values()
        self._produce(batch(*values))
        self.shown += values
        self.sent += values

    def send(self, number: int) -> None:
        producer, name = self.producers[number], self.ids[number]
        if number not in self.open:
            topics = [{"name": self.topic, "partitions": (0,)}]
            self._ask(
                ADD_PARTITIONS,
                1,
                v3_and_below_transactional_id=name,
                v3_and_below_producer_id=producer[0],
                v3_and_below_producer_epoch=producer[1],
                v3_and_below_topics=topics,
            )
            self.open[number] = []
        values = self._values()
        records = batch(
            *values, producer=(*producer, self.sequences[number]), is_transactional=True
        )
        self._produce(records, name)
        self.sequences[number] += len(values)
        self.open[number] += range(len(self.shown), len(self.shown) + len(values))
        self.shown += [None] * len(values)
        self.sent += values

    def end(self, number: int, *, is_commit: bool) -> None:
        if number not in self.open:
            return
        producer = self.producers[number]
        self._ask(
            END_TXN,
            1,
            transactional_id=self.ids[number],
            producer_id=producer[0],
            producer_epoch=producer[1],
            committed=is_commit,
        )
        for at in self.open.pop(number):
            self.shown[at] = self.sent[at] if is_commit else None

    def run(self, steps: int) -> None:
        for _ in range(steps):
            number = self.rng.randrange(PRODUCERS)
            match self.rng.choice(("send", "send", "send", "plain", "commit", "abort")):
                case "send":
                    self.send(number)
                case "plain":
                    self.plain()
                case kind:
                    self.end(number, is_commit=kind == "commit")

    @property
    def visible(self) -> list[bytes]:
        """What a reader of what is committed is shown now."""
        first = min((places[0] for places in self.open.values()), default=len(self.shown))
        return [value for value in self.shown[:first] if value is not None]


def by_confluent(bootstrap: str, topic: str, _count: int) -> list[bytes]:
    """Up to the end of the partition, as it is for a reader of what is committed."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "none",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
        }
    )
    consumer.assign([TopicPartition(topic, 0, 0)])
    found: list[bytes] = []
    try:
        while (message := consumer.poll(TIMEOUT_S)) is not None and message.error() is None:
            found.append(message.value())
    finally:
        consumer.close()
    return found


def by_aiokafka(bootstrap: str, topic: str, count: int) -> list[bytes]:
    from aiokafka import AIOKafkaConsumer
    from aiokafka import TopicPartition as Partition

    async def consume() -> list[bytes]:
        consumer = AIOKafkaConsumer(bootstrap_servers=bootstrap, isolation_level="read_committed")
        await consumer.start()
        try:
            consumer.assign([Partition(topic, 0)])
            await consumer.seek_to_beginning(Partition(topic, 0))
            found = [
                (await asyncio.wait_for(consumer.getone(), TIMEOUT_S)).value for _ in range(count)
            ]
            more = await consumer.getmany(timeout_ms=500)
            return found + [record.value for records in more.values() for record in records]
        finally:
            await consumer.stop()

    return asyncio.run(consume())


def by_kafka_python(bootstrap: str, topic: str, count: int) -> list[bytes]:
    from kafka import KafkaConsumer
    from kafka import TopicPartition as Partition

    consumer = KafkaConsumer(bootstrap_servers=bootstrap, isolation_level="read_committed")
    try:
        consumer.assign([Partition(topic, 0)])
        consumer.seek_to_beginning()
        found: list[bytes] = []
        for _ in range(200):
            polled = consumer.poll(timeout_ms=500)
            found += [record.value for records in polled.values() for record in records]
            if len(found) >= count and not polled:
                break
        return found
    finally:
        consumer.close()


def by_java(bootstrap: str, topic: str, count: int) -> list[bytes]:
    out = session().run("Scenarios", bootstrap, "consume", topic, str(count), "read_committed")
    return [bytes.fromhex(json.loads(line)[1]) for line in out.splitlines() if line[:1] == "["]


CONSUMERS = {
    "confluent": by_confluent,
    "aiokafka": by_aiokafka,
    "kafka-python": by_kafka_python,
    "java": by_java,
}


@pytest.fixture(scope="session")
def written(shared_broker):
    """A topic in several ledgers, and what is committed of it; one transaction stays open."""
    topic = "read-committed"
    create_topic(shared_broker.kafka, topic, **{"segment.bytes": 2_000})
    with Raw(shared_broker.address) as raw:
        transactions = Transactions(raw, topic, Random(7))
        transactions.run(250)
        for number in range(1, PRODUCERS):
            transactions.end(number, is_commit=number % 2 == 0)
        transactions.send(0)
        transactions.plain()
        transactions.send(1)
        transactions.end(1, is_commit=True)
        yield topic, transactions.visible


@pytest.mark.parametrize("client", CONSUMERS)
def test_a_client_shows_what_is_committed_and_nothing_else(broker, written, client):
    topic, expected = written
    assert len(expected) > 50
    assert CONSUMERS[client](broker.kafka, topic, len(expected)) == expected
