"""Transactions of real clients: atomic, fenced, timed out, over a coordinator that is killed."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
import uuid
from concurrent.futures import ThreadPoolExecutor

import aiokafka
import pytest
from confluent_kafka import (
    Consumer,
    ConsumerGroupTopicPartitions,
    KafkaError,
    KafkaException,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient
from kafka import KafkaConsumer, KafkaProducer
from kafka.structs import OffsetAndMetadata
from kafka.structs import TopicPartition as PlainPartition
from tests.integration.broker import Broker
from tests.integration.clients import create_topic
from tests.integration.raw import Raw
from tests.integration.test_workers import end_of, leaders, worker_processes
from tests.waiting import wait_until

TIMEOUT_S = 30


def fresh(name: str) -> str:
    return f"{name}-{uuid.uuid4().hex[:8]}"


def transactional(broker, transactional_id: str, **options) -> Producer:
    producer = Producer(
        {
            "bootstrap.servers": broker.kafka,
            "transactional.id": transactional_id,
            "transaction.timeout.ms": 60_000,
            **options,
        }
    )
    producer.init_transactions(TIMEOUT_S)
    return producer


def read_all(broker, topic: str, isolation: str = "read_committed") -> list[bytes]:
    """The values up to the end that a consumer of this isolation sees."""
    return sorted(value for _, value in read_pairs(broker, topic, isolation))


def read_pairs(
    broker, topic: str, isolation: str = "read_committed"
) -> list[tuple[bytes | None, bytes]]:
    """Keys and values, those of a partition in its order: see `read_all`."""
    consumer = Consumer(
        {
            "bootstrap.servers": broker.kafka,
            "group.id": fresh("reader"),
            "isolation.level": isolation,
            "auto.offset.reset": "earliest",
            "enable.partition.eof": True,
            "enable.auto.commit": False,
        }
    )
    try:
        partitions = consumer.list_topics(topic, TIMEOUT_S).topics[topic].partitions
        consumer.assign([TopicPartition(topic, number, 0) for number in partitions])
        pairs: list[tuple[bytes | None, bytes]] = []
        ended: set[int] = set()
        deadline = time.monotonic() + TIMEOUT_S
        while len(ended) < len(partitions):
            assert time.monotonic() < deadline, "the end of the topic was not reached"
            message = consumer.poll(1)
            if message is None:
                continue
            if message.error() is not None:
                assert message.error().code() == KafkaError._PARTITION_EOF, message.error()
                ended.add(message.partition())
            else:
                pairs.append((message.key(), message.value()))
        return pairs
    finally:
        consumer.close()


def headrace(broker, *arguments: str) -> str:
    """What the command line prints."""
    command = [sys.executable, "-m", "headrace.cli.main", "--bootstrap", broker.kafka, *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def test_librdkafka_commits_and_aborts_over_partitions(shared_broker):
    topic = fresh("txn")
    create_topic(shared_broker.kafka, topic, 3)
    producer = transactional(shared_broker, fresh("t"))
    for number in range(4):
        producer.begin_transaction()
        for partition in range(3):
            producer.produce(topic, b"%d-%d" % (number, partition), partition=partition)
        if number % 2:
            producer.abort_transaction(TIMEOUT_S)
        else:
            producer.commit_transaction(TIMEOUT_S)
    committed = [b"%d-%d" % (n, p) for n in (0, 2) for p in range(3)]
    assert read_all(shared_broker, topic) == committed
    assert len(read_all(shared_broker, topic, "read_uncommitted")) >= len(committed)


def test_an_open_transaction_is_not_seen_and_holds_back_what_comes_after(shared_broker):
    topic = fresh("txn")
    create_topic(shared_broker.kafka, topic)
    producer = transactional(shared_broker, fresh("t"))
    producer.begin_transaction()
    producer.produce(topic, b"open")
    producer.flush(TIMEOUT_S)
    plain = Producer({"bootstrap.servers": shared_broker.kafka})
    plain.produce(topic, b"after")
    plain.flush(TIMEOUT_S)
    assert read_all(shared_broker, topic) == []
    assert read_all(shared_broker, topic, "read_uncommitted") == [b"after", b"open"]
    producer.commit_transaction(TIMEOUT_S)
    wait_until(lambda: read_all(shared_broker, topic) == [b"after", b"open"])


async def test_aiokafka_commits_and_aborts(shared_broker):
    topic = fresh("txn")
    create_topic(shared_broker.kafka, topic)

    producer = aiokafka.AIOKafkaProducer(
        bootstrap_servers=shared_broker.kafka, transactional_id=fresh("t")
    )
    await producer.start()
    try:
        async with producer.transaction():
            await producer.send_and_wait(topic, b"kept")
        await producer.begin_transaction()
        await producer.send_and_wait(topic, b"dropped")
        await producer.abort_transaction()
        async with producer.transaction():
            await producer.send_and_wait(topic, b"kept too")
    finally:
        await producer.stop()
    consumer = aiokafka.AIOKafkaConsumer(
        topic,
        bootstrap_servers=shared_broker.kafka,
        isolation_level="read_committed",
        auto_offset_reset="earliest",
    )
    await consumer.start()
    try:
        async with asyncio.timeout(TIMEOUT_S):
            assert [(await consumer.getone()).value for _ in range(2)] == [b"kept", b"kept too"]
    finally:
        await consumer.stop()


def test_kafka_python_commits_and_aborts(shared_broker):
    topic = fresh("txn")
    create_topic(shared_broker.kafka, topic)
    producer = KafkaProducer(bootstrap_servers=shared_broker.kafka, transactional_id=fresh("t"))
    producer.init_transactions()
    for value, is_kept in ((b"kept", True), (b"dropped", False), (b"kept too", True)):
        producer.begin_transaction()
        producer.send(topic, value).get(TIMEOUT_S)
        if is_kept:
            producer.commit_transaction()
        else:
            producer.abort_transaction()
    producer.close()
    consumer = KafkaConsumer(
        topic,
        bootstrap_servers=shared_broker.kafka,
        isolation_level="read_committed",
        auto_offset_reset="earliest",
        consumer_timeout_ms=10_000,
    )
    try:
        assert [next(consumer).value for _ in range(2)] == [b"kept", b"kept too"]
    finally:
        consumer.close()


def consume_transform_produce(broker, source: str, target: str, group: str, crash_after: int):
    """Copy in transactions of five records; end without a word after `crash_after` of them."""
    consumer = Consumer(
        {
            "bootstrap.servers": broker.kafka,
            "group.id": group,
            "isolation.level": "read_committed",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "session.timeout.ms": 6_000,
        }
    )
    producer = transactional(broker, f"copier-of-{group}")
    consumer.subscribe([source])
    copied = 0
    deadline = time.monotonic() + TIMEOUT_S
    try:
        while copied < crash_after and time.monotonic() < deadline:
            messages = [m for m in consumer.consume(5, 2) if m.error() is None]
            if not messages:
                if copied:
                    break
                continue
            producer.begin_transaction()
            for message in messages:
                producer.produce(target, message.value() + b"!")
            producer.send_offsets_to_transaction(
                consumer.position(consumer.assignment()),
                consumer.consumer_group_metadata(),
                TIMEOUT_S,
            )
            copied += len(messages)
            if copied >= crash_after:
                producer.flush(TIMEOUT_S)
                return  # the transaction stays open, as after a crash
            producer.commit_transaction(TIMEOUT_S)
    finally:
        consumer.close()


def test_a_copy_that_is_interrupted_has_each_record_once(shared_broker):
    source, target, group = fresh("source"), fresh("target"), fresh("g")
    create_topic(shared_broker.kafka, source)
    create_topic(shared_broker.kafka, target)
    plain = Producer({"bootstrap.servers": shared_broker.kafka})
    for number in range(30):
        plain.produce(source, b"%02d" % number)
    plain.flush(TIMEOUT_S)
    consume_transform_produce(shared_broker, source, target, group, crash_after=12)
    consume_transform_produce(shared_broker, source, target, group, crash_after=1_000)
    assert read_all(shared_broker, target) == [b"%02d!" % number for number in range(30)]


def test_an_offset_in_an_open_transaction_is_unstable_and_counts_when_it_commits(shared_broker):
    topic, group = fresh("txn"), fresh("g")
    create_topic(shared_broker.kafka, topic)
    producer = KafkaProducer(bootstrap_servers=shared_broker.kafka, transactional_id=fresh("t"))
    producer.init_transactions()
    admin = AdminClient({"bootstrap.servers": shared_broker.kafka})

    def committed(*, stable: bool):
        asked = [ConsumerGroupTopicPartitions(group, [TopicPartition(topic, 0)])]
        found = admin.list_consumer_group_offsets(asked, require_stable=stable)
        return next(iter(found.values())).result(TIMEOUT_S).topic_partitions[0]

    offsets = {PlainPartition(topic, 0): OffsetAndMetadata(7, "", -1)}
    for is_kept in (False, True):
        producer.begin_transaction()
        producer.send_offsets_to_transaction(offsets, group)
        assert committed(stable=False).offset < 0
        unstable = committed(stable=True)
        assert unstable.error is not None
        assert unstable.error.code() == KafkaError.UNSTABLE_OFFSET_COMMIT
        if is_kept:
            producer.commit_transaction()
        else:
            producer.abort_transaction()
        wait_until(lambda: committed(stable=True).error is None)
    assert committed(stable=True).offset == 7
    producer.close()


def test_the_command_line_lists_describes_and_aborts(shared_broker):
    topic, transactional_id = fresh("txn"), fresh("t")
    create_topic(shared_broker.kafka, topic)
    producer = transactional(shared_broker, transactional_id)
    producer.begin_transaction()
    producer.produce(topic, b"left open")
    producer.flush(TIMEOUT_S)
    listed = json.loads(headrace(shared_broker, "txn", "list", "--state", "Ongoing", "--json"))
    assert transactional_id in [item["transactional_id"] for item in listed]
    (found,) = json.loads(headrace(shared_broker, "txn", "describe", transactional_id, "--json"))
    assert found["state"] == "Ongoing"
    assert found["partitions"] == [{"topic": topic, "partition": 0}]
    assert found["started_ms"] > 0
    transactional(shared_broker, f"{transactional_id}-idle")
    printed = headrace(shared_broker, "txn", "describe", f"{transactional_id}-idle")
    assert "Empty" in printed
    place = ("--topic", topic, "--partition", "0", "--start-offset", "0")
    assert "aborted" in headrace(shared_broker, "txn", "abort-hanging", *place)
    plain = Producer({"bootstrap.servers": shared_broker.kafka})
    plain.produce(topic, b"after")
    plain.flush(TIMEOUT_S)
    assert read_all(shared_broker, topic) == [b"after"]


def test_a_producer_is_fenced_by_a_second_one_with_its_id(shared_broker):
    topic, transactional_id = fresh("txn"), fresh("t")
    create_topic(shared_broker.kafka, topic)
    first = transactional(shared_broker, transactional_id)
    first.begin_transaction()
    first.produce(topic, b"of the first")
    first.flush(TIMEOUT_S)
    second = transactional(shared_broker, transactional_id)
    with pytest.raises(KafkaException) as caught:
        first.commit_transaction(TIMEOUT_S)
    assert caught.value.args[0].fatal()
    second.begin_transaction()
    second.produce(topic, b"of the second")
    second.commit_transaction(TIMEOUT_S)
    assert read_all(shared_broker, topic) == [b"of the second"]


def test_a_transaction_that_never_ends_is_aborted_in_time(shared_broker):
    topic = fresh("txn")
    create_topic(shared_broker.kafka, topic)
    options = {"transaction.timeout.ms": 2_000, "message.timeout.ms": 2_000}
    producer = transactional(shared_broker, fresh("t"), **options)
    producer.begin_transaction()
    producer.produce(topic, b"forgotten")
    producer.flush(TIMEOUT_S)
    plain = Producer({"bootstrap.servers": shared_broker.kafka})
    plain.produce(topic, b"after")
    plain.flush(TIMEOUT_S)
    wait_until(lambda: read_all(shared_broker, topic) == [b"after"], 10)
    with pytest.raises(KafkaException):
        producer.commit_transaction(TIMEOUT_S)


def test_transactions_outlive_a_broker_that_is_killed(tmp_path):
    """Kill it at any moment of many small transactions: each is there as a whole or not at all."""
    broker = Broker(tmp_path)
    broker.start()
    try:
        topic = "txn"
        create_topic(broker.kafka, topic, 3)
        producer = transactional(broker, "t", **{"transaction.timeout.ms": 10_000})
        committed: list[int] = []
        for number in range(40):
            if number in (10, 25):
                broker.kill()
                broker.start()
            producer.begin_transaction()
            try:
                for partition in range(3):
                    producer.produce(topic, b"%d-%d" % (number, partition), partition=partition)
                producer.commit_transaction(TIMEOUT_S)
                committed.append(number)
            except KafkaException:
                producer.abort_transaction(TIMEOUT_S)  # raises where the error was fatal
        values = read_all(broker, topic)
        expected = sorted(b"%d-%d" % (n, p) for n in committed for p in range(3))
        assert values == expected
        assert len(committed) >= 35
    finally:
        broker.stop()


def test_transactions_span_the_workers_of_one_machine(tmp_path):
    """Markers and offsets reach the partitions that other workers own, and a killed worker's."""
    broker = Broker(tmp_path, "--workers", "3")
    broker.start()
    try:
        create_topic(broker.kafka, "source", 6)
        create_topic(broker.kafka, "target", 6)
        plain = Producer({"bootstrap.servers": broker.kafka})
        for number in range(60):
            plain.produce("source", b"%02d" % number, partition=number % 6)
        plain.flush(TIMEOUT_S)
        for group, ending in (("a", 13), ("a", 1_000)):
            consume_transform_produce(broker, "source", "target", group, ending)
        assert read_all(broker, "target") == [b"%02d!" % number for number in range(60)]
        for number in range(6):
            producer = transactional(broker, f"t{number}")
            producer.begin_transaction()
            for partition in range(6):
                producer.produce("source", b"t%d-%d" % (number, partition), partition=partition)
            if number % 2:
                producer.abort_transaction(TIMEOUT_S)
            else:
                producer.commit_transaction(TIMEOUT_S)
        values = [value for value in read_all(broker, "source") if value.startswith(b"t")]
        assert values == [b"t%d-%d" % (n, p) for n in (0, 2, 4) for p in range(6)]
    finally:
        broker.stop()


def test_transactions_outlive_workers_that_are_killed(tmp_path):
    """Coordinators, owners of partitions and of offsets are killed while transactions end."""
    broker = Broker(tmp_path, "--workers", "3")
    broker.start()
    try:
        create_topic(broker.kafka, "t", 6)
        outcomes: dict[int, str] = {}
        producer = transactional(broker, "t", **{"transaction.timeout.ms": 30_000})
        for number in range(45):
            if number % 15 == 7:
                victim = worker_processes(broker)[number % 3]
                victim.kill()
            producer.begin_transaction()
            try:
                for partition in range(6):
                    producer.produce("t", b"%02d-%d" % (number, partition), partition=partition)
                if number % 5 == 4:
                    producer.abort_transaction(TIMEOUT_S)
                    outcomes[number] = "aborted"
                else:
                    producer.commit_transaction(TIMEOUT_S)
                    outcomes[number] = "committed"
            except KafkaException:
                producer.abort_transaction(TIMEOUT_S)  # raises where the error was fatal
                outcomes[number] = "aborted"
        committed = [number for number, outcome in outcomes.items() if outcome == "committed"]
        assert len(committed) >= 25
        assert read_all(broker, "t") == [b"%02d-%d" % (n, p) for n in committed for p in range(6)]
    finally:
        broker.stop()


def coordinator_of(broker, transactional_id: str) -> tuple[int, tuple[str, int]]:
    """The id and the address of a transaction's coordinator."""

    host, _, port = broker.kafka.split(",")[0].rpartition(":")

    def found():
        with Raw((host, int(port))) as raw:
            answer = raw.call(10, 4, key_type=1, coordinator_keys=(transactional_id,))
        node = answer.coordinators[0]
        return None if int(node.error_code) else (int(node.node_id), (node.host, node.port))

    return wait_until(found)


def state_of(address: tuple[str, int], transactional_id: str) -> str | None:
    """What its coordinator says that a transaction is doing."""
    with Raw(address) as raw:
        listed = raw.call(66, 0, state_filters=(), producer_id_filters=()).transaction_states
    return next((t.transaction_state for t in listed if t.transactional_id == transactional_id), "")


@pytest.mark.parametrize("is_commit", [True, False])
def test_a_coordinator_killed_between_prepare_and_complete_ends_the_transaction(
    tmp_path, is_commit
):
    """One owner is stopped, so that its marker cannot be written, and the coordinator is killed
    then: the transaction ends in every partition as it was decided."""
    broker = Broker(tmp_path, "--workers", "3")
    broker.start()
    try:
        create_topic(broker.kafka, "t", 6)
        owners = leaders(broker.kafka, "t")
        ids = sorted(set(owners))
        processes = [process for _, process in sorted(worker_processes(broker).items())]
        workers = dict(zip(ids, processes, strict=True))
        producer = transactional(broker, "killed")
        coordinator, address = coordinator_of(broker, "killed")
        stopped = workers[next(one for one in ids if one != coordinator)]
        producer.begin_transaction()
        for partition in range(6):
            producer.produce("t", b"%d" % partition, partition=partition)
        assert producer.flush(TIMEOUT_S) == 0
        stopped.suspend()
        try:
            end = producer.commit_transaction if is_commit else producer.abort_transaction
            with ThreadPoolExecutor() as pool:
                ending = pool.submit(end, TIMEOUT_S)
                state = "PrepareCommit" if is_commit else "PrepareAbort"
                wait_until(lambda: state_of(address, "killed") == state)
                workers[coordinator].kill()
                stopped.resume()
                ending.result()
        finally:
            stopped.resume()
        expected = [b"%d" % partition for partition in range(6)] if is_commit else []
        wait_until(lambda: read_all(broker, "t") == expected)
        client = Consumer({"bootstrap.servers": broker.kafka, "group.id": "ends"})
        ends = [end_of(client, "t", partition) for partition in range(6)]
        client.close()
        # Of the second coordinator's markers, some may come after one that the first has written.
        assert set(ends) <= {2, 3}, "a record, and one marker of each coordinator at most"
    finally:
        broker.stop()
