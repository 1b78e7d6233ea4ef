"""What is wrong on a broker, for people.

Invariants: reads state that exists anyway, and loads no log. A problem says what is affected, why,
and what to do next.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from headrace.http.problems import shown_text

if TYPE_CHECKING:
    from collections.abc import Mapping

    from headrace.broker.services.services import Services
    from headrace.http.operations import Json

PROBLEMS_MAX: Final = 100
LOG: Final = "see the broker's log"
_CLUSTER: Final = "headrace cluster status"
PROBLEMS: Final[Mapping[str, tuple[str, str, str]]] = {
    "disk_unreadable": ("the disk", "its free space cannot be read", "check the disk"),
    "disk_full": (
        "the disk",
        "it is full, and records are refused",
        "make room on the broker's disk, or shorten the retention of large topics",
    ),
    "storage_unavailable": (
        "storage",
        "{cause}",
        f"check ZooKeeper and the bookies: {_CLUSTER}",
    ),
    "partitions_offline": (
        "{what}",
        "no live broker serves {count} of the cluster's partitions",
        f"start the brokers that are down: {_CLUSTER}",
    ),
    "copies_missing": (
        "copies",
        "{count} copies of entries of this broker's partitions are missing",
        "wait for BookKeeper's AutoRecovery, or start the bookies that are down",
    ),
    "broker_unreachable": ("broker {id}", "{cause}", f"see whether it runs: {_CLUSTER}"),
    "unavailable": ("{what}", "{cause}", "{next_step}"),
    "damaged": ("{what}", "{cause}", "{next_step}"),
}
"""By code: what is affected, why, the next step."""
_PASSING: Final = frozenset({"copies_missing", "broker_unreachable", "unavailable"})


class Verdict:
    """What is wrong on a broker, for people."""

    def __init__(self, services: Services) -> None:
        self._services = services

    def problems(self) -> list[Json]:
        """Everything that this broker knows to be wrong, the worst first."""
        found = [*self._storage(), *self._partitions()]
        for one in self._services.health.problems()[:PROBLEMS_MAX]:
            cause, _, step = one.reason.rpartition(": ")
            code = "unavailable" if one.is_passing else "damaged"
            step = step if cause else LOG
            found.append(problem_of(code, what=one.what, cause=cause or one.reason, next_step=step))
        return found[:PROBLEMS_MAX]

    def _storage(self) -> list[Json]:
        found = []
        disk, replication = self._services.topics.disk, self._services.replication
        try:
            is_full = disk is not None and disk.space().is_full
        except OSError:
            is_full = False
            found.append(problem_of("disk_unreadable"))
        if is_full:
            found.append(problem_of("disk_full"))
        obstacle = None if replication is None else replication.obstacle()
        if obstacle is not None:
            found.append(problem_of("storage_unavailable", cause=obstacle))
        return found

    def _partitions(self) -> list[Json]:
        offline = self._offline()
        found = []
        if offline:
            what = ", ".join(offline[:3])
            found.append(problem_of("partitions_offline", what=what, count=len(offline)))
        replication = self._services.replication
        missing = 0 if replication is None else sum(replication.lacking.values())
        if missing:
            found.append(problem_of("copies_missing", count=missing))
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


def problem_of(code: str, **values: Any) -> Json:
    """A problem, for an answer. Where files lie on the broker's machine is for its log alone."""
    shown = {
        name: shown_text(value) if isinstance(value, str) else value
        for name, value in values.items()
    }
    what, cause, step = (one.format(**shown) for one in PROBLEMS[code])
    return {
        "code": code,
        "what": what,
        "cause": cause,
        "next_step": step,
        "is_passing": code in _PASSING,
        "values": shown,
    }
