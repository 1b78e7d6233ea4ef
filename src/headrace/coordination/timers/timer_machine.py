"""The machine of one partition's timers: delayed records and half messages.

Invariants: `decide` changes nothing; only `TimerState.apply` does, live and on replay. A record's
bytes stay in the companion log: the machine knows their offsets.

Exactly-once delivery: due records are *taken*: a durable Taken record names them and numbers them
with consecutive sequences. Once it is durable, they are appended to the partition's log as batches
of an idempotent producer with these sequences. After a crash the partition's log knows the last
sequence that it holds, so records that were taken and not appended are appended then, and none
twice. Taken and unconfirmed records are few, and each Taken record names them.

Checkpoints: a checkpoint starts with a CheckpointBegun record, followed in the same batch by all
state except the schedule. The parts of the schedule follow over many turns, each as of its writing,
while other records are added, taken and cancelled. Replay begins at the start of a checkpoint:
entries added since then are known from their own records, and a part holds what was left of earlier
ones at its place in the log, so records taken before that place are not in it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from headrace.coordination.kit.machine import Decision, EachRecord
from headrace.coordination.timers import state_records as stored
from headrace.coordination.timers.commands import (
    MISSING_MAX,
    AddCommand,
    AddReply,
    AdvanceCommand,
    AnyTimerReply,
    BeginCheckpointCommand,
    CancelCommand,
    ChecksDue,
    ConfigureCommand,
    Copy,
    Deliver,
    DeliveredCommand,
    EndCheckpointCommand,
    Half,
    MoveCommand,
    MoveReply,
    OpenTimersCommand,
    PollCommand,
    PollReply,
    SavePartsCommand,
    SettleHalfCommand,
    SettleHalfReply,
    TimerCommand,
    TimerReply,
    TimersLoadedCommand,
    TimerTickCommand,
)
from headrace.coordination.timers.halves import HALVES_MAX
from headrace.coordination.timers.schedule import PART_ENTRIES_MAX
from headrace.coordination.timers.state_records import (
    COMMITTED,
    EXPIRED,
    ROLLED_BACK,
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
from headrace.coordination.timers.timer_state import (
    ORIGIN_MS,
    VOLATILE,
    ChecksTaken,
    DeliveryEnded,
    ReplayFrom,
    Skipped,
    TimerRecord,
    TimersConfigured,
    TimersLoaded,
    TimerState,
    TimerTimePassed,
)
from headrace.errors import (
    RecordInvalid,
    RecordStateInvalid,
    StorageUnavailable,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from headrace.coordination.kit.machine import InTransaction, KeyValue, TransactionEnded
    from headrace.coordination.timers.config import HalfConfig
    from headrace.coordination.timers.schedule import Part

TAKE_MAX: Final = 1_000
"""Records taken at once: about 10 ms of work."""
OUTSTANDING_MAX: Final = 8_000
"""Records taken and not yet durable in the partition's log."""
TICK_MS: Final = 5
"""Between two takes, so that many records which are due in the same second share writes."""
CLOCK_CHECK_MS: Final = 5_000
"""Maximum time to the next deadline, in case the wall clock is set forward."""
CHECKS_AT_ONCE: Final = 1_000
SAVED_MAX: Final = 500
"""Parts saved by one command: where due times are far apart, a part may have a single entry."""
STATE_RECORDS: Final = 1_000
"""Per StateSaved record."""
CONFIRM_MS: Final = 60_000

TimerDecision = Decision[TimerRecord, AnyTimerReply]


class TimerMachine:
    """See the module."""

    def __init__(self, config: HalfConfig) -> None:
        """`config`: in force from the first record on; commands change it."""
        self.state = TimerState(config)

    def apply(self, record: TimerRecord) -> None:
        """See Machine."""
        self.state.apply(record)

    # --- deciding ----------------------------------------------------------------------------

    def decide(self, command: TimerCommand, now_ms: int) -> TimerDecision:  # noqa: C901
        """See Machine."""
        match command:
            case AddCommand():
                return self._decide_add(command, now_ms)
            case TimerTickCommand():
                return self._decide_tick(now_ms)
            case DeliveredCommand():
                return Decision([DeliveryEnded(command.upto)], TimerReply())
            case CancelCommand():
                if not self.state.schedule.has(command.due_ms, command.offset):
                    return Decision([], TimerReply(is_done=False))
                return Decision([Cancelled(command.due_ms, command.offset)], TimerReply())
            case AdvanceCommand():
                return self._decide_advance(command, now_ms)
            case SettleHalfCommand():
                return self._decide_settle(command, now_ms)
            case PollCommand():
                halves = self.state.halves.asked(command.group, command.count_max)
                taken = ChecksTaken(command.group, tuple(half.number for half in halves))
                return Decision([taken] if halves else [], PollReply(None, halves))
            case OpenTimersCommand():
                is_new = self.state.producer_id < 0
                return Decision([Opened(command.producer_id)] if is_new else [], TimerReply())
            case ConfigureCommand():
                return Decision([TimersConfigured(command.config)], TimerReply())
            case BeginCheckpointCommand():
                return self._decide_checkpoint()
            case SavePartsCommand():
                return self._decide_parts(command.count_max)
            case EndCheckpointCommand():
                if self.state.begun is None or self.state.to_save:
                    return Decision([], TimerReply(is_done=False))
                return Decision([CheckpointEnded(self.state.begun)], TimerReply())
            case MoveCommand():
                return self._decide_move(command)
            case TimersLoadedCommand():
                effects = [
                    Deliver(self.state.producer_id, first, self.state.outstanding[first])
                    for first in sorted(self.state.outstanding)
                ]
                return Decision([TimersLoaded(now_ms)], TimerReply(), effects=[*effects])

    def _decide_add(self, command: AddCommand, now_ms: int) -> TimerDecision:
        if self.state.producer_id < 0:
            error = StorageUnavailable("the partition's timers are being loaded: try again")
            return Decision([], AddReply(error))
        halves = sum(1 for timer in command.timers if timer.group)
        if halves and len(self.state.halves) + halves > HALVES_MAX:
            full = StorageUnavailable(
                f"the partition has {len(self.state.halves)} unsettled half messages, and the "
                f"limit is {HALVES_MAX}: commit or roll back some, then try again"
            )
            return Decision([], AddReply(full))
        records: list[TimerRecord] = []
        origin = command.origin
        if origin is not None:
            known = self.state.origins.get(origin.producer_id)
            if (
                known is not None
                and known.epoch == origin.producer_epoch
                and origin.base_sequence in known.sequences
            ):
                return Decision([], AddReply())
            records.append(origin)
        first = self.state.next_offset + len(records)
        first_check_ms = now_ms + self.state.halves.config.first_check_ms
        for due_ms, timestamp_ms, tag, body, group, message_id in command.timers:
            if group:
                times = now_ms, first_check_ms, 0, -1
                records.append(HalfKept(due_ms, timestamp_ms, tag, *times, group, message_id, body))
            else:
                records.append(Scheduled(due_ms, timestamp_ms, tag, body))
        return Decision(records, AddReply(None, range(first, first + len(command.timers))))

    def _decide_advance(self, command: AdvanceCommand, now_ms: int) -> TimerDecision:
        if not self.state.schedule.has(command.due_ms, command.offset):
            return Decision([], TimerReply(is_done=False))
        timer = command.timer
        again = Scheduled(now_ms, timer.timestamp_ms, timer.tag, timer.body)
        return Decision([Cancelled(command.due_ms, command.offset), again], TimerReply())

    def _decide_tick(self, now_ms: int) -> TimerDecision:
        records: list[TimerRecord] = [TimerTimePassed(now_ms)]
        effects: list[Deliver | ChecksDue] = []
        count_max = min(TAKE_MAX, OUTSTANDING_MAX - self.state.outstanding_count)
        entries = self.state.schedule.due(now_ms, count_max) if count_max > 0 else []
        if entries:
            offsets = tuple([offset for _, offset in entries])
            records.append(Taken(self.state.taken, *entries[-1], self.state.confirmed, offsets))
            effects.append(Deliver(self.state.producer_id, self.state.taken, offsets))
        elif (
            self.state.confirmed > self.state.stored_confirmed
            and not self.state.outstanding_count
            and now_ms - self.state.last_tick_ms >= CONFIRM_MS
        ):
            records.append(Confirmed(self.state.confirmed))
        halves = self.state.halves.due(now_ms, CHECKS_AT_ONCE)
        asked = [half for half in halves if half.checks < self.state.halves.config.checks_max]
        for half in halves:
            if half.checks >= self.state.halves.config.checks_max:
                reason = f"no producer has answered {half.checks} check-backs"
                records.append(_settled(half, EXPIRED, 0, now_ms, reason))
        if asked:
            next_ms = now_ms + self.state.halves.config.check_interval_ms
            records.append(Checked(next_ms, tuple([half.number for half in asked])))
            effects.append(ChecksDue(tuple(dict.fromkeys(half.group for half in asked))))
        return Decision(records, TimerReply(), effects=[*effects])

    def _decide_settle(self, command: SettleHalfCommand, now_ms: int) -> TimerDecision:
        halves = self.state.halves.find(command.number, command.message_id)
        if not halves:
            before = self.state.halves.outcome(command.number, command.message_id)
            error = None
            if before is None:
                error = RecordStateInvalid(
                    "the half message does not exist: it was settled long ago, or never sent to "
                    "this partition; see `headrace half list`"
                )
            elif (before.outcome == COMMITTED) != command.is_commit:
                verb = "committed" if before.outcome == COMMITTED else "rolled back"
                error = RecordStateInvalid(
                    f"the half message was already {verb}: an outcome cannot be changed"
                )
            return Decision([], SettleHalfReply(error, before))
        outcome = COMMITTED if command.is_commit else ROLLED_BACK
        settled: list[TimerRecord] = []
        for half in halves:
            due_ms = max(half.due_ms, now_ms) if command.is_commit else 0
            settled.append(_settled(half, outcome, due_ms, now_ms, command.reason))
        last = _settled(halves[-1], outcome, 0, now_ms, command.reason)
        if command.is_dry_run:
            count = self.state.halves.count(command.number, command.message_id)
            return Decision([], SettleHalfReply(None, last, count))
        return Decision(settled, SettleHalfReply(None, last, len(settled)))

    def _decide_checkpoint(self) -> TimerDecision:
        if self.state.begun is not None:
            return Decision([], TimerReply(is_done=False))
        state: list[StoredRecord] = []
        if self.state.producer_id >= 0:
            state.append(Opened(self.state.producer_id))
        state += [
            Taken(first, 0, 0, self.state.confirmed, self.state.outstanding[first])
            for first in sorted(self.state.outstanding)
        ]
        for producer_id, producer in sorted(self.state.origins.items()):
            if producer.seen_ms >= self.state.last_tick_ms - ORIGIN_MS:
                state += [
                    StoredOrigin(producer_id, producer.epoch, sequence, producer.seen_ms)
                    for sequence in producer.sequences
                ]
        state += [_kept(half) for half in self.state.halves.saved()]
        state += self.state.halves.outcomes
        state += [CommittedDue(due_ms, at) for at, due_ms in sorted(self.state.committed.items())]
        checkpoint = self.state.next_offset
        records: list[TimerRecord] = [CheckpointBegun(self.state.taken, self.state.confirmed)]
        records += [
            StateSaved(checkpoint, tuple(state[at : at + STATE_RECORDS]))
            for at in range(0, len(state), STATE_RECORDS)
        ]
        return Decision(records, TimerReply())

    def _decide_parts(self, count_max: int) -> TimerDecision:
        if self.state.to_save is None or self.state.begun is None:
            return Decision([], TimerReply(is_done=False))
        parts: list[tuple[int, Part]] = []
        room = count_max * PART_ENTRIES_MAX
        for bucket, part in reversed(self.state.to_save[-SAVED_MAX:]):  # from the last one on
            room -= len(part.entries)
            if parts and room < 0:
                break
            parts.append((bucket, part))
        records: list[TimerRecord] = [
            PartSaved(self.state.begun, bucket, part.base, part.stored()) for bucket, part in parts
        ]
        return Decision(records, TimerReply(is_done=bool(parts)))

    def _decide_move(self, command: MoveCommand) -> TimerDecision:
        missing = self._left_behind(command.copies) if command.is_order_kept else []
        if missing:
            return Decision([], MoveReply(missing=missing))
        records: list[TimerRecord] = []
        for due_ms, timestamp_ms, tag, offset, number, body in command.copies:
            half = self.state.halves.by_number.get(number)
            is_half = half is not None and half.offset == offset
            due_now_ms = self.state.committed.get(offset, due_ms)
            if is_half or self.state.schedule.has(due_now_ms, offset):
                where = due_now_ms, timestamp_ms, tag, offset, number
                records.append(Moved(*where, is_half, body))
        return Decision(records, MoveReply())

    def _left_behind(self, copies: Sequence[Copy]) -> list[int]:
        """Scheduled records that follow one of the copies in its millisecond without being
        copied."""
        state = self.state
        firsts: dict[int, int] = {}
        for copy in copies:
            due_ms = state.committed.get(copy.offset, copy.due_ms)
            if due_ms not in firsts and state.schedule.has(due_ms, copy.offset):
                firsts[due_ms] = copy.offset
        copied = {copy.offset for copy in copies}
        missing: list[int] = []
        for due_ms, first in firsts.items():
            after = state.schedule.due_at(due_ms, first, MISSING_MAX + len(copied))
            missing += [at for at in after if at not in copied]
            if len(missing) > MISSING_MAX:
                break
        return sorted(missing)

    def next_deadline_ms(self) -> int | None:
        """See Machine."""
        deadlines: list[int] = []
        if self.state.outstanding_count < OUTSTANDING_MAX:
            first_ms = self.state.schedule.first_ms()
            if first_ms is not None:
                deadlines.append(max(first_ms, self.state.last_tick_ms + TICK_MS))
        check_ms = self.state.halves.first_check_ms()
        if check_ms is not None:
            deadlines.append(max(check_ms, self.state.last_tick_ms + TICK_MS))
        if self.state.confirmed > self.state.stored_confirmed and not self.state.outstanding_count:
            deadlines.append(self.state.last_tick_ms + CONFIRM_MS)
        if not deadlines:
            return None
        return min(*deadlines, self.state.last_tick_ms + CLOCK_CHECK_MS)

    def validate(self) -> None:
        """See Machine."""
        self.state.validate()

    # --- encoding ----------------------------------------------------------------------------

    def encode(self, record: TimerRecord) -> tuple[bytes, bytes | None] | None:
        """See Machine."""
        if isinstance(record, VOLATILE):
            return None
        return stored.encode(record, self.state.checkpoint)

    def decode(self, key: bytes | None, value: bytes | None) -> TimerRecord | None:
        """See Machine."""
        if key is None:  # the host passes the start of the replay
            return ReplayFrom(int.from_bytes(value or b""))
        try:
            record = stored.decode(key, value or b"")
        except RecordInvalid:
            record = None
        return Skipped() if record is None else record

    def replayer(self) -> Callable[[list[KeyValue]], None]:
        """See Machine."""
        return EachRecord[TimerRecord](self)

    def decode_pending(
        self, transaction: InTransaction, key: bytes | None, value: bytes | None
    ) -> TimerRecord | None:
        """See Machine: clients do not write here."""
        del transaction
        return self.decode(key, value)

    def ended(self, ended: TransactionEnded) -> TimerRecord | None:
        """See Machine: clients do not write here."""
        del ended
        return None

    def state_parts(self) -> Iterator[list[TimerRecord]]:
        """See Machine."""
        yield self.state_records()

    def state_records(self) -> list[TimerRecord]:
        """See Machine. Checkpoints take the place of snapshots: never called."""
        return []


def _settled(half: Half, outcome: int, due_ms: int, now_ms: int, reason: str) -> Settled:
    return Settled(
        half.number,
        outcome,
        due_ms,
        now_ms,
        half.received_ms,
        half.group,
        half.message_id,
        reason,
    )


def _kept(half: Half) -> HalfKept:
    return HalfKept(
        half.due_ms,
        half.timestamp_ms,
        half.tag,
        half.received_ms,
        half.next_check_ms,
        half.checks,
        half.number,
        half.group,
        half.message_id,
        b"",
        half.offset,
    )
