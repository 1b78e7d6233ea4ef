"""Creates the internal topics that streams groups need, and keeps the reasons of failures.

Invariants: knows topics, not the rules of groups. At most one creation per group is in progress. In
a cluster the group's coordinator creates them through the metadata store, as any broker can; a
topic that another coordinator has created meanwhile serves as well.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from headrace.errors import HeadraceError, PolicyViolation, TopicExists

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headrace.broker.topics.topics import Topics
    from headrace.coordination.streams.topology import InternalTopic
    from headrace.runtime.tasks import Tasks

log = logging.getLogger(__name__)

PROBLEMS_MAX: Final = 1_000
"""Groups whose last failure is kept."""
BROKER_DEFAULT: Final = -1


class StreamsTopics:
    """See the module."""

    def __init__(self, topics: Topics, tasks: Tasks) -> None:
        self._topics = topics
        self._tasks = tasks
        self._in_progress: dict[str, None] = {}
        self._problems: dict[str, str] = {}

    def create(self, group_id: str, missing: Sequence[InternalTopic]) -> None:
        """Start creating topics, unless that is in progress for the group."""
        if group_id not in self._in_progress:
            self._in_progress[group_id] = None
            self._tasks.spawn(self._create(group_id, missing), f"internal topics of {group_id}")

    def problem(self, group_id: str) -> str:
        """Why the last creation of a topic of the group failed; empty: no failure is known."""
        return self._problems.get(group_id, "")

    async def _create(self, group_id: str, missing: Sequence[InternalTopic]) -> None:
        problem = ""
        try:
            for topic in missing:
                try:
                    await self._create_one(topic)
                except HeadraceError as error:
                    problem = problem or f"{topic.name} cannot be created: {error}"
        finally:
            self._in_progress.pop(group_id, None)
        self._problems.pop(group_id, None)
        if problem:
            log.warning("streams group %s: %s", group_id, problem)
            if len(self._problems) >= PROBLEMS_MAX:
                del self._problems[next(iter(self._problems))]
            self._problems[group_id] = problem

    async def _create_one(self, topic: InternalTopic) -> None:
        factor = topic.replication_factor if topic.replication_factor > 0 else BROKER_DEFAULT
        if await self._topics.readable.is_reserved(topic.name):
            raise PolicyViolation("another tenant shares a topic of this name: use another one")
        try:
            await self._topics.create(
                topic.name, topic.partition_count, factor, dict(topic.configs)
            )
        except TopicExists:
            log.debug("internal topic %s was created meanwhile", topic.name)
