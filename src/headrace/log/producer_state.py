"""One partition's producers: sequence numbers (idempotence) and open transactions.

Invariants: knows sequences, epochs and offsets, not records or files. Never reads the clock;
expiry gets both times. State changes only in `apply` and `apply_marker`, live and on replay.
The last five batches of each producer are kept, so a retry whose acknowledgement was lost gets the
offset it already has (KIP-98, KIP-360). Five durable ones are kept in addition to those that are
not, so that failed appends can be undone without losing earlier state. A producer's transaction
starts with its first transactional batch and ends with a marker. The changes of markers that are
not durable yet are recorded, so that a failed append of a marker reopens the transaction.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from headrace.errors import (
    DataCorrupt,
    OutOfOrderSequence,
    ProducerFenced,
    RecordInvalid,
    StorageUnavailable,
    TransactionCoordinatorFenced,
    TransactionStateInvalid,
)
from headrace.log.named_sequences import NamedSequences
from headrace.log.producer_encoding import (
    BATCH,
    COORDINATOR,
    COUNT,
    DUPLICATES_KEPT,
    NO_COORDINATOR_EPOCH,
    OPEN,
    PRODUCER,
    encode_coordinators,
    encode_pairs,
    encode_producers,
    find_idle,
    slices,
)
from headrace.records.batch import TRANSACTIONAL

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Iterator
    from struct import Struct

    from headrace.records.batch import BatchHeader

MARKERS_BUMP: Final = 2
"""The first transaction version in which each marker carries a new producer epoch (KIP-890)."""
SEQUENCE_END: Final = 2**31
REFUSED_MS_MAX: Final = 30_000
"""For how long a client that was refused may be told to wait."""
REFUSED_MAX: Final = 1_000
"""Producers of a partition that are told apart; of more, all are taken for refused."""
RETRIES_MS: Final = 15_000
"""After appends resume, how long later batches must wait for failed ones to be retried."""
EXPIRY_GRACE_NS: Final = 3600 * 10**9
"""Idle time by the monotonic clock before expiry, if it is not to come earlier: the wall clock may
be set."""


class AppendedBatch(NamedTuple):
    """One appended batch of a producer."""

    first_sequence: int
    last_sequence: int
    base_offset: int
    timestamp_ms: int


class ProducerDescription(NamedTuple):
    """A producer, as DescribeProducers shows it; -1 stands for none."""

    producer_id: int
    epoch: int
    last_sequence: int
    last_timestamp_ms: int
    coordinator_epoch: int
    open_offset: int


class Producer:
    """What is kept of one producer."""

    __slots__ = (
        "batches",
        "coordinator_epoch",
        "epoch",
        "first_sequence",
        "generation",
        "overdue_ns",
        "seen_ms",
    )

    def __init__(
        self, epoch: int, coordinator_epoch: int = NO_COORDINATOR_EPOCH, generation: int = 0
    ) -> None:
        self.epoch = epoch
        self.generation = generation
        """How many snapshots had been taken when it was made: later ones have it, too."""
        self.coordinator_epoch = coordinator_epoch
        """Of the transaction coordinator that wrote the producer's last marker."""
        self.batches: list[AppendedBatch] = []
        self.first_sequence = 0
        """The expected sequence while there are no batches because all appends have failed."""
        self.seen_ms = 0
        self.overdue_ns: int | None = None
        """When it was first found expired, by the monotonic clock; None if it is not."""

    def copy(self, generation: int) -> Producer:
        """A copy that further batches and markers do not change."""
        copied = Producer(self.epoch, self.coordinator_epoch, generation)
        copied.batches = list(self.batches)
        copied.first_sequence, copied.seen_ms = self.first_sequence, self.seen_ms
        copied.overdue_ns = self.overdue_ns
        return copied


class _BeforeMarker(NamedTuple):
    """The state of a producer before the marker at `marker_offset`."""

    marker_offset: int
    producer_id: int
    producer: Producer | None
    open_offset: int | None


def sequence_after(sequence: int, count: int) -> int:
    """The sequence `count` steps later; sequences wrap from 2^31-1 to 0."""
    return (sequence + count) % SEQUENCE_END


class ProducerState:
    """The producers of one partition."""

    __slots__ = ("_before_markers", "_generation", "_open", "_producers", "named")

    def __init__(self) -> None:
        self.named = NamedSequences()
        self._generation = 0
        """How many snapshots were taken: a producer of an earlier one is copied before it
        changes."""
        self._producers: dict[int, Producer] = {}
        self._open: dict[int, int] = {}
        """Producer id -> first offset of its open transaction, in offset order."""
        self._before_markers: list[_BeforeMarker] = []
        """States before the markers that may still be undone, in offset order."""

    def __len__(self) -> int:
        return len(self._producers)

    def __contains__(self, producer_id: int) -> bool:
        return producer_id in self._producers

    def last_sequence(self, producer_id: int) -> int | None:
        """The sequence of the producer's last record here; None if there is none."""
        producer = self._producers.get(producer_id)
        return producer.batches[-1].last_sequence if producer and producer.batches else None

    def open_transaction(self, producer_id: int) -> int | None:
        """The first offset of the producer's open transaction; None if there is none."""
        return self._open.get(producer_id)

    def is_in_transaction(self, producer_id: int, epoch: int) -> bool:
        """Whether the producer has an open transaction in this epoch."""
        producer = self._producers.get(producer_id)
        return producer_id in self._open and producer is not None and producer.epoch == epoch

    def first_open(self, otherwise: int) -> int:
        """The lowest first offset of the open transactions; `otherwise` if there are none."""
        return next(iter(self._open.values()), otherwise)

    @property
    def open_offsets(self) -> Iterable[int]:
        """The first offsets of all open transactions, in order."""
        return self._open.values()

    def check(self, batch: BatchHeader) -> AppendedBatch | None:
        """Decide whether `batch` may be appended.

        Returns the earlier append if this is a retry of one of the last five, else None.
        Raises OutOfOrderSequence on a gap, ProducerFenced on an older producer epoch,
        RecordInvalid on an invalid sequence, TransactionStateInvalid on a non-transactional batch
        while its producer has an open transaction.
        """
        first = batch.base_sequence
        if first < 0 or batch.producer_id < 0 or batch.producer_epoch < 0:
            number = f"sequence {first} of producer {batch.producer_id}"
            raise RecordInvalid(f"{number}, epoch {batch.producer_epoch}: none may be negative")
        if self._open and not batch.attributes & TRANSACTIONAL and batch.producer_id in self._open:
            raise TransactionStateInvalid(
                f"producer {batch.producer_id} has an open transaction, and sent a batch outside of"
                " it: end the transaction first"
            )
        producer = self._producers.get(batch.producer_id)
        if producer is None:
            return None
        if batch.producer_epoch < producer.epoch:
            raise ProducerFenced(
                f"producer {batch.producer_id} uses epoch {batch.producer_epoch}, but epoch "
                f"{producer.epoch} is active: it needs a new epoch"
            )
        if batch.producer_epoch > producer.epoch:
            if first != 0:
                raise OutOfOrderSequence(
                    f"producer {batch.producer_id} starts epoch {batch.producer_epoch} with "
                    f"sequence {first} instead of 0"
                )
            return None
        last = sequence_after(first, batch.last_offset_delta)
        for appended in producer.batches[-DUPLICATES_KEPT:]:
            if appended.first_sequence == first and appended.last_sequence == last:
                return appended
        expected = producer.first_sequence
        if producer.batches:
            expected = sequence_after(producer.batches[-1].last_sequence, 1)
        if first != expected:
            raise OutOfOrderSequence(
                f"producer {batch.producer_id} sent sequence {first}, expected {expected}"
            )
        return None

    def check_epoch(self, producer_id: int, producer_epoch: int) -> None:
        """Raises ProducerFenced if the producer has a newer epoch."""
        producer = self._producers.get(producer_id)
        if producer is not None and producer_epoch < producer.epoch:
            raise ProducerFenced(
                f"producer {producer_id} uses epoch {producer_epoch}, but epoch"
                f" {producer.epoch} is active: it needs a new epoch"
            )

    def apply(self, batch: BatchHeader, base_offset: int, now_ms: int, safe_offset: int) -> None:
        """Record an appended batch of an idempotent producer.

        No append below `safe_offset` will be undone.
        """
        producer = self._producers.get(batch.producer_id)
        if (
            producer is None
            or producer.epoch != batch.producer_epoch
            or producer.generation != self._generation
        ):
            producer = self._with_epoch(batch)
        producer.seen_ms = now_ms
        if batch[5] & TRANSACTIONAL and batch.producer_id not in self._open:  # by name: 25 ns more
            self._open[batch.producer_id] = base_offset
        batches = producer.batches
        batches.append(
            AppendedBatch(
                batch.base_sequence,
                sequence_after(batch.base_sequence, batch.last_offset_delta),
                base_offset,
                batch.max_timestamp_ms,
            )
        )
        while len(batches) > DUPLICATES_KEPT and batches[DUPLICATES_KEPT].base_offset < safe_offset:
            del batches[0]

    def _with_epoch(self, batch: BatchHeader) -> Producer:
        """The producer of `batch`, in the batch's epoch, to be changed."""
        producer_id, generation = batch.producer_id, self._generation
        producer = self._producers.get(producer_id)
        if producer is not None and producer.epoch == batch.producer_epoch:
            return self._to_change(producer_id, producer)
        coordinator_epoch = NO_COORDINATOR_EPOCH if producer is None else producer.coordinator_epoch
        producer = Producer(batch.producer_epoch, coordinator_epoch, generation)
        self._producers[producer_id] = producer
        return producer

    def _to_change(self, producer_id: int, producer: Producer) -> Producer:
        """The producer, or a copy of it if a snapshot has it."""
        if producer.generation != self._generation:
            producer = self._producers[producer_id] = producer.copy(self._generation)
        return producer

    def snapshot(self) -> ProducerState:
        """This state as it is now, to be encoded while this one changes. No change may be pending
        that could be undone. Copies no producer, but what finds them."""
        self._generation += 1
        taken = ProducerState()
        taken._producers, taken._open = self._producers.copy(), self._open.copy()
        taken.named = self.named.snapshot()
        return taken

    def describe(self) -> Iterator[list[ProducerDescription]]:
        """All producers, in steps of SLICE, of about a millisecond."""
        for some in slices(self._producers):
            yield [
                ProducerDescription(
                    producer_id,
                    producer.epoch,
                    producer.batches[-1].last_sequence if producer.batches else -1,
                    producer.batches[-1].timestamp_ms if producer.batches else producer.seen_ms,
                    producer.coordinator_epoch,
                    self._open.get(producer_id, -1),
                )
                for producer_id in some
                if (producer := self._producers.get(producer_id)) is not None
            ]

    def check_marker(
        self, producer_id: int, producer_epoch: int, coordinator_epoch: int, version: int
    ) -> bool:
        """Decide whether a marker may be appended; False if it would have no effect.

        `version` is the transaction version. Raises TransactionCoordinatorFenced on an older
        coordinator epoch, ProducerFenced on an older producer epoch and, from version 2 on, whose
        markers carry a new epoch, also on the current epoch while a transaction is open.
        """
        producer = self._producers.get(producer_id)
        if producer is None:
            return True
        if coordinator_epoch < producer.coordinator_epoch:
            raise TransactionCoordinatorFenced(
                f"a marker for producer {producer_id} has coordinator epoch {coordinator_epoch},"
                f" but epoch {producer.coordinator_epoch} is active: it was not written"
            )
        is_open = producer_id in self._open
        is_old = version >= MARKERS_BUMP and is_open and producer_epoch == producer.epoch
        if is_old or producer_epoch < producer.epoch:
            raise ProducerFenced(
                f"a marker for producer {producer_id} has epoch {producer_epoch}, but epoch"
                f" {producer.epoch} is active: it was not written"
            )
        return (
            is_open
            or producer_epoch > producer.epoch
            or coordinator_epoch > producer.coordinator_epoch
        )

    def apply_marker(
        self,
        batch: BatchHeader,
        coordinator_epoch: int,
        marker_offset: int,
        now_ms: int,
        safe_offset: int,
    ) -> int | None:
        """Record an appended marker; returns the first offset of the transaction that it ends.

        None: there was no open transaction. No append below `safe_offset` will be undone.
        """
        producer_id, kept = batch.producer_id, self._before_markers
        settled = 0
        while settled < len(kept) and kept[settled].marker_offset < safe_offset:
            settled += 1
        del kept[:settled]
        before, first_offset = self._producers.get(producer_id), self._open.get(producer_id)
        kept.append(
            _BeforeMarker(
                marker_offset,
                producer_id,
                None if before is None else before.copy(self._generation),
                first_offset,
            )
        )
        producer = self._with_epoch(batch)
        producer.coordinator_epoch = coordinator_epoch
        producer.seen_ms = now_ms
        if first_offset is not None:
            del self._open[producer_id]
        return first_offset

    def truncate(self, end_offset: int) -> None:
        """Undo the batches and markers at and after `end_offset`, whose append failed.

        The first of a producer's failed batches must then come before those after it, even if
        nothing else is known about the producer: a client that gets an acknowledgement for a later
        batch assumes that the earlier ones were stored.
        """
        self._forget_markers(end_offset)
        self.named.truncate(end_offset)
        for producer_id, producer in list(self._producers.items()):
            batches = producer.batches
            if not batches or batches[-1].base_offset < end_offset:  # as those of most: 50 ns
                continue
            kept = [batch for batch in batches if batch.base_offset < end_offset]
            changed = self._to_change(producer_id, producer)
            if not kept:
                changed.first_sequence = batches[0].first_sequence
            changed.batches = kept

    def _forget_markers(self, end_offset: int) -> None:
        kept, open_offsets = self._before_markers, self._open
        while kept and kept[-1].marker_offset >= end_offset:
            before = kept.pop()
            if before.producer is not None:
                self._producers[before.producer_id] = before.producer
            else:
                self._producers.pop(before.producer_id, None)
            if before.open_offset is None:
                open_offsets.pop(before.producer_id, None)
            else:
                open_offsets[before.producer_id] = before.open_offset
        if open_offsets:
            in_order = sorted((first, producer) for producer, first in open_offsets.items())
            self._open = {producer: first for first, producer in in_order if first < end_offset}

    def expire(
        self, before_ms: int, now_ns: int, grace_ns: int = EXPIRY_GRACE_NS
    ) -> Iterator[None]:
        """Remove producers last seen before `before_ms`, once this was found `grace_ns` ago. A
        step for each SLICE of them, of about a millisecond.

        A producer with an open transaction never expires.
        """
        for some in slices(self._producers):
            for producer_id in some:
                producer = self._producers.get(producer_id)
                if producer is None:
                    continue
                if producer.seen_ms >= before_ms or producer_id in self._open:
                    producer.overdue_ns = None
                elif producer.overdue_ns is None:
                    producer.overdue_ns = now_ns
                elif now_ns - producer.overdue_ns >= grace_ns:
                    del self._producers[producer_id]
            yield

    def drop_idle(self, count: int, safe_offset: int, before_ms: int) -> Iterator[int]:
        """Drop the longest idle producers of those last seen before `before_ms`, at most `count`,
        as if expired. A step for each SLICE of them, of about a millisecond: how many it dropped.

        Those with an open transaction, or with batches that may be undone, stay: no append below
        `safe_offset` will be.
        """
        idle = find_idle(
            self._producers,
            count,
            before_ms,
            lambda producer_id: self._idle_since(producer_id, safe_offset),
        )
        first_ms, end_ms, left = yield from _counting(idle)
        for some in slices(self._producers):
            dropped = 0
            for producer_id in some:
                seen_ms = self._idle_since(producer_id, safe_offset)
                is_last = first_ms <= seen_ms < end_ms
                if 0 <= seen_ms < first_ms or (is_last and left > 0):
                    del self._producers[producer_id]
                    dropped += 1
                    left -= is_last
            yield dropped

    def _idle_since(self, producer_id: int, safe_offset: int) -> int:
        """When it was last seen; -1: it is not known any more, or not idle."""
        producer = self._producers.get(producer_id)
        if producer is None or producer_id in self._open:
            return -1
        if producer.batches and producer.batches[-1].base_offset >= safe_offset:
            return -1
        return producer.seen_ms

    def encode(self, bytes_max: int) -> Generator[None, None, bytes]:
        """See `encode_producers`."""
        return encode_producers(self._producers, self._open, bytes_max)

    @classmethod
    def decode(cls, data: bytes) -> ProducerState:
        """Decode. Raises DataCorrupt."""
        state = cls()
        try:
            count, at = COUNT.unpack_from(data)[0], COUNT.size
            for _ in range(count):
                producer_id, epoch, seen_ms, batch_count = PRODUCER.unpack_from(data, at)
                at += PRODUCER.size
                producer = Producer(epoch)
                producer.seen_ms = seen_ms
                for _ in range(batch_count):
                    producer.batches.append(AppendedBatch._make(BATCH.unpack_from(data, at)))
                    at += BATCH.size
                state._producers[producer_id] = producer
        except Exception as error:
            raise DataCorrupt(f"a ledger footer's producer states are corrupt: {error}") from error
        return state

    @property
    def has_open(self) -> bool:
        """Whether any transaction is open."""
        return bool(self._open)

    def encode_open(self) -> Generator[None, None, bytes]:
        """The open transactions, for a footer."""
        return encode_pairs(OPEN, self._open.items())

    def decode_open(self, data: bytes) -> None:
        """Decode what `encode_open` returned. Raises DataCorrupt."""
        for producer_id, first_offset in _entries(OPEN, data):
            self._open[producer_id] = first_offset

    def encode_coordinators(self) -> Generator[None, None, bytes]:
        """See the function of this name."""
        return encode_coordinators(self._producers)

    def decode_coordinators(self, data: bytes) -> None:
        """Decode what `encode_coordinators` returned. Raises DataCorrupt."""
        for producer_id, coordinator_epoch in _entries(COORDINATOR, data):
            if producer_id in self._producers:
                self._producers[producer_id].coordinator_epoch = coordinator_epoch


def _counting(
    steps: Generator[None, None, tuple[int, int, int]],
) -> Generator[int, None, tuple[int, int, int]]:
    """As steps that have dropped nothing."""
    try:
        while True:
            next(steps)
            yield 0
    except StopIteration as done:
        found: tuple[int, int, int] = done.value
        return found


def _entries(layout: Struct, data: bytes) -> Iterator[tuple[int, int]]:
    count = COUNT.unpack_from(data)[0] if len(data) >= COUNT.size else -1
    if not 0 <= count * layout.size <= len(data) - COUNT.size:
        raise DataCorrupt("a section of a ledger footer is truncated")
    for at in range(count):
        yield layout.unpack_from(data, COUNT.size + at * layout.size)


class RetryGate:
    """After a failed append, gives later batches a retriable error until the failed one is retried.

    On an out-of-order sequence, librdkafka takes a new epoch and resends everything unacknowledged
    in every partition, stored or not. And a producer that is unknown because its first batch failed
    could start with the second, which would count as acknowledging both. The same applies after an
    ownership change: the former owner fails the first batch, while the second is on its way to the
    new one.
    """

    __slots__ = ("_refused", "_until_ms", "has_failures")

    def __init__(self, *, has_failures: bool) -> None:
        self.has_failures = has_failures
        """Whether a batch may have failed since appends were last accepted."""
        self._until_ms = -1
        self._refused: dict[int, int] = {}
        """Until when batches of single producers must come first; the latest is the last one."""

    def reopened(self, now_ms: int) -> None:
        """Appends are accepted again: those that failed can be retried."""
        if self.has_failures:
            self.has_failures = False
            self._until_ms = now_ms + RETRIES_MS

    def refused(self, producer_id: int, now_ms: int) -> None:
        """A batch was refused before it was appended; its client sends it again."""
        until_ms, refused = now_ms + REFUSED_MS_MAX + RETRIES_MS, self._refused
        refused.pop(producer_id, None)
        while refused and next(iter(refused.values())) <= now_ms:
            del refused[next(iter(refused))]
        if len(refused) < REFUSED_MAX:
            refused[producer_id] = until_ms
        else:  # too many to tell them apart
            self._until_ms = max(self._until_ms, until_ms)

    def is_waiting(self, producer_id: int, now_ms: int) -> bool:
        """Whether failed batches may still be retried, and must come first."""
        until_ms = max(self._until_ms, self._refused.get(producer_id, -1))
        # The upper bound: the clock went back.
        return 0 < until_ms - now_ms <= REFUSED_MS_MAX + RETRIES_MS

    def check(
        self, producers: ProducerState, batch: BatchHeader, now_ms: int
    ) -> AppendedBatch | None:
        """See ProducerState.check. Raises StorageUnavailable if a failed batch must come first."""
        is_open = self._until_ms < 0 and not self._refused
        if is_open or not self.is_waiting(batch.producer_id, now_ms):
            return producers.check(batch)
        try:
            duplicate = producers.check(batch)
        except OutOfOrderSequence as error:
            raise _too_early(batch) from error
        if duplicate is None and batch.base_sequence and batch.producer_id not in producers:
            raise _too_early(batch)
        return duplicate


def _too_early(batch: BatchHeader) -> StorageUnavailable:
    return StorageUnavailable(
        f"a batch of producer {batch.producer_id} before sequence {batch.base_sequence} just failed"
        " and must come first: try again after it"
    )
