"""This broker's topics as the machines that assign partitions see them.

Invariants: implements `TopicView`; stores nothing of the topics itself. As in Kafka, a pattern is
matched against all topics, internal ones included.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, overload

from headrace.broker.coordinators.topic_patterns import TopicPatterns
from headrace.coordination.kit.topic_view import TopicShape

if TYPE_CHECKING:
    from collections.abc import Callable
    from uuid import UUID

    from headrace.broker.topics.shared_topics import ReadableTopics
    from headrace.broker.topics.topic import Topic


class SubscribedTopics:
    """See the module."""

    def __init__(self, topics: ReadableTopics, rack_of: Callable[[Topic, int], str | None]) -> None:
        """`rack_of(topic, partition)`: the rack of the broker that serves a partition."""
        self._topics = topics
        self._rack_of = rack_of
        self._patterns = TopicPatterns(topics.all_names, lambda: topics.version)

    @property
    def version(self) -> int:
        """See TopicView."""
        return self._topics.version

    def shape(self, name: str) -> TopicShape | None:
        """See TopicView."""
        topic = self._topics.find(name)
        if topic is None:
            return None
        return TopicShape(topic.id, len(topic.partitions), _Racks(topic, self._rack_of))

    def name_of(self, topic_id: UUID) -> str | None:
        """See TopicView."""
        topic = self._topics.find_by_id(topic_id)
        return None if topic is None else topic.name

    def matching(self, pattern: str) -> Sequence[str]:
        """See TopicView."""
        return self._patterns.matching(pattern)

    async def prepare(self, pattern: str) -> None:
        """Make `matching` cheap for a pattern. Raises RegularExpressionInvalid."""
        await self._patterns.prepare(pattern)


class _Racks(Sequence[str | None]):
    """The racks of a topic's partitions, looked up lazily: most assignments need none."""

    def __init__(self, topic: Topic, rack_of: Callable[[Topic, int], str | None]) -> None:
        self._topic = topic
        self._rack_of = rack_of

    def __len__(self) -> int:
        return len(self._topic.partitions)

    @overload
    def __getitem__(self, index: int) -> str | None: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[str | None]: ...
    def __getitem__(self, index: int | slice) -> str | Sequence[str | None] | None:
        if isinstance(index, slice):
            return [self._rack_of(self._topic, n) for n in range(len(self))[index]]
        return self._rack_of(self._topic, index)
