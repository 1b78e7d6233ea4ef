"""Where a reader stands: an offset of each partition, and the ids of the topics they belong to.

Invariants: pure. The stored form is JSON in Spark's checkpoints and in snapshots of tables:
`{"topic": {"0": 5}, "$topicIds": {"topic": "id"}}` (do not change: stored). No topic can have the
name of the second key. A position without ids, as earlier versions stored it, is accepted: what
is unknown on one side is no contradiction.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from headrace.pipeline.errors import TopicRecreated
from headrace.pipeline.planning import Offsets, build, walk

if TYPE_CHECKING:
    from collections.abc import Iterable

TOPIC_IDS_KEY = "$topicIds"  # do not change: stored

TopicIds = dict[str, str]
"""The id of each topic, as text; a topic of a broker that gives none is not in it."""


class Position(NamedTuple):
    """Offsets, and the ids of their topics as far as known."""

    offsets: Offsets
    topic_ids: TopicIds

    def stored(self) -> dict[str, Any]:
        """The same position always in the same order: Spark compares the text."""
        stored: dict[str, Any] = build(list(walk(self.offsets)))
        if self.topic_ids:
            stored[TOPIC_IDS_KEY] = dict(sorted(self.topic_ids.items()))
        return stored

    @classmethod
    def from_stored(cls, stored: dict[str, Any]) -> Position:
        """The inverse of `stored`."""
        offsets = {name: value for name, value in stored.items() if name != TOPIC_IDS_KEY}
        return cls(offsets, dict(stored.get(TOPIC_IDS_KEY, {})))

    def without(self, topics: Iterable[str]) -> Position:
        """The position in the other topics."""
        left_out = set(topics)
        return Position(
            {name: each for name, each in self.offsets.items() if name not in left_out},
            {name: each for name, each in self.topic_ids.items() if name not in left_out},
        )


def recreated_topics(before: TopicIds, now: TopicIds) -> list[str]:
    """The topics whose id is known at both times and is not the same."""
    return [name for name in sorted(before) if name in now and before[name] != now[name]]


def recreated(topic: str, before: TopicIds, now: TopicIds, next_step: str) -> TopicRecreated:
    """The error about one of `recreated_topics`."""
    return TopicRecreated(
        f"{topic} was deleted and recreated: its id was {before[topic]} and is now {now[topic]}. "
        "Offsets begin again in the new topic, and what was unread of the former one is lost. "
        f"{next_step}",
        topic=topic,
        expected_id=before[topic],
        actual_id=now[topic],
    )
