"""What one broker asks of another: the seam between coordinators and a protocol's client.

Invariants: calls carry what the machines' commands carry; an outcome is an error or None for each
item. A call that got no answer raises BrokerUnreachable: it may have been carried out, so whatever
is asked here may be asked again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headrace.coordination.machine import EndsTransaction
    from headrace.coordination.transactions.commands import AddPartitionsCommand, AddPartitionsReply
    from headrace.coordination.transactions.state_records import Partition
    from headrace.errors import HeadraceError
    from headrace.metadata.facts import BrokerFact


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
