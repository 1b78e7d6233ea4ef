"""StreamsGroupHeartbeat: how members join, stay in and leave a streams group (KIP-1071).

Invariants: each function decides one command and changes nothing. A heartbeat without changes does
not copy the group. Every response carries the member's epoch; the next heartbeat must carry it, or
the previous one if the response was lost.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from headrace.coordination.groups.group import Group, GroupDecision, MemberSeen, refused
from headrace.coordination.kit.machine import Decision
from headrace.coordination.kit.member_epochs import JOIN_EPOCH
from headrace.coordination.member_groups import heartbeat
from headrace.coordination.member_groups.draft import MemberDraft
from headrace.coordination.member_groups.encodings import STABLE, UNREVOKED
from headrace.coordination.member_groups.group import MemberDeadlines
from headrace.coordination.streams.commands import (
    StreamsHeartbeatCommand,
    StreamsHeartbeatReply,
)
from headrace.coordination.streams.description import endpoints_of
from headrace.coordination.streams.draft import (
    STANDBY_COUNT,
    StreamsDraft,
    ask_shutdown,
    assign,
    confirmation_ms,
    follow_topics,
    gather,
    move_member,
)
from headrace.coordination.streams.internal_topics import (
    SHUTDOWN_APPLICATION,
    STALE_TOPOLOGY,
    Status,
)
from headrace.coordination.streams.reconciliation import is_within
from headrace.coordination.streams.records import StreamsMemberStored
from headrace.coordination.streams.stored_topology import write_topology
from headrace.coordination.streams.streams_group import StreamsGroup, streams_group
from headrace.coordination.streams.tasks import NO_TASKS, StreamTasks, each
from headrace.coordination.streams.topology import check_topology
from headrace.errors import (
    HeadraceError,
    MemberUnknown,
    RequestInvalid,
    StreamsTopologyInvalid,
)

if TYPE_CHECKING:
    from headrace.coordination.groups.config import GroupConfig

TAGS_MAX: Final = 100
"""Client tags per member."""


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
            if streams is None:
                raise MemberUnknown("the member is not in the group: join with epoch 0")
            return _leave(MemberDraft(streams, now_ms, config, None), command)
        if streams is None:
            if command.member_epoch != JOIN_EPOCH:
                raise MemberUnknown("the streams group does not exist: join with epoch 0")
            streams = streams_group(command.group_id)
        return _stay(streams, command, now_ms, config)
    except HeadraceError as error:
        return refused(command, error)


def _decide_unchanged(
    streams: StreamsGroup, command: StreamsHeartbeatCommand, now_ms: int
) -> GroupDecision | None:
    """The heartbeat of a member that has reached its target and reports no change; else None."""
    volatile = streams.volatile
    if (
        command.owned is not None
        or command.topology is not None
        or command.process_id is not None
        or command.endpoint is not None
        or command.tags is not None
        or command.is_shutdown_asked
        or command.endpoint_epoch != volatile.endpoint_epoch
        or volatile.shutdown_by is not None
        or streams.stored.configs != ((STANDBY_COUNT, str(command.standby_count)),)
        or not heartbeat.is_settled(streams, command)
    ):
        return None
    member = streams.members.get(command.member_id)
    if member is None or member.revoke_deadline_ms is not None or _is_stale(streams, member.stored):
        return None
    reply = StreamsHeartbeatReply(
        None,
        command.member_id,
        command.member_epoch,
        heartbeat.interval_ms(volatile.changed_ms, command, now_ms, is_settled=True),
        endpoint_epoch=volatile.endpoint_epoch,
    )
    return Decision([MemberSeen(member, now_ms + command.session_timeout_ms)], reply)


def _is_stale(streams: StreamsGroup | StreamsDraft, stored: StreamsMemberStored) -> bool:
    return streams.topology is not None and stored.topology_epoch != streams.topology.epoch


# --- checks --------------------------------------------------------------------------------------


def _check(command: StreamsHeartbeatCommand, config: GroupConfig) -> None:
    """Raises RequestInvalid, StreamsTopologyInvalid."""
    heartbeat.check(command)
    if command.member_epoch == JOIN_EPOCH:
        _check_join(command)
    elif command.topology is not None:
        raise RequestInvalid("only a member that joins may send a topology")
    if len(command.tags or ()) > TAGS_MAX:
        raise RequestInvalid(f"a member can have at most {TAGS_MAX} client tags")
    host = "" if command.endpoint is None else command.endpoint[0]
    texts = [text for pair in command.tags or () for text in pair]
    heartbeat.check_names(command, [host, command.process_id or "", *texts], ())
    if command.topology is not None:
        check_topology(command.topology)
        size = len(write_topology(command.topology))
        if size > config.member_metadata_bytes_max:
            raise StreamsTopologyInvalid(
                f"the topology takes {size} bytes, and the limit is "
                f"{config.member_metadata_bytes_max}"
            )


def _check_join(command: StreamsHeartbeatCommand) -> None:
    if command.topology is None:
        raise RequestInvalid("a member that joins must send its topology")
    if not command.process_id:
        raise RequestInvalid("a member that joins must send its process id")
    if command.owned is None or command.owned != NO_TASKS:
        raise RequestInvalid("a member that joins must send empty lists of tasks")


def _check_owned(draft: StreamsDraft, owned: StreamTasks) -> None:
    """Raise RequestInvalid if a task is not part of the topology."""
    configured = draft.volatile.configured
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
    draft = MemberDraft(streams, now_ms, config, command.topics)
    is_joining = command.member_epoch == JOIN_EPOCH
    member_id = command.member_id
    if is_joining:
        _take_topology(draft, command)
    is_new = heartbeat.place(
        draft,
        command,
        config.streams_group_size_max,
        lambda before: _updated(before, command),
        _assignment_inputs,
        lambda current: command.owned is not None and is_within(command.owned, current.assigned),
    )
    if is_new:
        gather(draft, command.initial_delay_ms)
    follow_topics(draft, command.standby_count)
    if command.owned is not None:
        _check_owned(draft, command.owned)
    known = streams.members.get(member_id)
    reported = command.owned
    if reported is None:
        reported = None if known is None else known.reported
    had = draft.current_of(member_id)
    assign(draft)
    is_early = had.state == UNREVOKED and command.member_epoch != had.epoch
    # A list sent with the previous epoch was sent before the member knew what to give up.
    current = move_member(draft, member_id, None if is_early else reported, has_nothing=is_joining)
    deadlines = MemberDeadlines(
        now_ms + command.session_timeout_ms, confirmation_ms(draft, member_id)
    )
    draft.touch(member_id, deadlines, reported)
    if command.is_shutdown_asked:
        ask_shutdown(draft, member_id)
    reply = _reply(draft, command)
    if is_joining or current.assigned.plain() != had.assigned.plain():
        reply.tasks = current.assigned.plain()
    elif command.owned is not None and command.owned != current.assigned.plain():
        reply.tasks = current.assigned.plain()  # the member may have missed a response
    return Decision(draft.finish(), reply)


def _reply(draft: StreamsDraft, command: StreamsHeartbeatCommand) -> StreamsHeartbeatReply:
    """The response to a member, without its tasks."""
    member_id = command.member_id
    current, configured = draft.current_of(member_id), draft.volatile.configured
    assert configured is not None
    assert draft.topology is not None
    stored = draft.members[member_id]
    is_settled = current.state == STABLE and current.epoch == draft.epoch
    reply = StreamsHeartbeatReply(
        None,
        member_id,
        current.epoch,
        heartbeat.interval_ms(
            draft.changed_ms,
            command,
            draft.now_ms,
            is_settled=is_settled or (configured.status is not None and not draft.is_bumped),
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


def _assignment_inputs(stored: StreamsMemberStored) -> tuple[object, ...]:
    """The properties of a member that the assignment depends on."""
    return stored.process_id, stored.topology_epoch, stored.instance_id


def _updated(
    before: StreamsMemberStored | None, command: StreamsHeartbeatCommand
) -> StreamsMemberStored:
    """The member, updated from the command; `before` is None for a new one."""
    if before is None:
        before = StreamsMemberStored(command.group_id, command.member_id)
    timeout_ms, topology = command.rebalance_timeout_ms, command.topology
    is_joining = command.member_epoch == JOIN_EPOCH
    if not is_joining and command.process_id not in (None, before.process_id):
        raise RequestInvalid("a member cannot change its process id after it has joined")
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


def _leave(draft: StreamsDraft, command: StreamsHeartbeatCommand) -> GroupDecision:
    heartbeat.leave(draft, command)
    if command.is_shutdown_asked:
        ask_shutdown(draft, command.member_id)
    reply = StreamsHeartbeatReply(None, command.member_id, command.member_epoch)
    return Decision(draft.finish(), reply)
