"""The state of all groups of a shard in parts, for a snapshot that is written while it changes.

Invariants: each record reflects the state when its part is requested, so later changes are later in
the log. A large group is split into several parts, and ends early if it was replaced meanwhile.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headrace.coordination.pieces import keys_in_pieces

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from headrace.coordination.groups.group import Group, GroupRecord
    from headrace.coordination.member_groups.group import MemberGroup

PART_RECORDS = 500
"""About 2 ms of work to encode and append."""


def parts_of(groups: dict[str, Group], removals: Callable[[], int]) -> Iterator[list[GroupRecord]]:
    """Durable records that rebuild `groups`; `removals()` counts all removals of groups, and of
    offsets from groups."""
    part: list[GroupRecord] = []
    for group_id in keys_in_pieces(groups, removals):
        group = groups.get(group_id)
        if group is None:
            continue
        offsets = group.offsets
        if group.record is not None:
            part.append(group.record)
        if group.managed is not None:
            yield from _member_parts(groups, group.managed, part)
        for place in keys_in_pieces(offsets, removals):
            if len(part) >= PART_RECORDS:
                yield part
                part = []
            group = groups.get(group_id)
            if group is None or group.offsets is not offsets:
                break
            stored = offsets.get(place)
            if stored is not None:
                is_open = group.open_commits and group.open_commits.is_open(place)
                part.append(stored._replace(is_repeated=True) if is_open else stored)
        if len(part) >= PART_RECORDS:
            yield part
            part = []
    yield part


def _member_parts(
    groups: dict[str, Group], members: MemberGroup[Any, Any, Any], part: list[GroupRecord]
) -> Iterator[list[GroupRecord]]:
    """Parts of a group whose coordinator assigns; the last records go into `part`."""
    for record in members.state_records():
        part.append(record)
        if len(part) >= PART_RECORDS:
            yield part[:]
            part.clear()
            group = groups.get(members.group_id)
            if group is None or group.managed is not members:
                return
