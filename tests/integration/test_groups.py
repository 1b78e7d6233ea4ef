"""Groups of confluent-kafka, aiokafka and kafka-python: gathering, leaving, dying, committing."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest
from tests.integration.clients import (
    TIMEOUT_S,
    Confluent,
    Rec,
    admin,
    create_topic,
)
from tests.integration.test_restart import committed
from tests.waiting import wait_until

PARTITIONS = 6


class ConfluentMember:
    """A polling confluent-kafka consumer in a thread."""

    def __init__(self, bootstrap: str, group: str, topic: str, **settings: object) -> None:
        from confluent_kafka import Consumer

        defaults = {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "session.timeout.ms": 60_000,  # nobody dies because the machine is busy
            "heartbeat.interval.ms": 200,
            "log_level": 0,
        }
        named = {key.replace("_", "."): value for key, value in settings.items()}
        if named.get("group.protocol") == "consumer":  # there these are the broker's to set
            del defaults["session.timeout.ms"], defaults["heartbeat.interval.ms"]
        self.consumer = Consumer(defaults | named)
        self.is_cooperative = "cooperative" in str(named.get("partition.assignment.strategy"))
        self.owned: set[int] = set()
        self.values: list[bytes] = []
        self.revoked: list[set[int]] = []
        self.assignments = 0
        self._stop = threading.Event()
        self.consumer.subscribe([topic], on_assign=self._assigned, on_revoke=self._revoked)
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _assigned(self, consumer, partitions) -> None:
        self.assignments += 1
        self.owned |= {at.partition for at in partitions}

    def _revoked(self, consumer, partitions) -> None:
        gone = {at.partition for at in partitions}
        self.revoked.append(gone)
        self.owned -= gone

    def _run(self) -> None:
        from confluent_kafka import KafkaException

        while not self._stop.is_set():
            message = self.consumer.poll(0.05)
            if message is None or message.error():
                continue
            self.values.append(message.value())
            try:
                self.consumer.commit(message=message, asynchronous=False)
            except KafkaException:
                continue  # the group gathers again

    def leave(self) -> None:
        self._stop.set()
        self._thread.join()
        self.consumer.close()
        self.owned = set()


def is_shared(members, partitions: int = PARTITIONS) -> bool:
    """Every partition has one owner, and all have about as many."""
    owned = [set(member.owned) for member in members]
    counts = [len(one) for one in owned]
    return (
        sum(counts) == partitions
        and set().union(*owned) == set(range(partitions))
        and max(counts) - min(counts) <= 1
    )


@pytest.fixture
def topic(broker, name):
    create_topic(broker.kafka, name, PARTITIONS)
    return name


def spread(bootstrap: str, topic: str, values: list[bytes]) -> None:
    """Values over all partitions, in turn."""
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": bootstrap})
    for number, value in enumerate(values):
        producer.produce(topic, value, partition=number % PARTITIONS)
    assert producer.flush(TIMEOUT_S) == 0


@pytest.mark.parametrize("strategy", ["range", "roundrobin", "cooperative-sticky"])
def test_confluent_members_join_and_leave_and_every_record_is_read(broker, topic, strategy):
    settings = {"partition_assignment_strategy": strategy}
    members = []
    left = []
    try:
        for count in (1, 2, 3):
            members.append(ConfluentMember(broker.kafka, topic, topic, **settings))
            wait_until(lambda: is_shared(members))
            spread(broker.kafka, topic, [f"{count}-{n}".encode() for n in range(60)])
        wait_until(lambda: len({v for m in members for v in m.values}) == 180)
        kept = set(members[0].owned)
        revocations = len(members[0].revoked)
        left.append(members.pop())
        left[0].leave()
        wait_until(lambda: is_shared(members))
        if strategy == "cooperative-sticky":
            assert kept <= members[0].owned
            assert not any(members[0].revoked[revocations:]), "it gave nothing up"
        spread(broker.kafka, topic, [f"4-{n}".encode() for n in range(60)])
        wait_until(lambda: len({v for m in members + left for v in m.values}) == 240)
        wait_until(lambda: sum(offsets(broker.kafka, topic).values()) == 240)
    finally:
        for member in members:
            member.leave()


def offsets(bootstrap: str, group: str) -> dict[int, int]:
    """What the group has committed, as an admin sees it."""
    from confluent_kafka import ConsumerGroupTopicPartitions

    client = admin(bootstrap)
    (future,) = client.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)]).values()
    return {at.partition: at.offset for at in future.result(TIMEOUT_S).topic_partitions}


def test_a_member_that_dies_is_replaced_after_its_session(broker, topic, tmp_path):
    import subprocess
    import sys

    script = (
        "import sys\nfrom confluent_kafka import Consumer\n"
        "c = Consumer({'bootstrap.servers': sys.argv[1], 'group.id': sys.argv[2],"
        " 'session.timeout.ms': 8000, 'heartbeat.interval.ms': 200})\n"
        "c.subscribe([sys.argv[2]], on_assign=lambda *_: print('assigned', flush=True))\n"
        "while True: c.poll(0.1)\n"
    )
    member = ConfluentMember(broker.kafka, topic, topic)
    wait_until(lambda: is_shared([member]))
    with subprocess.Popen(
        [sys.executable, "-c", script, broker.kafka, topic], stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout.readline() == "assigned\n"
        wait_until(lambda: len(member.owned) == 3)
        other.kill()
        other.wait()
    try:
        killed = time.monotonic()
        wait_until(lambda: is_shared([member]))
        assert time.monotonic() - killed > 2, "not before its session was over"
    finally:
        member.leave()


def test_static_members_come_back_without_a_rebalance_and_rivals_are_fenced(broker, topic):
    one = ConfluentMember(broker.kafka, topic, topic, group_instance_id="one")
    two = ConfluentMember(broker.kafka, topic, topic, group_instance_id="two")
    wait_until(lambda: is_shared([one, two]))
    owned, assignments = set(two.owned), one.assignments
    two.leave()
    two = ConfluentMember(broker.kafka, topic, topic, group_instance_id="two")
    try:
        wait_until(lambda: two.owned == owned)
        assert one.assignments == assignments, "the other has seen no rebalance"
        spread(broker.kafka, topic, [str(n).encode() for n in range(60)])
        wait_until(lambda: len(set(one.values + two.values)) == 60)
    finally:
        one.leave()
        two.leave()


def test_many_members_join_at_once_and_none_is_forgotten(broker, name):
    create_topic(broker.kafka, name, 12)
    members = [ConfluentMember(broker.kafka, name, name) for _ in range(12)]
    try:
        wait_until(lambda: is_shared(members, 12), 90)
    finally:
        for member in members:
            member.leave()


def test_metadata_of_commits_comes_back_as_committed_to_every_client(broker, topic):
    from aiokafka import AIOKafkaConsumer
    from aiokafka import TopicPartition as AioPartition
    from confluent_kafka import Consumer, TopicPartition
    from kafka import KafkaConsumer
    from kafka.structs import OffsetAndMetadata
    from kafka.structs import TopicPartition as PyPartition

    texts = ["plain", "ünï ✓ \U0001f600", '{"json": [1, 2]}', "x" * 4000]
    consumer = Consumer({"bootstrap.servers": broker.kafka, "group.id": topic})
    python = KafkaConsumer(bootstrap_servers=broker.kafka, group_id=topic, enable_auto_commit=False)
    python.assign([PyPartition(topic, 0), PyPartition(topic, 1)])

    async def read_and_commit(offset: int, text: str) -> None:
        aio = AIOKafkaConsumer(
            bootstrap_servers=broker.kafka, group_id=topic, enable_auto_commit=False
        )
        await aio.start()
        try:
            aio.assign([AioPartition(topic, 1)])
            await aio.commit({AioPartition(topic, 1): (offset, text)})
        finally:
            await aio.stop()

    try:
        for offset, text in enumerate(texts, start=1):
            consumer.commit(offsets=[TopicPartition(topic, 0, offset, text)], asynchronous=False)
            asyncio.run(read_and_commit(offset, text))
            assert committed(broker, topic, topic, 2) == [(offset, text)] * 2
            python.commit({PyPartition(topic, 1): OffsetAndMetadata(offset + 10, text, -1)})
            assert committed(broker, topic, topic, 2)[1] == (offset + 10, text)
            assert python.committed(PyPartition(topic, 1), metadata=True).metadata == text
    finally:
        consumer.close()
        python.close()


def test_aiokafka_members_share_and_hand_over(broker, topic):
    async def scenario() -> None:
        from aiokafka import AIOKafkaConsumer

        def member() -> AIOKafkaConsumer:
            return AIOKafkaConsumer(
                topic,
                bootstrap_servers=broker.kafka,
                group_id=topic,
                auto_offset_reset="earliest",
                heartbeat_interval_ms=200,
                session_timeout_ms=60_000,
                metadata_max_age_ms=1000,
            )

        async def shared(members) -> None:
            async with asyncio.timeout(TIMEOUT_S):
                while True:
                    sizes = [len(one.assignment()) for one in members]
                    union = set().union(*(one.assignment() for one in members))
                    if sum(sizes) == len(union) == PARTITIONS and min(sizes) >= 2:
                        return
                    await asyncio.sleep(0.05)

        members = [member() for _ in range(3)]
        for one in members:
            await one.start()
        try:
            await shared(members)
            await asyncio.to_thread(
                spread, broker.kafka, topic, [str(n).encode() for n in range(90)]
            )
            values: set[bytes] = set()
            async with asyncio.timeout(TIMEOUT_S):
                while len(values) < 90:
                    for one in members:
                        for records in (await one.getmany(timeout_ms=50)).values():
                            values |= {record.value for record in records}
            await members.pop().stop()
            await shared(members)
        finally:
            for one in members:
                await one.stop()

    asyncio.run(scenario())
    assert sum(offsets(broker.kafka, topic).values()) == 90


def test_kafka_python_members_share_and_hand_over(broker, topic):
    from kafka import KafkaConsumer

    class Member:
        def __init__(self) -> None:
            self.owned: set[int] = set()
            self.values: list[bytes] = []
            self._stop = threading.Event()
            self._thread = threading.Thread(target=self._run)
            self._thread.start()

        def _run(self) -> None:
            consumer = KafkaConsumer(
                topic,
                bootstrap_servers=broker.kafka,
                group_id=topic,
                auto_offset_reset="earliest",
                heartbeat_interval_ms=200,
                session_timeout_ms=60_000,
                request_timeout_ms=90_000,
            )
            while not self._stop.is_set():
                for records in consumer.poll(timeout_ms=100).values():
                    self.values += [record.value for record in records]
                self.owned = {at.partition for at in consumer.assignment()}
            consumer.close()

        def leave(self) -> None:
            self._stop.set()
            self._thread.join()

    members = [Member(), Member(), Member()]
    gone = None
    try:
        wait_until(lambda: is_shared(members))
        spread(broker.kafka, topic, [str(n).encode() for n in range(90)])
        wait_until(lambda: len({v for m in members for v in m.values}) == 90)
        gone = members.pop()
        gone.leave()
        wait_until(lambda: is_shared(members))
    finally:
        for member in members:
            member.leave()
    wait_until(lambda: sum(offsets(broker.kafka, topic).values()) == 90)


def test_members_of_different_clients_share_one_group(broker, topic):
    """librdkafka and kafka-python agree on `range`, so they gather in one group."""
    from kafka import KafkaConsumer

    member = ConfluentMember(
        broker.kafka, topic, topic, partition_assignment_strategy="range,roundrobin"
    )
    python = KafkaConsumer(
        topic, bootstrap_servers=broker.kafka, group_id=topic, heartbeat_interval_ms=200
    )
    try:

        def is_split() -> bool:
            python.poll(timeout_ms=100)
            mine, others = {at.partition for at in python.assignment()}, set(member.owned)
            return len(mine) == 3 == len(others) and mine.isdisjoint(others)

        wait_until(is_split)
    finally:
        python.close()
        member.leave()


def test_a_member_sees_partitions_that_are_added(broker, topic):
    from confluent_kafka.admin import NewPartitions

    member = ConfluentMember(broker.kafka, topic, topic, topic_metadata_refresh_interval_ms=500)
    try:
        wait_until(lambda: len(member.owned) == PARTITIONS)
        client = admin(broker.kafka)
        client.create_partitions([NewPartitions(topic, 9)])[topic].result(TIMEOUT_S)
        wait_until(lambda: len(member.owned) == 9)
    finally:
        member.leave()


def test_kcat_reads_as_a_group(broker, topic):
    from tests.integration.clients import Kcat, require

    require("kcat")
    Confluent.produce(broker.kafka, topic, [Rec(None, b"v")] * 5)
    settings = ["-X", "auto.offset.reset=earliest", "-q", "-c", "5"]
    out = Kcat.run(broker.kafka, *settings, "-G", topic, topic)
    assert out.split() == [b"v"] * 5
    wait_until(lambda: offsets(broker.kafka, topic).get(0) == 5)
