"""Moves a member from its current to its target assignment (KIP-848).

Invariants: pure. A partition is revoked before another member gets it: a member keeps a partition
that it must give up (`revoking`) until it reports that it no longer owns it, and keeps its epoch
until then as well. A heartbeat without a list of owned partitions releases nothing, as in Kafka. A
list confirms a revocation only if it was sent after it: a partition assigned a moment ago may be
missing from a list in flight (`possibly_owned`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from headrace.coordination.member_groups.encodings import STABLE, UNRELEASED, UNREVOKED

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping
    from uuid import UUID

    from headrace.coordination.groups.consumer_group import ConsumerCurrent
    from headrace.coordination.groups.consumer_records import Partitions

Key = TypeVar("Key")


def reconcile(
    current: ConsumerCurrent,
    target: Partitions,
    target_epoch: int,
    reported: Partitions | None,
    is_free: Callable[[UUID, int], bool],
    *,
    has_nothing: bool = False,
    is_complete: bool = False,
) -> ConsumerCurrent:
    """The member's next assignment; `current` itself if nothing changes.

    `reported`: the partitions that the member reports with this request; None: no report, so it
    still owns what it owned. `is_free` tells whether no other member owns a partition.
    `has_nothing`: the member starts over and owns no partition. `is_complete`: it takes nothing
    beyond what it reports before it gets the response.
    """
    if current.state == UNREVOKED:
        if not has_nothing and still_has(reported, current.revoking):
            return current
    elif current.state == STABLE and current.epoch == target_epoch:
        return current
    kept, revoking = split(current.assigned, target)
    is_given_up = has_nothing or (is_complete and not still_has(reported, revoking))
    if revoking and not is_given_up:
        return current._replace(state=UNREVOKED, assigned=kept, revoking=revoking)
    is_whole = True
    for topic_id, numbers in target.items():
        has = kept.get(topic_id, {})
        free = [n for n in numbers if n not in has and is_free(topic_id, n)]
        is_whole = is_whole and len(has) + len(free) == len(numbers)
        if free:
            kept[topic_id] = dict(sorted([*has.items(), *((n, target_epoch) for n in free)]))
    state = STABLE if is_whole else UNRELEASED
    previous = current.previous_epoch if current.epoch == target_epoch else current.epoch
    following = current._replace(
        epoch=target_epoch, previous_epoch=previous, state=state, assigned=kept, revoking={}
    )
    return current if following == current else following


def still_has(reported: Partitions | None, revoking: Mapping[UUID, Mapping[int, int]]) -> bool:
    """Whether a member with this report still owns any of `revoking`; true if unknown."""
    if reported is None:
        return True
    return any(
        number in reported.get(topic_id, ())
        for topic_id, numbers in revoking.items()
        for number in numbers
    )


def possibly_owned(
    current: ConsumerCurrent,
    owned: Partitions,
    reported: Partitions | None,
    member_epoch: int,
) -> Partitions:
    """What a member may own by the time of the response if it reports `owned` after a lost
    response.

    It may be about to take every partition assigned to it that it can know of (assigned at the
    epoch that it sends, or before) and did not own before (`reported`; None: unknown).
    """
    found = {topic_id: frozenset(numbers) for topic_id, numbers in owned.items()}
    for side in (current.assigned, current.revoking):
        for topic_id, epochs in side.items():
            had = () if reported is None else reported.get(topic_id, ())
            taking = {n for n, epoch in epochs.items() if epoch <= member_epoch and n not in had}
            found[topic_id] = found.get(topic_id, frozenset()) | taking
    return found


def split(
    assigned: Mapping[Key, Mapping[int, int]], target: Mapping[Key, Collection[int]]
) -> tuple[dict[Key, dict[int, int]], dict[Key, dict[int, int]]]:
    """Split into what to keep and what to revoke."""
    kept: dict[Key, dict[int, int]] = {}
    revoking: dict[Key, dict[int, int]] = {}
    for topic_id, epochs in assigned.items():
        wanted = frozenset(target.get(topic_id, ()))
        for number, epoch in epochs.items():
            side = kept if number in wanted else revoking
            side.setdefault(topic_id, {})[number] = epoch
    return kept, revoking


def is_within(reported: Partitions, assigned: Mapping[UUID, Mapping[int, int]]) -> bool:
    """Whether all reported partitions are assigned."""
    return all(
        number in assigned.get(topic_id, ())
        for topic_id, numbers in reported.items()
        for number in numbers
    )
