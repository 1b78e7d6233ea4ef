"""Short-lived clients and objects: members, topics, connections, sessions, admin requests.

Invariants: they follow the protocol, except that they may disconnect at any time.
"""

from __future__ import annotations

import contextlib
import socket
import struct
from typing import TYPE_CHECKING

from headrace.records.codec import Record, encode_batch, iterate_records
from headrace.runtime.clock import SystemClock
from headrace_verify.blackbox.routing import Group, Place
from headrace_verify.kafka_wire import FETCH, METADATA, KafkaWire, request_bytes
from headrace_verify.soak.worker import TIMEOUT_S, WireWorker, Worker

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

API_VERSIONS, DESCRIBE_CONFIGS, LIST_GROUPS, DELETE_GROUPS = 18, 32, 16, 42
INCREMENTAL_ALTER_CONFIGS = 44
TOPIC_RESOURCE, SET = 2, 0
GROUP = "soak-group"
AT_ONCE = 0.1
"""How often a topic is deleted unused."""


class Member(Worker):
    """A member of a group (librdkafka) that commits, leaves after a few seconds and rejoins."""

    def __init__(
        self, addresses: Sequence[tuple[str, int]], seed: str, topics: Sequence[str]
    ) -> None:
        super().__init__(addresses, seed)
        self._topics = list(topics)
        self.read = 0

    def turn(self) -> None:
        """See Worker: one life."""
        from confluent_kafka import Consumer, KafkaException

        consumer = Consumer(
            {
                "bootstrap.servers": self.bootstrap,
                "group.id": GROUP,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": True,
                "auto.commit.interval.ms": 500,
                "session.timeout.ms": 10_000,
                "partition.assignment.strategy": "cooperative-sticky",
                "fetch.message.max.bytes": 256 << 10,
                "queued.max.messages.kbytes": 2048,
                "log_level": 0,
            }
        )
        clock = SystemClock()
        end_ns = clock.now_ns() + int(self.rng.uniform(3, 12) * 1e9)
        consumer.subscribe(self._topics)
        try:
            while clock.now_ns() < end_ns and not self.over.is_set():
                self.read += len(consumer.consume(500, 0.2))
        except KafkaException as error:
            raise ConnectionError(str(error)) from error
        finally:
            with contextlib.suppress(KafkaException):
                consumer.close()


class TopicChurn(WireWorker):
    """Topics created, written, read and deleted, or deleted immediately."""

    rest_s = 0.3

    def turn(self) -> None:
        """See Worker."""
        topic = f"soak-brief-{self.rng.randrange(5)}"
        partitions = self.rng.choice((1, 1, 3))
        ask = self.asking.ask
        ask(lambda wire: wire.create_topic(topic, partitions, {"segment.bytes": "65536"}))
        if self.rng.random() < AT_ONCE:
            ask(lambda wire: wire.delete_topic(topic))
            return
        producer = ask(KafkaWire.new_producer)
        values = [b"brief %d" % number * 50 for number in range(20)]
        now_ms = SystemClock().now_ms()
        batch = encode_batch(
            [Record(0, now_ms, None, value) for value in values],
            producer_id=producer[0],
            producer_epoch=producer[1],
            base_sequence=0,
        )
        for partition in range(partitions):
            place = Place(topic, partition)
            if [record.value for record in self._written(place, batch)] != values:
                self.fault(f"{topic}-{partition} does not return what was acknowledged")
        ask(lambda wire: wire.commit("soak-brief", topic, 0, 20), Group("soak-brief"))
        ask(lambda wire: wire.delete_topic(topic))

    def _written(self, place: Place, batch: bytes) -> Iterator[Record]:
        """Write to it; returns the expected contents."""
        offset = self.asking.ask(lambda wire: wire.produce(*place, batch), place)
        data, _ = self.asking.ask(lambda wire: wire.fetch(*place, offset), place)
        return iterate_records(data)


class Dropper(Worker):
    """Connections that are opened and closed: immediately, in mid-request, with an unread
    response."""

    rest_s = 0.04

    def __init__(
        self,
        addresses: Sequence[tuple[str, int]],
        seed: str,
        http: Sequence[tuple[str, int]],
    ) -> None:
        super().__init__(addresses, seed)
        self._http = http

    def turn(self) -> None:
        """See Worker."""
        kind = self.rng.randrange(6)
        address = self.rng.choice(self._http if kind == 5 else self.addresses)
        peer = socket.create_connection(address, TIMEOUT_S)
        with peer:
            if kind == 1:
                peer.sendall(request_bytes(API_VERSIONS, 0, 1))
                if not peer.recv(1 << 16):
                    self.fault("a connection was closed instead of a response")
            elif kind == 2:
                peer.sendall(request_bytes(METADATA, 1, 1)[:-2])
                peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            elif kind == 3:
                peer.sendall(request_bytes(METADATA, 1, 1) * 20)
            elif kind == 4:
                peer.sendall(request_bytes(API_VERSIONS, 0, 1))
                peer.shutdown(socket.SHUT_WR)
            elif kind == 5:
                half = b"" if self.rng.random() < 0.5 else b"\r\n\r\n"
                peer.sendall(b"GET /healthz HTTP/1.1\r\nHost: soak" + half)


class Idler(Worker):
    """Idle connections, occasionally replaced."""

    rest_s = 0.5
    count = 40

    def __init__(self, addresses: Sequence[tuple[str, int]], seed: str) -> None:
        super().__init__(addresses, seed)
        self._peers: list[socket.socket] = []

    def turn(self) -> None:
        """See Worker."""
        while len(self._peers) < self.count:
            address = self.rng.choice(self.addresses)
            self._peers.append(socket.create_connection(address, TIMEOUT_S))
        self._peers.pop(self.rng.randrange(self.count)).close()

    def end(self) -> None:
        """See Worker."""
        for peer in self._peers:
            peer.close()


class Sloth(WireWorker):
    """A client that requests more than it reads, and disconnects."""

    rest_s = 0.5

    def __init__(self, addresses: Sequence[tuple[str, int]], seed: str, topic: str) -> None:
        super().__init__(addresses, seed)
        self._topic = topic

    def turn(self) -> None:
        """See Worker."""
        leader = self.asking.of(Place(self._topic, 0))
        part = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1 << 20}
        topics = [{"topic": self._topic, "partitions": [part]}]
        with socket.create_connection(leader, TIMEOUT_S) as peer:
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            for number in range(8):
                fetch = request_bytes(
                    FETCH, 4, number, replica_id=-1, max_bytes=1 << 20, topics=topics
                )
                peer.sendall(fetch)
            peer.settimeout(0.1)
            for _ in range(20):
                with contextlib.suppress(TimeoutError):
                    peer.recv(16 << 10)
                if self.over.wait(0.1):
                    break


class Asker(WireWorker):
    """Queries and small changes: configurations, groups, committed offsets."""

    rest_s = 0.1

    def __init__(self, addresses: Sequence[tuple[str, int]], seed: str, topic: str) -> None:
        super().__init__(addresses, seed)
        self._topic = topic

    def turn(self) -> None:
        """See Worker."""
        ask = self.asking.ask
        ask(lambda wire: wire.call(METADATA, 1))
        resource = {"resource_type": TOPIC_RESOURCE, "resource_name": self._topic}
        ask(lambda wire: wire.call(DESCRIBE_CONFIGS, 1, resources=[resource]))
        ask(lambda wire: wire.call(LIST_GROUPS, 1))
        draw = self.rng.random()
        if draw < 0.1:
            group = Group(f"soak-passing-{self.rng.randrange(10)}")
            ask(lambda wire: wire.commit(group.name, self._topic, 0, 1), group)
            ask(lambda wire: wire.call(DELETE_GROUPS, 1, groups_names=(group.name,)), group)
        elif draw < 0.2:
            leader = self.asking.of(Place(self._topic, 0))
            with contextlib.closing(KafkaWire(leader, TIMEOUT_S)) as other:
                other.call(
                    FETCH,
                    7,
                    replica_id=-1,
                    max_bytes=1 << 16,
                    session_epoch=0,
                    topics=[{"topic": self._topic, "partitions": [{"partition": 0}]}],
                )
        elif draw < 0.25:
            change = {
                "name": "retention.ms",
                "config_operation": SET,
                "value": str(self.rng.randint(3_600_000, 7_200_000)),
            }
            configs = [{**resource, "configs": [change]}]
            ask(lambda wire: wire.call(INCREMENTAL_ALTER_CONFIGS, 0, resources=configs))
