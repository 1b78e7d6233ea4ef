"""The targets of a run: one broker, the workers of one machine, a cluster of several.

Invariants: the only place that maps names to target classes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace_verify.blackbox import fabric
from headrace_verify.blackbox.cluster import SingleBroker
from headrace_verify.blackbox.schedule import CLUSTER_KINDS, KINDS, SEVERAL_KINDS

if TYPE_CHECKING:
    from pathlib import Path

    from headrace_verify.blackbox.cluster import Cluster
    from headrace_verify.blackbox.link import Network
    from headrace_verify.blackbox.run import Plan

SINGLE, WORKERS, CLUSTER = "single", "workers", "cluster"
TARGETS = (SINGLE, WORKERS, CLUSTER)


def wants_network(target: str) -> bool:
    """Whether its nodes should have their own addresses, if possible."""
    return target != SINGLE


def kinds_of(target: str) -> tuple[str, ...]:
    """The kinds of faults that it supports."""
    return {SINGLE: KINDS, WORKERS: SEVERAL_KINDS}.get(target, CLUSTER_KINDS)


def make_target(plan: Plan, folder: Path, network: Network) -> Cluster:
    """Create it. Raises HeadraceError, OSError."""
    target, bug = plan.target, plan.bug
    own_network = fabric.Fabric() if wants_network(target) and fabric.is_inside() else None
    if target == WORKERS:
        from headrace_verify.blackbox.workers import Workers

        return Workers(folder / "broker", own_network, bug)
    if target == CLUSTER:
        from headrace_verify.blackbox.real_cluster import SMALL, WHOLE, RealCluster

        size = SMALL if plan.is_quick else WHOLE
        load_s = plan.seconds * plan.load
        return RealCluster(folder / "cluster", network, own_network, size, bug, load_s)
    return SingleBroker(folder / "broker", network, bug)
