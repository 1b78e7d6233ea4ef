"""StreamsGroupHeartbeat: how members join, stay in and leave a streams group (KIP-1071).

Invariants: each function decides one command and changes nothing. A heartbeat without changes does
not copy the group. Every response carries the member's epoch; the next heartbeat must carry it, or
the previous one if the response was lost.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from headrace.coordination.groups.group import (
    Group,
    GroupDecision,
    GroupRecord,
    MemberSeen,
    refused,
)
from headrace.coordination.machine import Decision
from headrace.coordination.member_epochs import JOIN_EPOCH, LEAVE_EPOCH, LEAVE_STATIC_EPOCH
from headrace.coordination.member_records import STABLE, UNREVOKED
from headrace.coordination.stored_bytes import STRING_SIZE_MAX
from headrace.coordination.streams.commands import (
    UNCHANGED_MS,
    StreamsHeartbeatCommand,
    StreamsHeartbeatReply,
)
from headrace.coordination.streams.description import endpoints_of
from headrace.coordination.streams.draft import STANDBY_COUNT, StreamsDraft, away
from headrace.coordination.streams.internal_topics import (
    SHUTDOWN_APPLICATION,
    STALE_TOPOLOGY,
    Status,
)
from headrace.coordination.streams.reconciliation import is_within
from headrace.coordination.streams.records import StreamsMemberStored
from headrace.coordination.streams.stored_topology import write_topology
from headrace.coordination.streams.streams_group import (
    StreamsGroup,
    StreamsMember,
)
from headrace.coordination.streams.tasks import NO_TASKS, StreamTasks, each
from headrace.coordination.streams.topology import check_topology
from headrace.errors import (
    GroupFull,
    HeadraceError,
    InstanceIdFenced,
    InstanceIdUnreleased,
    MemberEpochFenced,
    MemberUnknown,
    RequestInvalid,
    StreamsTopologyInvalid,
)

if TYPE_CHECKING:
    from headrace.coordination.groups.config import GroupConfig

NAME_SIZE_MAX: Final = STRING_SIZE_MAX - 64
TAGS_MAX: Final = 100
"""Client tags per member."""
SETTLING_MS: Final = 3_000
SETTLING_INTERVAL_MS: Final = 300
"""Heartbeat interval while a group changes: see `groups/consumer_heartbeat`."""


def decide_heartbeat(
    group: Group | None, command: StreamsHeartbeatCommand, now_ms: int, config: GroupConfig
) -> GroupDecision:
    """Join, stay or leave, depending on the command's epoch."""
    streams = None if group is None else group.streams
    if streams is not None:
        quick = _decide_unchanged(streams, command, now_ms)
        if quick is not None:
            return quick
    try:
        _check(command, config)
        if command.member_epoch < JOIN_EPOCH:
            return _leave(streams, command, now_ms, config)
        if streams is None:
            if command.member_epoch != JOIN_EPOCH:
                raise MemberUnknown("the streams group does not exist: join with epoch 0")
            streams = StreamsGroup(command.group_id)
        return _stay(streams, command, now_ms, config)
    except HeadraceError as error:
        return refused(command, error)


def _decide_unchanged(
    streams: StreamsGroup, command: StreamsHeartbeatCommand, now_ms: int
) -> GroupDecision | None:
    """The heartbeat of a member that has reached its target and reports no change; else None."""
    current = streams.current.get(command.member_id)
    volatile = streams.volatile
    if (
        current is None
        or current.state != STABLE
        or not current.epoch == command.member_epoch == streams.target_epoch == streams.epoch
        or command.owned is not None
        or command.topology is not None
        or command.instance_id is not None
        or command.rack is not None
        or command.process_id is not None
        or command.endpoint is not None
        or command.tags is not None
        or command.rebalance_timeout_ms != UNCHANGED_MS
        or command.is_shutdown_asked
        or command.endpoint_epoch != volatile.endpoint_epoch
        or volatile.topics_version != command.topics.version
        or volatile.shutdown_by is not None
        or streams.stored.configs != ((STANDBY_COUNT, str(command.standby_count)),)
    ):
        return None
    member = streams.members.get(command.member_id)
    if member is None or member.revoke_deadline_ms is not None or _is_stale(streams, member.stored):
        return None
    reply = StreamsHeartbeatReply(
        None,
        command.member_id,
        current.epoch,
        _interval_ms(volatile.changed_ms, command, now_ms, is_settled=True),
        endpoint_epoch=volatile.endpoint_epoch,
    )
    return Decision([MemberSeen(member, now_ms + command.session_timeout_ms)], reply)


def _is_stale(streams: StreamsGroup | StreamsDraft, stored: StreamsMemberStored) -> bool:
    return streams.topology is not None and stored.topology_epoch != streams.topology.epoch


def _interval_ms(
    changed_ms: int, command: StreamsHeartbeatCommand, now_ms: int, *, is_settled: bool
) -> int:
    if is_settled and not 0 <= now_ms - changed_ms < SETTLING_MS:
        return command.heartbeat_interval_ms
    return min(command.heartbeat_interval_ms, SETTLING_INTERVAL_MS)


# --- checks --------------------------------------------------------------------------------------


def _check(command: StreamsHeartbeatCommand, config: GroupConfig) -> None:
    """Raises RequestInvalid, StreamsTopologyInvalid."""
    epoch = command.member_epoch
    if epoch < LEAVE_STATIC_EPOCH:
        raise RequestInvalid(f"member epoch {epoch} is not valid: 0 joins, -1 and -2 leave")
    if not command.member_id:
        raise RequestInvalid("a member id must not be empty")
    if command.instance_id == "" or command.rack == "":
        raise RequestInvalid("an instance id or rack id must be null or not empty")
    if epoch == LEAVE_STATIC_EPOCH and command.instance_id is None:
        raise RequestInvalid("only a member with an instance id may leave with epoch -2")
    if epoch == JOIN_EPOCH:
        _check_join(command)
    elif command.topology is not None:
        raise RequestInvalid("only a member that joins may send a topology")
    host = "" if command.endpoint is None else command.endpoint[0]
    names = [command.member_id, command.client_id, command.client_host, host]
    names += [command.instance_id or "", command.rack or "", command.process_id or ""]
    names += [text for pair in command.tags or () for text in pair]
    if len(command.tags or ()) > TAGS_MAX:
        raise RequestInvalid(f"a member can have at most {TAGS_MAX} client tags")
    if any(len(n) * 4 > NAME_SIZE_MAX and len(n.encode()) > NAME_SIZE_MAX for n in names):
        raise RequestInvalid(f"a name in the request is longer than {NAME_SIZE_MAX} bytes")
    if command.topology is not None:
        check_topology(command.topology)
        size = len(write_topology(command.topology))
        if size > config.member_metadata_bytes_max:
            raise StreamsTopologyInvalid(
                f"the topology takes {size} bytes, and the limit is "
                f"{config.member_metadata_bytes_max}"
            )


def _check_join(command: StreamsHeartbeatCommand) -> None:
    if command.rebalance_timeout_ms < 0:
        raise RequestInvalid("a member that joins must send its rebalance timeout")
    if command.topology is None:
        raise RequestInvalid("a member that joins must send its topology")
    if not command.process_id:
        raise RequestInvalid("a member that joins must send its process id")
    if command.owned is None or command.owned != NO_TASKS:
        raise RequestInvalid("a member that joins must send empty lists of tasks")


def _check_owned(draft: StreamsDraft, owned: StreamTasks) -> None:
    """Raise RequestInvalid if a task is not part of the topology."""
    configured = draft.configured
    if configured is None or configured.status is not None:
        return
    counts = configured.task_counts
    for role in owned.roles():
        for subtopology_id, number in each(role):
            if not 0 <= number < counts.get(subtopology_id, 0):
                raise RequestInvalid(
                    f"the topology has no task {number} of subtopology {subtopology_id[:100]!r}"
                )


# --- joining and staying -------------------------------------------------------------------------


def _stay(
    streams: StreamsGroup, command: StreamsHeartbeatCommand, now_ms: int, config: GroupConfig
) -> GroupDecision:
    draft = StreamsDraft(streams, now_ms, config, command.topics)
    is_joining = command.member_epoch == JOIN_EPOCH
    member_id = command.member_id
    if is_joining:
        _take_topology(draft, command)
        _enter(draft, command, config)
    else:
        stored = _find(streams, command).stored
        if command.process_id not in (None, stored.process_id):
            raise RequestInvalid("a member cannot change its process id after it has joined")
        _put_if_changed(draft, stored, _updated(stored, command))
    draft.configure(command.standby_count)
    if command.owned is not None:
        _check_owned(draft, command.owned)
    known = streams.members.get(member_id)
    reported = command.owned
    if reported is None:
        reported = None if known is None else known.reported
    had = draft.current_of(member_id)
    draft.assign()
    is_early = had.state == UNREVOKED and command.member_epoch != had.epoch
    # A list sent with the previous epoch was sent before the member knew what to give up.
    current = draft.reconcile(member_id, None if is_early else reported, has_nothing=is_joining)
    draft.touch(member_id, now_ms + command.session_timeout_ms, reported)
    if command.is_shutdown_asked:
        draft.ask_shutdown(member_id)
    reply = _reply(draft, command)
    if is_joining or current.assigned.plain() != had.assigned.plain():
        reply.tasks = current.assigned.plain()
    elif command.owned is not None and command.owned != current.assigned.plain():
        reply.tasks = current.assigned.plain()  # the member may have missed a response
    return Decision([*draft.finish()], reply)


def _reply(draft: StreamsDraft, command: StreamsHeartbeatCommand) -> StreamsHeartbeatReply:
    """The response to a member, without its tasks."""
    group, member_id = draft.group, command.member_id
    current, configured = draft.current_of(member_id), draft.configured
    assert configured is not None
    assert draft.topology is not None
    stored = draft.members[member_id]
    is_bumped = draft.epoch != group.epoch
    is_settled = current.state == STABLE and current.epoch == draft.epoch
    reply = StreamsHeartbeatReply(
        None,
        member_id,
        current.epoch,
        _interval_ms(
            draft.now_ms if is_bumped else group.volatile.changed_ms,
            command,
            draft.now_ms,
            is_settled=is_settled or (configured.status is not None and not is_bumped),
        ),
        endpoint_epoch=draft.volatile.endpoint_epoch,
        missing=configured.missing,
    )
    if command.endpoint_epoch != draft.volatile.endpoint_epoch:
        reply.endpoints = endpoints_of(
            draft.members.values(), draft.current, draft.topology, configured
        )
    if _is_stale(draft, stored):
        detail = f"the group has topology epoch {draft.topology.epoch}, not {stored.topology_epoch}"
        reply.statuses.append(Status(STALE_TOPOLOGY, f"{detail}: restart with the newer topology"))
    if configured.status is not None:
        reply.statuses.append(configured.status)
    if draft.volatile.shutdown_by is not None:
        detail = f"member {draft.volatile.shutdown_by} requested shutdown of the application"
        reply.statuses.append(Status(SHUTDOWN_APPLICATION, detail))
    return reply


def _take_topology(draft: StreamsDraft, command: StreamsHeartbeatCommand) -> None:
    """Compare the topology of a joining member with the group's. Raises RequestInvalid.

    A group without members adopts it; Kafka accepts no other topology for a group that has had one.
    """
    wanted, has = command.topology, draft.topology
    assert wanted is not None
    if wanted == has:
        return
    if has is None or not (draft.group.members.keys() - {command.member_id}):
        draft.put_topology(wanted)
    elif wanted.epoch >= has.epoch:
        raise RequestInvalid(
            "the members of the group have another topology: stop all of them before a "
            "member with a new topology joins"
        )


def _enter(draft: StreamsDraft, command: StreamsHeartbeatCommand, config: GroupConfig) -> None:
    """Put the joining member. Raises GroupFull, InstanceIdUnreleased, RequestInvalid.

    A static member that has left temporarily is replaced by the one that joins.
    """
    group, member_id, instance_id = draft.group, command.member_id, command.instance_id
    known = group.members.get(member_id)
    holder = None if instance_id is None else group.static.get(instance_id)
    if holder is not None and holder != member_id:
        if draft.current_of(holder).epoch != LEAVE_STATIC_EPOCH:
            raise InstanceIdUnreleased(
                f"instance id {instance_id!r} is in use by another member: stop that member, "
                "or wait for its session to expire"
            )
        if known is not None:
            raise RequestInvalid("the member has joined without this instance id")
        before = draft.members[holder]._replace(member_id=member_id)
        updated = _updated(before, command)
        draft.replace_static(holder, updated)
        if _assignment_inputs(updated) != _assignment_inputs(before):
            draft.bump()
        return
    if known is not None:
        if known.stored.instance_id != instance_id:
            raise RequestInvalid("the member has joined with another instance id")
        _put_if_changed(draft, known.stored, _updated(known.stored, command))
        return
    if len(group.members) >= config.streams_group_size_max:
        raise GroupFull(
            f"group {group.group_id[:100]!r} already has {config.streams_group_size_max} "
            "members: raise group.streams.max.size, or start fewer members",
            limit=config.streams_group_size_max,
        )
    draft.gather(command.initial_delay_ms)
    draft.put_member(_updated(StreamsMemberStored(group.group_id, member_id), command))
    draft.bump()


def _put_if_changed(
    draft: StreamsDraft, before: StreamsMemberStored, updated: StreamsMemberStored
) -> None:
    if updated != before:
        draft.put_member(updated)
    if _assignment_inputs(updated) != _assignment_inputs(before):
        draft.bump()


def _assignment_inputs(stored: StreamsMemberStored) -> tuple[object, ...]:
    """The properties of a member that the assignment depends on."""
    return stored.process_id, stored.topology_epoch, stored.instance_id


def _find(group: StreamsGroup, command: StreamsHeartbeatCommand) -> StreamsMember:
    """The member that stays. Raises MemberUnknown, InstanceIdFenced, MemberEpochFenced."""
    known = _known(group, command)
    current = group.current.get(command.member_id)
    epoch = command.member_epoch
    if current is not None:
        if epoch == current.epoch:
            return known
        is_previous = epoch == current.previous_epoch and (
            command.owned is not None and is_within(command.owned, current.assigned)
        )
        if is_previous:
            return known
    at = 0 if current is None else current.epoch
    raise MemberEpochFenced(
        f"member {command.member_id[:100]!r} is at epoch {at}, not {epoch}: give up all tasks and"
        " join again"
    )


def _known(group: StreamsGroup | None, command: StreamsHeartbeatCommand) -> StreamsMember:
    """Raises MemberUnknown, InstanceIdFenced."""
    if group is not None and command.instance_id is not None:
        holder = group.static.get(command.instance_id)
        if holder is None:
            raise MemberUnknown(f"no member has the instance id {command.instance_id!r}")
        if holder != command.member_id:
            raise InstanceIdFenced(f"instance id {command.instance_id!r} belongs to a newer member")
    known = None if group is None else group.members.get(command.member_id)
    if known is None:
        raise MemberUnknown("the member is not in the group: join with epoch 0")
    return known


def _updated(before: StreamsMemberStored, command: StreamsHeartbeatCommand) -> StreamsMemberStored:
    """The member, updated from the command."""
    timeout_ms, topology = command.rebalance_timeout_ms, command.topology
    is_joining = command.member_epoch == JOIN_EPOCH
    endpoint = before.endpoint if command.endpoint is None else command.endpoint
    return before._replace(
        instance_id=before.instance_id if command.instance_id is None else command.instance_id,
        rack=before.rack if command.rack is None else command.rack,
        client_id=command.client_id,
        client_host=command.client_host,
        rebalance_timeout_ms=before.rebalance_timeout_ms if timeout_ms < 0 else timeout_ms,
        topology_epoch=before.topology_epoch if topology is None else topology.epoch,
        process_id=before.process_id if command.process_id is None else command.process_id,
        # A joining member sends everything.
        endpoint=command.endpoint if is_joining else endpoint,
        tags=before.tags if command.tags is None else command.tags,
    )


# --- leaving -------------------------------------------------------------------------------------


def _leave(
    streams: StreamsGroup | None,
    command: StreamsHeartbeatCommand,
    now_ms: int,
    config: GroupConfig,
) -> GroupDecision:
    member = _known(streams, command)
    assert streams is not None
    member_id, epoch = command.member_id, command.member_epoch
    draft = StreamsDraft(streams, now_ms, config, None)
    if epoch == LEAVE_STATIC_EPOCH and member.stored.instance_id is None:
        raise RequestInvalid("only a member with an instance id may leave with epoch -2")
    if command.is_shutdown_asked:
        draft.ask_shutdown(member_id)
    if epoch == LEAVE_EPOCH:
        draft.drop_member(member_id)
        draft.bump()
    else:
        draft.put_current(away(draft.current_of(member_id), LEAVE_STATIC_EPOCH))
        draft.touch(member_id, now_ms + command.session_timeout_ms)
    reply = StreamsHeartbeatReply(None, member_id, epoch)
    return Decision([*draft.finish()], reply)


def expire(streams: StreamsGroup, now_ms: int, config: GroupConfig) -> list[GroupRecord]:
    """Remove members whose session has expired, or that have not revoked in time."""
    draft = StreamsDraft(streams, now_ms, config, None)
    for member_id, member in streams.members.items():
        deadlines = (member.deadline_ms, member.revoke_deadline_ms)
        if any(deadline_ms is not None and deadline_ms <= now_ms for deadline_ms in deadlines):
            draft.drop_member(member_id)
            draft.bump()
    return [*draft.finish()]
