"""Calls from a broker to the owners of a topic's other partitions, so that any broker serves a
queue.

Invariants: the seam to a protocol's client. Errors of a partition are values; a call without a
response raises BrokerUnreachable: it may have been executed. Only `receive` delivers records, and
it never waits for them, so that no delivery belongs to an abandoned call.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from uuid import UUID

    from headrace.broker.shares.hosted_shares import Pause
    from headrace.broker.shares.share_receive import Received, ReceiveRequest
    from headrace.coordination.shares.commands import ParkedKey, Settlement
    from headrace.errors import HeadraceError
    from headrace.log.appended import BatchPlace
    from headrace.metadata.facts import BrokerFact


class SeenPause(NamedTuple):
    """The pause of a receive at the owner of a partition without records, and its tenure."""

    pause: Pause
    leader_epoch: int


class MemberSettlements(NamedTuple):
    """One member's settlements of records of one partition."""

    partition: int
    member_id: str
    settlements: Sequence[Settlement]


Answered = dict[int, "Received | SeenPause | HeadraceError"]
"""By partition. Partitions not examined because the limits were reached are omitted."""


class QueuePosition(NamedTuple):
    """A group's position in one partition."""

    start_offset: int
    """The first unfinished record."""
    end_offset: int
    """The first record that was never delivered."""
    in_flight: int
    archiving: int
    """Records that wait for their copies in the dead letter topic."""
    lag: int
    """Unfinished records."""


class QueuePeerCalls(Protocol):
    """Calls the owners of partitions."""

    async def receive(
        self, broker: BrokerFact, topic_id: UUID, asked: ReceiveRequest, ends: Mapping[int, int]
    ) -> Answered:
        """Begin the group on these partitions, and acquire available records, in their order.

        `ends`: partition -> the offset from which on nothing is acquired. `asked.records_max` 0:
        begin only. Raises BrokerUnreachable, TopicIdUnknown.
        """
        ...

    async def wait(
        self,
        broker: BrokerFact,
        topic_id: UUID,
        pauses: Mapping[int, SeenPause],
        timeout_s: float,
    ) -> None:
        """Return when one of the partitions may have more than was seen, or after the timeout.

        Raises BrokerUnreachable, TopicIdUnknown.
        """
        ...

    async def settle(
        self,
        broker: BrokerFact,
        topic_id: UUID,
        group_id: str,
        deliveries: Sequence[MemberSettlements],
    ) -> Sequence[Sequence[HeadraceError | None] | HeadraceError]:
        """The outcome of each delivery. Raises BrokerUnreachable, TopicIdUnknown."""
        ...

    async def release(
        self,
        broker: BrokerFact,
        topic_id: UUID,
        group_id: str,
        member_id: str,
        partitions: Sequence[int],
    ) -> None:
        """Make what the member holds available again; the deliveries count.

        Raises BrokerUnreachable, TopicIdUnknown.
        """
        ...

    async def describe(
        self, broker: BrokerFact, topic_id: UUID, group_id: str, partitions: Sequence[int]
    ) -> Mapping[int, QueuePosition | HeadraceError | None]:
        """The group's positions; None: it has not begun there.

        Raises BrokerUnreachable, TopicIdUnknown.
        """
        ...

    async def list_parked(
        self, broker: BrokerFact, topic_id: UUID, group_id: str, partitions: Sequence[int]
    ) -> Mapping[int, Sequence[ParkedKey] | HeadraceError]:
        """The group's parked keys. Raises BrokerUnreachable, TopicIdUnknown."""
        ...

    async def park(
        self,
        broker: BrokerFact,
        topic_id: UUID,
        group_id: str,
        keys: Sequence[bytes],
        partitions: Sequence[int],
    ) -> Mapping[int, HeadraceError | None]:
        """Park the records of the keys. Raises BrokerUnreachable, TopicIdUnknown."""
        ...

    async def unpark(
        self,
        broker: BrokerFact,
        topic_id: UUID,
        group_id: str,
        keys: Sequence[bytes],
        partitions: Sequence[int],
    ) -> Mapping[int, Sequence[bytes] | HeadraceError]:
        """Release the records of the keys; returns those that were parked there.

        Raises BrokerUnreachable, TopicIdUnknown.
        """
        ...

    async def append(
        self,
        broker: BrokerFact,
        topic_id: UUID,
        partition: int,
        batch: bytes,
        *,
        are_copies: bool = False,
    ) -> BatchPlace:
        """Append a batch at the partition's owner: a client's, as its own clients' are, or copies.

        Of copies each record carries a named sequence in its headers, by which the owner leaves out
        what it has; their offsets are not returned. Raises BrokerUnreachable (it may have been
        appended), and the error that the owner returns.
        """
        ...

    async def ask(
        self,
        broker: BrokerFact,
        operation: str,
        topic_id: UUID | None,
        partitions: Sequence[int],
        body: bytes,
        time_s: float = 0,
    ) -> Mapping[int, bytes | HeadraceError]:
        """The results of an operation of `OwnerCalls` by partition; without a topic, of the broker
        itself, under -1. `time_s`: how long it may take of its own accord.

        Raises BrokerUnreachable, TopicIdUnknown.
        """
        ...
