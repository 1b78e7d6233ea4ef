"""Moves a member of a streams group from its current to its target tasks.

Invariants: pure. A task is revoked before another member gets it: a member keeps a task that it
must give up (`revoking`) until it sends a list of its tasks without it, and keeps its epoch until
then. Nothing is revoked from a member that has not yet confirmed its assignment: a list sent before
it took a task cannot be distinguished from one sent after it gave the task up, and a client sends
no list when it is back where it was (`reported`: its last list; None: none since the coordinator
was loaded). So a list that lacks a revoked task was sent after the revocation.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.coordination.groups.reconciliation import split
from headrace.coordination.member_groups.encodings import STABLE, UNRELEASED, UNREVOKED
from headrace.coordination.streams.tasks import (
    NOTHING_HELD,
    EpochSet,
    HeldTasks,
    StreamTasks,
    TaskSet,
    contains,
    overlaps,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace.coordination.streams.streams_group import StreamsCurrent

ACTIVE, STANDBY, WARMUP = range(3)


def reconcile(
    current: StreamsCurrent,
    target: StreamTasks,
    target_epoch: int,
    reported: StreamTasks | None,
    is_free: Callable[[int, str, int], bool],
    *,
    has_nothing: bool = False,
) -> StreamsCurrent:
    """The member's next assignment; `current` itself if nothing changes.

    `is_free(role, subtopology, partition)` tells whether no other member is in the way.
    `has_nothing`: the member starts over, without tasks.
    """
    if not has_nothing:
        if current.state == UNREVOKED:
            if reported is None or overlaps(reported, current.revoking):
                return current
        elif current.state == STABLE and current.epoch == target_epoch:
            return current
    kept, revoking = _split(NOTHING_HELD if has_nothing else current.assigned, target)
    if not revoking.is_empty():
        if reported is not None and not contains(reported, current.assigned):
            return current  # it must confirm first
        return current._replace(state=UNREVOKED, assigned=kept, revoking=revoking)
    active, is_whole = _filled_active(kept.active, target, target_epoch, is_free)
    standby, has_standby = _filled(STANDBY, kept.standby, target.standby, is_free)
    warmup, has_warmup = _filled(WARMUP, kept.warmup, target.warmup, is_free)
    following = current._replace(
        epoch=target_epoch,
        previous_epoch=current.previous_epoch if current.epoch == target_epoch else current.epoch,
        state=STABLE if is_whole and has_standby and has_warmup else UNRELEASED,
        assigned=HeldTasks(active, standby, warmup),
        revoking=NOTHING_HELD,
    )
    return current if following == current else following


def _filled_active(
    kept: EpochSet, target: StreamTasks, epoch: int, is_free: Callable[[int, str, int], bool]
) -> tuple[EpochSet, bool]:
    """`kept` and the free part of the target; whether that is all of it."""
    found, is_whole = _filled(
        ACTIVE, {one: tuple(epochs) for one, epochs in kept.items()}, target.active, is_free
    )
    filled: EpochSet = {}
    for one, numbers in found.items():
        before = kept.get(one, {})
        filled[one] = {number: before.get(number, epoch) for number in numbers}
    return filled, is_whole


def _filled(
    role: int, kept: TaskSet, target: TaskSet, is_free: Callable[[int, str, int], bool]
) -> tuple[TaskSet, bool]:
    found: TaskSet = {}
    is_whole = True
    for one in sorted({*kept, *target}):
        has = kept.get(one, ())
        wanted = target.get(one, ())
        free = [n for n in wanted if n not in has and is_free(role, one, n)]
        is_whole = is_whole and len(has) + len(free) == len(wanted)
        if has or free:
            found[one] = tuple(sorted([*has, *free]))
    return found, is_whole


def _split(assigned: HeldTasks, target: StreamTasks) -> tuple[HeldTasks, HeldTasks]:
    """Split into tasks to keep and tasks to revoke."""
    kept_active, revoked_active = split(assigned.active, target.active)
    kept_standby, revoked_standby = _split_set(assigned.standby, target.standby)
    kept_warmup, revoked_warmup = _split_set(assigned.warmup, target.warmup)
    return (
        HeldTasks(kept_active, kept_standby, kept_warmup),
        HeldTasks(revoked_active, revoked_standby, revoked_warmup),
    )


def _split_set(assigned: TaskSet, target: TaskSet) -> tuple[TaskSet, TaskSet]:
    kept: TaskSet = {}
    revoked: TaskSet = {}
    for one, numbers in assigned.items():
        wanted = frozenset(target.get(one, ()))
        stays = tuple(n for n in numbers if n in wanted)
        goes = tuple(n for n in numbers if n not in wanted)
        if stays:
            kept[one] = stays
        if goes:
            revoked[one] = goes
    return kept, revoked


def is_within(reported: StreamTasks, held: HeldTasks) -> bool:
    """Whether all reported tasks are held."""
    return all(
        number in theirs.get(one, ())
        for mine, theirs in zip(reported.roles(), held.roles(), strict=True)
        for one, numbers in mine.items()
        for number in numbers
    )
