"""Produce: batches in.

Rules of the room: a request is appended in the turn in which it arrived, in its order, without a
task; its answer is written when storage says that all of its batches are safe. A batch for a log
that is not ready waits for it, in order, and holds up its own request alone. So does one that must
be opened first (`unfolding`), and one whose transaction is to be verified.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final, TypeAlias
from uuid import UUID

from headrace.broker.coordinators.transaction_verification import TransactionalWrite, for_produce
from headrace.errors import (
    AcksInvalid,
    BatchCorrupt,
    HeadraceError,
    NotOwner,
    OutOfOrderSequence,
    PolicyViolation,
    RecordInvalid,
    StorageUnavailable,
    TransactionalIdRefused,
    TransactionUnverified,
)
from headrace.kafka.connection import ANY_TERM
from headrace.kafka.error_codes import code_of, message_of
from headrace.kafka.handlers.leaders import leader_hint
from headrace.kafka.handlers.unfolding import Unfolder, is_kept
from headrace.kafka.wire.primitives import INT32
from headrace.kafka.wire.produce import (
    FLEXIBLE,
    TOPIC_IDS,
    ProducePartition,
    ProduceResult,
    frame_around_one,
    read_one,
    read_produce,
    write_one,
    write_produce,
)
from headrace.records.batch import (
    COMPRESSION_MASK,
    LOG_OVERHEAD,
    NO_TIMESTAMP,
    TRANSACTIONAL,
    BatchHeader,
    check_batch,
)
from headrace.records.compression import CODEC_NAMES
from headrace.runtime.histogram import Histogram

if TYPE_CHECKING:
    from headrace.broker.node import Node
    from headrace.kafka.connection import Connection, Gate, Reply
    from headrace.log.partition_log import PartitionLog
    from headrace.runtime.completion import Completion

log = logging.getLogger(__name__)

ONE_VERSION_MIN: Final = 5
"""From here on an answer has the log start offset; older ones go the long way."""
LATENCY_SAMPLE_MASK: Final = 15
"""One request in 16 is measured: a histogram that costs the hot path nothing."""
RECORD_ERRORS_MAX: Final = 1_000
"""Refused records that an answer names."""
KNOWS_ABORTABLE: Final = 11
"""From here on a producer knows the error TransactionAbortable (KIP-890)."""
ADDS_PARTITIONS: Final = 12
"""From here on a write adds its partition to its transaction: transaction version 2."""
ATTEMPTS_MAX: Final = 8
"""How often a batch waits for its log to be ready; each time it was told that it is."""


_OnePending: TypeAlias = "tuple[Reply, bytes, int, int, bytes, int]"
"""A request with one batch: (its reply, the answer, version, correlation id, topic, partition)."""


_Route: TypeAlias = "tuple[PartitionLog, tuple[bytes, bytes, int]]"
"""A partition, and what stands around its result in an answer (see `frame_around_one`)."""


class _Pending:
    """A request whose batches are not all safe yet."""

    __slots__ = (
        "connection",
        "correlation_id",
        "open_count",
        "reply",
        "results",
        "started_ns",
        "term",
        "transactional_id",
        "version",
    )

    def __init__(self, reply: Reply | None, version: int, correlation_id: int, count: int) -> None:
        self.reply = reply
        self.connection: Connection | None = None
        """Set where no answer is wanted (acks=0): it is closed if a batch fails, as Kafka does,
        for there is no other way to tell the client that it should look at its metadata again."""
        self.version = version
        self.correlation_id = correlation_id
        self.open_count = count
        self.term = ANY_TERM
        """In which a refusal may leave. An acknowledgement is storage's and may at any time."""
        self.started_ns = 0
        """Set where the request's latency is measured."""
        self.results: list[ProduceResult | None] = [None] * count
        self.transactional_id: bytes | None = None

    def close_one(self) -> None:
        """One more batch has its result; with the last one, the answer is written."""
        self.open_count -= 1
        if self.open_count == 0 and self.connection is not None:
            failed = [result for result in self.results if result is not None and result[2]]
            if failed:
                self.connection.abort(f"wants no answers, and a batch failed (code {failed[0][2]})")
        elif self.open_count == 0 and self.reply is not None:
            results = [result for result in self.results if result is not None]
            body = write_produce(self.version, results)
            tags = b"\x00" if self.version >= FLEXIBLE else b""
            size = INT32.pack(len(body) + 4 + len(tags))
            self.reply.term = self.term
            self.reply.send((size + INT32.pack(self.correlation_id) + tags + body,))


class ProduceHandler:
    """The Produce API."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._topics = node.topics
        self._clock = node.clock
        self._unfolder = Unfolder(node.clock)
        self._gate: Gate | None = node.ownership.guard
        self._verifications = node.verifications
        self.records_total = 0
        self.bytes_total = 0
        self.batches_total = 0
        self.errors_total = 0
        self.latency = Histogram()
        self._requests = 0
        self._found: dict[tuple[bytes, int, bool], PartitionLog] = {}
        """Partitions by what requests call them, as of `_found_version` of the topics."""
        self._found_version = -1
        self._routes: dict[tuple[int, bytes, int], _Route] = {}
        """The same for requests with one partition."""

    def handle(
        self,
        connection: Connection,
        frame: memoryview,
        at: int,
        version: int,
        correlation_id: int,
    ) -> None:
        """Take one request. Raises FrameInvalid, struct.error, IndexError on a malformed one."""
        if version >= ONE_VERSION_MIN and self._handle_one(
            connection, frame, at, version, correlation_id
        ):
            return
        request = read_produce(frame, at, version)
        # With acks=0 the client waits for no answer and must get none.
        reply = connection.expect() if request.acks != 0 else None
        pending = _Pending(reply, version, correlation_id, len(request.partitions))
        if reply is None:
            pending.connection = connection
        self._requests += 1
        if not self._requests & LATENCY_SAMPLE_MASK:
            pending.started_ns = connection.last_request_ns
        pending.transactional_id = request.transactional_id
        refusal: HeadraceError | None = None
        if request.acks not in {-1, 0, 1}:
            refusal = AcksInvalid(f"acks={request.acks} is not -1, 0 or 1")
        if not request.partitions:
            pending.open_count = 1
            pending.close_one()
            return
        for index, part in enumerate(request.partitions):
            if refusal is not None:
                self._fail(pending, index, part, refusal)
                continue
            try:
                partition = self._partition(part.topic, part.partition, version)
                self._take(pending, index, part, partition)
            except HeadraceError as error:
                self._fail(pending, index, part, error)

    def _handle_one(
        self,
        connection: Connection,
        frame: memoryview,
        at: int,
        version: int,
        correlation_id: int,
    ) -> bool:
        """Take a plain request with one partition the short way; False if it takes the long one.

        What is not plain (an error, a log that is not ready, no answer wanted) is left alone, so
        the long way finds it as it came.
        """
        one = read_one(frame, at, version)
        if one is None:
            return False
        acks, topic, number, records = one
        if acks != -1 and acks != 1:  # a set costs 30 ns more here
            return False
        try:
            if self._found_version != self._topics.version:
                self._forget_found()
            key = (version, topic, number)
            route = self._routes.get(key)
            if route is None:
                found = self._partition(topic, number, version)
                route = self._routes[key] = (found, frame_around_one(version, topic, number))
            partition, around = route
            header = self._checked(records)
            if (
                not is_kept(header, partition.config)
                or partition in self._unfolder.waiting
                or header[5] & TRANSACTIONAL
            ):
                return False
            appended = partition.append(records, header)
        except HeadraceError:
            return False
        if appended is None:
            return False
        base_offset, completion = appended
        self.records_total += header[12]  # by name, a field takes 25 ns longer
        self.bytes_total += header[1]
        self.batches_total += 1
        self._requests += 1
        time_ms = header.max_timestamp_ms if partition.config.is_log_append_time else NO_TIMESTAMP
        answer = write_one(around, correlation_id, base_offset, time_ms, partition.log_start_offset)
        one_pending = (connection.expect(), answer, version, correlation_id, topic, number)
        completion.then(self._one_stored, one_pending)
        if not self._requests & LATENCY_SAMPLE_MASK:
            completion.then(self._measure, connection.last_request_ns)
        return True

    def _one_stored(self, error: BaseException | None, context: _OnePending) -> None:
        if error is None:
            context[0].send((context[1],))
            return
        reply, _answer, version, correlation_id, topic, number = context
        pending = _Pending(reply, version, correlation_id, 1)
        self._fail(pending, 0, ProducePartition(topic, number, None), error)

    def _measure(self, _error: BaseException | None, started_ns: int) -> None:
        self.latency.add(self._clock.now_ns() - started_ns)

    def _partition(self, topic_key: bytes, number: int, version: int) -> PartitionLog:
        key = (topic_key, number, version >= TOPIC_IDS)
        if self._found_version != self._topics.version:
            self._forget_found()
        partition = self._found.get(key)
        if partition is not None:
            return partition
        if version >= TOPIC_IDS:
            topic = self._topics.get_by_id(UUID(bytes=topic_key))
        else:
            topic = self._topics.get(topic_key.decode(errors="replace"))
        partition = topic.require_partition(number)
        if topic.is_internal:
            raise PolicyViolation(f"{topic.name} is internal: only the broker writes to it")
        self._found[key] = partition
        return partition

    def _forget_found(self) -> None:
        self._found.clear()
        self._routes.clear()
        self._found_version = self._topics.version

    def _checked(self, records: memoryview | None) -> BatchHeader:
        if records is None or not len(records):
            raise BatchCorrupt("a Produce request without records")
        header = check_batch(records)
        if header[1] + LOG_OVERHEAD != len(records):
            raise RecordInvalid("Produce v3 and later take exactly one batch a partition (KIP-98)")
        if header[5] & COMPRESSION_MASK >= len(CODEC_NAMES):
            raise RecordInvalid(f"unknown compression codec {header[5] & COMPRESSION_MASK}")
        return header

    def _take(
        self, pending: _Pending, index: int, part: ProducePartition, partition: PartitionLog
    ) -> None:
        """Append a batch, now or once it is verified and unfolded. Raises HeadraceError."""
        records = part.records
        header = self._checked(records)
        assert records is not None
        if header.attributes & TRANSACTIONAL and self._is_held(pending, index, part, partition):
            return
        self._unfold(pending, index, part, partition, header)

    def _is_held(
        self, pending: _Pending, index: int, part: ProducePartition, partition: PartitionLog
    ) -> bool:
        """Whether the batch waits until its transaction is verified. Raises HeadraceError."""
        if pending.transactional_id is None:
            raise TransactionalIdRefused(
                "a transactional batch in a request without a transactional id is not stored"
            )
        header = self._checked(part.records)
        if not self._verifications.is_due(partition, header):
            return False
        topic, _, number = partition.name.rpartition("-")
        is_added = pending.version >= ADDS_PARTITIONS
        write = TransactionalWrite(
            pending.transactional_id.decode(errors="replace"),
            header.producer_id,
            header.producer_epoch,
            topic,
            int(number),
            is_added,
        )

        def then(error: HeadraceError | None) -> None:
            if error is not None:
                has_abortable = pending.version >= KNOWS_ABORTABLE
                told = for_produce(error, has_abortable=has_abortable, is_added=is_added)
                self._fail(pending, index, part, told)
                return
            try:
                self._unfold(pending, index, part, partition, header)
            except HeadraceError as refusal:
                self._fail(pending, index, part, refusal)

        self._verifications.hold(partition, write, then)
        return True

    def _unfold(
        self,
        pending: _Pending,
        index: int,
        part: ProducePartition,
        partition: PartitionLog,
        header: BatchHeader,
    ) -> None:
        records = part.records
        assert records is not None
        if is_kept(header, partition.config) and partition not in self._unfolder.waiting:
            self._append(pending, index, part, partition, records, header, ATTEMPTS_MAX)
            return
        found = self._unfolder.now(records, header, partition)
        if found is not None:
            self._append(pending, index, part, partition, *found, ATTEMPTS_MAX)
            return

        def then(outcome: tuple[bytes, BatchHeader] | BaseException) -> None:
            if isinstance(outcome, BaseException):
                self._fail(pending, index, part, outcome)
            else:
                self._append(pending, index, part, partition, *outcome, ATTEMPTS_MAX)

        self._unfolder.later(records, header, partition, then)

    def close(self) -> None:
        """Batches that wait in threads are given up."""
        self._unfolder.close()

    def _append(
        self,
        pending: _Pending,
        index: int,
        part: ProducePartition,
        partition: PartitionLog,
        batch: memoryview | bytes,
        header: BatchHeader,
        attempts: int,
    ) -> None:
        try:
            if header.attributes & TRANSACTIONAL:
                self._check_transactional(pending, partition, header, attempts)
            appended = partition.append(batch, header)
        except HeadraceError as error:
            self._fail(pending, index, part, error)
            return
        if appended is None:
            if partition.ready is None or attempts == 0 or partition.is_deleted:
                partition.retries.are_due = True
                self._fail(pending, index, part, StorageUnavailable("the log is not ready"))
                return

            def again(error: BaseException | None, _context: object) -> None:
                if error is not None:
                    self._fail(pending, index, part, error)
                else:
                    self._append(pending, index, part, partition, batch, header, attempts - 1)

            partition.ready.then(again, None)
            return
        self.records_total += header.record_count
        self.bytes_total += header.length
        self.batches_total += 1
        time_ms = header.max_timestamp_ms if partition.config.is_log_append_time else NO_TIMESTAMP
        pending.results[index] = ProduceResult(
            part.topic,
            part.partition,
            0,
            appended.base_offset,
            time_ms,
            partition.log_start_offset,
            None,
        )
        completion: Completion = appended.completion
        if completion.done and completion.error is None:
            self._close(pending)
        else:
            completion.then(self._stored, (pending, index, part))

    def _check_transactional(
        self, pending: _Pending, partition: PartitionLog, header: BatchHeader, attempts: int
    ) -> None:
        """Raises what forbids to append a batch of a transaction now."""
        if attempts < ATTEMPTS_MAX and self._verifications.is_due(partition, header):
            # It was verified, and a marker may have come while it waited for the log.
            raise TransactionUnverified(f"{partition.name} was not ready: send the batch again")
        if (
            pending.version >= ADDS_PARTITIONS
            and header.base_sequence > 0
            and partition.is_loaded
            and header.producer_id not in partition.producers
            and not partition.retries.is_waiting(self._clock.now_ms())
        ):
            raise OutOfOrderSequence(
                f"producer {header.producer_id}, of which {partition.name} knows nothing, begins"
                f" with sequence {header.base_sequence} instead of 0"
            )

    def _stored(
        self, error: BaseException | None, context: tuple[_Pending, int, ProducePartition]
    ) -> None:
        pending, index, part = context
        if error is not None:
            self._fail(pending, index, part, error)
        else:
            self._close(pending)

    def _close(self, pending: _Pending) -> None:
        pending.close_one()
        if pending.started_ns and not pending.open_count:
            self.latency.add(self._clock.now_ns() - pending.started_ns)

    def _fail(
        self, pending: _Pending, index: int, part: ProducePartition, error: BaseException
    ) -> None:
        self.errors_total += 1
        if not isinstance(error, HeadraceError):
            log.error("a batch met a fault of the broker", exc_info=error)
        gate = self._gate
        if gate is not None:
            before = gate.term
            pending.term = gate.term_now()
            if pending.term != before:
                # The state that refused it was this broker's as an owner, which it is no more.
                error = NotOwner("this broker has stepped down since: refresh the metadata")
        hint = leader_hint(
            self._node, part.topic, part.partition, error, is_id=pending.version >= TOPIC_IDS
        )
        pending.results[index] = ProduceResult(
            part.topic,
            part.partition,
            code_of(error),
            -1,
            NO_TIMESTAMP,
            -1,
            message_of(error),
            hint,
            _record_errors(error),
        )
        self._close(pending)


def _record_errors(error: BaseException) -> tuple[tuple[int, str], ...]:
    """The records that were refused, where it is known which (KIP-467)."""
    if not isinstance(error, RecordInvalid):
        return ()
    indexes: list[int] = error.fields.get("record_indexes", [])
    return tuple((index, "it has no key") for index in indexes[:RECORD_ERRORS_MAX])
