"""A reader's position: an offset per partition, and the ids of the topics they belong to.

Invariants: pure. The stored form is JSON in Spark's checkpoints and in table snapshots:
`{"topic": {"0": 5}, "$begins": {"topic": {"0": 0}}, "$topicIds": {"topic": "id"}}` (do not change:
stored). Keys with `$` are not legal topic names. A position without ids, as earlier versions stored
it, is accepted: an unknown id matches any id.

Why `$begins`: Spark stores the end of a batch, but not where it begins in partitions that its
predecessor did not have: all partitions of the first batch, later those that were added. A replay
that looked them up again would skip what retention has deleted since.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from headrace.pipeline.errors import TopicRecreated
from headrace.pipeline.planning import Offsets, build, walk

if TYPE_CHECKING:
    from collections.abc import Iterable

TOPIC_IDS_KEY = "$topicIds"  # do not change: stored
BEGINS_KEY = "$begins"  # do not change: stored

TopicIds = dict[str, str]
"""The id of each topic, as text; topics without a known id are absent."""


class StreamPosition(NamedTuple):
    """Offsets, and the ids of their topics as far as known.

    `begins`: where the batch that ends here begins in the partitions that are new in it.
    """

    offsets: Offsets
    topic_ids: TopicIds
    begins: Offsets = {}  # noqa: RUF012 - never changed

    def stored(self) -> dict[str, Any]:
        """Encode in a canonical order: Spark compares the text."""
        stored: dict[str, Any] = build(list(walk(self.offsets)))
        if self.begins:
            stored[BEGINS_KEY] = build(list(walk(self.begins)))
        if self.topic_ids:
            stored[TOPIC_IDS_KEY] = dict(sorted(self.topic_ids.items()))
        return stored

    @classmethod
    def from_stored(cls, stored: dict[str, Any]) -> StreamPosition:
        """The inverse of `stored`."""
        own = (TOPIC_IDS_KEY, BEGINS_KEY)
        offsets = {name: value for name, value in stored.items() if name not in own}
        return cls(offsets, dict(stored.get(TOPIC_IDS_KEY, {})), dict(stored.get(BEGINS_KEY, {})))

    def without(self, topics: Iterable[str]) -> StreamPosition:
        """Return the position without these topics."""
        left_out = set(topics)
        return StreamPosition(
            {name: each for name, each in self.offsets.items() if name not in left_out},
            {name: each for name, each in self.topic_ids.items() if name not in left_out},
            {name: each for name, each in self.begins.items() if name not in left_out},
        )


def recreated_topics(before: TopicIds, now: TopicIds) -> list[str]:
    """Return the topics whose id is known in both positions and differs."""
    return [name for name in sorted(before) if name in now and before[name] != now[name]]


def recreated(topic: str, before: TopicIds, now: TopicIds, next_step: str) -> TopicRecreated:
    """Build the error about one of `recreated_topics`."""
    return TopicRecreated(
        f"{topic} was deleted and recreated: its id was {before[topic]} and is now"
        f" {now[topic]}. Offsets start over in the new topic, and unread records of the"
        f" old one are lost. {next_step}",
        topic=topic,
        expected_id=before[topic],
        actual_id=now[topic],
    )
