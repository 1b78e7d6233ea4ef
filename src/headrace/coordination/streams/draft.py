"""The target of a streams group, and the way of its members to it: what KIP-1071 adds to a draft.

Invariants: as for `MemberDraft`: the group itself is not changed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from headrace.coordination.member_groups.draft import MemberDraft
from headrace.coordination.member_groups.encodings import UNREVOKED
from headrace.coordination.member_groups.records import NO_TOPOLOGY_EPOCH
from headrace.coordination.streams import assignor
from headrace.coordination.streams.internal_topics import configure
from headrace.coordination.streams.reconciliation import ACTIVE, reconcile
from headrace.coordination.streams.records import StreamsMemberStored
from headrace.coordination.streams.tasks import NO_TASKS, HeldTasks, StreamTasks, each

if TYPE_CHECKING:
    from headrace.coordination.streams.streams_group import StreamsCurrent

STANDBY_COUNT: Final = "num.standby.replicas"
"""Kafka's name in the stored settings of an assignment."""
_ANY: Final = 3
"""Not a role: the task in any role."""


StreamsDraft = MemberDraft[StreamsMemberStored, StreamTasks, HeldTasks]


def gather(draft: StreamsDraft, delay_ms: int) -> None:
    """Delay the first assignment until other members have had time to join."""
    if not draft.group.members:
        draft.volatile = draft.volatile._replace(gather_until_ms=draft.now_ms + delay_ms)


def ask_shutdown(draft: StreamsDraft, member_id: str) -> None:
    """Ask all members to shut down."""
    draft.volatile = draft.volatile._replace(shutdown_by=member_id)


def follow_topics(draft: StreamsDraft, standby_count: int) -> None:
    """Evaluate the topics, and raise the epoch if they or the settings have changed.

    Raises StreamsTopologyInvalid.
    """
    topics, topology, before = draft.topics, draft.topology, draft.volatile
    assert topics is not None
    assert topology is not None
    configured = before.configured
    if configured is None or before.topics_version != topics.version:
        configured = configure(topology, topics)
        draft.volatile = before._replace(configured=configured, topics_version=topics.version)
    validated = NO_TOPOLOGY_EPOCH if configured.status is not None else topology.epoch
    stored = draft.stored._replace(
        metadata_hash=configured.metadata_hash,
        validated_epoch=validated,
        configs=((STANDBY_COUNT, str(standby_count)),),
    )
    if stored != draft.stored:
        draft.stored = stored
        draft.bump()


def assign(draft: StreamsDraft) -> None:
    """Compute the target for the group's epoch, if the topics exist and it is time."""
    configured, topology = draft.volatile.configured, draft.topology
    if topology is None or configured is None or configured.status is not None:
        return  # members keep their tasks until the topics are valid
    if draft.now_ms < draft.volatile.gather_until_ms or not draft.is_assignment_due():
        return
    shapes = {
        one.id: assignor.SubtopologyShape(
            configured.task_counts[one.id], bool(one.changelog_topics)
        )
        for one in topology.subtopologies
    }
    members = [
        assignor.StreamsAssignee(member_id, stored.process_id)
        for member_id, stored in draft.members.items()
        if stored.topology_epoch == topology.epoch
    ]
    standby_count = int(dict(draft.stored.configs).get(STANDBY_COUNT, "0"))
    draft.put_targets(assignor.assign_tasks(members, shapes, draft.target, standby_count))


def move_member(
    draft: StreamsDraft, member_id: str, reported: StreamTasks | None, *, has_nothing: bool
) -> StreamsCurrent:
    """Bring a member as close to its target as possible now: see `reconciliation.py`."""
    in_the_way: set[tuple[int, str, int]] | None = None

    def is_free(role: int, subtopology_id: str, number: int) -> bool:
        nonlocal in_the_way
        if in_the_way is None:
            in_the_way = _held_by_others(draft, member_id)
        if (_ANY, subtopology_id, number) in in_the_way:
            return False
        return role != ACTIVE or (ACTIVE, subtopology_id, number) not in in_the_way

    following = reconcile(
        draft.current_of(member_id),
        draft.target.get(member_id, NO_TASKS),
        draft.target_epoch,
        reported,
        is_free,
        has_nothing=has_nothing,
    )
    draft.put_current(following)
    return following


def _held_by_others(draft: StreamsDraft, member_id: str) -> set[tuple[int, str, int]]:
    """Active tasks of other members, and (as _ANY) all tasks of other members in the same
    process.

    The tasks of one process share a folder: only one of its threads can hold a task's state.
    """
    process_id = draft.members[member_id].process_id
    found: set[tuple[int, str, int]] = set()
    for other_id, current in draft.current.items():
        if other_id == member_id:
            continue
        is_near = draft.members[other_id].process_id == process_id
        for held in (current.assigned, current.revoking):
            found.update((ACTIVE, *task) for task in each(held.active))
            if is_near:
                for tasks in held.plain().roles():
                    found.update((_ANY, *task) for task in each(tasks))
    return found


def confirmation_ms(draft: StreamsDraft, member_id: str) -> int | None:
    """The deadline for revoking the tasks a member must give up, or confirming those it was
    assigned; None: there are none."""
    current = draft.current_of(member_id)
    return draft.revoke_deadline_ms(
        member_id,
        is_awaited=current.state == UNREVOKED or 0 < current.epoch < draft.target_epoch,
        is_same=draft.group.current.get(member_id) == current,
    )
