"""Which rules decide a member's command, and when a group migrates between protocols.

Invariants: an empty group takes the protocol of the next member that joins. A classic group of
consumers is converted when a member of the new protocol joins, and converted back when the last
such member has left (`conversion.py`); in between its classic members continue unchanged
(`classic_members.py`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.coordination.groups import classic, classic_members, consumer_heartbeat
from headrace.coordination.groups.conversion import upgraded, without_protocol
from headrace.coordination.groups.group import (
    EMPTY,
    Group,
    GroupDecision,
    GroupRecord,
    refused,
)
from headrace.coordination.kit.member_epochs import JOIN_EPOCH
from headrace.coordination.streams import heartbeat
from headrace.errors import GroupUnknown, HeadraceError, InconsistentProtocol

if TYPE_CHECKING:
    from headrace.coordination.groups.commands import (
        HeartbeatCommand,
        JoinCommand,
        LeaveCommand,
        SyncCommand,
    )
    from headrace.coordination.groups.config import GroupConfig
    from headrace.coordination.groups.consumer_commands import ConsumerHeartbeatCommand
    from headrace.coordination.streams.commands import StreamsHeartbeatCommand


def decide_consumer_heartbeat(
    group: Group | None, command: ConsumerHeartbeatCommand, now_ms: int, config: GroupConfig
) -> GroupDecision:
    """ConsumerGroupHeartbeat."""
    if group is None or group.consumer is not None or command.member_epoch != JOIN_EPOCH:
        return consumer_heartbeat.decide_heartbeat(group, command, now_ms, config)
    if group.streams is not None and group.has_members():
        return refused(command, _other_kind(group, "a streams group"))
    home, durable = without_protocol(group)
    volatile: list[GroupRecord] = []
    if group.state != EMPTY:
        try:
            home.consumer, stored, touched = upgraded(group, command.topics, now_ms)
        except HeadraceError as error:
            return refused(command, error)
        durable += stored
        volatile.append(touched)
    decision = consumer_heartbeat.decide_heartbeat(home, command, now_ms, config)
    if decision.records:
        decision.records = [*durable, *decision.records[:-1], *volatile, decision.records[-1]]
    return decision


def decide_streams_heartbeat(
    group: Group | None, command: StreamsHeartbeatCommand, now_ms: int, config: GroupConfig
) -> GroupDecision:
    """StreamsGroupHeartbeat. A consumer group with members cannot become a streams group."""
    if group is None or group.streams is not None or command.member_epoch != JOIN_EPOCH:
        return heartbeat.decide_heartbeat(group, command, now_ms, config)
    if group.has_members():
        return refused(command, _other_kind(group, "a group of consumers"))
    home, durable = without_protocol(group)
    decision = heartbeat.decide_heartbeat(home, command, now_ms, config)
    if decision.records:
        decision.records = [*durable, *decision.records]
    return decision


def _other_kind(group: Group, what: str) -> GroupUnknown:
    return GroupUnknown(
        f"group {group.group_id[:100]!r} is {what} with members: choose another group "
        "id, or stop its members first",
        group=group.group_id,
    )


def decide_join(
    group: Group | None, command: JoinCommand, now_ms: int, config: GroupConfig
) -> GroupDecision:
    """JoinGroup."""
    if group is None or group.managed is None:
        return classic.decide_join(group, command, now_ms, config)
    if group.streams is not None and group.has_members():
        what = "the group is a streams group with members: choose another id, or stop them first"
        return refused(command, InconsistentProtocol(what))
    if group.consumer is not None and group.has_members():
        return classic_members.decide_join(group, group.consumer, command, now_ms, config)
    home, durable = without_protocol(group)
    decision = classic.decide_join(home, command, now_ms, config)
    if decision.records:
        decision.records = [*durable, *decision.records]
    return decision


def decide_sync(
    group: Group | None, command: SyncCommand, now_ms: int, config: GroupConfig
) -> GroupDecision:
    """SyncGroup."""
    if group is None or group.consumer is None:
        return classic.decide_sync(group, command, now_ms, config)
    return classic_members.decide_sync(group.consumer, command, now_ms)


def decide_heartbeat(group: Group | None, command: HeartbeatCommand, now_ms: int) -> GroupDecision:
    """Heartbeat."""
    if group is None or group.consumer is None:
        return classic.decide_heartbeat(group, command, now_ms)
    return classic_members.decide_heartbeat(group.consumer, command, now_ms)


def decide_leave(
    group: Group | None, command: LeaveCommand, now_ms: int, config: GroupConfig
) -> GroupDecision:
    """LeaveGroup."""
    if group is None or group.consumer is None:
        return classic.decide_leave(group, command, now_ms, config)
    return classic_members.decide_leave(group, group.consumer, command, now_ms, config)
