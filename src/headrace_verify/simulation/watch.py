"""Checks broker-internal invariants at every step, which no client can see.

Invariants: reads, and changes nothing. One tenure of a partition (topic, number, leader epoch)
belongs to one life of one broker; in a tenure the high watermark never decreases, and never exceeds
the end of the log. A broker never considers an expired session valid.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headrace.broker.session_guard import MARGIN

if TYPE_CHECKING:
    from headrace_verify.simulation.cluster import Cluster, SimulatedBroker
    from headrace_verify.simulation.journal import Journal

EVERY_S = 0.1


class Watch:
    """The checks of one run."""

    def __init__(self, cluster: Cluster, journal: Journal) -> None:
        self._cluster = cluster
        self._journal = journal
        self._tenures: dict[tuple[Any, int, int], tuple[str, int]] = {}
        self._marks: dict[tuple[Any, int, int], int] = {}
        self.checks = 0

    def start(self) -> None:
        """Start checking."""
        self._cluster.call_outside(self._look)

    def _look(self) -> None:
        self._cluster.loop.call_later(EVERY_S, self._look)
        self.checks += 1
        for broker in self._cluster.brokers:
            node = broker.node
            if node is None:
                continue
            self._check_session(broker)
            for topic in node.topics.by_id.values():
                for number, log in topic.logs:
                    if node.ownership.is_mine(topic, number) and log.is_loaded:
                        # A standalone broker has no epochs except its lives.
                        epoch = broker.life if self._cluster.is_lone else log.leader_epoch
                        key = topic.id, number, epoch
                        self._check(key, (broker.name, broker.life), log)

    def _check_session(self, broker: SimulatedBroker) -> None:
        zookeeper = broker.zookeeper
        if zookeeper is None or zookeeper.session_id not in self._cluster.ensemble.timed_out:
            return
        session = zookeeper.session
        if session.is_safe(broker.clock.now_ns(), session.timeout_ms // MARGIN):
            self._journal.problem(f"{broker.name} considers an expired session valid")

    def _check(self, key: tuple[Any, int, int], life: tuple[str, int], log: Any) -> None:
        owner = self._tenures.setdefault(key, life)
        if owner != life:
            self._journal.problem(
                f"two owners of an epoch: {log.name} epoch {key[2]}: {owner} and {life}"
            )
        mark = log.high_watermark
        if mark < self._marks.get(key, 0):
            self._journal.problem(
                f"high watermark went back: {log.name} epoch {key[2]} to {mark},"
                f" from {self._marks[key]}"
            )
        if mark > log.end_offset:
            self._journal.problem(f"high watermark after the end: {log.name} at {mark}")
        self._marks[key] = mark
