"""The topics of a cluster as the assignment of partitions to members needs to know them."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence
    from uuid import UUID


class TopicShape(NamedTuple):
    """What the assignment needs to know of a topic."""

    id: UUID
    partition_count: int
    racks: Sequence[str | None] = ()
    """Of each partition's owner; empty where no broker has a rack."""


class TopicView(Protocol):
    """The topics as a host sees them when it sends a command."""

    @property
    def version(self) -> int:
        """Rises with every change of `shape` or `matching`; never below 0."""
        ...

    def shape(self, name: str) -> TopicShape | None:
        """The topic of this name, None if there is none."""
        ...

    def name_of(self, topic_id: UUID) -> str | None:
        """The name of the topic with this id."""
        ...

    def matching(self, pattern: str) -> Sequence[str]:
        """The names of the topics that a regular expression matches as a whole."""
        ...


class NoTopics:
    """A TopicView without topics."""

    version = 0

    def shape(self, _name: str) -> TopicShape | None:
        """See TopicView."""
        return None

    def name_of(self, _topic_id: UUID) -> str | None:
        """See TopicView."""
        return None

    def matching(self, _pattern: str) -> Sequence[str]:
        """See TopicView."""
        return ()
