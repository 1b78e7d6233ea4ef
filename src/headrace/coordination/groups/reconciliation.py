"""How a member gets from what it has to what it is to have (KIP-848).

Invariants: pure. A partition is revoked before another member gets it: what a member must give up
stays with it (`revoking`) until it says that it does not have it any more, and its epoch stays
until then, too. A heartbeat without a list of owned partitions releases nothing, as in Kafka: the
member owns what it owned. A list counts as an answer to a revocation only if it was sent after
that: a partition that a member was given a moment ago may be missing from a list that is on its
way (`possibly_owned`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.coordination.member_records import STABLE, UNRELEASED, UNREVOKED

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from uuid import UUID

    from headrace.coordination.groups.consumer_records import CurrentStored

Owned = dict["UUID", dict[int, int]]


def reconcile(
    current: CurrentStored,
    target: Mapping[UUID, tuple[int, ...]],
    target_epoch: int,
    reported: Mapping[UUID, frozenset[int]] | None,
    is_free: Callable[[UUID, int], bool],
    *,
    has_nothing: bool = False,
    is_complete: bool = False,
) -> CurrentStored:
    """The member's next assignment; `current` itself where nothing changes.

    `reported`: the partitions that the member reports with this request; None: it reports nothing
    new, so it still owns what it owned. `is_free` says whether no other member has a partition.
    `has_nothing`: the member begins anew, and owns no partition. `is_complete`: it takes nothing
    beyond what is reported before it hears the answer.
    """
    if current.state == UNREVOKED:
        if not has_nothing and still_has(reported, current.revoking):
            return current
    elif current.state == STABLE and current.epoch == target_epoch:
        return current
    kept, revoking = _split(current.assigned, target)
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


def still_has(
    reported: Mapping[UUID, frozenset[int]] | None, revoking: Mapping[UUID, Mapping[int, int]]
) -> bool:
    """Whether a member that reported this has something of `revoking`; it has if it is unknown."""
    if reported is None:
        return True
    return any(
        number in reported.get(topic_id, ())
        for topic_id, numbers in revoking.items()
        for number in numbers
    )


def possibly_owned(
    current: CurrentStored,
    owned: Mapping[UUID, frozenset[int]],
    reported: Mapping[UUID, frozenset[int]] | None,
    member_epoch: int,
) -> dict[UUID, frozenset[int]]:
    """What a member may own by the time of the answer that reports `owned` after a lost answer.

    Of what it was given, it may be about to take all that it can know of (assigned at the epoch
    that it brings, or before) and did not own before (`reported`; None: that is unknown).
    """
    found = dict(owned)
    for side in (current.assigned, current.revoking):
        for topic_id, epochs in side.items():
            had = () if reported is None else reported.get(topic_id, ())
            taking = {n for n, epoch in epochs.items() if epoch <= member_epoch and n not in had}
            found[topic_id] = found.get(topic_id, frozenset()) | taking
    return found


def _split(
    assigned: Mapping[UUID, Mapping[int, int]], target: Mapping[UUID, tuple[int, ...]]
) -> tuple[Owned, Owned]:
    """What stays, and what goes."""
    kept: Owned = {}
    revoking: Owned = {}
    for topic_id, epochs in assigned.items():
        wanted = frozenset(target.get(topic_id, ()))
        for number, epoch in epochs.items():
            side = kept if number in wanted else revoking
            side.setdefault(topic_id, {})[number] = epoch
    return kept, revoking


def is_within(
    reported: Mapping[UUID, frozenset[int]], assigned: Mapping[UUID, Mapping[int, int]]
) -> bool:
    """Whether all that is reported is assigned."""
    return all(
        number in assigned.get(topic_id, ())
        for topic_id, numbers in reported.items()
        for number in numbers
    )
