"""Writing the rows of one task of one micro-batch to topics, once, whatever is killed when.

Rules of the room: knows a write's identity (query, batch, task) and rows in order, not Spark.
How it works: every record carries the identity and its sequence in the task as a header. Before
the first record to a topic, the topic's end offsets are committed in a group of this query and
task, with "batch:begun" as metadata; after the last was acknowledged, "batch:done". A replay
that finds "done" writes nothing; one that finds "begun" reads the topic from those offsets,
learns which sequences are there, and writes the others. Without transactions a consumer can
see part of a batch before the rest; the seam for the transactional way is `Delivery`.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic_ns, sleep
from typing import Any, NamedTuple, Protocol

from headrace.pipeline.errors import DeliveryFailed, RowsChanged
from headrace.pipeline.options import SinkOptions, SourceOptions
from headrace.pipeline.planning import OffsetRange, offset_of, walk

WRITTEN_HEADER = "headrace-written"  # do not change: stored
GROUP_PREFIX = "headrace-sink"  # do not change: stored
_SETTLE_S = 0.25
_SETTLE_TRIES = 20
_REQUEST_TIMEOUT_S = 30.0


class WriteIdentity(NamedTuple):
    """Which task of which micro-batch of which query writes."""

    query: str
    batch: int
    task: int

    def header(self, sequence: int) -> bytes:
        """The header's value of one record."""
        return f"{self.query}/{self.batch}/{self.task}/{sequence}".encode()


class Row(NamedTuple):
    """One record to write; `partition` -1 lets the key decide, `timestamp_ms` 0 is now."""

    topic: str
    partition: int
    key: bytes | str | None
    value: bytes | str | None
    headers: list[tuple[str, str | bytes | None]]
    timestamp_ms: int


class Delivery(Protocol):
    """The seam: how a task's rows reach their topics."""

    def send(self, row: Row) -> None:
        """Take the next row of the task. Rows of a replay come in the same order."""
        ...

    def finish(self) -> int:
        """Make all rows durable and the batch done; how many were written this time."""
        ...

    def close(self) -> None:
        """Let go of everything, also after a failure."""
        ...


@dataclass
class _Target:
    """What is known of one topic in this batch."""

    is_done: bool
    begun: list[Any]
    seen: dict[int, int]


class IdempotentDelivery:
    """Delivery by an idempotent producer, and a read-back of the tail on a replay."""

    def __init__(self, options: SinkOptions, identity: WriteIdentity) -> None:
        from confluent_kafka import Consumer, Producer

        self._options = options
        self._identity = identity
        self._sequence = 0
        self._written = 0
        self._targets: dict[str, _Target] = {}
        self._failure: Any = None
        self._producer = Producer(
            {
                "log_level": "2",
                "linger.ms": "10",
                "batch.size": "262144",
                "partitioner": "murmur2_random",  # the choice of Kafka's own clients
                "queue.buffering.max.messages": "200000",
                **options.client,
                "enable.idempotence": "true",
                "acks": "all",
                "delivery.timeout.ms": str(options.delivery_timeout_ms),
                "delivery.report.only.error": True,
                "error_cb": self._on_error,
            }
        )
        self._consumer = Consumer(
            {
                "log_level": "2",
                **options.client,
                "group.id": f"{GROUP_PREFIX}.{identity.query}.{identity.task}",
                "enable.auto.commit": "false",
                "enable.partition.eof": "true",
                "auto.offset.reset": "error",
                "isolation.level": "read_uncommitted",
            }
        )

    def send(self, row: Row) -> None:
        """See Delivery. Raises RowsChanged when a replayed row is another than the first time."""
        sequence = self._sequence
        self._sequence += 1
        target = self._targets.get(row.topic)
        if target is None:
            target = self._targets[row.topic] = self._open(row.topic)
        if target.is_done:
            return
        if target.seen:
            known = target.seen.pop(sequence, None)
            if known is not None:
                if known != fingerprint(row.key, row.value):
                    raise self._changed(f"row {sequence} differs from the one written before")
                return
        self._written += 1
        headers = [*row.headers, (WRITTEN_HEADER, self._identity.header(sequence))]
        while True:
            try:
                self._producer.produce(
                    row.topic,
                    row.value,
                    row.key,
                    row.partition,
                    on_delivery=self._on_failure,
                    timestamp=row.timestamp_ms,
                    headers=headers,
                )
                break
            except BufferError:
                self._producer.poll(0.05)
                self._check()
        if sequence % 1000 == 0:
            self._producer.poll(0)

    def finish(self) -> int:
        """See Delivery. Raises DeliveryFailed, RowsChanged."""
        left = self._producer.flush(self._options.delivery_timeout_ms / 1000)
        self._check()
        if left:
            raise DeliveryFailed(f"{left} records were not acknowledged in time.")
        for name, target in sorted(self._targets.items()):
            if target.is_done:
                continue
            if target.seen:
                raise self._changed(f"{len(target.seen)} rows written to {name} are missing now")
            self._mark(target.begun, "done")
        return self._written

    def close(self) -> None:
        """See Delivery: what is still queued is dropped, the replay writes it."""
        self._producer.purge()
        self._producer.flush(1.0)
        self._consumer.close()

    def _open(self, topic: str) -> _Target:
        from confluent_kafka import TopicPartition

        ends = watermarks(self._options.client, topic)
        partitions = [TopicPartition(name, number) for name, number, _ in walk(ends)]
        known = self._consumer.committed(partitions, timeout=_REQUEST_TIMEOUT_S)
        marks = [_mark_of(entry.metadata) for entry in known]
        if all(batch > self._identity.batch for batch, _ in marks) or all(
            mark == (self._identity.batch, "done") for mark in marks
        ):
            return _Target(is_done=True, begun=[], seen={})
        if any(mark == (self._identity.batch, "begun") for mark in marks):
            begun = [
                # A partition without the mark was added since: all of it is the tail.
                TopicPartition(
                    topic, entry.partition, entry.offset if mark[0] == self._identity.batch else 0
                )
                for entry, mark in zip(known, marks, strict=True)
            ]
            return _Target(is_done=False, begun=begun, seen=self._read_back(topic, begun))
        begun = [
            TopicPartition(topic, entry.partition, offset_of(ends, topic, entry.partition, 0))
            for entry in known
        ]
        self._mark(begun, "begun")
        return _Target(is_done=False, begun=begun, seen={})

    def _mark(self, begun: list[Any], state: str) -> None:
        from confluent_kafka import TopicPartition

        mark = f"{self._identity.batch}:{state}"
        entries = [
            TopicPartition(entry.topic, entry.partition, entry.offset, mark) for entry in begun
        ]
        for entry in self._consumer.commit(offsets=entries, asynchronous=False):
            if entry.error is not None:
                raise DeliveryFailed(f"The batch could not be marked {state}: {entry.error}.")

    def _read_back(self, topic: str, begun: list[Any]) -> dict[int, int]:
        """The sequences of this identity that the topic holds already, with fingerprints."""
        from headrace.pipeline.fetch import message_batches

        prefix = self._identity.header(0)[:-1]
        ends = _settled(self._options.client, topic)
        reading = SourceOptions(client=self._options.client)
        seen: dict[int, int] = {}
        for entry in begun:
            end = offset_of(ends, topic, entry.partition, 0)
            if end <= entry.offset:
                continue
            self._consumer.assign([entry])
            piece = OffsetRange(topic, entry.partition, entry.offset, end)
            for messages in message_batches(self._consumer, piece, reading):
                for message in messages:
                    for name, value in message.headers() or ():
                        if name == WRITTEN_HEADER and (value or b"").startswith(prefix):
                            sequence = int(value[len(prefix) :])
                            seen[sequence] = fingerprint(message.key(), message.value())
            self._consumer.unassign()
        return seen

    def _changed(self, what: str) -> RowsChanged:
        query, batch, task = self._identity
        return RowsChanged(
            f"Replay of batch {batch}, task {task} of query {query}: {what}. Rows of a task must "
            "repeat in content and order; after a shuffle set sortRows=true, and use no random "
            "or current-time functions."
        )

    def _on_failure(self, error: Any, _message: Any) -> None:
        self._failure = self._failure or error

    def _on_error(self, error: Any) -> None:
        if error.fatal():
            self._failure = self._failure or error

    def _check(self) -> None:
        if self._failure is not None:
            raise DeliveryFailed(f"The broker did not take a record: {self._failure}.")


DeliveryFactory = Callable[[SinkOptions, WriteIdentity], Delivery]


def fingerprint(key: bytes | str | None, value: bytes | str | None) -> int:
    """What a replayed row is compared by."""
    first = zlib.crc32(key.encode() if isinstance(key, str) else key or b"")
    return zlib.crc32(value.encode() if isinstance(value, str) else value or b"", first)


def watermarks(client: dict[str, str], topic: str) -> Any:
    """The end offsets of a topic's partitions. Raises OptionInvalid when there is none."""
    from headrace.pipeline.cluster import Cluster

    cluster = Cluster({**client, "isolation.level": "read_uncommitted"})
    return cluster.latest(cluster.partitions_of((topic,), None))


def _settled(client: dict[str, str], topic: str) -> Any:
    """End offsets that stood still for a moment: a killed writer's last request may be on its way.

    Other writers may move them for ever; then the last reading is taken.
    """
    ends = watermarks(client, topic)
    begun_ns = monotonic_ns()
    while monotonic_ns() - begun_ns < _SETTLE_S * _SETTLE_TRIES * 1e9:
        sleep(_SETTLE_S)
        again = watermarks(client, topic)
        if again == ends:
            break
        ends = again
    return ends


def _mark_of(metadata: str | None) -> tuple[int, str]:
    batch, _, state = (metadata or "").partition(":")
    return (int(batch), state) if batch.isdigit() else (-1, "")
