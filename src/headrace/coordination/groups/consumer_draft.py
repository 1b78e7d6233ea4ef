"""The target of a consumer group, and the way of its members to it: what KIP-848 adds to a draft.

Invariants: as for `MemberDraft`: the group itself is not changed.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Final

from headrace.coordination.groups import assignors
from headrace.coordination.groups.consumer_records import (
    ConsumerMemberStored,
    OwnedPartitions,
    Partitions,
)
from headrace.coordination.groups.reconciliation import reconcile
from headrace.coordination.member_groups.draft import MemberDraft
from headrace.coordination.member_groups.encodings import UNREVOKED

if TYPE_CHECKING:
    from collections.abc import Mapping
    from uuid import UUID

    from headrace.coordination.groups.consumer_group import ConsumerCurrent
    from headrace.coordination.kit.topic_view import TopicShape, TopicView

_HASH_SIZE: Final = 8


ConsumerDraft = MemberDraft[ConsumerMemberStored, Partitions, OwnedPartitions]


def follow_topics(draft: ConsumerDraft) -> None:
    """Raise the epoch if the subscribed topics have changed since it was raised last."""
    topics = draft.topics
    assert topics is not None
    if topics.version == draft.volatile.topics_version and not draft.is_bumped:
        return
    draft.volatile = draft.volatile._replace(topics_version=topics.version)
    found = _hash_of(_shapes(draft, topics))
    if found != draft.stored.metadata_hash:
        draft.stored = draft.stored._replace(metadata_hash=found)
        draft.bump()


def names_of(draft: ConsumerDraft, stored: ConsumerMemberStored) -> list[str]:
    """The topics that a member subscribes to, including ones that do not exist."""
    if not stored.pattern or draft.topics is None:
        return list(stored.topics)
    return sorted({*stored.topics, *draft.topics.matching(stored.pattern)})


def _shapes(draft: ConsumerDraft, topics: TopicView) -> dict[str, TopicShape]:
    found: dict[str, TopicShape] = {}
    for stored in draft.members.values():
        for name in names_of(draft, stored):
            if name not in found:
                shape = topics.shape(name)
                if shape is not None and shape.partition_count > 0:
                    found[name] = shape
    return found


def assign(draft: ConsumerDraft) -> None:
    """Compute the target for the group's epoch, unless one was computed a moment ago."""
    if draft.topics is None or not draft.is_assignment_due():
        return
    shapes = _shapes(draft, draft.topics)
    subscribers = [
        assignors.Subscriber(
            member_id,
            stored.instance_id,
            stored.rack,
            frozenset(shapes[n].id for n in names_of(draft, stored) if n in shapes),
        )
        for member_id, stored in draft.members.items()
    ]
    by_id = {shape.id: shape for shape in shapes.values()}
    name = preferred_assignor(draft.members)
    draft.put_targets(assignors.assign(name, subscribers, by_id, draft.target))


def move_member(
    draft: ConsumerDraft,
    member_id: str,
    reported: Partitions | None,
    *,
    has_nothing: bool = False,
    is_complete: bool = False,
) -> ConsumerCurrent:
    """Bring a member as close to its target as possible now: see `reconciliation.py`."""
    owners, dropped = draft.group.owners, draft.dropped

    def is_free(topic_id: UUID, number: int) -> bool:
        owner = owners.get(topic_id, {}).get(number)
        return owner is None or owner == member_id or owner in dropped

    following = reconcile(
        draft.current_of(member_id),
        draft.target.get(member_id, {}),
        draft.target_epoch,
        reported,
        is_free,
        has_nothing=has_nothing,
        is_complete=is_complete,
    )
    draft.put_current(following)
    return following


def revocation_ms(draft: ConsumerDraft, member_id: str) -> int | None:
    """The deadline for a member's outstanding revocation; None: there is none."""
    current, before = draft.current_of(member_id), draft.group.current.get(member_id)
    return draft.revoke_deadline_ms(
        member_id,
        is_awaited=current.state == UNREVOKED,
        is_same=before is not None and before.revoking == current.revoking,
    )


def preferred_assignor(members: Mapping[str, ConsumerMemberStored]) -> str:
    """The assignor that most members request; the default wins ties and the absence of requests."""
    votes = dict.fromkeys(assignors.ASSIGNORS, 0)
    for stored in members.values():
        if stored.assignor in votes:
            votes[stored.assignor] += 1
    return max(votes, key=votes.__getitem__)


def _hash_of(shapes: Mapping[str, TopicShape]) -> int:
    """A hash of these topics. Do not change: stored."""
    if not shapes:
        return 0
    digest = hashlib.blake2b(digest_size=_HASH_SIZE)
    for name in sorted(shapes):
        shape = shapes[name]
        digest.update(shape.id.bytes + shape.partition_count.to_bytes(4, "big"))
    return int.from_bytes(digest.digest(), "big", signed=True)
