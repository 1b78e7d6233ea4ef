"""What is wrong on a broker, for people.

Invariants: reads state that exists anyway, and loads no log. A problem says what is affected, why,
and what to do next.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from headrace.http.problems import shown_text

if TYPE_CHECKING:
    from headrace.broker.services.services import Services
    from headrace.http.operations import Json

PROBLEMS_MAX: Final = 100


class Verdict:
    """What is wrong on a broker, for people."""

    def __init__(self, services: Services) -> None:
        self._services = services

    def problems(self) -> list[Json]:
        """Everything that this broker knows to be wrong, the worst first."""
        found = [*self._storage(), *self._partitions()]
        for one in self._services.health.problems()[:PROBLEMS_MAX]:
            cause, _, step = one.reason.rpartition(": ")
            found.append(problem_of(one.what, cause or one.reason, step, is_passing=one.is_passing))
        return found[:PROBLEMS_MAX]

    def _storage(self) -> list[Json]:
        found = []
        disk, replication = self._services.topics.disk, self._services.replication
        try:
            is_full = disk is not None and disk.space().is_full
        except OSError:
            is_full = False
            found.append(problem_of("the disk", "its free space cannot be read", "check the disk"))
        if is_full:
            step = "make room on the broker's disk, or shorten the retention of large topics"
            found.append(problem_of("the disk", "it is full, and records are refused", step))
        obstacle = None if replication is None else replication.obstacle()
        if obstacle is not None:
            step = "check ZooKeeper and the bookies: headrace cluster status"
            found.append(problem_of("storage", obstacle, step))
        return found

    def _partitions(self) -> list[Json]:
        offline = self._offline()
        found = []
        if offline:
            step = "start the brokers that are down: headrace cluster status"
            cause = f"no live broker serves {len(offline)} of the cluster's partitions"
            found.append(problem_of(", ".join(offline[:3]), cause, step))
        replication = self._services.replication
        missing = 0 if replication is None else sum(replication.lacking.values())
        if missing:
            step = "wait for BookKeeper's AutoRecovery, or start the bookies that are down"
            cause = f"{missing} copies of entries of this broker's partitions are missing"
            found.append(problem_of("copies", cause, step, is_passing=True))
        return found

    def _offline(self) -> list[str]:
        topics = self._services.topics
        brokers = {one.id for one in self._services.cluster.brokers()}
        return [
            f"{topic.name}-{number}"
            for topic in map(topics.get, topics.names())
            for number in range(len(topic.partitions))
            if topics.leader(topic, number).broker not in brokers
        ]


def problem_of(what: str, cause: str, step: str, *, is_passing: bool = False) -> Json:
    """A problem, for an answer. Where files lie on the broker's machine is for its log alone."""
    return {
        "what": what,
        "cause": shown_text(cause),
        "next_step": shown_text(step) or "see the broker's log",
        "is_passing": is_passing,
    }
