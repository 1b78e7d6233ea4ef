"""The machine of the lite topics in one data partition: many small queues in one log.

Invariants: as `share_machine`; `decide` finds the group and calls its rules, only `apply` changes
state. Progress, and which records have expired, is stored; where the records of a lite topic lie is
learned from the log, from its start on, after each load. What a client subscribes to is repeated by
it, and forgotten when it ends. Nothing is done for a lite topic that gets no records.
"""

from __future__ import annotations

from itertools import islice, takewhile
from typing import TYPE_CHECKING, Final, assert_never

from headrace.coordination.kit.deadlines import Deadlines
from headrace.coordination.kit.machine import Decision, PlainJournal
from headrace.coordination.shares.commands import (
    DeadLetter,
    DeadLetteredCommand,
    DeliveryState,
    ReleaseMemberCommand,
    RemoveGroupCommand,
    RepeatCommand,
    SettleCommand,
    ShareLoadedCommand,
    ShareReply,
    ShareTickCommand,
    StatesReply,
)
from headrace.coordination.shares.lite_commands import (
    ForgetLiteCommand,
    LearnLiteCommand,
    LiteAcquireCommand,
    LiteCaughtUpCommand,
    LiteCommand,
    LiteGroupCommand,
    LitePeekCommand,
    LitePeekReply,
    LiteRow,
    LiteStatesCommand,
    LiteSyncCommand,
    OpenLiteCommand,
)
from headrace.coordination.shares.lite_decisions import (
    LiteDecision,
    decide_acquire,
    decide_copied,
    decide_released,
    decide_repeat,
    decide_settle,
    decide_sync,
)
from headrace.coordination.shares.lite_group import LiteGroup
from headrace.coordination.shares.lite_index import LiteIndex
from headrace.coordination.shares.lite_progress import FOR_EVER, LiteLine
from headrace.coordination.shares.lite_records import (
    LiteConfigured,
    LiteDelivering,
    LiteEmptied,
    LiteExpired,
    LiteForgotten,
    LiteKept,
    LiteLearned,
    LiteLeft,
    LiteOpened,
    LiteProgress,
    LiteRecord,
    LiteRemoved,
    LiteSettled,
    LiteStart,
    LiteSubscribed,
    LiteTimePassed,
    decode,
    encode,
)
from headrace.errors import GroupFull, GroupUnknown

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headrace.coordination.shares.lite_group import NotesReady

GROUPS_MAX: Final = 1_000
EXPIRED_AT_ONCE: Final = 100
"""Lite topics that expire in one decision; the others follow."""
EMPTIED_AT_ONCE: Final = 1_000
"""Lite topics without records, times groups, in one decision; the others follow."""
TRIMMED_AT_ONCE: Final = 1_000
"""Lite topics of a group whose first records are deleted that are counted anew in one decision."""
DUE_AT_ONCE: Final = 1_000
"""Lite topics whose locks or delays end in one decision; the others follow."""
PART_RECORDS: Final = 1_000
"""Of a snapshot, per part."""
_LINE, _CLIENT = "line", "client"
"""What a deadline is about."""
_Grouped = (
    LiteDelivering
    | LiteConfigured
    | LiteSubscribed
    | LiteLeft
    | LiteSettled
    | LiteProgress
    | LiteRemoved
)


class LiteMachine(PlainJournal[LiteRecord]):
    """See the module and `Machine`."""

    def __init__(self, ready: NotesReady | None = None) -> None:
        """`ready` is told of each client that may get a record now and might not before."""
        super().__init__(decode)
        self._ready: NotesReady = ready or set()
        self.index = LiteIndex()
        self.groups: dict[str, LiteGroup] = {}
        self._by_number: dict[int, LiteGroup] = {}
        self._next_number = 0
        self._expired: dict[str, int] = {}
        """Lite topics whose records before this offset are not delivered, in order of time."""
        self._expiration_ms = -1
        self.is_trimming = False
        """Whether backlogs still have records before the start of the log."""
        self._deadlines = Deadlines[str]()

    # --- deciding ----------------------------------------------------------------------------

    def decide(self, command: LiteCommand, now_ms: int) -> LiteDecision:
        """See Machine."""
        match command:
            case OpenLiteCommand():
                return self._decide_open(command)
            case LearnLiteCommand(rows_from, rows, rows_end):
                if rows_from != self.index.end or rows_end <= rows_from:
                    return Decision([], ShareReply())
                expired = self._expired
                wanted = [
                    LiteRow(offset, name, min(timestamp_ms, now_ms))  # or it would never expire
                    for offset, name, timestamp_ms in rows
                    if offset >= expired.get(name, 0)
                ]
                return Decision([LiteLearned(wanted, rows_end)], ShareReply())
            case ForgetLiteCommand(parts):
                return Decision([LiteForgotten(parts)], ShareReply())
            case LiteCaughtUpCommand(log_start_offset, end):
                if end > self.index.end:
                    return Decision([], ShareReply())
                records = self._decide_caught_up(log_start_offset, now_ms)
                return Decision([*records], ShareReply())
            case LiteStatesCommand(places):
                return Decision([], StatesReply(None, [self._states(*one) for one in places]))
            case ShareTickCommand():
                return self._decide_tick(now_ms)
            case ShareLoadedCommand():
                return Decision([], ShareReply())
            case _:
                group = self.groups.get(command.group_id)
        if group is None:
            return _refused(command)
        return _decide_in(group, command, now_ms)

    def _decide_open(self, command: OpenLiteCommand) -> LiteDecision:
        group = self.groups.get(command.group_id)
        records: list[LiteRecord] = []
        if group is None:
            if not command.begins:
                return _refused(command)
            if len(self.groups) >= GROUPS_MAX:
                refusal = GroupFull(f"the partition has {GROUPS_MAX} lite groups: delete some")
                return Decision([], ShareReply(refusal))
            number = self._next_number
            records.append(LiteOpened(number, command.group_id))
        else:
            number = group.number
        if not self.is_open(command):
            records.append(LiteConfigured(number, command.config, command.expiration_ms))
        return Decision(records, ShareReply())

    def is_open(self, command: OpenLiteCommand) -> bool:
        """Whether the command would change nothing."""
        group = self.groups.get(command.group_id)
        is_same = group is not None and group.config == command.config
        return is_same and self._expiration_ms == command.expiration_ms

    def _decide_caught_up(self, log_start: int, now_ms: int) -> Iterator[LiteRecord]:
        """Some of what is outdated; the start of the log moves once no lite topic is before it."""
        most = max(EMPTIED_AT_ONCE // max(len(self.groups), 1), 1)
        if log_start > self.index.start:
            emptied = list(islice(self.index.before(log_start), most + 1))
            yield LiteEmptied(emptied[:most])
            if len(emptied) <= most:
                yield LiteStart(log_start)
            return
        if self.is_trimming:
            yield LiteStart(log_start)
        orphans = list(islice(self.index.orphans, most))
        for group in self.groups.values():
            for name in filter(group.is_orphan, orphans):
                yield LiteProgress(group.number, name, None)
        for name in islice(self._deleted_expired(), EMPTIED_AT_ONCE):
            yield LiteExpired(name, None)
        yield LiteEmptied(orphans)
        yield from self._outdated(now_ms)

    def _deleted_expired(self) -> Iterator[str]:
        """Lite topics of which the log has deleted what had expired."""
        start = self.index.start
        return (one[0] for one in takewhile(lambda one: one[1] <= start, self._expired.items()))

    def is_outdated(self, log_start_offset: int, now_ms: int) -> bool:
        """Whether a LiteCaughtUpCommand would change anything."""
        if log_start_offset > self.index.start or self.index.orphans or self.is_trimming:
            return True
        if self._expired and next(self._deleted_expired(), None) is not None:
            return True
        first = next(self.index.oldest(), None) if self._expiration_ms >= 0 else None
        return first is not None and self._is_due(first, now_ms)

    def _is_due(self, name: str, now_ms: int) -> bool:
        return self.index.last_ms(name) + self._expiration_ms <= now_ms

    def _decide_tick(self, now_ms: int) -> LiteDecision:
        records: list[LiteRecord] = []
        effects: list[DeadLetter] = []
        limit_ms = self._deadlines.limit_ms(now_ms, DUE_AT_ONCE)
        for key in self._deadlines.due(limit_ms):
            kind, number, name = key.split(" ", 2)
            group = self._by_number.get(int(number))
            if group is None:  # deleted; one deadline of it must not stop those of the others
                continue
            if kind == _CLIENT:
                client = group.clients.get(name)
                if client is not None and client.until_ms <= now_ms:
                    records.append(LiteLeft(group.number, name))
                continue
            line = LiteLine(group, name, now_ms)
            line.pass_time()
            records += line.records()
            effects += line.effects
        records.append(LiteTimePassed(limit_ms))
        return Decision(records, ShareReply(), effects=[*effects])

    def _outdated(self, now_ms: int) -> Iterator[LiteRecord]:
        """The lite topics to which nothing was sent for too long."""
        if self._expiration_ms < 0:
            return
        for count, name in enumerate(self.index.oldest()):
            if count >= EXPIRED_AT_ONCE or not self._is_due(name, now_ms):
                return
            if any(name in group.delivering for group in self.groups.values()):
                yield LiteKept(name, now_ms)
                continue
            yield LiteExpired(name, self.index.last(name) + 1)

    def _states(self, offset: int, name: str) -> list[DeliveryState]:
        has_expired = offset < self._expired.get(name, 0)
        groups = [self.groups[group_id] for group_id in sorted(self.groups)]
        return [group.state(name, offset, has_expired) for group in groups if group.has(name)]

    def next_deadline_ms(self) -> int | None:
        """See Machine."""
        return self._deadlines.first_ms()

    # --- state changes -----------------------------------------------------------------------

    def apply(self, record: LiteRecord) -> None:
        """See Machine."""
        match record:
            case LiteLearned():
                self._learn(record)
            case LiteForgotten(parts):
                for name, first, last in parts:
                    self.index.remove(name, first, last)
                    self._refresh_unknown(name)
            case LiteEmptied(names):
                for name in names:
                    self.index.drop(name)
                    self._refresh_unknown(name)
            case LiteStart(offset):
                self.index.start = offset
                self.is_trimming = any(
                    group.forget_before(offset, TRIMMED_AT_ONCE) for group in self.groups.values()
                )
            case LiteExpired():
                self._expire(record)
            case LiteKept(name, now_ms):
                self.index.keep(name, now_ms)
            case LiteTimePassed(now_ms):
                for key in self._deadlines.pass_until(now_ms):
                    self._arm(key)
            case LiteOpened():
                self._open(record)
            case _:
                group = self._by_number.get(record.number)
                if group is not None:  # not removed, nor in a later part of the snapshot
                    self._apply_in(group, record)

    def _learn(self, record: LiteLearned) -> None:
        for offset, name, timestamp_ms in record.rows:
            self.index.add(name, offset, timestamp_ms)
        self.index.end = record.end
        for name in dict.fromkeys(row.name for row in record.rows):
            for group in self.groups.values():
                group.refresh(name)

    def _refresh_unknown(self, name: str) -> None:
        for group in self.groups.values():
            group.refresh_unknown(name)

    def _expire(self, record: LiteExpired) -> None:
        self._expired.pop(record.name, None)
        if record.end is None:
            return
        self._expired[record.name] = record.end
        if self.index.last(record.name) < record.end:
            self.index.drop(record.name)
            self._refresh_unknown(record.name)

    def _open(self, opened: LiteOpened) -> None:
        former = self.groups.get(opened.group_id)
        if former is not None:
            if former.number == opened.number:
                return  # from a snapshot
            self._forget(former)
        group = LiteGroup(opened.number, opened.group_id, self.index, self._ready)
        self.groups[opened.group_id] = self._by_number[opened.number] = group
        self._next_number = max(self._next_number, opened.number + 1)

    def _forget(self, group: LiteGroup) -> None:
        del self.groups[group.group_id]
        del self._by_number[group.number]
        lines = dict.fromkeys([*group.delivering, *group.delayed])
        for kind, names in ((_LINE, lines), (_CLIENT, group.clients)):
            for name in names:
                self._deadlines.disarm(f"{kind} {group.number} {name}")

    def _apply_in(self, group: LiteGroup, record: _Grouped) -> None:
        match record:
            case LiteProgress(_, name, _):
                group.apply_progress(record)
                self._arm(f"{_LINE} {group.number} {name}")
            case LiteDelivering(_, name, _):
                group.apply_delivering(record)
                self._arm(f"{_LINE} {group.number} {name}")
            case LiteSubscribed(number=_, client=client):
                group.apply_subscribed(record)
                self._arm(f"{_CLIENT} {group.number} {client}")
            case LiteLeft(_, client):
                group.apply_left(client)
            case LiteSettled():
                group.apply_settled(record)
            case LiteConfigured(_, config, expiration_ms):
                group.config = config
                self._expiration_ms = expiration_ms
            case LiteRemoved():
                self._forget(group)
            case _:
                assert_never(record)

    def _arm(self, key: str) -> None:
        kind, number, name = key.split(" ", 2)
        group = self._by_number.get(int(number))
        if group is None:
            return
        if kind == _CLIENT:
            client = group.clients.get(name)
            if client is not None:
                self._deadlines.arm(key, client.until_ms)
            return
        times = [one.until_ms for one in group.delivering.get(name, {}).values()]
        progress = group.progress.get(name)
        if progress is not None and progress.at_ms:
            times.append(progress.at_ms)
        first_ms = min(times, default=FOR_EVER)
        if first_ms < FOR_EVER:
            self._deadlines.arm(key, first_ms)
        else:
            self._deadlines.disarm(key)

    def validate(self) -> None:
        """See Machine."""
        for group in self.groups.values():
            group.validate()

    # --- records -----------------------------------------------------------------------------

    def encode(self, record: LiteRecord) -> tuple[bytes, bytes | None] | None:
        """See Machine."""
        if isinstance(record, LiteOpened | LiteRemoved | LiteProgress | LiteExpired):
            return encode(record)
        return None

    def state_parts(self) -> Iterator[list[LiteRecord]]:
        """See Machine."""
        yield [LiteOpened(one.number, one.group_id) for one in self.groups.values()]
        expired = list(self._expired.items())
        for at in range(0, len(expired), PART_RECORDS):
            yield [LiteExpired(*one) for one in expired[at : at + PART_RECORDS]]
        for number, group in list(self._by_number.items()):
            names = list(group.progress)
            for at in range(0, len(names), PART_RECORDS):
                yield [
                    LiteProgress(number, name, group.progress[name])
                    for name in names[at : at + PART_RECORDS]
                    if name in group.progress
                ]

    def state_records(self) -> list[LiteRecord]:
        """See Machine."""
        return [record for part in self.state_parts() for record in part]


def _refused(command: LiteGroupCommand | OpenLiteCommand) -> LiteDecision:
    error = GroupUnknown(f"group {command.group_id!r} has not begun on this partition")
    return Decision([], command.refused(error))


def _decide_in(group: LiteGroup, command: LiteGroupCommand, now_ms: int) -> LiteDecision:
    match command:
        case LiteSyncCommand():
            return decide_sync(group, command, now_ms)
        case LitePeekCommand(_, client_id, records_max):
            client = group.clients.get(client_id)
            if client is None:
                return Decision([], LitePeekReply())
            found = group.next_of(client, records_max)
            rows = sorted((offset, name) for name, some in found.items() for offset in some)
            wait_ms = -1 if rows else group.wait_ms(client, now_ms)
            offsets, names = [row[0] for row in rows], [row[1] for row in rows]
            return Decision([], LitePeekReply(None, offsets, names, wait_ms))
        case LiteAcquireCommand():
            return decide_acquire(group, command, now_ms)
        case RepeatCommand():
            return decide_repeat(group, command, now_ms)
        case SettleCommand():
            return decide_settle(group, command, now_ms)
        case ReleaseMemberCommand(_, member_id):
            return decide_released(group, member_id, now_ms)
        case DeadLetteredCommand():
            return decide_copied(group, command, now_ms)
        case RemoveGroupCommand():
            return Decision([LiteRemoved(group.number)], ShareReply())
        case _:
            assert_never(command)
