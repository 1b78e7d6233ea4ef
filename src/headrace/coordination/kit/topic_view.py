"""The topics of a cluster as partition assignment needs them."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence
    from uuid import UUID


class TopicShape(NamedTuple):
    """The properties of a topic that assignment depends on."""

    id: UUID
    partition_count: int
    racks: Sequence[str | None] = ()
    """The racks of the partitions' owners; empty if no broker has a rack."""


class TopicView(Protocol):
    """The topics as a host sees them when it sends a command."""

    @property
    def version(self) -> int:
        """Increases with every change of `shape` or `matching`; never negative."""
        ...

    def shape(self, name: str) -> TopicShape | None:
        """The topic of this name, None if it does not exist."""
        ...

    def name_of(self, topic_id: UUID) -> str | None:
        """The name of the topic with this id."""
        ...

    def matching(self, pattern: str) -> Sequence[str]:
        """The names of the topics that the whole regular expression matches."""
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
