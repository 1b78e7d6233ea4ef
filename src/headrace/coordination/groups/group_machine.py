"""The machine of one shard: all groups of one partition of `__consumer_offsets`.

Invariants: `decide` finds the group and passes the command to its rule; the state changes
in `group_state.py` alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, assert_never

from headrace.coordination.groups import listing, migration, offsets, rebalance
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
from headrace.coordination.groups.consumer_records import CONSUMER, ConsumerRecord
from headrace.coordination.groups.conversion import finish
from headrace.coordination.groups.group import (
    PREPARING,
    CleanupScheduled,
    Draft,
    GroupDeadlinesPassed,
    GroupDecision,
    GroupRecord,
)
from headrace.coordination.groups.group_state import GroupState, OffsetReplay
from headrace.coordination.groups.host_commands import (
    ForgetTopicsCommand,
    GroupCommand,
    WriteMarkerCommand,
)
from headrace.coordination.groups.open_commits import OffsetPending
from headrace.coordination.groups.state_records import (
    GroupRemoved,
    GroupStored,
    OffsetRemoved,
    OffsetStored,
    decode,
    encode,
)
from headrace.coordination.kit.host_commands import DoneReply, LoadedCommand, TickCommand
from headrace.coordination.kit.machine import (
    Decision,
    InTransaction,
    KeyValue,
    TransactionEnded,
    decode_or_none,
)
from headrace.coordination.member_groups import heartbeat
from headrace.coordination.member_groups.draft import MemberDraft
from headrace.coordination.member_groups.records import MemberRecordRemoved
from headrace.coordination.streams import description
from headrace.coordination.streams.commands import (
    DescribeStreamsGroupsCommand,
    StreamsHeartbeatCommand,
)
from headrace.coordination.streams.records import STREAMS, StreamsRecord

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from headrace.coordination.groups.config import GroupConfig
    from headrace.coordination.groups.host_commands import GroupReply


CLEANUP_AGAIN_MS: Final = 1_000
"""Pause between two parts of an expiry wave."""


class GroupMachine:
    """See the module. `skipped_count`: records of the log that could not be decoded."""

    def __init__(self, config: GroupConfig) -> None:
        self.state = GroupState()
        self.groups = self.state.groups
        self.skipped_count = 0
        self._config = config

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
                return self._decide_tick(now_ms)
            case LoadedCommand():
                return self._decide_loaded(now_ms)
            case _:
                assert_never(command)

    def _decide_tick(self, now_ms: int) -> GroupDecision:
        """End the expired sessions and phases of the groups that are due, and at intervals remove
        expired offsets."""
        state, config = self.state, self._config
        durable: list[GroupRecord] = []
        volatile: list[GroupRecord] = []
        answers: list[tuple[int, GroupReply]] = []
        for group_id in state.deadlines.due(now_ms):
            group = self.groups.get(group_id)
            deadline_ms = group.next_deadline_ms() if group is not None else None
            if group is None or deadline_ms is None or deadline_ms > now_ms:
                continue
            if group.managed is not None:
                members = MemberDraft(group.managed, now_ms, config, None)
                heartbeat.expire(members)
                records, replies = finish(group, members)
                durable += records[:-1]
                volatile.append(records[-1])
                answers += replies
                continue
            draft = Draft(group, now_ms, config)
            rebalance.expire(draft)
            decision = draft.decision(None)
            durable += decision.records[:-1]
            volatile.append(decision.records[-1])
            answers += decision.answers
        if 0 <= state.cleanup.at_ms <= now_ms:
            kept_too_long, first = offsets.find_expired(
                self.groups, state.cleanup.first, now_ms, config
            )
            pause_ms = config.retention_check_interval_ms if first is None else CLEANUP_AGAIN_MS
            durable += kept_too_long
            volatile.append(CleanupScheduled(now_ms + pause_ms, first or 0))
        volatile.append(GroupDeadlinesPassed(now_ms))
        return Decision(durable + volatile, DoneReply(), answers)

    def _decide_loaded(self, now_ms: int) -> GroupDecision:
        """Grant every stored member one full session."""
        config = self._config
        records: list[GroupRecord] = []
        for group in self.groups.values():
            if group.managed is not None:
                records.append(group.managed.loaded(now_ms, config))
            if not group.members:
                continue
            draft = Draft(group, now_ms, config)
            for member_id in list(group.members):
                member = draft.edit(member_id)
                member.deadline_ms = now_ms + member.session_timeout_ms
            if group.state == PREPARING:
                draft.group.phase_deadline_ms = now_ms + group.rebalance_timeout_ms()
            records += draft.decision(None).records
        interval_ms = config.retention_check_interval_ms
        records.append(CleanupScheduled(now_ms + interval_ms))
        return Decision(records, DoneReply())

    def next_deadline_ms(self) -> int | None:
        """See Machine."""
        return self.state.next_deadline_ms()

    def apply(self, record: GroupRecord) -> None:
        """See Machine."""
        self.state.apply(record)

    def validate(self) -> None:
        """See Machine."""
        self.state.validate()

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
        return OffsetReplay(self.state, self.decode)

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
        """See Machine."""
        return self.state.parts()
