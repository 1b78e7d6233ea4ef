"""A topic that one tenant shares with another, on brokers that are killed, stopped and restored."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, ShareConsumer, TopicPartition
from tests.cluster.brokers import Brokers, Load
from tests.cluster.test_cluster_backup import asked, emptied
from tests.integration.broker import Place
from tests.integration.clients import TIMEOUT_S, admin, create_topic
from tests.integration.raw import Raw, error_codes, fetch_values
from tests.integration.tenants import (
    INSIDE,
    OPERATOR,
    add_user,
    answered,
    ask,
    of_tenants,
    share,
    unshare,
)
from tests.waiting import wait_until

from headrace.cli.cluster_backup import backup, restore

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.integration.broker import Broker

LISTENERS = INSIDE, "ACME", "BETA"
FOLLOWED_S = 2
"""In this time an end holds at every broker."""
METADATA, FETCH = 3, 1
UNKNOWN_TOPIC = 3
PROTOCOLS = "classic", "consumer"
STREAMS = "tail", "events"


class Sharing(Brokers):
    """Brokers with a listener for each of two tenants, for acme unless it says otherwise."""

    def __init__(self, folder, zookeeper: str, count: int = 2, *options: str) -> None:
        root = ("--zookeeper-root", f"/{folder.name}")
        for user in (OPERATOR, "acme", "beta"):
            add_user(user, "--zookeeper", zookeeper, *root)
        options = (*root, *of_tenants("acme", "beta"), *options)
        super().__init__(folder, zookeeper, count, *options)

    def add(self, broker_id: int) -> Broker:
        broker = self.by_id.get(broker_id) or self.prepare(broker_id)
        broker.listen(*LISTENERS)
        return super().add(broker_id)

    @property
    def running(self) -> list[Broker]:
        return [one for one in self.by_id.values() if one.process is not None]

    def _of(self, listener: str) -> str:
        return ",".join(one.listeners[listener] for one in self.running)

    @property
    def bootstrap(self) -> str:
        return self._of("ACME")

    @property
    def beta(self) -> str:
        return self._of("BETA")

    def owner(self, topic: str) -> int:
        return self.leaders(topic)[0]

    def other(self, broker_id: int) -> Broker:
        return next(one for number, one in self.by_id.items() if number != broker_id)


@pytest.fixture(scope="module")
def brokers(tmp_path_factory, shared_cluster) -> Iterator[Sharing]:
    made = Sharing(tmp_path_factory.mktemp("sharing"), shared_cluster.zookeeper.address)
    yield made
    made.close()


class Reader:
    """A member of a group of beta, in a thread, that commits what it has read."""

    def __init__(self, place: Sharing, group: str, topic: str, **settings: str) -> None:
        self.found: list[int] = []
        self.faults: list[str] = []
        settings = {name.replace("_", "."): value for name, value in settings.items()}
        self._settings = {"bootstrap.servers": place.beta, "group.id": group, "log_level": 0}
        self._settings |= {"topic.metadata.refresh.interval.ms": "1000"} | settings
        self._topic = topic
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._read()
        except BaseException as error:
            self.faults.append(repr(error))
            raise

    def _read(self) -> None:
        settings = {"auto.offset.reset": "earliest", "enable.auto.commit": "false"}
        client = Consumer(self._settings | settings)
        client.subscribe([self._topic])
        committed = 0
        while not self._is_over.is_set():
            read = [one for one in client.consume(100, 0.2) if one.error() is None]
            for one in read:
                if one.offset() < committed:
                    self.faults.append(f"{one.offset()} again, after {committed} was committed")
                self.found.append(int(one.value()))
            if read:
                try:
                    client.commit(asynchronous=False)
                except KafkaException:
                    continue  # the coordinator was killed
                committed = read[-1].offset() + 1
        client.close()

    def wait_read(self, values: set[int]) -> None:
        """Wait until it has read all of them."""
        wait_until(lambda: self.faults or values <= {*self.found}, 90)
        assert not self.faults, self.faults[:3]

    def close(self) -> None:
        """End it; nothing came that should not."""
        self._is_over.set()
        self._thread.join(60)
        assert not self._thread.is_alive()
        assert not self.faults, self.faults[:3]


class ShareReader(Reader):
    """The same of a share group."""

    def _read(self) -> None:
        settings = {"share.acknowledgement.mode": "explicit"}
        accepted: set[int] = set()
        with ShareConsumer(self._settings | settings) as client:
            client.subscribe([self._topic])
            while not self._is_over.is_set():
                read = [one for one in client.poll(0.2) if one.error() is None]
                for one in read:
                    if one.offset() in accepted:
                        self.faults.append(f"{one.offset()} again, after it was accepted")
                    self.found.append(int(one.value()))
                    client.acknowledge(one)
                if read and not any(client.commit_sync(10).values()):
                    accepted |= {one.offset() for one in read}


def from_start(place: Sharing, group: str) -> None:
    """A share group begins at the start of the topic."""
    body = {"set": {"share.auto.offset.reset": "earliest"}}
    ask(place.running[0], "PATCH", f"/v1/groups/{group}/config", body, "beta")


def committed(place: Sharing, group: str, topic: str) -> int:
    client = Consumer({"bootstrap.servers": place.beta, "group.id": group, "log_level": 0})
    try:
        return client.committed([TopicPartition(topic, 0)], TIMEOUT_S)[0].offset
    finally:
        client.close()


def produce(place: Sharing, topic: str, values: range) -> None:
    producer = Producer({"bootstrap.servers": place.bootstrap, "log_level": 0})
    for value in values:
        producer.produce(topic, str(value))
    assert producer.flush(TIMEOUT_S) == 0


def seen_by_the_owner(broker: Broker, topic: str) -> dict[str, str]:
    """All that a broker answers to acme about a topic and its groups, by what was asked."""
    paths = ask(broker, "GET", "/openapi.json", user="acme")["paths"]
    found: dict[str, str] = {}
    for path, operations in paths.items():
        place = path.replace("{topic}", topic).replace("{partition}", "0")
        if "get" in operations and "{" not in place and place.split("/")[-1] not in STREAMS:
            status, text = answered(broker, "GET", place, user="acme")
            found |= {path: text} if status == 200 else {}
    assert len(found) > 20
    client = admin(broker.listeners["ACME"])
    listed = client.list_consumer_groups(request_timeout=TIMEOUT_S).result()
    return found | {"listed": " ".join(one.group_id for one in listed.valid)}


def test_readers_go_on_when_the_owner_of_their_partition_is_killed(brokers):
    topic, name = "orders", "of-acme"
    groups = {f"of-{way}": way for way in PROTOCOLS}
    create_topic(brokers.bootstrap, topic, 1)
    share(brokers.by_id[1], topic, name, brokers.by_id[2])
    from_start(brokers, "of-shares")
    load = Load(brokers.bootstrap, topic, 1, rate=200)
    readers = [Reader(brokers, one, name, group_protocol=way) for one, way in groups.items()]
    readers.append(ShareReader(brokers, "of-shares", name))
    try:
        for reader in readers:
            reader.wait_read({*range(200)})
        owner = brokers.owner(topic)
        brokers.by_id[owner].kill()
        wait_until(lambda: brokers.owner(topic) != owner)
        load.wait_acked(100)
        brokers.add(owner)
        load.wait_acked(100)
        load.stop()
        for reader in readers:
            reader.wait_read({*range(len(load.sent[0]))})
        for broker in brokers.running:
            listed = ask(broker, "GET", "/v1/groups", user="beta")["groups"]
            assert {one["group"] for one in listed} >= {*groups, "of-shares"}
            seen = seen_by_the_owner(broker, topic)
            told = (*groups, "of-shares", name)
            assert not {at for at, text in seen.items() if any(one in text for one in told)}
    finally:
        for reader in readers:
            reader.close()
    for group in groups:
        assert committed(brokers, group, name) == len(load.sent[0])


def topics_at(broker: Broker) -> set[str]:
    """What one broker names to beta."""
    with Raw(Place(broker.listeners["BETA"]).address) as raw:
        answer = raw.call(METADATA, 9, topics=None)
    return {one.name for one in answer.topics if not one.error_code}


def waiting(broker: Broker, topic: str, offset: int) -> tuple[list[int], bytes]:
    """Error codes and records of a fetch that waits for the next record."""
    values = fetch_values(topic, None, offset, max_wait=20_000, min_bytes=1)
    with Raw(Place(broker.listeners["BETA"]).address) as raw:
        answer = raw.call(FETCH, 11, **values)
    records = [one.records or b"" for topic in answer.responses for one in topic.partitions]
    return error_codes(answer), b"".join(records)


def received(broker: Broker, topic: str, group: str) -> tuple[int, str]:
    """The same of a receive over HTTP."""
    body = {"max": 10, "wait_ms": 20_000}
    return answered(broker, "POST", f"/v1/queues/{topic}/{group}/receive", body, "beta")


def test_an_end_at_one_broker_holds_at_the_other_one_also_for_what_waits(brokers):
    topic, name = "ended", "of-acme-too"
    create_topic(brokers.bootstrap, topic, 1)
    share(brokers.by_id[2], topic, name, brokers.by_id[1])
    produce(brokers, topic, range(10))
    owner = brokers.owner(topic)
    at, other = brokers.by_id[owner], brokers.other(owner)
    for broker in (at, other):
        wait_until(lambda broker=broker: name in topics_at(broker))
    with ThreadPoolExecutor() as pool:
        fetch = pool.submit(waiting, at, name, 10)
        receives = [pool.submit(received, broker, name, "waits") for broker in (at, other)]
        time.sleep(1)  # they wait: nothing is written
        assert not any(one.done() for one in (fetch, *receives))
        unshare(other, topic)
        ended = time.monotonic()
        for broker in (at, other):
            wait_until(lambda broker=broker: name not in topics_at(broker), FOLLOWED_S)
        assert time.monotonic() - ended < FOLLOWED_S
        produce(brokers, topic, range(1_000, 1_010))
        codes, records = fetch.result()
        assert (codes, records) == ([0, UNKNOWN_TOPIC], b"")
        for receive in receives:
            status, text = receive.result()
            assert (status, "TopicUnknown" in text) == (404, True), text
    share(at, topic, name, other)
    wait_until(lambda: name in topics_at(at))
    assert waiting(at, name, 10)[0] == [0, 0]


def shares_at(broker: Broker) -> list[Any]:
    """What is shared and accepted."""
    return [ask(broker, "GET", f"/v1/{one}-topics") for one in ("shared", "accepted")]


def share_and_read(place: Sharing, topic: str, name: str) -> list[Any]:
    """Share a topic, whose 50 records a group reads; returns what is shared."""
    create_topic(place.bootstrap, topic, 1)
    share(place.by_id[1], topic, name, place.by_id[2])
    produce(place, topic, range(50))
    reader = Reader(place, name, name)
    reader.wait_read({*range(50)})
    reader.close()
    return shares_at(place.by_id[1])


def check_shared_and_read_on(place: Sharing, before: list[Any], topic: str, name: str) -> None:
    """Start all brokers: it is as before, and a group that has read 50 records goes on."""
    for number in place.by_id:
        place.add(number)
    for broker in place.running:
        wait_until(lambda broker=broker: name in topics_at(broker))
        assert shares_at(broker) == before
    produce(place, topic, range(50, 60))
    reader = Reader(place, name, name)
    reader.wait_read({*range(50, 60)})
    reader.close()
    assert reader.found == [*range(50, 60)]


@pytest.mark.parametrize("end", ["stop", "kill"])
def test_it_is_shared_and_read_on_when_all_brokers_have_been_restarted(brokers, end):
    topic, name = f"before-{end}", f"of-{end}"
    before = share_and_read(brokers, topic, name)
    for broker in brokers.by_id.values():
        getattr(broker, end)()
    check_shared_and_read_on(brokers, before, topic, name)


def test_it_is_shared_and_read_on_after_a_restore_of_the_clusters_metadata(tmp_path, make_cluster):
    cluster = make_cluster(bookie_count=2, auto_recovery=False)
    address = cluster.zookeeper.address
    where = ("--zookeeper", address, "--zookeeper-root", f"/{tmp_path.name}", "--json")
    place = Sharing(tmp_path, address, 2, "--quorum", "2,2,2")
    topic, name = "kept", "of-backup"
    try:
        before = share_and_read(place, topic, name)
        done = asked(backup, tmp_path / "backup", *where)
        assert done.exit_code == 0, done.output
        unshare(place.by_id[1], topic)  # it is shared again: the backup is of an earlier moment
        for broker in place.running:
            broker.stop()
        for bookie in cluster.bookies:
            bookie.stop()
        emptied(cluster)
        done = asked(restore, tmp_path / "backup", *where)
        assert done.exit_code == 0, done.output
        for bookie in cluster.bookies:
            bookie.start()
            cluster.wait_ready(bookie)
        check_shared_and_read_on(place, before, topic, name)
    finally:
        place.close()


def test_what_is_written_while_it_is_not_shared_is_read_once_it_is_and_not_before(brokers):
    """By a group of each kind, while it is shared and ended at either broker, and owners are
    killed."""
    topic, name = "now-and-then", "of-now-and-then"
    create_topic(brokers.bootstrap, topic, 1)
    share(brokers.by_id[1], topic, name, brokers.by_id[2])
    from_start(brokers, "then-shares")
    readers = [Reader(brokers, f"then-{way}", name, group_protocol=way) for way in PROTOCOLS]
    readers.append(ShareReader(brokers, "then-shares", name))
    written = 0
    try:
        for turn in range(4):
            first, second = brokers.by_id[1 + turn % 2], brokers.by_id[2 - turn % 2]
            produce(brokers, topic, range(written, written + 20))
            written += 20
            for reader in readers:
                reader.wait_read({*range(written)})
            unshare(first, topic)
            time.sleep(FOLLOWED_S)
            produce(brokers, topic, range(written, written + 20))
            if turn % 2:
                owner = brokers.owner(topic)
                brokers.by_id[owner].kill()
                brokers.add(owner)
            time.sleep(FOLLOWED_S)
            for reader in readers:
                assert not {*reader.found} & {*range(written, written + 20)}
            written += 20
            share(first, topic, name, second)
        for reader in readers:
            reader.wait_read({*range(written)})
    finally:
        for reader in readers:
            reader.close()
