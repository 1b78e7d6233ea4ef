"""One partition's producers: their sequence numbers (idempotence) and open transactions.

Invariants: knows sequences, epochs and offsets, not records or files. Never reads the clock;
expiry gets both times. State is rebuilt by `apply` and `apply_marker` alone, live and on replay.
How it works: the last five batches of each producer are kept, so a retry whose acknowledgement was
lost is answered with the offset it already has (KIP-98, KIP-360). Five that are safe are kept
before those that are not, so that appends which fail, however many and however often, can be
forgotten without losing what was there before. A producer's transaction opens with its first
transactional batch and ends with a marker. What a marker that is not safe yet has changed is kept
beside the state, so that a failed append of the marker opens the transaction again.
"""

from __future__ import annotations

from struct import Struct
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
from headrace.records.batch import TRANSACTIONAL

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from headrace.records.batch import BatchHeader

NO_COORDINATOR_EPOCH: Final = -1
MARKERS_BUMP: Final = 2
"""The transaction version from which on each marker carries a new producer epoch (KIP-890)."""
DUPLICATES_KEPT: Final = 5
"""Java's producer has at most five requests in flight when it is idempotent. Do not change."""
SEQUENCE_END: Final = 2**31
RETRIES_MS: Final = 15_000
"""How long batches that failed are awaited before later ones, from when they can come."""
EXPIRY_GRACE_NS: Final = 3600 * 10**9
"""A producer must also be silent for so long by this process's time: the calendar may be set."""
_COUNT: Final = Struct(">I")
_PRODUCER: Final = Struct(">qhqB")
_BATCH: Final = Struct(">iiqq")
_OPEN: Final = Struct(">qq")
_COORDINATOR: Final = Struct(">qi")


class AppendedBatch(NamedTuple):
    """One batch that a producer appended."""

    first_sequence: int
    last_sequence: int
    base_offset: int
    timestamp_ms: int


class ProducerDescription(NamedTuple):
    """What DescribeProducers shows of a producer; -1 stands for none."""

    producer_id: int
    epoch: int
    last_sequence: int
    last_timestamp_ms: int
    coordinator_epoch: int
    open_offset: int


class _Producer:
    __slots__ = (
        "batches",
        "coordinator_epoch",
        "epoch",
        "first_sequence",
        "overdue_ns",
        "seen_ms",
    )

    def __init__(self, epoch: int, coordinator_epoch: int = NO_COORDINATOR_EPOCH) -> None:
        self.epoch = epoch
        self.coordinator_epoch = coordinator_epoch
        """Of the transaction coordinator that wrote the producer's last marker."""
        self.batches: list[AppendedBatch] = []
        self.first_sequence = 0
        """What must come first while there are no batches: all that were appended have failed."""
        self.seen_ms = 0
        self.overdue_ns: int | None = None
        """Since when it is found silent for too long, each time anybody looks."""

    def copy(self) -> _Producer:
        """The same producer, which further batches and markers do not change."""
        copied = _Producer(self.epoch, self.coordinator_epoch)
        copied.batches = list(self.batches)
        copied.first_sequence, copied.seen_ms = self.first_sequence, self.seen_ms
        return copied


class _BeforeMarker(NamedTuple):
    """A producer as it was before the marker at `marker_offset`."""

    marker_offset: int
    producer_id: int
    producer: _Producer | None
    open_offset: int | None


def sequence_after(sequence: int, count: int) -> int:
    """The sequence `count` steps behind; they run from 0 to 2^31-1 and begin again at 0."""
    return (sequence + count) % SEQUENCE_END


class ProducerState:
    """The producers of one partition."""

    __slots__ = ("_before_markers", "_open", "_producers", "named")

    def __init__(self) -> None:
        self.named = NamedSequences()
        self._producers: dict[int, _Producer] = {}
        self._open: dict[int, int] = {}
        """Producer id -> first offset of its open transaction, in the order of these offsets."""
        self._before_markers: list[_BeforeMarker] = []
        """Of the markers that may still be forgotten, in the order of their offsets."""

    def __len__(self) -> int:
        return len(self._producers)

    def __contains__(self, producer_id: int) -> bool:
        return producer_id in self._producers

    def last_sequence(self, producer_id: int) -> int | None:
        """The sequence of the producer's last record here, None where there is none."""
        producer = self._producers.get(producer_id)
        return producer.batches[-1].last_sequence if producer and producer.batches else None

    def open_transaction(self, producer_id: int) -> int | None:
        """The first offset of the producer's open transaction, None if none is open."""
        return self._open.get(producer_id)

    def is_in_transaction(self, producer_id: int, epoch: int) -> bool:
        """Whether the producer has a transaction open in this epoch."""
        producer = self._producers.get(producer_id)
        return producer_id in self._open and producer is not None and producer.epoch == epoch

    def first_open(self, otherwise: int) -> int:
        """The lowest first offset of an open transaction, `otherwise` if none is open."""
        return next(iter(self._open.values()), otherwise)

    @property
    def open_offsets(self) -> Iterable[int]:
        """The first offsets of all open transactions, from the lowest."""
        return self._open.values()

    def check(self, batch: BatchHeader) -> AppendedBatch | None:
        """Decide whether `batch` may be appended.

        Returns the earlier append when this is a retry of one of the last five, else None.
        Raises OutOfOrderSequence on a gap, ProducerFenced on an older producer epoch,
        RecordInvalid on an impossible sequence, TransactionStateInvalid on a batch that is not
        transactional while its producer has a transaction open.
        """
        first = batch.base_sequence
        if first < 0 or batch.producer_id < 0:
            raise RecordInvalid(f"sequence {first} of producer {batch.producer_id} cannot be")
        if self._open and not batch.attributes & TRANSACTIONAL and batch.producer_id in self._open:
            raise TransactionStateInvalid(
                f"producer {batch.producer_id} has a transaction open, and sent a batch that is not"
                " part of it: end the transaction first"
            )
        producer = self._producers.get(batch.producer_id)
        if producer is None:
            return None
        if batch.producer_epoch < producer.epoch:
            raise ProducerFenced(
                f"producer {batch.producer_id} writes with epoch {batch.producer_epoch}, and epoch "
                f"{producer.epoch} is at work: it must take a new epoch"
            )
        if batch.producer_epoch > producer.epoch:
            if first != 0:
                raise OutOfOrderSequence(
                    f"producer {batch.producer_id} begins epoch {batch.producer_epoch} with "
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
                f"producer {producer_id} writes with epoch {producer_epoch}, and epoch"
                f" {producer.epoch} is at work: it must take a new epoch"
            )

    def apply(self, batch: BatchHeader, base_offset: int, now_ms: int, safe_offset: int) -> None:
        """Take note of an appended batch of an idempotent producer.

        No append below `safe_offset` will ever be forgotten.
        """
        producer = self._producers.get(batch.producer_id)
        if producer is None or producer.epoch != batch.producer_epoch:
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

    def _with_epoch(self, batch: BatchHeader) -> _Producer:
        """The producer of `batch`, in the epoch of `batch`."""
        producer = self._producers.get(batch.producer_id)
        if producer is None:
            producer = self._producers[batch.producer_id] = _Producer(batch.producer_epoch)
        elif producer.epoch != batch.producer_epoch:
            producer = _Producer(batch.producer_epoch, producer.coordinator_epoch)
            self._producers[batch.producer_id] = producer
        return producer

    def describe(self) -> list[ProducerDescription]:
        """All producers, by id."""
        return [
            ProducerDescription(
                producer_id,
                producer.epoch,
                producer.batches[-1].last_sequence if producer.batches else -1,
                producer.batches[-1].timestamp_ms if producer.batches else producer.seen_ms,
                producer.coordinator_epoch,
                self._open.get(producer_id, -1),
            )
            for producer_id, producer in sorted(self._producers.items())
        ]

    def check_marker(
        self, producer_id: int, producer_epoch: int, coordinator_epoch: int, version: int
    ) -> bool:
        """Decide whether a marker may be appended; False if it would change nothing.

        `version` is that of the transaction. Raises TransactionCoordinatorFenced on an older
        coordinator epoch, ProducerFenced on an older producer epoch, and from version 2 on, whose
        markers carry a new one, also on the present epoch while a transaction is open.
        """
        producer = self._producers.get(producer_id)
        if producer is None:
            return True
        if coordinator_epoch < producer.coordinator_epoch:
            raise TransactionCoordinatorFenced(
                f"a marker for producer {producer_id} comes from coordinator epoch"
                f" {coordinator_epoch}, and epoch {producer.coordinator_epoch} is at work: it is"
                " not written"
            )
        is_open = producer_id in self._open
        is_old = version >= MARKERS_BUMP and is_open and producer_epoch == producer.epoch
        if is_old or producer_epoch < producer.epoch:
            raise ProducerFenced(
                f"a marker for producer {producer_id} carries epoch {producer_epoch}, and epoch"
                f" {producer.epoch} is at work: it is not written"
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
        """Take note of an appended marker; the first offset of the transaction that it ends.

        None: the producer had none open. No append below `safe_offset` will ever be forgotten.
        """
        producer_id, kept = batch.producer_id, self._before_markers
        settled = 0
        while settled < len(kept) and kept[settled].marker_offset < safe_offset:
            settled += 1
        del kept[:settled]
        before, first_offset = self._producers.get(producer_id), self._open.get(producer_id)
        kept.append(
            _BeforeMarker(
                marker_offset, producer_id, None if before is None else before.copy(), first_offset
            )
        )
        producer = self._with_epoch(batch)
        producer.coordinator_epoch = coordinator_epoch
        producer.seen_ms = now_ms
        if first_offset is not None:
            del self._open[producer_id]
        return first_offset

    def truncate(self, end_offset: int) -> None:
        """Forget the batches and markers at and after `end_offset`: their append failed.

        The first of a producer's batches must come before those after it, even if nothing else is
        known of the producer: a client that learns that a later batch is stored takes the earlier
        ones for stored.
        """
        self._forget_markers(end_offset)
        self.named.truncate(end_offset)
        for producer in self._producers.values():
            kept = [batch for batch in producer.batches if batch.base_offset < end_offset]
            if not kept and producer.batches:
                producer.first_sequence = producer.batches[0].first_sequence
            producer.batches = kept

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

    def expire(self, before_ms: int, now_ns: int) -> None:
        """Forget the producers that were last seen before `before_ms`, and long since found so.

        One that has a transaction open is never forgotten.
        """
        for producer_id, producer in list(self._producers.items()):
            if producer.seen_ms >= before_ms or producer_id in self._open:
                producer.overdue_ns = None
            elif producer.overdue_ns is None:
                producer.overdue_ns = now_ns
            elif now_ns - producer.overdue_ns >= EXPIRY_GRACE_NS:
                del self._producers[producer_id]

    def encode(self, bytes_max: int = 2**63) -> bytes:
        """For a sealed ledger's footer (`docs/FORMAT.md`). Do not change: stored.

        A producer without batches must begin with 0; one that must not is left out. Where they
        take more than `bytes_max`, those go first that were silent for longest, as if expired, and
        those that have a transaction open last.
        """
        told = {
            producer_id: producer
            for producer_id, producer in self._producers.items()
            if producer.batches or not producer.first_sequence
        }
        each = _PRODUCER.size + DUPLICATES_KEPT * _BATCH.size
        if _COUNT.size + each * len(told) > bytes_max:
            newest = sorted(
                told, key=lambda known: (known in self._open, told[known].seen_ms), reverse=True
            )
            room = max(bytes_max - _COUNT.size, 0) // each
            told = {producer_id: told[producer_id] for producer_id in newest[:room]}
        out = [_COUNT.pack(len(told))]
        for producer_id, producer in told.items():
            batches = producer.batches[-DUPLICATES_KEPT:]
            out.append(_PRODUCER.pack(producer_id, producer.epoch, producer.seen_ms, len(batches)))
            out.extend(_BATCH.pack(*batch) for batch in batches)
        return b"".join(out)

    @classmethod
    def decode(cls, data: bytes) -> ProducerState:
        """The reverse of `encode`. Raises DataCorrupt."""
        state = cls()
        try:
            count, at = _COUNT.unpack_from(data)[0], _COUNT.size
            for _ in range(count):
                producer_id, epoch, seen_ms, batch_count = _PRODUCER.unpack_from(data, at)
                at += _PRODUCER.size
                producer = _Producer(epoch)
                producer.seen_ms = seen_ms
                for _ in range(batch_count):
                    producer.batches.append(AppendedBatch._make(_BATCH.unpack_from(data, at)))
                    at += _BATCH.size
                state._producers[producer_id] = producer
        except Exception as error:
            raise DataCorrupt(f"a ledger footer's producer states are damaged: {error}") from error
        return state

    @property
    def has_open(self) -> bool:
        """Whether a transaction is open."""
        return bool(self._open)

    def encode_open(self) -> bytes:
        """The open transactions, for a footer. Do not change: stored."""
        entries = [_OPEN.pack(producer_id, first) for producer_id, first in self._open.items()]
        return _COUNT.pack(len(entries)) + b"".join(entries)

    def decode_open(self, data: bytes) -> None:
        """Take over what `encode_open` gave. Raises DataCorrupt."""
        for producer_id, first_offset in _entries(_OPEN, data):
            self._open[producer_id] = first_offset

    @property
    def has_coordinators(self) -> bool:
        """Whether any producer has ended a transaction."""
        return any(
            producer.coordinator_epoch != NO_COORDINATOR_EPOCH
            for producer in self._producers.values()
        )

    def encode_coordinators(self) -> bytes:
        """The coordinators' epochs, for a footer. Do not change: stored."""
        entries = [
            _COORDINATOR.pack(producer_id, producer.coordinator_epoch)
            for producer_id, producer in self._producers.items()
            if producer.coordinator_epoch != NO_COORDINATOR_EPOCH
        ]
        return _COUNT.pack(len(entries)) + b"".join(entries)

    def decode_coordinators(self, data: bytes) -> None:
        """Take over what `encode_coordinators` gave. Raises DataCorrupt."""
        for producer_id, coordinator_epoch in _entries(_COORDINATOR, data):
            if producer_id in self._producers:
                self._producers[producer_id].coordinator_epoch = coordinator_epoch


def _entries(layout: Struct, data: bytes) -> Iterator[tuple[int, int]]:
    count = _COUNT.unpack_from(data)[0] if len(data) >= _COUNT.size else -1
    if not 0 <= count * layout.size <= len(data) - _COUNT.size:
        raise DataCorrupt("a section of a ledger footer is cut short")
    for at in range(count):
        yield layout.unpack_from(data, _COUNT.size + at * layout.size)


class Retries:
    """What comes behind a batch that failed, and was told to come again, is told so, too.

    A sequence out of order makes librdkafka take a new epoch, under which it sends all again whose
    answer it has not got, in every partition, stored or not. And a producer that is unknown,
    because its first batch failed, could begin with the second, which is taken for an answer to
    both. A partition that has changed hands has failed so, too: the first batch gets its error from
    the former owner, while the second is under way to the new one.
    """

    __slots__ = ("_until_ms", "are_due")

    def __init__(self, *, are_due: bool) -> None:
        self.are_due = are_due
        """Whether a batch may have been told to come again since appends last went ahead."""
        self._until_ms = -1

    def reopened(self, now_ms: int) -> None:
        """Appends go ahead again: from now on those that failed can come."""
        if self.are_due:
            self.are_due = False
            self._until_ms = now_ms + RETRIES_MS

    def is_waiting(self, now_ms: int) -> bool:
        """Whether batches that failed may still come, and must come first."""
        return 0 < self._until_ms - now_ms <= RETRIES_MS  # this bound: a clock that went back

    def check(
        self, producers: ProducerState, batch: BatchHeader, now_ms: int
    ) -> AppendedBatch | None:
        """See ProducerState.check. Raises StorageUnavailable where others must come first."""
        if self._until_ms < 0 or not self.is_waiting(now_ms):
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
        f"a batch of producer {batch.producer_id} before sequence {batch.base_sequence} failed a"
        " moment ago and comes first: try again behind it"
    )
