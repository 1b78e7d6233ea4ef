"""The logs of a broker that has stepped down, kept in case its session survives.

Invariants: while a session lives, so does the broker's registration, and as long as that exists no
other broker claims its partitions (`session_guard` has the proof; after a removal by hand,
`SessionGuard.renounce` makes the session count as another one). So in the same session a log
continues under its epoch, and nothing is read or written. In a new session other owners may have
served in between: the logs are abandoned, and the partitions claimed anew.

Coordinators are suspended with their log. Logs with companions are not kept: those who build state
from them do not wait for appends still in progress.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headrace.broker.ownership.cluster_view import ClusterView
    from headrace.broker.topics.topic import Topic
    from headrace.broker.topics.topics import Topics
    from headrace.log.partition_log import PartitionLog
    from headrace.metadata.facts import PartitionKey

KEPT_S = 60
"""A broker that notices only this long after its session that it is over keeps no logs: their
ledgers may have been deleted since, and bookies forget a fence together with its ledger."""


class SuspendedLogs:
    """See the module."""

    def __init__(self, topics: Topics, view: ClusterView, incarnation: str) -> None:
        self._topics = topics
        self._view = view
        self._incarnation = incarnation
        self.by_key: dict[PartitionKey, PartitionLog] = {}

    def suspend(self, topic: Topic, number: int, served: PartitionLog, why: str) -> bool:
        """Keep the log, which refuses requests from now on; False if it cannot be kept."""
        if served.tenure.fact.companions or not served.tenure.suspend(why):
            return False
        self.by_key[topic.id, number] = served
        self._topics.leave(topic, number)
        return True

    def take_all(self) -> dict[PartitionKey, PartitionLog]:
        """Remove and return the logs."""
        logs = dict(self.by_key)
        self.by_key.clear()
        return logs

    def reinstate(self, topic: Topic, number: int, served: PartitionLog) -> bool:
        """Let the log serve again; False if it has failed or this broker is not the owner."""
        owner = self._view.owners.get((topic.id, number))
        if owner is None or served.tenure.fact.companions:
            return False
        tenure = owner.fact.incarnation, owner.fact.leader_epoch
        if tenure != (self._incarnation, served.leader_epoch) or not served.tenure.reinstate():
            return False
        # They may have changed since.
        served.config = self._topics.logs.config_of(topic.fact)
        topic.partitions[number] = served
        self._topics.version += 1
        return True
