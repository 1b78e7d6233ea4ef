"""Which service serves which topic: one each, wherever services run.

Responsibilities: membership in a consumer group of the brokers. The member that is assigned
partition 0 of a topic serves its table; when it dies, the group gives the topic to another one.
Nothing is fetched or committed. This only avoids wasted work: the table's own compare-and-set
prevents two writers from both succeeding (jobs/archive.py).
"""

from __future__ import annotations

from threading import Event, Thread
from typing import TYPE_CHECKING, Any

from headrace.pipeline.errors import PASSING_CODES
from headrace.pipeline.jobs.table_settings import GROUP

if TYPE_CHECKING:
    from collections.abc import Mapping

_POLL_S = 0.2
_JOIN_S = 30.0
_SESSION_MS = 10_000
"""How long the topics of a killed service wait for the next one."""


class TopicLease:
    """The topics of this process. One thread talks to the group, and is the consumer's only one."""

    def __init__(self, client: Mapping[str, str]) -> None:
        self._client = dict(client)
        self._wanted: frozenset[str] = frozenset()
        self._owned: frozenset[str] = frozenset()
        self.problem = ""
        """Why this process gets no topics, and what to do; empty: nothing is wrong."""
        self._stopped = Event()
        self._thread = Thread(target=self._run, name="topic lease", daemon=True)
        self._thread.start()

    def want(self, topics: frozenset[str]) -> None:
        """Take part in the assignment of these topics."""
        self._wanted = topics

    @property
    def owned(self) -> frozenset[str]:
        """The topics that this process serves now."""
        return self._owned

    def close(self) -> None:
        """Leave the group: others get the topics at once."""
        self._stopped.set()
        self._thread.join(_JOIN_S)

    def _run(self) -> None:
        from confluent_kafka import KafkaException

        try:
            self._take_part()
        except KafkaException as error:
            self._note(error.args[0])
        finally:
            self._owned = frozenset()

    def _take_part(self) -> None:
        """Be a member until `close`. Raises KafkaException."""
        from confluent_kafka import Consumer

        consumer = Consumer({
            **self._client,
            "group.id": GROUP,
            "client.id": "headrace-tables",
            "enable.auto.commit": "false",
            "session.timeout.ms": str(_SESSION_MS),
            "heartbeat.interval.ms": str(_SESSION_MS // 5),
            "partition.assignment.strategy": "range",
            "log_level": "2",
        })  # fmt: skip
        subscribed: frozenset[str] = frozenset()
        try:
            while not self._stopped.wait(0):
                if self._wanted != subscribed:
                    subscribed = self._wanted
                    self._subscribe(consumer, subscribed)
                if not subscribed:
                    self._stopped.wait(_POLL_S)
                elif (message := consumer.poll(_POLL_S)) is not None and message.error():
                    self._note(message.error())
        finally:
            consumer.close()

    def _note(self, error: Any) -> None:
        """Keep what is wrong, unless it passes, or is about a topic that was deleted."""
        if self._owned or error.name() in {*PASSING_CODES, "UNKNOWN_TOPIC_OR_PART"}:
            return
        self.problem = (
            f"the service is not a member of the consumer group {GROUP}, and gets no topics:"
            f" {error.str()}; it needs READ on that group and on the topics"
        )

    def _subscribe(self, consumer: Any, topics: frozenset[str]) -> None:
        def assigned(member: Any, partitions: list[Any]) -> None:
            member.assign(partitions)
            member.pause(partitions)
            self.problem = ""
            self._owned = frozenset(each.topic for each in partitions if each.partition == 0)

        def revoked(_member: Any, _partitions: list[Any]) -> None:
            self._owned = frozenset()

        if topics:
            consumer.subscribe(
                sorted(topics), on_assign=assigned, on_revoke=revoked, on_lost=revoked
            )
        else:
            consumer.unsubscribe()
            self._owned = frozenset()
