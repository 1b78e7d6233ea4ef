"""The state of a partition's timers, changed by records only, live and on replay.

Invariants: `apply` is the only method that changes state. Each durable record takes the next offset
of the companion log, in order of application, because that log holds nothing else. See
`timer_machine` for the protocol that the records form.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Final, NamedTuple

from headrace.coordination.timers.commands import Half
from headrace.coordination.timers.halves import HALF_BYTES, Halves
from headrace.coordination.timers.schedule import Part, Schedule
from headrace.coordination.timers.state_records import (
    COMMITTED,
    Cancelled,
    Checked,
    CheckpointBegun,
    CheckpointEnded,
    CommittedDue,
    Confirmed,
    HalfKept,
    Moved,
    Opened,
    PartSaved,
    Scheduled,
    Settled,
    StateSaved,
    StoredOrigin,
    StoredRecord,
    Taken,
)
from headrace.errors import DataCorrupt

if TYPE_CHECKING:
    from headrace.coordination.timers.config import HalfConfig

ORIGIN_MS: Final = 48 * 3_600_000
"""A partition's log forgets an inactive producer after a day."""
PRUNED_AT_ONCE: Final = 2
"""Producers that may be dropped for each one that is added: more than can arrive."""
ORIGIN_BATCHES: Final = 5
"""An idempotent producer has at most five batches in flight."""
OVERHEAD_BYTES: Final = 40
"""Per stored record, besides its body."""
COMMITTED_BYTES: Final = 100
"""Of a half message that was committed and is scheduled, beside its entry."""


class TimerTimePassed(NamedTuple):
    """Volatile: the time of a tick."""

    now_ms: int


class TimersLoaded(NamedTuple):
    """Volatile: the log has been replayed."""

    now_ms: int


class Skipped(NamedTuple):
    """Volatile: a stored record that could not be decoded, which still takes its offset."""


class DeliveryEnded(NamedTuple):
    """Volatile: see DeliveredCommand."""

    upto: int


class TimersConfigured(NamedTuple):
    """Volatile: see ConfigureCommand."""

    config: HalfConfig


class ChecksTaken(NamedTuple):
    """Volatile: a producer has taken these check-backs."""

    group: str
    numbers: tuple[int, ...]


class ReplayFrom(NamedTuple):
    """Volatile: the offset of the first record that follows, a checkpoint's start or the log's."""

    offset: int


VolatileRecord = (
    TimerTimePassed
    | TimersLoaded
    | Skipped
    | DeliveryEnded
    | TimersConfigured
    | ChecksTaken
    | ReplayFrom
)
TimerRecord = StoredRecord | VolatileRecord
VOLATILE: Final = (
    TimerTimePassed,
    TimersLoaded,
    Skipped,
    DeliveryEnded,
    TimersConfigured,
    ChecksTaken,
    ReplayFrom,
)


class OriginProducer:
    """The last batches of an idempotent producer from which records were added."""

    __slots__ = ("epoch", "seen_ms", "sequences")

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        self.sequences: list[int] = []
        self.seen_ms = 0


class TimerState:
    """See the module. `skipped_count`: stored records that could not be decoded."""

    def __init__(self, config: HalfConfig) -> None:
        self.schedule = Schedule()
        self.halves = Halves(config)
        self.producer_id = -1
        self.next_offset = 0
        self.checkpoint = 0
        """The start of the newest complete checkpoint."""
        self.outstanding: dict[int, tuple[int, ...]] = {}
        """First sequence -> offsets of records that were taken and are not confirmed."""
        self.taken = 0
        """Sequences assigned so far."""
        self.confirmed = 0
        self.tail_bytes = 0
        """Size of the log since the newest checkpoint began."""
        self.skipped_count = 0
        self.outstanding_count = 0
        self.stored_confirmed = 0
        self.origins: dict[int, OriginProducer] = {}
        self.committed: dict[int, int] = {}
        """Offset -> due time of half messages that were committed and are scheduled."""
        self.last_tick_ms = 0
        self.replay_from = 0
        self.begun: int | None = None
        """The start of the checkpoint that is being written or replayed."""
        self.begun_bytes = 0
        self.to_save: list[tuple[int, Part]] | None = None
        """Parts still missing from the checkpoint that is being written; None: none is."""

    def apply(self, record: TimerRecord) -> None:
        """See Machine."""
        if isinstance(record, VOLATILE):
            self._apply_volatile(record)
            return
        offset = self.next_offset
        self.next_offset = offset + 1
        if isinstance(record, Scheduled):  # first, as the most frequent
            self.schedule.add(record.due_ms, offset, record.tag)
            self.tail_bytes += len(record.body) + OVERHEAD_BYTES
        elif isinstance(record, CheckpointBegun):
            self._begin_checkpoint(record, offset)
        elif isinstance(record, StateSaved):
            if record.checkpoint == self.begun and self._is_replaying_start:
                for one in record.records:
                    self._apply_stored(one, offset)
        elif isinstance(record, PartSaved):
            self._apply_part(record)
        elif isinstance(record, CheckpointEnded):
            self.checkpoint = record.checkpoint
            self.tail_bytes -= self.begun_bytes
            self.begun = self.to_save = None
        else:
            self.tail_bytes += OVERHEAD_BYTES
            self._apply_stored(record, offset)

    def validate(self) -> None:
        """Assert the invariants: sequences that are taken follow each other, and each record that
        is named lies in the log."""
        sequence = self.confirmed
        for first, offsets in self.outstanding.items():
            assert first >= sequence or first + len(offsets) > self.confirmed, "taken twice"
            sequence = first + len(offsets)
        assert max(sequence, self.confirmed) <= self.taken
        assert self.outstanding_count == sum(map(len, self.outstanding.values()))
        assert all(offset < self.next_offset for offset in self.committed)
        self.schedule.validate()
        self.halves.validate()

    @property
    def size_bytes(self) -> int:
        """About how much memory the records take that are delayed, and half messages."""
        halves = HALF_BYTES * len(self.halves) + COMMITTED_BYTES * len(self.committed)
        return self.schedule.size_bytes + halves

    @property
    def _is_replaying_start(self) -> bool:
        """Whether the checkpoint being read is the one with which the replay began."""
        return self.begun == self.replay_from and self.to_save is None

    def _apply_volatile(self, record: VolatileRecord) -> None:
        match record:
            case TimerTimePassed():
                self.last_tick_ms = record.now_ms
                self.halves.pass_time(record.now_ms)
            case DeliveryEnded():
                self._confirm(record.upto)
            case TimersConfigured():
                self.halves.config = record.config
            case ChecksTaken():
                self.halves.take_checks(record.group, record.numbers)
            case ReplayFrom():
                self.next_offset = self.replay_from = record.offset
            case TimersLoaded():
                self.begun = self.to_save = None  # an interrupted checkpoint is restarted
                self.last_tick_ms = record.now_ms
                self.halves.pass_time(record.now_ms)
            case Skipped():
                self.next_offset += 1
                self.skipped_count += 1

    def _apply_stored(self, record: StoredRecord, offset: int) -> None:
        match record:
            case Taken():
                self._take(record)
            case Confirmed():
                self._confirm(record.confirmed)
                self.stored_confirmed = max(self.stored_confirmed, record.confirmed)
            case Cancelled():
                self.schedule.discard(record.due_ms, record.offset)
                self.committed.pop(record.offset, None)
            case StoredOrigin():
                self._note_origin(record)
            case HalfKept():
                self._keep(record, offset)
            case Moved():
                self._move(record, offset)
            case Settled():
                half = self.halves.settle(record)
                if half is not None and record.outcome == COMMITTED:
                    self.schedule.add(record.due_ms, half.offset, half.tag)
                    self.committed[half.offset] = record.due_ms
            case CommittedDue():
                self.committed[record.offset] = record.due_ms
            case Checked():
                for number in record.numbers:
                    self.halves.check(number, record.next_ms)
            case Opened():
                self.producer_id = record.producer_id
            case _:
                self.skipped_count += 1

    def _begin_checkpoint(self, record: CheckpointBegun, offset: int) -> None:
        self.begun, self.begun_bytes = offset, self.tail_bytes
        if offset == self.replay_from and offset:
            self.taken, self.confirmed = record
            self.stored_confirmed = self.confirmed
        else:
            self.to_save = self.schedule.seal()

    def _apply_part(self, record: PartSaved) -> None:
        if self._is_replaying_start and record.checkpoint == self.begun:
            try:
                part = Part.restored(record.base, record.entries)
            except ValueError as error:
                raise DataCorrupt(f"a part of a schedule is damaged: {error}") from error
            if part.entries:
                self.schedule.add_part(record.bucket, part)
        elif self.to_save:
            self.to_save.pop()

    def _take(self, record: Taken) -> None:
        self._confirm(record.confirmed)
        self.stored_confirmed = max(self.stored_confirmed, record.confirmed)
        if record.due_ms or record.offset:
            self.schedule.take(record.due_ms, record.offset)
        if self.committed:
            for offset in record.offsets:
                self.committed.pop(offset, None)
        self.outstanding[record.first] = record.offsets
        self.outstanding_count += len(record.offsets)
        self.taken = max(self.taken, record.first + len(record.offsets))

    def _confirm(self, upto: int) -> None:
        for first in list(self.outstanding):
            offsets = self.outstanding[first]
            if first + len(offsets) > upto:
                break
            del self.outstanding[first]
            self.outstanding_count -= len(offsets)
        self.confirmed = max(self.confirmed, upto)

    def _note_origin(self, record: StoredOrigin) -> None:
        producer = self.origins.pop(record.producer_id, None)
        if producer is None or producer.epoch != record.producer_epoch:
            producer = OriginProducer(record.producer_epoch)
        # re-inserted at the end: the first one has been inactive longest
        self.origins[record.producer_id] = producer
        if record.base_sequence not in producer.sequences:
            producer.sequences.append(record.base_sequence)
            del producer.sequences[:-ORIGIN_BATCHES]
        producer.seen_ms = max(producer.seen_ms, record.seen_ms)
        for producer_id, oldest in list(islice(self.origins.items(), PRUNED_AT_ONCE)):
            if oldest.seen_ms < record.seen_ms - ORIGIN_MS:
                del self.origins[producer_id]

    def _keep(self, record: HalfKept, offset: int) -> None:
        number = record.number if record.number >= 0 else offset
        lies_at = record.offset if record.offset >= 0 else offset
        self.tail_bytes += len(record.body)
        self.halves.keep(
            Half(
                number,
                lies_at,
                record.due_ms,
                record.timestamp_ms,
                record.tag,
                record.received_ms,
                record.next_check_ms,
                record.checks,
                record.group,
                record.message_id,
            )
        )

    def _move(self, record: Moved, offset: int) -> None:
        self.tail_bytes += len(record.body)
        if record.is_half:
            half = self.halves.by_number.get(record.number)
            if half is not None:
                half.offset = offset
            return
        self.schedule.discard(record.due_ms, record.old_offset)
        if self.committed.pop(record.old_offset, None) is not None:
            self.committed[offset] = record.due_ms
        self.schedule.add(record.due_ms, offset, record.tag)
