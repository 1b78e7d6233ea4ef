"""Appends records with batches made here, as an idempotent producer (KIP-98).

A client library takes records one by one and copies each into a queue of its own, which costs more
than all else that the sink does. Used wherever the client settings are ones this module knows
(`is_possible`); `library_writer.py` writes through librdkafka otherwise.

Invariants: the batches of a partition are sent in their order, each with the sequence that follows
the last one's, and after an error that passes again with the same sequences, until the broker has
acknowledged them or nothing has succeeded for `delivery_timeout_ms`; so each is appended once or
the write fails. At most `_UNANSWERED_MAX` requests of a broker are unanswered, since brokers
recognise the last five batches of a producer; and one until the first batch of a partition is
acknowledged, since a log takes any sequence of a producer that it does not know. Open batches take
at most `OPEN_BYTES_MAX`, sent ones `_REQUEST_BYTES` (or one batch) in each unanswered request.
"""

from __future__ import annotations

import ssl
from collections import deque
from dataclasses import dataclass, field
from functools import partial
from time import monotonic_ns, sleep, time_ns
from typing import TYPE_CHECKING, Final, TypeVar

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

T = TypeVar("T")
OPEN_BYTES_MAX: Final = 32 << 20
_BATCH_BYTES: Final = 1_000_000
_UNANSWERED_MAX: Final = 4
_REQUEST_BYTES: Final = 4 << 20
_SLICE_ROWS: Final = 64
"""Rows whose records are made at a time: values may have megabytes."""
_BROKER_WAIT_MS: Final = 30_000
_TIMEOUT_S: Final = 60.0
"""Twice the time for which a broker delays the answers of a client that is over its quota."""
_LOOK_TIMEOUT_S: Final = 10.0
_PAUSE_S: Final = 0.1
_OVERHEAD: Final = 21
"""Of a record, at most, in bytes: its size, attributes, timestamp and offset."""
_MS_TO_NS: Final = 1_000_000
_SEQUENCE_MASK: Final = 0x7FFFFFFF
_DUPLICATE_SEQUENCE: Final = 46
_PASSING: Final = PASSING | {14, 15, 16, 19, 20, 89}
"""Also those of coordinators, NOT_ENOUGH_REPLICAS (as from a tenant over its rate: not stored) and
THROTTLING_QUOTA_EXCEEDED."""
_UNDERSTOOD: Final = UNDERSTOOD | frozenset({
    "compression.type", "compression.codec", "batch.size", "enable.idempotence", "acks",
    "request.required.acks",
    # These tune librdkafka's queues and have no counterpart here.
    "linger.ms", "queue.buffering.max.ms", "queue.buffering.max.messages",
    "queue.buffering.max.kbytes", "max.in.flight", "max.in.flight.requests.per.connection",
    "retries", "message.send.max.retries", "retry.backoff.ms", "retry.backoff.max.ms",
})  # fmt: skip


@dataclass(slots=True)
class _Partition:
    """The records that were not sent yet, and the batches that are not acknowledged."""

    topic: str
    number: int
    bodies: list[tuple[int, bytes]] = field(default_factory=list)
    size: int = 0
    sequence: int = 0
    sent: deque[bytes] = field(default_factory=deque)
    is_known: bool = False
    """Whether the log knows the producer: a batch was acknowledged."""


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
        self._brokers: dict[tuple[str, int], None] = {}
        """All that have led a partition: one may answer when no bootstrap server does."""
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
        for start in range(0, len(rows), _SLICE_ROWS):
            end = start + _SLICE_ROWS
            bodies = bodies_of(rows[start:end], WRITTEN_HEADER, written[start:end])
            for row, place, body in zip(rows[start:end], places[start:end], bodies, strict=True):
                self._add(topic, place, row.timestamp_ms or now_ms, body)

    def _add(self, topic: _Topic, place: int, timestamp_ms: int, body: bytes) -> None:
        size = len(body) + _OVERHEAD
        partition = topic.partitions[place if place >= 0 else topic.keyless]
        while partition.bodies and partition.size + size > topic.batch_bytes:
            self._send([partition])
            if place < 0:
                topic.keyless = (topic.keyless + 1) % len(topic.partitions)
                partition = topic.partitions[topic.keyless]
        partition.bodies.append((timestamp_ms, body))
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
                count = self._ask(partial(self._look_up, name))
            except OSError as error:
                self._wait(begun_ns, error)
                continue
            limit = min(self._batch_bytes, self._batch_limit_of(name)) - HEADER_SIZE
            partitions = [_Partition(name, number) for number in range(count)]
            return _Topic(partitions, limit, begun_ns % count)

    def _look_up(self, name: str, connection: BrokerConnection) -> int:
        """Learn what a first batch needs; returns the topic's number of partitions."""
        count = self._find_leaders(connection, name)
        if self._producer is None:
            code, producer_id, epoch = connection.new_producer()
            self._check(code, name)
            self._producer = (producer_id, epoch)
        return count

    def _send_open(self) -> None:
        while waiting := [each for each in self._partitions() if each.bodies]:
            leader = self._leader_of(waiting[0])
            batches, size = waiting[:1], waiting[0].size
            for each in waiting[1:]:
                if self._leader_of(each) == leader and size + each.size <= _REQUEST_BYTES:
                    batches.append(each)
                    size += each.size
            self._send(batches)

    def _leader_of(self, partition: _Partition) -> tuple[str, int] | None:
        return self._leaders.get((partition.topic, partition.number))

    def _send(self, partitions: list[_Partition]) -> None:
        """Send the open batches of these partitions, which have one leader."""
        try:
            connection = self._connection_to(partitions[0])
            while connection.unanswered_count >= _UNANSWERED_MAX or any(
                each.sent and not each.is_known for each in partitions
            ):
                self._receive(connection)
        except OSError as error:
            self._recover(error)
        batches = [Appending(each.topic, each.number, self._sealed(each)) for each in partitions]
        try:
            if len({self._leader_of(each) for each in partitions}) > 1:
                raise _NotNow("leaders have changed")
            self._connection_to(partitions[0]).send_produce(batches, _BROKER_WAIT_MS)
        except OSError as error:
            self._recover(error)

    def _sealed(self, partition: _Partition) -> bytes:
        assert self._producer is not None, "the topic was opened"
        bodies, size = partition.bodies, partition.size
        sequence = ProducerSequence(*self._producer, partition.sequence)
        batch = encode_bodies(bodies, sequence, self._codec, log_append=False)
        if len(batch) > HEADER_SIZE + size:  # compression has made it larger than it may be
            batch = encode_bodies(bodies, sequence, NONE, log_append=False)
        partition.sent.append(batch)
        partition.sequence = (partition.sequence + len(bodies)) & _SEQUENCE_MASK
        self._open_bytes -= size
        partition.bodies, partition.size = [], 0
        return batch

    def _receive(self, connection: BrokerConnection) -> None:
        """Take one answer. Raises OSError, RecordRefused, DeliveryFailed."""
        for topic, number, code in connection.receive_produce():
            if code != _DUPLICATE_SEQUENCE:
                self._check(code, topic)
            partition = self._topics[topic].partitions[number]
            partition.sent.popleft()
            partition.is_known = True

    def _recover(self, cause: OSError) -> None:
        """Send all that is not acknowledged again, wherever it is served now."""
        begun_ns = monotonic_ns()
        while unacknowledged := [each for each in self._partitions() if each.sent]:
            self.close()
            self._wait(begun_ns, cause)
            try:
                self._ask(self._find_all_leaders)
                for each in unacknowledged:
                    while each.sent:
                        self._send_again(each)
                        begun_ns = monotonic_ns()
            except OSError as error:
                cause = error

    def _send_again(self, partition: _Partition) -> None:
        """One batch at a time: what has failed once may fail again, and order matters."""
        connection = self._connection_to(partition)
        batch = Appending(partition.topic, partition.number, partition.sent[0])
        connection.send_produce([batch], _BROKER_WAIT_MS)
        self._receive(connection)

    def _find_all_leaders(self, connection: BrokerConnection) -> None:
        self._leaders.clear()
        for name in self._topics:
            self._find_leaders(connection, name)

    def _find_leaders(self, connection: BrokerConnection, name: str) -> int:
        """Learn where a topic's partitions are served; returns their number. Raises OSError."""
        code, leaders = connection.leaders_of(name)
        self._check(code, name)
        for number, leader in leaders.items():
            if leader.address is not None:
                self._leaders[name, number] = leader.address
                self._brokers[leader.address] = None
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

    def _ask(self, question: Callable[[BrokerConnection], T]) -> T:
        """What the first broker says that answers. Raises OSError if none does."""
        problem: OSError = ConnectionError("bootstrap.servers names no broker")
        known = (*addresses_of(self._client["bootstrap.servers"]), *self._brokers)
        for address in dict.fromkeys(known):
            try:
                with self._connected(address, _LOOK_TIMEOUT_S) as connection:
                    return question(connection)
            except OSError as error:
                problem = error
        raise problem

    def _connected(
        self, address: tuple[str, int], timeout_s: float = _TIMEOUT_S
    ) -> BrokerConnection:
        timeout_s = min(timeout_s, self._timeout_ms / 1_000)
        client_id = self._client.get("client.id", CLIENT_ID)
        return BrokerConnection(address, self._access, timeout_s, client_id)

    def _check(self, code: int, topic: str) -> None:
        """Raises _NotNow, RecordRefused or DeliveryFailed for an error."""
        if code == 0:
            return
        name = name_of(code)
        if code in _PASSING:
            raise _NotNow(f"error {code} ({name})")
        raise failure(name, f"error {code} ({name})", self._client, topic)

    def _wait(self, since_ns: int, cause: OSError) -> None:
        """Before another try. Raises DeliveryFailed when there is no time for one."""
        if isinstance(cause, ssl.SSLCertVerificationError):
            text = f"the broker's certificate is not trusted ({cause.reason})"
            raise failure(type(cause).__name__, text, self._client, "") from cause
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
