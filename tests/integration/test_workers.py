"""`headrace serve --workers N`: several brokers of one machine, one cluster for its clients."""

from __future__ import annotations

import http.client
import subprocess
import sys
import threading
import time

import psutil
import pytest
from confluent_kafka import Consumer, TopicPartition
from tests.integration.broker import Broker
from tests.integration.clients import TIMEOUT_S, admin, create_topic, end_of
from tests.integration.raw import Raw, error_codes
from tests.integration.streams import Thread, counting
from tests.waiting import wait_until

FIND_COORDINATOR, DELETE_GROUPS = 10, 42
DESCRIBE_SHARE_GROUP_OFFSETS, ALTER_SHARE_GROUP_OFFSETS = 90, 91
PARTITIONS = 6
COORDINATOR_MOVES = (14, 15, 16)
"""Still loading, not yet known, elsewhere: clients ask again."""


@pytest.fixture
def workers(tmp_path):
    broker = Broker(tmp_path, "--workers", "2")
    broker.start()
    yield broker
    broker.stop()


def leaders(at: str, topic: str) -> list[int]:
    """As soon as the broker that is asked knows them all: it learns of a topic a little later."""
    client = admin(at)

    def known() -> list[int]:
        described = client.list_topics(topic, timeout=TIMEOUT_S).topics[topic].partitions
        found = [described[number].leader for number in range(len(described))]
        return [] if -1 in found else found

    return wait_until(known)


def worker_processes(broker: Broker) -> dict[int, psutil.Process]:
    """Those that live, by number."""
    found = {}
    for child in psutil.Process(broker.process.pid).children():
        try:
            command = child.cmdline()
            found[int(command[command.index("--worker") + 1])] = child
        except (psutil.Error, ValueError):  # it is on its way out
            continue
    return found


def kill_worker(broker: Broker, number: int) -> None:
    """Kill -9 one, and wait until there is another in its place."""
    killed = wait_until(lambda: worker_processes(broker).get(number))
    killed.kill()

    def is_back() -> bool:
        process = worker_processes(broker).get(number)
        return process is not None and process.pid != killed.pid

    wait_until(is_back)


def produce(at: str, topic: str, values: list[bytes]) -> list[tuple[int, int, bytes]]:
    """(partition, offset, value) of what was acknowledged: all of it."""
    from confluent_kafka import Producer

    acknowledged: list[tuple[int, int, bytes]] = []
    errors: list[object] = []

    def delivered(error, message):
        if error is not None:
            errors.append(error)
        else:
            acknowledged.append((message.partition(), message.offset(), message.value()))

    producer = Producer(
        {"bootstrap.servers": at, "enable.idempotence": True, "linger.ms": 1, "log_level": 0}
    )
    for number, value in enumerate(values):
        producer.produce(topic, value, partition=number % PARTITIONS, on_delivery=delivered)
        producer.poll(0)
    producer.flush(200)
    assert not errors
    assert len(acknowledged) == len(values)
    return acknowledged


def read_all(at: str, topic: str) -> list[tuple[int, int, bytes]]:
    from confluent_kafka import Consumer, TopicPartition

    client = Consumer({"bootstrap.servers": at, "group.id": "reader", "log_level": 0})
    found: list[tuple[int, int, bytes]] = []
    ends = {number: end_of(client, topic, number) for number in range(PARTITIONS)}
    client.assign([TopicPartition(topic, number, 0) for number in range(PARTITIONS)])
    deadline = time.monotonic() + TIMEOUT_S
    while len(found) < sum(ends.values()):
        assert time.monotonic() < deadline, f"{len(found)} of {sum(ends.values())}"
        for message in client.consume(1000, 0.2):
            if message.error() is None:
                found.append((message.partition(), message.offset(), message.value()))
    client.close()
    return found


def test_partitions_are_spread_and_any_worker_will_do_to_begin_with(workers):
    create_topic(workers.kafka, "spread", PARTITIONS)
    wait_until(lambda: sorted(leaders(workers.kafka, "spread")) == [0, 0, 0, 1, 1, 1])
    values = [b"%d" % number for number in range(300)]
    for at in workers.kafka.split(","):
        wait_until(lambda at=at: sorted(leaders(at, "spread")) == [0, 0, 0, 1, 1, 1])
    acknowledged = produce(workers.kafka.split(",")[1], "spread", values)
    assert sorted(read_all(workers.kafka.split(",")[0], "spread")) == sorted(acknowledged)


def test_groups_find_their_coordinator_and_share_the_partitions(workers):
    from confluent_kafka import Consumer

    create_topic(workers.kafka, "grouped", PARTITIONS)
    produce(workers.kafka, "grouped", [b"%d" % number for number in range(120)])
    for name in ("one", "two", "three", "four"):  # hashed onto coordinators of both workers
        settings = {
            "bootstrap.servers": workers.kafka,
            "group.id": name,
            "auto.offset.reset": "earliest",
            "log_level": 0,
        }
        found = []
        client = Consumer(settings)
        client.subscribe(["grouped"])
        deadline = time.monotonic() + TIMEOUT_S
        while len(found) < 120:
            assert time.monotonic() < deadline, f"{len(found)} in group {name}"
            found += [m.value() for m in client.consume(500, 0.2) if m.error() is None]
        client.commit(asynchronous=False)
        client.close()
        assert len(set(found)) == 120
    client = admin(workers.kafka)
    listed = client.list_consumer_groups().result(TIMEOUT_S)
    assert not listed.errors
    assert {"one", "two", "three", "four"} <= {group.group_id for group in listed.valid}


def test_a_killed_worker_comes_back_with_all_that_was_acknowledged(workers):
    create_topic(workers.kafka, "killed", PARTITIONS)
    values = [b"%d" % number for number in range(6_000)]
    acknowledged: list[tuple[int, int, bytes]] = []
    thread = threading.Thread(
        target=lambda: acknowledged.extend(produce(workers.kafka, "killed", values))
    )
    thread.start()
    for number in (1, 0, 1):
        time.sleep(0.3)
        kill_worker(workers, number)
    thread.join(300)
    assert not thread.is_alive()
    assert len(acknowledged) == len(values)
    found = read_all(workers.kafka, "killed")
    assert sorted(found) == sorted(acknowledged), "once each, where it was acknowledged"
    for number in range(PARTITIONS):
        mine = [value for at, _offset, value in sorted(found) if at == number]
        assert [int(value) for value in mine] == sorted(int(value) for value in mine)


def test_a_broker_that_was_alone_becomes_many_and_keeps_its_records(tmp_path):
    broker = Broker(tmp_path).start()
    create_topic(broker.kafka, "old", PARTITIONS)
    acknowledged = produce(broker.kafka, "old", [b"%d" % number for number in range(60)])
    broker.stop()
    broker.options = ("--workers", "3")
    broker.kafka = broker.http = "127.0.0.1:0"
    broker.start()
    try:
        assert leaders(broker.kafka, "old") == [0] * PARTITIONS
        assert sorted(read_all(broker.kafka, "old")) == sorted(acknowledged)
        create_topic(broker.kafka, "new", PARTITIONS)
        wait_until(lambda: sorted(leaders(broker.kafka, "new")) == [0, 0, 1, 1, 2, 2])
        more = produce(broker.kafka, "new", [b"x"] * 60)
        client = admin(broker.kafka)
        client.delete_topics(["new"])["new"].result(TIMEOUT_S)
    finally:
        broker.stop()
    assert len(more) == 60
    # Fewer would leave partitions unserved; unasked, it takes as many as there were.
    command = [sys.executable, "-m", "headrace.cli.main", "serve", "--workers", "2"]
    refused = subprocess.run(
        [*command, "--data-dir", str(broker.data_dir)], capture_output=True, text=True, timeout=90
    )
    assert refused.returncode != 0
    assert "--workers 3" in refused.stderr
    broker.options, broker.returns_to_its_ports = (), False
    broker.kafka = broker.http = "127.0.0.1:0"
    broker.start()
    try:
        assert broker.kafka.count(",") == 2
        assert sorted(read_all(broker.kafka, "old")) == sorted(acknowledged)
    finally:
        broker.stop()


def test_no_worker_outlives_its_supervisor(tmp_path):
    broker = Broker(tmp_path, "--workers", "2").start()
    children = list(worker_processes(broker).values())
    broker.kill()
    gone, alive = psutil.wait_procs(children, timeout=60)
    assert len(gone) == 2, alive


def test_a_share_group_is_administered_over_partitions_of_all_workers(workers):
    create_topic(workers.kafka, "jobs", PARTITIONS)
    assert set(leaders(workers.kafka, "jobs")) == {0, 1}
    produce(workers.kafka, "jobs", [b"x"] * PARTITIONS * 4)
    which = {"key_type": 0, "coordinator_keys": ("g",)}
    parts = [{"partition_index": number, "start_offset": 3} for number in range(PARTITIONS)]
    topics = [{"topic_name": "jobs", "partitions": parts}]

    host, _, port = workers.kafka.split(",")[0].rpartition(":")
    with Raw((host, int(port))) as raw:

        def coordinator():
            found = raw.call(FIND_COORDINATOR, 4, **which).coordinators[0]
            return (found.host, found.port) if not int(found.error_code) else None

        address = wait_until(coordinator)
    with Raw(address) as raw:

        def alter():
            """The answer, once the named worker has learned that it coordinates the group."""
            found = raw.call(ALTER_SHARE_GROUP_OFFSETS, 0, group_id="g", topics=topics)
            return None if int(found.error_code) in COORDINATOR_MOVES else found

        altered = wait_until(alter)
        assert int(altered.error_code) == 0, altered.error_message
        errors = [int(part.error_code) for one in altered.responses for part in one.partitions]
        assert errors == [0] * PARTITIONS

        def stands():
            asked = [{"group_id": "g", "topics": None}]
            (group,) = raw.call(DESCRIBE_SHARE_GROUP_OFFSETS, 1, groups=asked).groups
            return {
                part.partition_index: (part.start_offset, part.lag)
                for topic in group.topics
                for part in topic.partitions
            }

        assert stands() == dict.fromkeys(range(PARTITIONS), (3, 1))
        (deleted,) = raw.call(DELETE_GROUPS, 2, groups_names=("g",)).results
        assert int(deleted.error_code) == 0
        assert stands() == {}


def test_a_streams_group_goes_on_when_its_coordinator_is_killed(workers):
    create_topic(workers.kafka, "lines", 4)
    host, _, port = workers.kafka.split(",")[0].rpartition(":")

    def coordinator():
        try:
            with Raw((host, int(port))) as raw:
                which = {"key_type": 0, "coordinator_keys": ("app",)}
                found = raw.call(FIND_COORDINATOR, 4, **which).coordinators[0]
        except OSError:  # that is the worker that was killed
            return None
        return found if not int(found.error_code) else None

    def find(thread: Thread) -> bool:
        """Send a heartbeat to the worker that coordinates the group; whether that is well."""
        found = wait_until(coordinator)
        thread.address = found.host, found.port
        try:
            return error_codes(thread.beat()) == [0]
        except OSError:
            return False

    thread = Thread((host, int(port)), "app", counting("lines", "app"))
    wait_until(lambda: find(thread) and thread.has_all())
    before = thread.epoch, set(thread.tasks)
    kill_worker(workers, wait_until(coordinator).node_id)
    wait_until(lambda: find(thread))
    assert (thread.epoch, thread.tasks) == before


def test_the_id_of_a_consumer_group_is_no_queue_group_on_any_worker(workers) -> None:
    topic = "jobs"
    create_topic(workers.kafka, topic, PARTITIONS)
    settings = {"bootstrap.servers": workers.kafka, "group.id": "readers"}
    consumer = Consumer(settings)
    offsets = [TopicPartition(topic, number, 0) for number in range(PARTITIONS)]
    wait_until(lambda: consumer.commit(offsets=offsets, asynchronous=False))
    consumer.close()
    for address in workers.http.split(","):
        for group, status in (("readers", 409), ("others", 200)):
            connection = http.client.HTTPConnection(address, timeout=TIMEOUT_S)
            connection.request(
                "POST", f"/v1/queues/{topic}/{group}/receive", b"{}",
                {"Content-Type": "application/json"},
            )  # fmt: skip
            answer = connection.getresponse()
            text = answer.read().decode()
            assert answer.status == status, (address, group, text)
            assert status == 200 or "is a consumer group" in text
            connection.close()
