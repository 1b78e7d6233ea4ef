"""Appends records with batches made here, as an idempotent producer (KIP-98).

A client library takes records one by one and copies each into a queue of its own, which costs more
than all else that the sink does. Used wherever the client settings are ones this module knows
(`is_possible`); `library_writer.py` writes through librdkafka otherwise.

Invariants: the batches of a partition are sent in their order, each with the sequence that follows
the last one's, and again with the same sequences until the broker has acknowledged them or
`delivery_timeout_ms` has passed; so each is appended once or the write fails. At most
`_UNANSWERED_MAX` requests of a broker are unanswered, since a broker recognises the last five
batches of a producer. Open batches take at most `OPEN_BYTES_MAX` in all.
"""

from __future__ import annotations

import ssl
from collections import deque
from dataclasses import dataclass, field
from time import monotonic_ns, sleep, time_ns
from typing import TYPE_CHECKING, Final, NamedTuple

from headrace.pipeline.broker_connection import CLIENT_ID, Appending, BrokerConnection
from headrace.pipeline.direct import PASSING, UNDERSTOOD, addresses_of, is_login_possible, name_of
from headrace.pipeline.errors import DeliveryFailed, RecordRefused
from headrace.pipeline.refusals import failure
from headrace.pipeline.row_encoding import bodies_of, places_of
from headrace.pipeline.written import WRITTEN_HEADER
from headrace.records.batch import HEADER_SIZE
from headrace.records.bodies import ProducerSequence, encode_bodies
from headrace.records.compression import NONE, codec_of_name
from headrace.runtime.access import access_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from headrace.pipeline.options import SinkOptions
    from headrace.pipeline.written import RowToWrite

OPEN_BYTES_MAX: Final = 32 << 20
_BATCH_BYTES: Final = 1_000_000
_UNANSWERED_MAX: Final = 4
_BROKER_WAIT_MS: Final = 30_000
_TIMEOUT_S: Final = 30.0
_PAUSE_S: Final = 0.1
_OVERHEAD: Final = 21
"""Of a record, at most, in bytes: its size, attributes, timestamp and offset."""
_MS_TO_NS: Final = 1_000_000
_SEQUENCE_MASK: Final = 0x7FFFFFFF
_DUPLICATE_SEQUENCE: Final = 46
_UNDERSTOOD: Final = UNDERSTOOD | frozenset({
    "compression.type", "compression.codec", "batch.size", "enable.idempotence", "acks",
    "request.required.acks",
    # These tune librdkafka's queues and have no counterpart here.
    "linger.ms", "queue.buffering.max.ms", "queue.buffering.max.messages",
    "queue.buffering.max.kbytes", "max.in.flight", "max.in.flight.requests.per.connection",
    "retries", "message.send.max.retries", "retry.backoff.ms", "retry.backoff.max.ms",
})  # fmt: skip


class _Batch(NamedTuple):
    data: bytes
    made_ns: int


@dataclass(slots=True)
class _Partition:
    """The records that were not sent yet, and the batches that are not acknowledged."""

    topic: str
    number: int
    bodies: list[tuple[int, bytes]] = field(default_factory=list)
    size: int = 0
    sequence: int = 0
    sent: deque[_Batch] = field(default_factory=deque)


@dataclass(slots=True)
class _Topic:
    partitions: list[_Partition]
    batch_bytes: int
    keyless: int
    """The partition that takes records without a key until its batch is full."""


class _NotNow(ConnectionError):
    """A broker answered with an error that passes."""


def is_possible(client: Mapping[str, str]) -> bool:
    """Whether this module knows all of these client settings."""
    known = client.keys() <= _UNDERSTOOD and is_login_possible(client)
    return known and codec_of_name(_compression(client)) is not None


class DirectWriter:
    """One task's producer. After an error it can only be closed."""

    def __init__(self, options: SinkOptions, batch_limit_of: Callable[[str], int]) -> None:
        """`batch_limit_of` says how large a topic's batches may be, in bytes."""
        client = options.client
        self._client = client
        self._access = access_of(client)
        self._codec = codec_of_name(_compression(client)) or NONE
        self._batch_bytes = int(client.get("batch.size", _BATCH_BYTES))
        self._batch_limit_of = batch_limit_of
        self._timeout_ms = options.delivery_timeout_ms
        self._topics: dict[str, _Topic] = {}
        self._open_bytes = 0
        self._producer: tuple[int, int] | None = None
        self._leaders: dict[tuple[str, int], tuple[str, int]] = {}
        self._connections: dict[tuple[str, int], BrokerConnection] = {}

    def close(self) -> None:
        """Close the connections. What was not flushed is appended or not."""
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()

    def produce(self, rows: Sequence[RowToWrite], written: Sequence[bytes]) -> None:
        """Add records of one topic to the open batches of their partitions, each with its
        `written` as WRITTEN_HEADER.

        Raises RecordRefused, DeliveryFailed, AuthenticationFailed.
        """
        if not rows:
            return
        name, now_ms = rows[0].topic, time_ns() // _MS_TO_NS
        topic = self._topics.get(name)
        if topic is None:
            topic = self._topics[name] = self._opened(name)
        places = places_of(rows, len(topic.partitions))
        if max(places) >= len(topic.partitions):
            raise _no_partition(topic, max(places))
        bodies = bodies_of(rows, WRITTEN_HEADER, written)
        for row, place, body in zip(rows, places, bodies, strict=True):
            size = len(body) + _OVERHEAD
            partition = topic.partitions[place if place >= 0 else topic.keyless]
            if partition.size + size > topic.batch_bytes and partition.bodies:
                self._send([partition])
                topic.keyless = (topic.keyless + 1) % len(topic.partitions)
                partition = topic.partitions[place if place >= 0 else topic.keyless]
            partition.bodies.append((row[-1] or now_ms, body))
            partition.size += size
            self._open_bytes += size
            if self._open_bytes > OPEN_BYTES_MAX:
                self._send_open()

    def flush(self) -> None:
        """Send what is left, and wait until all is acknowledged. Raises what `produce` raises."""
        self._send_open()
        try:
            for connection in self._connections.values():
                while connection.unanswered_count:
                    self._receive(connection)
        except OSError as error:
            self._recover(error)
        assert not any(each.sent for each in self._partitions()), "all are acknowledged"

    def _partitions(self) -> Iterator[_Partition]:
        return (each for topic in self._topics.values() for each in topic.partitions)

    def _opened(self, name: str) -> _Topic:
        begun_ns = monotonic_ns()
        while True:
            try:
                with self._any_broker() as connection:
                    count = self._find_leaders(connection, name)
                    if self._producer is None:
                        code, *producer = connection.new_producer()
                        self._check(code)
                        self._producer = (producer[0], producer[1])
            except OSError as error:
                self._wait(begun_ns, error)
                continue
            limit = min(self._batch_bytes, self._batch_limit_of(name)) - HEADER_SIZE
            partitions = [_Partition(name, number) for number in range(count)]
            return _Topic(partitions, limit, begun_ns % count)

    def _send_open(self) -> None:
        by_leader: dict[tuple[str, int] | None, list[_Partition]] = {}
        for each in self._partitions():
            if each.bodies:
                leader = self._leaders.get((each.topic, each.number))
                by_leader.setdefault(leader, []).append(each)
        for partitions in by_leader.values():
            self._send(partitions)

    def _send(self, partitions: list[_Partition]) -> None:
        """Send the open batches of these partitions, which have one leader."""
        batches = [Appending(each.topic, each.number, self._sealed(each)) for each in partitions]
        try:
            connection = self._connection_to(partitions[0])
            while connection.unanswered_count >= _UNANSWERED_MAX:
                self._receive(connection)
            connection.send_produce(batches, _BROKER_WAIT_MS)
        except OSError as error:
            self._recover(error)

    def _sealed(self, partition: _Partition) -> bytes:
        assert self._producer is not None, "the topic was opened"
        count = len(partition.bodies)
        sequence = ProducerSequence(*self._producer, partition.sequence)
        batch = encode_bodies(partition.bodies, sequence, self._codec, log_append=False)
        partition.sent.append(_Batch(batch, monotonic_ns()))
        partition.sequence = (partition.sequence + count) & _SEQUENCE_MASK
        self._open_bytes -= partition.size
        partition.bodies, partition.size = [], 0
        return batch

    def _receive(self, connection: BrokerConnection) -> None:
        """Take one answer. Raises OSError, RecordRefused, DeliveryFailed."""
        for topic, number, code in connection.receive_produce():
            if code != _DUPLICATE_SEQUENCE:
                self._check(code)
            self._topics[topic].partitions[number].sent.popleft()

    def _recover(self, cause: OSError) -> None:
        """Send all that is not acknowledged again, wherever it is served now."""
        while unacknowledged := [each for each in self._partitions() if each.sent]:
            self.close()
            self._wait(min(each.sent[0].made_ns for each in unacknowledged), cause)
            try:
                self._send_again(unacknowledged)
            except OSError as error:
                cause = error

    def _send_again(self, partitions: list[_Partition]) -> None:
        """One batch at a time: what has failed once may fail again, and order matters."""
        self._leaders.clear()
        with self._any_broker() as connection:
            for name in self._topics:
                self._find_leaders(connection, name)
        for each in partitions:
            connection = self._connection_to(each)
            while each.sent:
                batch = Appending(each.topic, each.number, each.sent[0].data)
                connection.send_produce([batch], _BROKER_WAIT_MS)
                self._receive(connection)

    def _find_leaders(self, connection: BrokerConnection, name: str) -> int:
        """Learn where a topic's partitions are served; returns their number. Raises OSError."""
        code, leaders = connection.leaders_of(name)
        self._check(code)
        for number, leader in leaders.items():
            if leader.address is not None:
                self._leaders[name, number] = leader.address
        if not leaders:
            raise _NotNow(f"the broker names no partitions of topic {name}")
        return max(leaders) + 1

    def _connection_to(self, partition: _Partition) -> BrokerConnection:
        """The connection to the partition's leader. Raises OSError."""
        address = self._leaders.get((partition.topic, partition.number))
        if address is None:
            raise _NotNow(f"{partition.topic}-{partition.number} has no leader")
        found = self._connections.get(address)
        if found is None:
            found = self._connections[address] = self._connected(address)
        return found

    def _any_broker(self) -> BrokerConnection:
        """A connection to a bootstrap server. Raises OSError."""
        problem: OSError = ConnectionError("bootstrap.servers names no broker")
        for address in addresses_of(self._client["bootstrap.servers"]):
            try:
                return self._connected(address)
            except OSError as error:
                problem = error
        raise problem

    def _connected(self, address: tuple[str, int]) -> BrokerConnection:
        timeout_s = min(_TIMEOUT_S, self._timeout_ms / 1_000)
        client_id = self._client.get("client.id", CLIENT_ID)
        return BrokerConnection(address, self._access, timeout_s, client_id)

    def _check(self, code: int) -> None:
        """Raises _NotNow, RecordRefused or DeliveryFailed for an error."""
        if code == 0:
            return
        name = name_of(code)
        if code in PASSING:
            raise _NotNow(f"error {code} ({name})")
        raise failure(name, f"error {code} ({name})")

    def _wait(self, since_ns: int, cause: OSError) -> None:
        """Before another try. Raises DeliveryFailed when there is no time for one."""
        if isinstance(cause, ssl.SSLCertVerificationError):
            text = f"the broker's certificate is not trusted ({cause.reason})"
            raise failure(type(cause).__name__, text) from cause
        if monotonic_ns() - since_ns > self._timeout_ms * _MS_TO_NS:
            raise DeliveryFailed(
                f"Records were not acknowledged within {self._timeout_ms} ms:"
                f" {str(cause) or type(cause).__name__}. Is the broker up? Spark retries the task,"
                " which writes the rest; deliveryTimeoutMs sets the limit."
            ) from cause
        sleep(_PAUSE_S)


def _no_partition(topic: _Topic, named: int) -> RecordRefused:
    name, count = topic.partitions[0].topic, len(topic.partitions)
    return RecordRefused(
        f"A row names partition {named} of topic {name}, which has {count}. The batch is not"
        " committed. Correct the column partition, or add partitions to the topic."
    )


def _compression(client: Mapping[str, str]) -> str:
    return client.get("compression.type") or client.get("compression.codec") or "none"
