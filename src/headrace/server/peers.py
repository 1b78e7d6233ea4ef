"""The clients by which a broker reaches the others.

Invariants: choices only, no behaviour. Faces know nothing of them.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from headrace.broker.machine import PeerClients
from headrace.kafka.peers.client import KafkaPeerClient, PeerAccess
from headrace.kafka.peers.lines import open_line
from headrace.kafka.peers.login import PeerLogin
from headrace.kafka.peers.queue_calls import KafkaQueuePeers
from headrace.kafka.peers.share_calls import SharePeers
from headrace.runtime.access import OPEN, Access

if TYPE_CHECKING:
    from headrace.broker.security.authentication import Authentication


def kafka_peers(
    authentication: Authentication, listener: str = "", access: Access = OPEN
) -> PeerClients:
    """Clients in Kafka's protocol. `listener`, `access`: see PeerAccess."""
    way = PeerAccess(listener, access, PeerLogin(authentication))
    coordinators, queues = KafkaPeerClient(way), KafkaQueuePeers(way)

    async def close() -> None:
        coordinators.close()
        queues.close()

    shares = SharePeers(coordinators.call)
    return PeerClients(coordinators, shares, queues, partial(open_line, way), close)
