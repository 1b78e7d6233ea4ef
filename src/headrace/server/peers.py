"""The clients by which a broker reaches the others.

Invariants: choices only, no behaviour. Faces know nothing of them.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from headrace.kafka.peers.client import KafkaPeerClient, PeerAccess
from headrace.kafka.peers.lines import open_line
from headrace.kafka.peers.queue_calls import KafkaQueuePeers
from headrace.kafka.peers.share_calls import SharePeers

if TYPE_CHECKING:
    from headrace.broker.node import Node


class KafkaPeers:
    """Implements `broker.node.PeerClients` in Kafka's protocol."""

    def __init__(self, way: PeerAccess) -> None:
        self.coordinators = KafkaPeerClient(way)
        self.shares = SharePeers(self.coordinators.call)
        self.queues = KafkaQueuePeers(way)
        self.open_line = partial(open_line, way)

    async def close(self) -> None:
        """Drop all connections."""
        self.coordinators.close()
        self.queues.close()


def call_peers(node: Node, way: PeerAccess | None = None) -> KafkaPeers:
    """Have a node reach the other brokers so (None: at their first listener, without a login).
    The caller closes what is returned."""
    peers = KafkaPeers(PeerAccess() if way is None else way)
    node.call_peers_with(peers)
    return peers
