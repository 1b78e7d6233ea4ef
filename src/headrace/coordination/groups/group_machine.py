"""The machine of one shard: all groups of one partition of `__consumer_offsets`.

Invariants: `decide` finds the group and passes the command to its rule; `apply` is the only method
that changes state. Deadlines are in one heap, with one live entry per group: a heartbeat only ever
extends a session, so it does not touch the heap; an entry that comes up early is checked and put
back.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, assert_never

from headrace.coordination.deadlines import Deadlines
from headrace.coordination.groups import (
    listing,
    migration,
    offsets,
    passing_time,
)
from headrace.coordination.groups.commands import (
    CommitCommand,
    DeleteGroupsCommand,
    DeleteOffsetsCommand,
    DescribeGroupsCommand,
    FetchOffsetsCommand,
    HeartbeatCommand,
    JoinCommand,
    LeaveCommand,
    ListGroupsCommand,
    SyncCommand,
    TransactionalCommitCommand,
)
from headrace.coordination.groups.consumer_commands import (
    ConsumerHeartbeatCommand,
    DescribeConsumerGroupsCommand,
)
from headrace.coordination.groups.consumer_description import decide_describe
from headrace.coordination.groups.consumer_group import consumer_group
from headrace.coordination.groups.consumer_records import CONSUMER, ConsumerRecord
from headrace.coordination.groups.group import (
    CleanupScheduled,
    Group,
    GroupChanged,
    GroupDeadlinesPassed,
    GroupDecision,
    GroupForgotten,
    GroupRecord,
    MemberSeen,
    group_from_record,
)
from headrace.coordination.groups.host_commands import (
    ForgetTopicsCommand,
    GroupCommand,
    WriteMarkerCommand,
)
from headrace.coordination.groups.open_commits import OffsetPending
from headrace.coordination.groups.replaying import OffsetReplay
from headrace.coordination.groups.snapshot import parts_of
from headrace.coordination.groups.state_records import (
    GroupRemoved,
    GroupStored,
    OffsetRemoved,
    OffsetStored,
    decode,
    encode,
)
from headrace.coordination.host_commands import LoadedCommand, TickCommand
from headrace.coordination.machine import (
    InTransaction,
    KeyValue,
    TransactionEnded,
    decode_or_none,
)
from headrace.coordination.member_groups.group import MembersTouched
from headrace.coordination.member_groups.records import MemberRecordRemoved
from headrace.coordination.streams import description
from headrace.coordination.streams.commands import (
    DescribeStreamsGroupsCommand,
    StreamsHeartbeatCommand,
)
from headrace.coordination.streams.records import STREAMS, StreamsRecord
from headrace.coordination.streams.streams_group import streams_group

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from headrace.coordination.groups.config import GroupConfig


class GroupMachine:
    """See the module. `skipped_count`: records of the log that could not be decoded."""

    def __init__(self, config: GroupConfig) -> None:
        self.groups: dict[str, Group] = {}
        self.skipped_count = 0
        self.rebalances_total = 0
        self._config = config
        self._deadlines = Deadlines[str]()
        self._cleanup = CleanupScheduled(-1)
        """`at_ms` is -1 before the log is loaded."""
        self._open: dict[int, dict[str, None]] = {}
        """Producer id -> the groups in which its open transaction has committed offsets."""
        self._removals = 0
        """Removals of groups, and of offsets of groups."""
        self._last_order = 0
        """Counts transactional commits, in log order."""

    # --- deciding ----------------------------------------------------------------------------

    def decide(self, command: GroupCommand, now_ms: int) -> GroupDecision:
        """See Machine."""
        groups, config = self.groups, self._config
        # The two most frequent commands first: each preceding test costs 0.1 us.
        if isinstance(command, HeartbeatCommand):
            return migration.decide_heartbeat(groups.get(command.group_id), command, now_ms)
        if isinstance(command, CommitCommand):
            return offsets.decide_commit(groups.get(command.group_id), command, now_ms, config)
        if isinstance(command, ConsumerHeartbeatCommand):
            return migration.decide_consumer_heartbeat(
                groups.get(command.group_id), command, now_ms, config
            )
        if isinstance(command, StreamsHeartbeatCommand):
            return migration.decide_streams_heartbeat(
                groups.get(command.group_id), command, now_ms, config
            )
        match command:
            case JoinCommand():
                return migration.decide_join(groups.get(command.group_id), command, now_ms, config)
            case SyncCommand():
                return migration.decide_sync(groups.get(command.group_id), command, now_ms, config)
            case LeaveCommand():
                return migration.decide_leave(groups.get(command.group_id), command, now_ms, config)
            case TransactionalCommitCommand():
                group = groups.get(command.group_id)
                return offsets.decide_transactional_commit(group, command, now_ms, config)
            case FetchOffsetsCommand():
                return offsets.decide_fetch(groups.get(command.group_id), command)
            case DeleteOffsetsCommand():
                return offsets.decide_delete(groups.get(command.group_id), command)
            case DeleteGroupsCommand():
                return listing.decide_delete_groups(groups, command)
            case (
                ListGroupsCommand()
                | DescribeGroupsCommand()
                | DescribeConsumerGroupsCommand()
                | DescribeStreamsGroupsCommand()
            ):
                return self._decide_description(command)
            case _:
                return self._decide_for_host(command, now_ms)

    def _decide_description(
        self,
        command: ListGroupsCommand
        | DescribeGroupsCommand
        | DescribeConsumerGroupsCommand
        | DescribeStreamsGroupsCommand,
    ) -> GroupDecision:
        match command:
            case ListGroupsCommand():
                return listing.decide_list(self.groups, command)
            case DescribeGroupsCommand():
                return listing.decide_describe(self.groups, command)
            case DescribeConsumerGroupsCommand():
                return decide_describe(self.groups, command)
            case DescribeStreamsGroupsCommand():
                return description.decide_describe(self.groups, command)
            case _:
                assert_never(command)

    def _decide_for_host(
        self,
        command: ForgetTopicsCommand | WriteMarkerCommand | TickCommand | LoadedCommand,
        now_ms: int,
    ) -> GroupDecision:
        match command:
            case ForgetTopicsCommand():
                return offsets.decide_forget_topics(self.groups.values(), command)
            case WriteMarkerCommand():
                return offsets.decide_marker(command)
            case TickCommand():
                cleanup = self._cleanup
                is_cleanup_due = 0 <= cleanup.at_ms <= now_ms
                return passing_time.decide_tick(
                    self.groups,
                    self._deadlines.due(now_ms),
                    now_ms,
                    self._config,
                    cleanup_from=cleanup.first if is_cleanup_due else None,
                )
            case LoadedCommand():
                return passing_time.decide_loaded(self.groups, now_ms, self._config)
            case _:
                assert_never(command)

    def next_deadline_ms(self) -> int | None:
        """See Machine."""
        cleanup_ms = self._cleanup.at_ms if self.groups and self._cleanup.at_ms >= 0 else None
        first_ms = self._deadlines.first_ms()
        if first_ms is None or cleanup_ms is None:
            return cleanup_ms if first_ms is None else first_ms
        return min(first_ms, cleanup_ms)

    # --- state changes -----------------------------------------------------------------------

    def apply(self, record: GroupRecord) -> None:
        """See Machine."""
        if type(record) is OffsetStored:  # a million of them are read back
            self._take_offset(record)
            return
        match record:
            case MemberSeen(member, deadline_ms):
                member.deadline_ms = deadline_ms
            case OffsetStored():
                self._take_offset(record)
            case OffsetPending():
                self._take_pending(record)
            case TransactionEnded():
                self._end_transaction(record)
            case GroupChanged(group, rebalances):
                self.groups[group.group_id] = group
                self.rebalances_total += rebalances
                self._arm(group)
            case GroupStored():
                known = self.groups.get(record.group_id)
                self.groups[record.group_id] = group_from_record(record, known)
            case OffsetRemoved():
                self._remove_offset(record)
            case GroupRemoved(group_id):
                self._remove_group(group_id)
            case GroupForgotten(group_id):
                self._removals += 1
                self.groups.pop(group_id, None)
            case GroupDeadlinesPassed(now_ms):
                self._pass_deadlines(now_ms)
            case CleanupScheduled():
                self._cleanup = record
            case _:
                self._take_member_record(record)

    def _take_pending(self, pending: OffsetPending) -> None:
        """A transactional commit waits for its marker."""
        self._last_order += 1
        producer_id = pending.transaction.producer_id
        group = self._group(pending.stored.group_id)
        group.open_commits.add(producer_id, self._last_order, pending.stored)
        self._open.setdefault(producer_id, {})[group.group_id] = None

    def _remove_group(self, group_id: str) -> None:
        """The classic group's record is deleted; any other state of the group stays."""
        self._removals += 1
        known = self.groups.pop(group_id, None)
        if known is None:
            return
        rest = Group(
            group_id,
            offsets=known.offsets,
            open_commits=known.open_commits,
            consumer=known.consumer,
            streams=known.streams,
        )
        if not rest.is_forgettable():
            self.groups[group_id] = rest

    def _remove_offset(self, record: OffsetRemoved) -> None:
        known = self.groups.get(record.group_id)
        if known is not None:
            self._removals += 1
            known.offsets.pop((record.topic, record.partition), None)
            known.open_commits.remove((record.topic, record.partition))
            self._forget_if_nothing(known)

    def _group(self, group_id: str) -> Group:
        group = self.groups.get(group_id)
        if group is None:
            group = self.groups[group_id] = Group(group_id)
        return group

    def _take_member_record(
        self, record: ConsumerRecord | StreamsRecord | MembersTouched | MemberRecordRemoved
    ) -> None:
        """Apply a record of a group whose coordinator assigns; a stored one converts the group to
        its kind."""
        group = self.groups.get(record.group_id)
        managed = None if group is None else group.managed
        if isinstance(record, MembersTouched):
            if group is not None and managed is not None:
                managed.touch(record)
                self._arm(group)
        elif isinstance(record, MemberRecordRemoved):
            if group is not None and managed is not None and managed.kind.has(record.key_type):
                managed.apply(record)
                if record.key_type == managed.kind.group_key:
                    group.consumer = group.streams = None
                    self._forget_if_nothing(group)
        else:
            self._take_stored_member_record(group, record)

    def _take_stored_member_record(
        self, group: Group | None, record: ConsumerRecord | StreamsRecord
    ) -> None:
        managed = None if group is None else group.managed
        kind = CONSUMER if isinstance(record, ConsumerRecord) else STREAMS
        if managed is None or managed.kind is not kind:
            bare = self.groups[record.group_id] = Group(record.group_id)
            if kind is CONSUMER:
                managed = bare.consumer = consumer_group(record.group_id)
            else:
                managed = bare.streams = streams_group(record.group_id)
            if group is not None:
                bare.offsets, bare.open_commits = group.offsets, group.open_commits
        managed.apply(record)

    def _take_offset(self, record: OffsetStored) -> None:
        """A non-transactional commit, or a snapshot's copy of an offset in force."""
        group = self._group(record.group_id)
        place = record.topic, record.partition
        if record.is_repeated:
            record = record._replace(is_repeated=False)
        elif group.open_commits:
            group.open_commits.supersede(place)
        group.offsets[place] = record

    def _end_transaction(self, ended: TransactionEnded) -> None:
        """A marker: the transaction's commits take effect, unless later ones have."""
        for group_id in self._open.pop(ended.producer_id, ()):
            group = self.groups.get(group_id)
            if group is None:
                continue
            commits = group.open_commits.end(ended.producer_id)
            if ended.is_commit:
                for order, stored in commits:
                    place = stored.topic, stored.partition
                    group.open_commits.supersede(place, order)
                    group.offsets[place] = stored
            self._forget_if_nothing(group)

    def _forget_if_nothing(self, group: Group) -> None:
        if group.is_forgettable():
            self._removals += 1
            del self.groups[group.group_id]

    def _arm(self, group: Group) -> None:
        deadline_ms = group.next_deadline_ms()
        if deadline_ms is not None:
            self._deadlines.arm(group.group_id, deadline_ms)

    def _pass_deadlines(self, now_ms: int) -> None:
        for group_id in self._deadlines.pass_until(now_ms):
            group = self.groups.get(group_id)
            if group is not None:
                self._arm(group)

    def validate(self) -> None:
        """See Machine."""
        first_ms = self._deadlines.first_ms()
        for group_id, group in self.groups.items():
            assert group.group_id == group_id
            group.validate()
            deadline_ms = group.next_deadline_ms()
            if deadline_ms is not None:
                assert first_ms is not None, "its members would never expire"
                assert first_ms <= deadline_ms

    # --- encoding ----------------------------------------------------------------------------

    def encode(self, record: GroupRecord) -> tuple[bytes, bytes | None] | None:
        """See Machine."""
        if isinstance(record, OffsetStored | GroupStored | OffsetRemoved | GroupRemoved):
            return encode(record)
        if isinstance(record, OffsetPending):
            return encode(record.stored)
        if isinstance(record, ConsumerRecord):
            return CONSUMER.encode(record)
        if isinstance(record, StreamsRecord | MemberRecordRemoved):
            return STREAMS.encode(record)
        return None

    def decode(self, key: bytes | None, value: bytes | None) -> GroupRecord | None:
        """See Machine. Undecodable records are skipped: one bad record must not stop all groups."""
        record: GroupRecord | None = decode_or_none(decode, key, value)
        if record is None:
            self.skipped_count += 1
        return record

    def replayer(self) -> Callable[[list[KeyValue]], None]:
        """See Machine."""
        return OffsetReplay(self)

    def decode_pending(
        self, transaction: InTransaction, key: bytes | None, value: bytes | None
    ) -> GroupRecord | None:
        """See Machine: transactions contain only offsets."""
        record = self.decode(key, value)
        return OffsetPending(transaction, record) if isinstance(record, OffsetStored) else None

    def ended(self, ended: TransactionEnded) -> GroupRecord | None:
        """See Machine."""
        return ended

    def state_records(self) -> list[GroupRecord]:
        """See Machine: the logged state, which may differ from the state in memory."""
        return [record for part in self.state_parts() for record in part]

    def state_parts(self) -> Iterator[list[GroupRecord]]:
        """See Machine. A group's offsets may be spread over several parts."""
        return parts_of(self.groups, lambda: self._removals)
