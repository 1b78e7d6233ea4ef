"""The commands and replies of a group coordinator: one pair per API.

Invariants: plain slotted dataclasses without behaviour except `refused`, which creates the reply
that carries one error. Times are int milliseconds. An error is an instance of a HeadraceError or
None; where Kafka answers per partition or per member, so do these. Fields that the host sets
(`ticket`, `fresh_id`, `topics`) come last and have defaults; a face does not set them. Commands of
the host itself are in `host_commands.py`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

from headrace.coordination.kit.machine import Parkable
from headrace.coordination.kit.topic_view import NoTopics, TopicView
from headrace.errors import CoordinatorLoading, RebalanceInProgress

if TYPE_CHECKING:
    from collections.abc import Mapping
    from uuid import UUID

    from headrace.errors import HeadraceError

OfGroup = TypeVar("OfGroup")
NO_GENERATION = -1
NO_OFFSET = -1
NO_LEADER_EPOCH = -1


class OffsetToCommit(NamedTuple):
    """One partition's offset, as a client commits it."""

    topic: str
    partition: int
    offset: int
    leader_epoch: int = NO_LEADER_EPOCH
    metadata: str | None = ""
    topic_id: UUID | None = None
    """Of the intended topic; None: any topic of that name."""


class FetchedOffset(NamedTuple):
    """One partition's committed offset; offset -1 if there is none."""

    topic: str
    partition: int
    offset: int
    leader_epoch: int
    metadata: str
    error: HeadraceError | None = None
    topic_id: UUID | None = None


class PartitionResult(NamedTuple):
    """The result for one partition of a request."""

    topic: str
    partition: int
    error: HeadraceError | None


class GroupResult(NamedTuple):
    """The result for one group of a request."""

    group_id: str
    error: HeadraceError | None


class JoinMember(NamedTuple):
    """A member as its leader sees it: `metadata` belongs to the chosen protocol."""

    member_id: str
    group_instance_id: str | None
    metadata: bytes


class LeavingMember(NamedTuple):
    """A leaving member: by member id, or (for administrators) by instance id with an empty member
    id."""

    member_id: str
    group_instance_id: str | None = None
    reason: str = ""


class LeftMember(NamedTuple):
    """The result for one leaving member."""

    member_id: str
    group_instance_id: str | None
    error: HeadraceError | None


class GroupListing(NamedTuple):
    """One listed group: `state` and `group_type` in Kafka's terms (`Stable`, `classic`)."""

    group_id: str
    protocol_type: str
    state: str
    group_type: str


class MemberDescription(NamedTuple):
    """One member of a described group; metadata and assignment are empty unless Stable."""

    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    metadata: bytes
    assignment: bytes


@dataclass(slots=True)
class JoinReply:
    """Answers a JoinCommand; `members` is set for the leader only.

    With MemberIdRequired, `member_id` is the id to join again with.
    """

    error: HeadraceError | None = None
    member_id: str = ""
    generation: int = NO_GENERATION
    protocol_type: str | None = None
    protocol_name: str | None = None
    leader: str = ""
    members: list[JoinMember] = field(default_factory=list)
    skip_assignment: bool = False


@dataclass(slots=True)
class JoinCommand(Parkable):
    """JoinGroup. Protocols come in the member's order of preference, as (name, metadata).

    `is_member_id_required`: the client knows KIP-394 (JoinGroup v4 and later).
    `can_skip_assignment`: the client knows KIP-814 (JoinGroup v9 and later). A v0 client has no
    rebalance timeout: use its session timeout.
    """

    group_id: str
    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocol_type: str
    protocols: list[tuple[str, bytes]]
    is_member_id_required: bool = False
    can_skip_assignment: bool = False
    reason: str = ""
    fresh_id: str = ""
    topics: TopicView = field(default_factory=NoTopics)

    def refused(self, error: HeadraceError) -> JoinReply:
        """The reply that carries `error`."""
        return JoinReply(error, self.member_id)


@dataclass(slots=True)
class SyncReply:
    """Answers a SyncCommand with the member's own assignment."""

    error: HeadraceError | None = None
    protocol_type: str | None = None
    protocol_name: str | None = None
    assignment: bytes = b""


@dataclass(slots=True)
class SyncCommand(Parkable):
    """SyncGroup. The leader sends assignments as (member id, bytes); others send none.

    Protocol type and name are None for clients before v5.
    """

    group_id: str
    generation: int
    member_id: str
    group_instance_id: str | None = None
    protocol_type: str | None = None
    protocol_name: str | None = None
    assignments: list[tuple[str, bytes]] = field(default_factory=list)
    topics: TopicView = field(default_factory=NoTopics)

    def refused(self, error: HeadraceError) -> SyncReply:
        """The reply that carries `error`; while the coordinator loads, one that makes the member
        join again, as in Kafka: a rebalance in progress is lost with the state."""
        if isinstance(error, CoordinatorLoading):
            error = RebalanceInProgress("the coordinator has reloaded its state: rejoin the group")
        return SyncReply(error)


@dataclass(slots=True)
class HeartbeatReply:
    """Answers a HeartbeatCommand."""

    error: HeadraceError | None = None


@dataclass(slots=True)
class HeartbeatCommand:
    """Heartbeat."""

    group_id: str
    generation: int
    member_id: str
    group_instance_id: str | None = None

    def refused(self, error: HeadraceError) -> HeartbeatReply:
        """The reply that carries `error`; while the coordinator loads, the member gets none."""
        return HeartbeatReply(None if isinstance(error, CoordinatorLoading) else error)


@dataclass(slots=True)
class LeaveReply:
    """Answers a LeaveCommand; `members` in the order of the request.

    `error` is set when no member was processed (then every member carries it as well). A client
    before v3 gets `error`, or else the error of its only member.
    """

    error: HeadraceError | None = None
    members: list[LeftMember] = field(default_factory=list)


@dataclass(slots=True)
class LeaveCommand:
    """LeaveGroup."""

    group_id: str
    members: list[LeavingMember]

    def refused(self, error: HeadraceError) -> LeaveReply:
        """The reply that carries `error`."""
        return LeaveReply(error, [LeftMember(m[0], m[1], error) for m in self.members])


@dataclass(slots=True)
class CommitReply:
    """Answers a CommitCommand; `results` has one entry per partition, in the request's order."""

    results: list[PartitionResult] = field(default_factory=list)


@dataclass(slots=True)
class CommitCommand:
    """OffsetCommit. A consumer without a group has generation -1 and an empty member id."""

    group_id: str
    generation: int
    member_id: str
    group_instance_id: str | None
    offsets: list[OffsetToCommit]
    topic_ids: Mapping[str, UUID] | None = None
    """The existing topics by name, as the host knows them when it decides."""

    def refused(self, error: HeadraceError) -> CommitReply:
        """The reply that carries `error` for every partition."""
        return CommitReply([PartitionResult(o[0], o[1], error) for o in self.offsets])


@dataclass(slots=True)
class TransactionalCommitCommand:
    """TxnOffsetCommit: offsets that take effect when the producer's transaction commits.

    Clients before v3 know no generation (-1) and no member id: they are not checked.
    """

    group_id: str
    producer_id: int
    producer_epoch: int
    generation: int
    member_id: str
    group_instance_id: str | None
    offsets: list[OffsetToCommit]
    topic_ids: Mapping[str, UUID] | None = None

    def refused(self, error: HeadraceError) -> CommitReply:
        """The reply that carries `error` for every partition."""
        return CommitReply([PartitionResult(o[0], o[1], error) for o in self.offsets])


@dataclass(slots=True)
class FetchOffsetsReply:
    """Answers a FetchOffsetsCommand; with `error` there are no offsets."""

    error: HeadraceError | None = None
    offsets: list[FetchedOffset] = field(default_factory=list)


@dataclass(slots=True)
class FetchOffsetsCommand:
    """OffsetFetch of (topic, partition) pairs, or of all that is stored (None).

    `require_stable`: a partition with an offset pending in an open transaction is refused instead
    of answered with the previous offset.
    """

    group_id: str
    partitions: list[tuple[str, int]] | None = None
    require_stable: bool = False
    member_id: str | None = None
    """For a member of the new protocol, with its epoch; None (or -1): not checked."""
    member_epoch: int = NO_GENERATION

    def refused(self, error: HeadraceError) -> FetchOffsetsReply:
        """The reply that carries `error`."""
        return FetchOffsetsReply(error)


@dataclass(slots=True)
class DeleteOffsetsReply:
    """Answers a DeleteOffsetsCommand; with `error` there are no results."""

    error: HeadraceError | None = None
    results: list[PartitionResult] = field(default_factory=list)


@dataclass(slots=True)
class DeleteOffsetsCommand:
    """OffsetDelete."""

    group_id: str
    partitions: list[tuple[str, int]]
    topics: TopicView = field(default_factory=NoTopics)

    def refused(self, error: HeadraceError) -> DeleteOffsetsReply:
        """The reply that carries `error`."""
        return DeleteOffsetsReply(error)


@dataclass(slots=True)
class GroupsReply(Generic[OfGroup]):
    """Answers a command on several groups: one result for each, in the order of the command."""

    groups: list[OfGroup]


@dataclass(slots=True)
class DeleteGroupsCommand:
    """DeleteGroups."""

    group_ids: list[str]

    def refused(self, error: HeadraceError) -> GroupsReply[GroupResult]:
        """The reply that carries `error` for every group."""
        return GroupsReply([GroupResult(g, error) for g in self.group_ids])


@dataclass(slots=True)
class ListGroupsReply:
    """Answers a ListGroupsCommand. With an `error` the list may be incomplete."""

    error: HeadraceError | None = None
    groups: list[GroupListing] = field(default_factory=list)


@dataclass(slots=True)
class ListGroupsCommand:
    """ListGroups; an empty filter matches everything, names are compared case-insensitively."""

    states: list[str] = field(default_factory=list)
    types: list[str] = field(default_factory=list)

    def refused(self, error: HeadraceError) -> ListGroupsReply:
        """The reply that carries `error`."""
        return ListGroupsReply(error)


@dataclass(slots=True)
class GroupDescription:
    """One described group. A group that does not exist has state `Dead` and error GroupUnknown.

    Kafka hides that error from clients before DescribeGroups v6.
    """

    group_id: str
    error: HeadraceError | None = None
    state: str = ""
    protocol_type: str = ""
    protocol_name: str = ""
    members: list[MemberDescription] = field(default_factory=list)
    group_type: str = "classic"
    """`classic` or `consumer`, as ListGroups names them (KIP-848)."""


@dataclass(slots=True)
class DescribeGroupsCommand:
    """DescribeGroups."""

    group_ids: list[str]
    topics: TopicView = field(default_factory=NoTopics)

    def refused(self, error: HeadraceError) -> GroupsReply[GroupDescription]:
        """The reply that carries `error` for every group."""
        return GroupsReply([GroupDescription(g, error) for g in self.group_ids])
