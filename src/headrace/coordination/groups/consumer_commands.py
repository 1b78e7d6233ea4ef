"""Commands and replies for consumer groups of the new protocol.

Invariants: as in `commands.py`. Fields that the host sets (`topics`, `fresh_id`, times) come last
and have defaults; a face does not set them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from headrace.coordination.groups.commands import GroupsReply
from headrace.coordination.kit.topic_view import NoTopics, TopicView
from headrace.coordination.member_groups.commands import MemberHeartbeat, MemberHeartbeatReply

if TYPE_CHECKING:
    from collections.abc import Mapping
    from uuid import UUID

    from headrace.errors import HeadraceError


@dataclass(slots=True)
class ConsumerHeartbeatReply(MemberHeartbeatReply):
    """Answers a ConsumerHeartbeatCommand; `assignment` is None if it has not changed."""

    assignment: Mapping[UUID, tuple[int, ...]] | None = None


@dataclass(slots=True)
class ConsumerHeartbeatCommand(MemberHeartbeat):
    """ConsumerGroupHeartbeat."""

    topic_names: list[str] | None = None
    pattern: str | None = None
    assignor: str | None = None
    owned: Mapping[UUID, frozenset[int]] | None = None
    pattern_error: HeadraceError | None = field(default=None, kw_only=True)
    """Why the pattern is not usable, if the host has found that."""

    def refused(self, error: HeadraceError) -> ConsumerHeartbeatReply:
        """The reply that carries `error`."""
        return ConsumerHeartbeatReply(error, self.member_id)


class ConsumerMemberDescription(NamedTuple):
    """One member of a described group; partitions by topic name and id."""

    member_id: str
    instance_id: str | None
    rack: str | None
    member_epoch: int
    client_id: str
    client_host: str
    topics: tuple[str, ...]
    pattern: str | None
    assigned: list[tuple[UUID, str, tuple[int, ...]]]
    target: list[tuple[UUID, str, tuple[int, ...]]]
    is_classic: bool


@dataclass(slots=True)
class ConsumerGroupDescription:
    """One described group; `Dead` with an error if there is no group of this type."""

    group_id: str
    error: HeadraceError | None = None
    state: str = "Dead"
    epoch: int = 0
    target_epoch: int = 0
    assignor: str = ""
    members: list[ConsumerMemberDescription] = field(default_factory=list)


@dataclass(slots=True)
class DescribeConsumerGroupsCommand:
    """ConsumerGroupDescribe."""

    group_ids: list[str]
    topics: TopicView = field(default_factory=NoTopics)

    def refused(self, error: HeadraceError) -> GroupsReply[ConsumerGroupDescription]:
        """The reply that carries `error` for every group."""
        return GroupsReply([ConsumerGroupDescription(g, error) for g in self.group_ids])
