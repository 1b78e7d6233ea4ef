"""The machine of one data partition: the share groups that consume it.

Invariants: `decide` finds the group and calls its rules; only `apply` changes state. Deadlines are
in one heap with one live entry per group, so a thousand idle groups cost nothing.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, assert_never

from headrace.coordination.kit.deadlines import Deadlines
from headrace.coordination.kit.machine import Decision, PlainJournal
from headrace.coordination.shares.arrivals import decide_outdated, decide_rows
from headrace.coordination.shares.attempts import decide_repeat
from headrace.coordination.shares.claims import decide_claim, released
from headrace.coordination.shares.commands import (
    AcquireCommand,
    Acquired,
    AcquireReply,
    AnyShareReply,
    ClaimCommand,
    DeadLetter,
    DeadLetteredCommand,
    DeliveryState,
    DescribeCommand,
    DescribeReply,
    Filtered,
    LearnCommand,
    ListParkedCommand,
    LocksExpired,
    LogStartCommand,
    MoveStartCommand,
    OpenShareGroupCommand,
    ParkedReply,
    ParkKeyCommand,
    PeekCommand,
    ReleaseKeyCommand,
    ReleaseMemberCommand,
    RemoveGroupCommand,
    RepeatCommand,
    SettleCommand,
    SettleReply,
    ShareCommand,
    ShareDescription,
    ShareLoadedCommand,
    ShareReply,
    ShareTickCommand,
    SkipCommand,
    StatesCommand,
    StatesReply,
    TakeBackCommand,
    TakeBackReply,
)
from headrace.coordination.shares.parking import decide_park, list_parked, look_at
from headrace.coordination.shares.settlements import decide_settle
from headrace.coordination.shares.share_group import ShareGroup
from headrace.coordination.shares.state_records import (
    KeyParked,
    ShareGroupChanged,
    ShareGroupOpened,
    ShareGroupRemoved,
    StoredRecord,
    StoredRun,
    decode,
    encode,
)
from headrace.coordination.shares.volatile_records import (
    Claimed,
    Ended,
    Locked,
    RowsLearned,
    ShareGroupConfigured,
    ShareTimePassed,
    VolatileRecord,
)
from headrace.coordination.shares.window import (
    ACKNOWLEDGED,
    ACQUIRED,
    ARCHIVED,
    ARCHIVING,
    STATE_NAMES,
)
from headrace.errors import (
    GroupFull,
    GroupUnknown,
    HeadraceError,
    RecordStateInvalid,
    RequestInvalid,
)
from headrace.records.tenant_names import tenant_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


ShareRecord = StoredRecord | VolatileRecord
ShareDecision = Decision[ShareRecord, AnyShareReply]

GroupCommand = (
    PeekCommand
    | ClaimCommand
    | AcquireCommand
    | RepeatCommand
    | LearnCommand
    | SkipCommand
    | SettleCommand
    | ReleaseMemberCommand
    | MoveStartCommand
    | DeadLetteredCommand
    | ParkKeyCommand
    | ReleaseKeyCommand
    | ListParkedCommand
    | RemoveGroupCommand
)
"""Commands on an existing group."""

GROUPS_MAX = 10_000
"""Per partition: each takes memory and journal space permanently."""
READER_GROUPS_MAX = 500
"""Of them, those of one tenant that reads another one's topic: it must not take all."""
PART_SIZE = 500
"""Runs, parked keys and groups per snapshot part: about 2 ms of work to encode and append."""
AFTER_RESTART = "given up before the broker was restarted"


class ShareMachine(PlainJournal[ShareRecord]):
    """See the module and `Machine`."""

    def __init__(self) -> None:
        super().__init__(decode)
        self.groups: dict[str, ShareGroup] = {}
        self._by_number: dict[int, ShareGroup] = {}
        self._next_number = 0
        self._deadlines = Deadlines[int]()

    # --- deciding ----------------------------------------------------------------------------

    def decide(self, command: ShareCommand, now_ms: int) -> ShareDecision:
        """See Machine."""
        match command:
            case OpenShareGroupCommand():
                return self._decide_open(command)
            case DescribeCommand():
                return Decision([], self.describe(command))
            case StatesCommand(offsets):
                return Decision([], self._states(offsets))
            case TakeBackCommand():
                return self._decide_take_back(command, now_ms)
            case LogStartCommand():
                return self._decide_log_start(command.log_start_offset)
            case ShareTickCommand():
                return self._decide_tick(now_ms)
            case ShareLoadedCommand():
                return Decision([], ShareReply(), effects=self._outstanding())
            case _:
                group = self.groups.get(command.group_id)
        if group is None:
            error = GroupUnknown(f"group {command.group_id!r} has not begun on this partition")
            return Decision([], command.refused(error))
        return _decide_in(group, command, now_ms)

    def _decide_open(self, command: OpenShareGroupCommand) -> ShareDecision:
        group = self.groups.get(command.group_id)
        if group is not None:
            is_same = group.config == command.config
            return Decision(
                [] if is_same else [ShareGroupConfigured(group.number, command.config)],
                ShareReply(),
            )
        if command.start < 0:
            return Decision([], ShareReply(RequestInvalid(f"offset {command.start} is not valid")))
        if len(self.groups) >= GROUPS_MAX:
            refused = GroupFull(f"the partition already has {GROUPS_MAX} share groups: delete some")
            return Decision([], ShareReply(refused))
        tenant = tenant_of(command.group_id)
        if command.is_reader and self._count_of(tenant) >= READER_GROUPS_MAX:
            most = f"the tenant already has {READER_GROUPS_MAX} share groups on the partition"
            return Decision([], ShareReply(GroupFull(f"{most}: delete some")))
        number = self._next_number
        opened = ShareGroupOpened(number, command.group_id, command.start)
        return Decision([opened, ShareGroupConfigured(number, command.config)], ShareReply())

    def _count_of(self, tenant: str) -> int:
        return sum(tenant_of(group_id) == tenant for group_id in self.groups)

    def _decide_take_back(self, command: TakeBackCommand, now_ms: int) -> ShareDecision:
        own = [group_id for group_id in sorted(self.groups) if command.is_own(group_id)]
        if not own:
            return Decision([], TakeBackReply(GroupUnknown("no share group has begun on it")))
        taken: list[ShareRecord] = []
        for group_id, group in sorted(self.groups.items()):
            runs = group.decide_take_back(command.offset, now_ms)
            if not isinstance(runs, HeadraceError):
                taken += _changed(group, runs)
            elif group_id in own:
                return Decision([], TakeBackReply(runs))
        reply = TakeBackReply(None, own)
        return Decision([] if command.is_dry_run else taken, reply)

    def _decide_log_start(self, offset: int) -> ShareDecision:
        return Decision(
            [
                ShareGroupChanged(group.number, (), offset)
                for group in self.groups.values()
                if group.window.start < offset
            ],
            ShareReply(),
        )

    def _decide_tick(self, now_ms: int) -> ShareDecision:
        records: list[ShareRecord] = []
        effects: list[DeadLetter | LocksExpired] = []
        for number in self._deadlines.due(now_ms):
            group = self._by_number[number]
            expired, ended, letters = group.decide_expired(now_ms)
            if expired:
                count = sum(run.last - run.first + 1 for run in expired)
                effects.append(LocksExpired(group.group_id, count))
            outdated, more = decide_outdated(group, now_ms)
            records += [*_changed(group, expired), *ended, *_changed(group, outdated)]
            effects += [*letters, *more]
        records.append(ShareTimePassed(now_ms))
        return Decision(records, ShareReply(), effects=[*effects])

    def _outstanding(self) -> list[DeadLetter]:
        """Dead letter copies that a crash may have prevented."""
        return [
            DeadLetter(group.group_id, run.first, run.last, run.count, AFTER_RESTART, run.at_ms)
            for group in self.groups.values()
            for run in group.window
            if run.state == ARCHIVING
        ]

    def describe(self, command: DescribeCommand) -> DescribeReply:
        """The positions of groups; changes nothing."""
        reply = DescribeReply()
        wanted = self.groups if command.group_ids is None else command.group_ids
        for group_id in sorted(wanted):
            group = self.groups.get(group_id)
            if group is not None:
                reply.groups.append(_describe(group))
        return reply

    def _states(self, offsets: Sequence[int]) -> StatesReply:
        groups = [self.groups[group_id] for group_id in sorted(self.groups)]
        return StatesReply(None, [[_state(group, at) for group in groups] for at in offsets])

    def next_deadline_ms(self) -> int | None:
        """See Machine."""
        return self._deadlines.first_ms()

    # --- state changes -----------------------------------------------------------------------

    def apply(self, record: ShareRecord) -> None:
        """See Machine."""
        if isinstance(record, ShareTimePassed):
            self._pass_time(record.now_ms)
            return
        if isinstance(record, ShareGroupOpened):
            self._open(record)
            return
        group = self._by_number.get(record.number)
        if group is None:
            return  # it was removed, or is in a later part of the snapshot
        match record:
            case Locked():
                group.lock(record)
            case Ended():
                group.ended.note(record)
            case Claimed():
                group.claim = record
            case ShareGroupChanged():
                group.change(record)
            case KeyParked():
                group.park(record)
            case RowsLearned(_, rows, rows_from, rows_end):
                group.learn(rows, rows_from, rows_end)
            case ShareGroupConfigured(_, config):
                group.configure(config)
            case ShareGroupRemoved():
                self._forget(group)
                return
            case _:
                assert_never(record)
        self._arm(group)

    def _open(self, opened: ShareGroupOpened) -> None:
        former = self.groups.get(opened.group_id)
        if former is not None and former.number == opened.number:
            return  # from a snapshot whose other records may not have been stored
        if former is not None:
            self._forget(former)
        group = ShareGroup(opened.number, opened.group_id, opened.start)
        self.groups[opened.group_id] = self._by_number[opened.number] = group
        self._next_number = max(self._next_number, opened.number + 1)

    def _forget(self, group: ShareGroup) -> None:
        del self.groups[group.group_id]
        del self._by_number[group.number]
        self._deadlines.disarm(group.number)

    def _arm(self, group: ShareGroup) -> None:
        deadline_ms = group.next_deadline_ms()
        if deadline_ms is not None:
            self._deadlines.arm(group.number, deadline_ms)

    def _pass_time(self, now_ms: int) -> None:
        for number in self._deadlines.pass_until(now_ms):
            group = self._by_number[number]
            group.pass_time(now_ms)
            self._arm(group)

    def validate(self) -> None:
        """See Machine."""
        assert {group.number: group for group in self.groups.values()} == self._by_number
        assert all(number < self._next_number for number in self._by_number)
        for group_id, group in self.groups.items():
            assert group.group_id == group_id
            group.window.validate()
            assert group.parked_hashes == Counter(one.key_hash for one in group.parked.values())
            deadline_ms = group.next_deadline_ms()
            for run in group.window:
                if run.state == ACQUIRED:
                    assert deadline_ms is not None, "a lock would never expire"
                    assert deadline_ms <= run.at_ms

    # --- encoding ----------------------------------------------------------------------------

    def encode(self, record: ShareRecord) -> tuple[bytes, bytes | None] | None:
        """See Machine."""
        if isinstance(record, ShareGroupChanged | ShareGroupOpened | ShareGroupRemoved | KeyParked):
            return encode(record)
        return None

    def state_parts(self) -> Iterator[list[ShareRecord]]:
        """See Machine. All of a group is in one part, since later changes are written as
        differences from it; differences of a group that no part contains yet are skipped."""
        part: list[ShareRecord] = []
        size = 0
        for group_id in list(self.groups):
            group = self.groups.get(group_id)
            if group is None:
                continue
            part += _stored(group)
            size += 1 + len(group.window) + len(group.parked)
            if size >= PART_SIZE:
                yield part
                part, size = [], 0
        yield part

    def state_records(self) -> list[ShareRecord]:
        """See Machine."""
        return [record for part in self.state_parts() for record in part]


def _stored(group: ShareGroup) -> list[ShareRecord]:
    records: list[ShareRecord] = [
        ShareGroupOpened(group.number, group.group_id, group.window.start)
    ]
    state = group.stored_state()
    if state.runs:
        records.append(state)
    records += group.parked.values()
    return records


def _decide_in(group: ShareGroup, command: GroupCommand, now_ms: int) -> ShareDecision:
    match command:
        case PeekCommand():
            return Decision([], group.peek(command, now_ms))
        case ClaimCommand():
            claims, claim_reply = decide_claim(group, command, now_ms)
            return Decision([*claims], claim_reply)
        case AcquireCommand() | RepeatCommand():
            return _decide_acquire(group, command, now_ms)
        case LearnCommand(_, rows_from, rows, rows_end):
            if not group.lacks_rows(rows_from, rows_end):
                return Decision([], ShareReply())
            known = tuple(rows)
            runs, letters = decide_rows(group, known, (rows_from, rows_end), now_ms)
            learned = RowsLearned(group.number, known, rows_from, rows_end)
            effects = [*letters, *_filtered(group, runs)]
            return Decision([*_changed(group, runs), learned], ShareReply(), effects=effects)
        case SkipCommand(_, ranges, are_filtered):
            runs = group.decide_skip(ranges, are_filtered=are_filtered)
            return Decision(_changed(group, runs), ShareReply(), effects=_filtered(group, runs))
        case SettleCommand():
            errors, runs, locks, letters = decide_settle(group, command, now_ms)
            records: list[ShareRecord] = [*_changed(group, runs), *locks]
            return Decision(records, SettleReply(None, errors), effects=[*letters])
        case ReleaseMemberCommand(_, member_id):
            runs, letters = group.decide_member_left(member_id, now_ms)
            changes = [*_changed(group, runs), *released(group, member_id)]
            return Decision(changes, ShareReply(), effects=[*letters])
        case MoveStartCommand(_, start):
            if start < 0:
                return Decision([], ShareReply(RequestInvalid(f"offset {start} is not valid")))
            moved = ShareGroupChanged(group.number, (), start, is_reset=True)
            return Decision([moved], ShareReply())
        case DeadLetteredCommand(_, first, last):
            runs = [
                StoredRun(low, high, ARCHIVED, run.count)
                for low, high, run in group.window.between(first, last)
                if run.state == ARCHIVING
            ]
            return Decision(_changed(group, runs), ShareReply())
        case ParkKeyCommand() | ReleaseKeyCommand() | ListParkedCommand():
            return _decide_parked(group, command, now_ms)
        case RemoveGroupCommand():
            return Decision([ShareGroupRemoved(group.number)], ShareReply())
        case _:
            assert_never(command)


def _decide_parked(
    group: ShareGroup,
    command: ParkKeyCommand | ReleaseKeyCommand | ListParkedCommand,
    now_ms: int,
) -> ShareDecision:
    match command:
        case ListParkedCommand(_, keys):
            found = list_parked(group) if keys is None else look_at(group, keys)
            if isinstance(found, HeadraceError):
                return Decision([], ParkedReply(found))
            return Decision([], ParkedReply(None, found))
        case ReleaseKeyCommand(_, key):
            if key not in group.parked:
                return Decision(
                    [], ShareReply(RecordStateInvalid("the key is not parked on this partition"))
                )
            return Decision([KeyParked(group.number, key, -1, None)], ShareReply())
        case ParkKeyCommand(_, key, key_hash):
            parked = decide_park(group, key, key_hash, now_ms)
            if isinstance(parked, HeadraceError):
                return Decision([], ShareReply(parked))
            return Decision([] if key in group.parked else [parked], ShareReply())
        case _:
            assert_never(command)


def _changed(group: ShareGroup, runs: Sequence[StoredRun]) -> list[ShareRecord]:
    return [ShareGroupChanged(group.number, tuple(runs))] if runs else []


def _filtered(group: ShareGroup, runs: Sequence[StoredRun]) -> list[Filtered]:
    """What is acknowledged among records that are finished without a delivery."""
    count = sum(run.last - run.first + 1 for run in runs if run.state == ACKNOWLEDGED)
    return [Filtered(group.group_id, count)] if count else []


def _decide_acquire(
    group: ShareGroup, command: AcquireCommand | RepeatCommand, now_ms: int
) -> ShareDecision:
    if isinstance(command, RepeatCommand):
        return _delivered(decide_repeat(group, command, now_ms))
    if command.records_max <= 0:
        return Decision([], AcquireReply(RequestInvalid("at least one record must be requested")))
    if command.owner and group.config.is_sticky and group.claim.owner != command.owner:
        return Decision([], AcquireReply())
    return _delivered(group.decide_acquire(command, now_ms))


def _delivered(locked: Sequence[Locked]) -> ShareDecision:
    acquired = [Acquired(one.first, one.last, one.deliveries) for one in locked]
    reply = AcquireReply(None, acquired)
    return Decision([*locked], reply)


def _state(group: ShareGroup, offset: int) -> DeliveryState:
    window = group.window
    run = window.run_at(offset)
    if run is None or run.is_terminal:  # these are merged, whatever finished them
        word = "finished" if run is not None or offset < window.start else "waiting"
        return DeliveryState(group.group_id, word, 0, "", 0)
    return DeliveryState(group.group_id, STATE_NAMES[run.state], run.count, run.owner, run.at_ms)


def _describe(group: ShareGroup) -> ShareDescription:
    window = group.window
    archiving = sum(run.last - run.first + 1 for run in window if run.state == ARCHIVING)
    return ShareDescription(
        group.group_id,
        window.start,
        window.end,
        window.acquired_records,
        window.finished_records,
        archiving,
        sum(
            run.last - run.first + 1
            for run in window
            if not run.is_terminal and run.count > bool(run.owner)
        ),
    )
