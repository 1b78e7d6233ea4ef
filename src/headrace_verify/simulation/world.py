"""What the hosts of a simulated cluster share: time, the network, ZooKeeper's tree.

Invariants: knows no broker, bookie or server of ZooKeeper.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace_verify.rng import seeded
from headrace_verify.simulation.ensemble import Ensemble
from headrace_verify.simulation.network import Network

if TYPE_CHECKING:
    from headrace.storage.bookkeeper.quorum import Quorum
    from headrace_verify.simulation.loop import Host, SimulatedLoop


class World:
    """One per run."""

    def __init__(self, seed: str, loop: SimulatedLoop, quorum: Quorum) -> None:
        self.seed = seed
        self.loop = loop
        self.quorum = quorum
        self.network = loop.network = Network(loop, seeded(f"{seed} network"))
        self.ensemble = Ensemble(loop)
        self.hosts: list[Host] = []
        """All lives, including dead ones: see Host.tasks."""
