"""One partition's producer sequence numbers (idempotence).

Rules of the room: knows sequences and epochs, not records, not files. Never asks the time;
expiry gets both times. State is rebuilt by `apply` alone, live and on replay alike.
How it works: the last five batches of each producer are kept, so a retry that crosses its
acknowledgement is answered with the offset it already has (KIP-98, KIP-360). Five that are safe are
kept behind those that are not, so that appends which fail, however many and however often, can be
forgotten without losing what was there before.
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
)

if TYPE_CHECKING:
    from headrace.records.batch import BatchHeader

DUPLICATES_KEPT: Final = 5
"""Java's producer has at most five requests in flight when it is idempotent. Do not change."""
SEQUENCE_END: Final = 2**31
RETRIES_MS: Final = 15_000
"""How long batches that failed are awaited before those behind them, from when they can come: by
then clients have an answer to what was under way, or have given it up."""
EXPIRY_GRACE_NS: Final = 3600 * 10**9
"""A producer is forgotten when it was found silent for so long by this process's own time, too: a
calendar that was set, or another broker's, makes anybody's silence a long one."""
_COUNT: Final = Struct(">I")
_PRODUCER: Final = Struct(">qhqB")
_BATCH: Final = Struct(">iiqq")


class AppendedBatch(NamedTuple):
    """One batch that a producer appended."""

    first_sequence: int
    last_sequence: int
    base_offset: int
    timestamp_ms: int


class _Producer:
    __slots__ = ("batches", "epoch", "first_sequence", "overdue_ns", "seen_ms")

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        self.batches: list[AppendedBatch] = []
        self.first_sequence = 0
        """What must come first while there are no batches: all that were appended have failed."""
        self.seen_ms = 0
        self.overdue_ns: int | None = None
        """Since when it is found silent for too long, each time anybody looks."""


def sequence_after(sequence: int, count: int) -> int:
    """The sequence `count` steps behind; they run from 0 to 2^31-1 and begin again at 0."""
    return (sequence + count) % SEQUENCE_END


class ProducerState:
    """The producers of one partition."""

    __slots__ = ("_producers",)

    def __init__(self) -> None:
        self._producers: dict[int, _Producer] = {}

    def __len__(self) -> int:
        return len(self._producers)

    def __contains__(self, producer_id: int) -> bool:
        return producer_id in self._producers

    def check(self, batch: BatchHeader) -> AppendedBatch | None:
        """Say whether `batch` may be appended.

        Returns the earlier append when this is a retry of one of the last five, else None.
        Raises OutOfOrderSequence on a gap, ProducerFenced on an older producer epoch,
        RecordInvalid on a sequence that cannot be.
        """
        first = batch.base_sequence
        if first < 0 or batch.producer_id < 0:
            raise RecordInvalid(f"sequence {first} of producer {batch.producer_id} cannot be")
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

    def apply(self, batch: BatchHeader, base_offset: int, now_ms: int, safe_offset: int) -> None:
        """Take note of an appended batch of an idempotent producer.

        No append below `safe_offset` will ever be forgotten.
        """
        producer = self._producers.get(batch.producer_id)
        if producer is None or producer.epoch != batch.producer_epoch:
            producer = _Producer(batch.producer_epoch)
            self._producers[batch.producer_id] = producer
        producer.seen_ms = now_ms
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

    def truncate(self, end_offset: int) -> None:
        """Forget the batches at and behind `end_offset`: their append failed.

        The first of them must come before those behind it, even if nothing else is known of its
        producer: whoever hears that a later batch is stored takes the earlier ones for stored.
        """
        for producer in self._producers.values():
            kept = [batch for batch in producer.batches if batch.base_offset < end_offset]
            if not kept and producer.batches:
                producer.first_sequence = producer.batches[0].first_sequence
            producer.batches = kept

    def as_of(self, end_offset: int) -> ProducerState:
        """The producers as they were when the log ended at `end_offset`, if that was lately."""
        state = ProducerState()
        for producer_id, producer in self._producers.items():
            copied = state._producers[producer_id] = _Producer(producer.epoch)
            copied.batches = list(producer.batches)
            copied.first_sequence, copied.seen_ms = producer.first_sequence, producer.seen_ms
        state.truncate(end_offset)
        return state

    def expire(self, before_ms: int, now_ns: int) -> None:
        """Forget the producers that were last seen before `before_ms`, and long since found so."""
        for producer_id, producer in list(self._producers.items()):
            if producer.seen_ms >= before_ms:
                producer.overdue_ns = None
            elif producer.overdue_ns is None:
                producer.overdue_ns = now_ns
            elif now_ns - producer.overdue_ns >= EXPIRY_GRACE_NS:
                del self._producers[producer_id]

    def encode(self, bytes_max: int = 2**63) -> bytes:
        """For a sealed ledger's footer (`docs/FORMAT.md`). Do not change: stored.

        A producer without batches must begin with 0; one that must not is left out. Where they
        take more than `bytes_max`, those go first that were silent for longest, as if expired.
        """
        told = {
            producer_id: producer
            for producer_id, producer in self._producers.items()
            if producer.batches or not producer.first_sequence
        }
        each = _PRODUCER.size + DUPLICATES_KEPT * _BATCH.size
        if _COUNT.size + each * len(told) > bytes_max:
            newest = sorted(told, key=lambda known: told[known].seen_ms, reverse=True)
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
            (count,) = _COUNT.unpack_from(data)
            at = _COUNT.size
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


class Retries:
    """What comes behind a batch that failed, and was told to come again, is told so, too.

    To a client that hears of a sequence out of order nothing was lost that it could send again as
    it is: librdkafka takes a new epoch then, and sends all under it whose answer it has not got, in
    every partition, stored or not. And a producer that is unknown, because its first batch is the
    one that failed, could begin with the second, which is taken for an answer to both.
    A partition that has changed hands has failed so, too: the first batch is told so by the former
    owner, while the second is under way to the new one.
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

    def check(
        self, producers: ProducerState, batch: BatchHeader, now_ms: int
    ) -> AppendedBatch | None:
        """See ProducerState.check. Raises StorageUnavailable where others must come first."""
        # The other bound is for a clock that went back.
        if not 0 < self._until_ms - now_ms <= RETRIES_MS:
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
