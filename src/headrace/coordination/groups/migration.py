"""Groups that pass from one protocol to the other.

Invariants: a group keeps its committed offsets. An empty group takes the protocol of the next
member that joins.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.coordination.groups import classic, consumer_heartbeat
from headrace.coordination.groups.consumer_group import JOIN_EPOCH
from headrace.coordination.groups.group import Group, GroupDecision, GroupRecord, refused
from headrace.coordination.groups.state_records import GroupRemoved
from headrace.errors import InconsistentProtocol

if TYPE_CHECKING:
    from headrace.coordination.groups.commands import JoinCommand
    from headrace.coordination.groups.config import GroupConfig
    from headrace.coordination.groups.consumer_commands import ConsumerHeartbeatCommand


def emptied(group: Group) -> tuple[Group, list[GroupRecord]]:
    """The group without a protocol, and the records that make it so."""
    bare = Group(group.group_id, offsets=group.offsets, open_commits=group.open_commits)
    if group.consumer is not None:
        return bare, [*group.consumer.removals()]
    return bare, [] if group.record is None else [GroupRemoved(group.group_id)]


def decide_heartbeat(
    group: Group | None, command: ConsumerHeartbeatCommand, now_ms: int, config: GroupConfig
) -> GroupDecision:
    """ConsumerGroupHeartbeat, of a group of either protocol."""
    if group is None or group.consumer is not None or command.member_epoch != JOIN_EPOCH:
        return consumer_heartbeat.decide_heartbeat(group, command, now_ms, config)
    if group.has_members():
        return refused(
            command, InconsistentProtocol("the group has members of the classic protocol")
        )
    bare, records = emptied(group)
    decision = consumer_heartbeat.decide_heartbeat(bare, command, now_ms, config)
    if decision.records:
        decision.records = [*records, *decision.records]
    return decision


def decide_join(
    group: Group | None, command: JoinCommand, now_ms: int, config: GroupConfig
) -> GroupDecision:
    """JoinGroup, of a group of either protocol."""
    if group is None or group.consumer is None:
        return classic.decide_join(group, command, now_ms, config)
    if group.has_members():
        return refused(command, InconsistentProtocol("the group has members of the new protocol"))
    bare, records = emptied(group)
    decision = classic.decide_join(bare, command, now_ms, config)
    if decision.records:
        decision.records = [*records, *decision.records]
    return decision
