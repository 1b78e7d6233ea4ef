"""The stream reader: what each micro-batch reads, across restarts, deletions and retention.

Invariants: planning only, in the driver's planner process; a pickled reader carries options only.
It keeps only what Spark has passed to it: positions live in Spark's checkpoint.

Relies on this behaviour of Spark 4.1: a new stream calls `latestOffset` before `initialOffset`; a
restarted one first calls `partitions(X, X)` (or replays `partitions(start, end)`), which gives the
position; `read` runs in another process and shares no state.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from headrace.pipeline.cluster import ClusterClient, TopicSubscription, check_present, resolve_start
from headrace.pipeline.errors import RecordsLost
from headrace.pipeline.planning import (
    Offsets,
    build,
    limited,
    offset_of,
    ranges_between,
    total,
    walk,
)
from headrace.pipeline.position import StreamPosition, recreated, recreated_topics
from headrace.pipeline.tasks import read_task, tasks

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from headrace.pipeline.options import SourceOptions

log = logging.getLogger(__name__)

_NEXT_STEP = (
    "Start with a new checkpoint, or set failOnDataLoss=false to continue with the"
    " new topic from its start."
)


class HeadraceStreamReader(DataSourceStreamReader):
    """A stream with its own rate limit: Spark 4.1 has no admission control for Python sources."""

    def __init__(self, options: SourceOptions, cluster: ClusterClient | None = None) -> None:
        self.options = options
        self._cluster = cluster
        self._initial: StreamPosition | None = None
        self._position: StreamPosition | None = None
        self._pinned: StreamPosition | None = None
        self._ends_asked = 0
        self._left_out = 0

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Where a new stream begins; constant for the life of this reader."""
        return self._first().stored()

    def latestOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """The end of the next batch: the high watermark, or less by maxOffsetsPerTrigger.

        With `pinEnd`, the high watermark is that of the first call. Raises RecordsLost if the log
        ends before the stream's position, TopicRecreated if the topic's id differs from the
        position's.
        """
        position = self._first() if self._position is None else self._position
        end = self._pinned
        if end is None:
            found = self._subscription()
            end = StreamPosition(self._asked().latest(found.partitions), found.topic_ids)
            if self.options.pin_end:
                self._pinned = end
        position = self._reachable(position, end)
        wanted = limited(position.offsets, end.offsets, self.options.offsets_per_trigger_max)
        self._ends_asked += 1
        self._left_out = total(wanted, end.offsets)
        return StreamPosition(wanted, end.topic_ids).stored()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Plan the tasks of one batch. On a restart, called with start = end: sets the position."""
        first, last = StreamPosition.from_stored(start), StreamPosition.from_stored(end)
        self._position = last
        if first.offsets == last.offsets and not recreated_topics(first.topic_ids, last.topic_ids):
            return []
        now = self._subscription()
        lost = self._deleted_since(last, now)
        first, last = self._begun_again(first.without(lost), last.without(lost)), last.without(lost)
        if not self.options.fail_on_data_loss:
            first = first.without(_went_back(first, last))
        first = self._with_new_partitions(first, last.offsets)
        if self.options.fail_on_data_loss:
            check_present(self._asked(), first.offsets, last.offsets)
        return tasks(ranges_between(first.offsets, last.offsets), self.options, last.topic_ids)

    def read(self, partition: InputPartition | None) -> Iterator[Any]:
        """Read the records of one task; uses only the options."""
        return read_task(partition, self.options)

    def commit(self, end: dict[str, Any]) -> None:
        """No-op: progress is in Spark's checkpoint."""

    def stop(self) -> None:
        """Release the client.

        Under `availableNow`, Spark 4.1 runs a Python source for one batch, without notifying the
        source: the only sign is that the query requested exactly one end.
        """
        if self._ends_asked == 1 and self._left_out:
            log.warning(
                "The stream ended after one batch, at maxOffsetsPerTrigger, with %d offsets"
                " left. With trigger(availableNow=True), do not set maxOffsetsPerTrigger, or"
                " use headrace.pipeline.streams.run_available, which continues to the end.",
                self._left_out,
            )
        self._cluster = None

    def _first(self) -> StreamPosition:
        if self._initial is None:
            found = self._subscription()
            start = resolve_start(self._asked(), self.options, found.partitions)
            self._initial = StreamPosition(start, found.topic_ids)
        return self._initial

    def _asked(self) -> ClusterClient:
        if self._cluster is None:
            self._cluster = ClusterClient(self.options.client)
        return self._cluster

    def _subscription(self) -> TopicSubscription:
        return self._asked().subscription_of(self.options.topics, self.options.pattern)

    def _deleted_since(self, planned: StreamPosition, now: TopicSubscription) -> list[str]:
        """Topics of a planned batch whose id has changed since: none of their records can be
        read."""
        lost = recreated_topics(planned.topic_ids, now.topic_ids)
        for topic in lost:
            error = recreated(topic, planned.topic_ids, now.topic_ids, _NEXT_STEP)
            if self.options.fail_on_data_loss:
                raise error
            log.warning("%s The planned batch continues without it.", error)
        return lost

    def _begun_again(self, position: StreamPosition, end: StreamPosition) -> StreamPosition:
        """Return `position` without the topics whose id differs at `end`: they are read from their
        start."""
        begun_again = recreated_topics(position.topic_ids, end.topic_ids)
        for topic in begun_again:
            error = recreated(topic, position.topic_ids, end.topic_ids, _NEXT_STEP)
            if self.options.fail_on_data_loss:
                raise error
            log.warning("%s The stream continues with the new topic.", error)
        return position.without(begun_again)

    def _reachable(self, position: StreamPosition, end: StreamPosition) -> StreamPosition:
        """Limit `position` to logs that end at `end`; raises RecordsLost for lost records."""
        position = self._begun_again(position, end)
        reached: list[tuple[str, int, int]] = []
        begun_again: set[str] = set()
        for topic, partition, offset in walk(position.offsets):
            high = offset_of(end.offsets, topic, partition, -1)
            reached.append((topic, partition, min(offset, high)))
            if offset <= high:
                continue
            error = RecordsLost(
                f"{topic}-{partition}: the stream is at offset {offset}, but the log ends at"
                f" {high}: the topic was deleted or recreated, or its log was truncated."
                " Start with a new checkpoint, or set failOnDataLoss=false to continue with"
                " the remaining records.",
                topic=topic,
                partition=partition,
            )
            if self.options.fail_on_data_loss:
                raise error
            log.warning("%s", error)
            if high < 0 or topic not in position.topic_ids:
                # most likely recreated: the new topic is read from its start
                begun_again.add(topic)
        position = position._replace(offsets=build(reached)).without(begun_again)
        return self._with_new_partitions(position, end.offsets)

    def _with_new_partitions(self, known: StreamPosition, wanted: Offsets) -> StreamPosition:
        """Return `known`, with the log start offset for partitions that were added since."""
        fresh = build(
            [(t, p, 0) for t, p, _ in walk(wanted) if offset_of(known.offsets, t, p, -1) < 0]
        )
        if not fresh:
            return known
        first = self._asked().earliest(fresh)
        return known._replace(offsets=build([*walk(known.offsets), *walk(first)]))


def _went_back(first: StreamPosition, last: StreamPosition) -> set[str]:
    """Topics without an id that `_reachable` restarts: the batch ends before its start."""
    return {
        topic
        for topic, partition, offset in walk(last.offsets)
        if topic not in first.topic_ids and offset < offset_of(first.offsets, topic, partition, 0)
    }
