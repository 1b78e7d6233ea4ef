"""What the process around a node offers it.

Invariants: values and ways to call, given when the node is made; decides nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from headrace.broker.services.broker_settings import nothing_to_read
from headrace.broker.services.helper_access import HelperListener

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from headrace.broker.coordinators.peer_calls import PeerCalls, SharePeerCalls
    from headrace.broker.security.authentication import Authentication
    from headrace.broker.services.decoded_values import DecodedValues
    from headrace.broker.shares.queue_peers import QueuePeerCalls
    from headrace.broker.topics.ownership import OpenLine
    from headrace.storage.ledger import ReportsSpace


async def _nothing_to_close() -> None:
    pass


class PeerClients(NamedTuple):
    """Clients of other brokers; None where there are no others to reach."""

    coordinators: PeerCalls | None = None
    """Calls between coordinators of transactions and owners of partitions."""
    shares: SharePeerCalls | None = None
    """Calls of share groups' coordinators."""
    queues: QueuePeerCalls | None = None
    """Calls to the owners of partitions for this broker's clients."""
    open_line: OpenLine | None = None
    """Opens the connections that tell of deaths."""
    close: Callable[[], Awaitable[None]] = _nothing_to_close
    """Drops all connections."""


def _no_peers(_authentication: Authentication) -> PeerClients:
    return PeerClients()


class Machine(NamedTuple):
    """See the module."""

    disk: ReportsSpace | None = None
    """None if the ledgers are not on this machine."""
    cpu_ns: Callable[[], int] | None = None
    """The CPU time used so far; None if it is not measured."""
    read_certificates: Callable[[], Awaitable[None]] = nothing_to_read
    """Reads the files of certificates again. Raises RequestInvalid."""
    decoded_values: DecodedValues | None = None
    """None: this broker knows no schemas."""
    helper_listener: HelperListener = HelperListener()
    peers: Callable[[Authentication], PeerClients] = _no_peers
    """Makes the clients of other brokers, which may have to log in."""


LONE: Final = Machine()
"""That of a node that runs by itself."""
