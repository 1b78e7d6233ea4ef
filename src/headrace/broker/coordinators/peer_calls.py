"""Calls from one broker to another: the seam between coordinators and a protocol's client.

Invariants: calls carry what the machines' commands carry; the outcome for each item is an error or
None. A call without a response raises BrokerUnreachable: it may have been executed, so all calls
here are safe to repeat.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from headrace.coordination.groups.commands import GroupListing
    from headrace.coordination.kit.machine import EndsTransaction
    from headrace.coordination.transactions.commands import AddPartitionsCommand, AddPartitionsReply
    from headrace.coordination.transactions.state_records import Partition
    from headrace.errors import HeadraceError
    from headrace.metadata.facts import BrokerFact, PartitionKey


class MarkerRequest(NamedTuple):
    """Write one transaction's marker to these partitions."""

    marker: EndsTransaction
    partitions: Sequence[Partition]


class PeerCalls(Protocol):
    """Calls another broker."""

    async def write_markers(
        self, broker: BrokerFact, requests: Sequence[MarkerRequest]
    ) -> list[dict[Partition, HeadraceError | None]]:
        """WriteTxnMarkers; the outcome of each request. Raises BrokerUnreachable."""
        ...

    async def add_partitions(
        self, broker: BrokerFact, command: AddPartitionsCommand
    ) -> AddPartitionsReply:
        """AddPartitionsToTxn, adding or verifying. Raises BrokerUnreachable."""
        ...


class ShareState(NamedTuple):
    """A share group's position in one partition; START_UNKNOWN: it has not begun there."""

    start_offset: int
    finished_records: int
    """Finished records after the start."""
    leader_epoch: int = 0
    end_offset: int = -1
    """The partition's high watermark, -1: unknown."""


START_UNKNOWN = -1
ShareStates = dict["PartitionKey", "ShareState | HeadraceError"]
Outcomes = dict["PartitionKey", "HeadraceError | None"]


class SharePeerCalls(Protocol):
    """Calls other brokers for share groups: owners of partitions, and coordinators of groups."""

    async def list_groups(
        self, broker: BrokerFact, states: Sequence[str], types: Sequence[str]
    ) -> Sequence[GroupListing]:
        """ListGroups: the groups that the broker coordinates. Raises BrokerUnreachable, and the
        errors that the broker returns."""
        ...

    async def has_consumer_group(self, broker: BrokerFact, group_id: str) -> bool:
        """Whether the broker, a group's coordinator, knows a consumer group of this id.

        By DescribeGroups and ConsumerGroupDescribe. Raises BrokerUnreachable, and the broker's
        error if it does not coordinate the group now.
        """
        ...

    async def share_states(
        self, broker: BrokerFact, group_id: str, partitions: Sequence[PartitionKey]
    ) -> ShareStates:
        """ReadShareGroupStateSummary. Raises BrokerUnreachable."""
        ...

    async def end_offsets(
        self, broker: BrokerFact, partitions: Sequence[Partition]
    ) -> dict[Partition, int]:
        """ListOffsets: the high watermarks of the partitions that return one. Raises
        BrokerUnreachable."""
        ...

    async def start_share_group(
        self, broker: BrokerFact, group_id: str, starts: Mapping[PartitionKey, int]
    ) -> Outcomes:
        """InitializeShareGroupState: begin at these offsets. Raises BrokerUnreachable."""
        ...

    async def forget_share_group(
        self, broker: BrokerFact, group_id: str, partitions: Sequence[PartitionKey]
    ) -> Outcomes:
        """DeleteShareGroupState. Raises BrokerUnreachable."""
        ...
