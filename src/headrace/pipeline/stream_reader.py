"""The stream reader: what each micro-batch reads, across restarts, deletions and retention.

Invariants: planning only, in the driver's planner process; a pickled reader carries options only.
It keeps only what Spark has passed to it: positions live in Spark's checkpoint.

Relies on this behaviour of Spark 4.1: a new stream calls `latestOffset` before `initialOffset`; a
restarted one first calls `partitions(X, X)` (or replays `partitions(start, end)`), which gives the
position; `read` runs in another process and shares no state. Spark stores no start of the first
batch: its end carries it (`begins`), and so a replay begins where the first run did.
"""

from __future__ import annotations

import logging
from time import monotonic_ns
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from headrace.pipeline.cluster import (
    ClusterClient,
    TopicSubscription,
    check_present,
    resolve_start,
    subscribed,
)
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
from headrace.pipeline.tasks import object_lists, read_task, tasks

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from headrace.pipeline.object_list import ObjectLists
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
        self._held: set[tuple[str, int]] = set()
        self._lists: ObjectLists | None = None
        self._ends_asked = 0
        self._batch_ns: int | None = None
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
        if self._is_delayed(position.offsets, end.offsets):
            wanted = limited(position.offsets, position.offsets, None)
        self._ends_asked += 1
        self._left_out = total(wanted, end.offsets)
        if self._position is None:
            begins = position.offsets
        elif (wanted, end.topic_ids) == self._position[:2]:
            return self._position.stored()  # the same text: Spark plans no batch
        else:
            begins = position.begins
        return StreamPosition(wanted, end.topic_ids, begins).stored()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Plan the tasks of one batch. On a restart, called with start = end: sets the position.

        Raises RecordsLost, TopicRecreated, NotStableYet.
        """
        first, last = StreamPosition.from_stored(start), StreamPosition.from_stored(end)
        self._position = last
        is_same = first.offsets == last.offsets and not last.begins
        if start == end or (is_same and not recreated_topics(first.topic_ids, last.topic_ids)):
            return []
        now = self._subscription()
        lost = self._deleted_since(last, now)
        is_initial = first == self._initial
        first, last = self._begun_again(first.without(lost), last.without(lost)), last.without(lost)
        begins = self._begins(first.offsets, last, is_initial=is_initial)
        if self.options.fail_on_data_loss:
            check_present(self._asked(), begins, last.offsets)
        if self._lists is None:
            self._lists = object_lists(self.options, self._asked())
        ranges = ranges_between(begins, last.offsets)
        return tasks(ranges, self.options, last.topic_ids, self._lists)

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
        self._cluster = self._lists = None

    def _is_delayed(self, position: Offsets, end: Offsets) -> bool:
        """Whether the next batch waits for more records (minOffsetsPerTrigger), which it does at
        most for maxTriggerDelay; the first batch of a reader does not wait."""
        least, now_ns = self.options.offsets_per_trigger_min, monotonic_ns()
        if least is None or self.options.pin_end:
            return False
        if self._batch_ns is not None and total(position, end) < least:
            waited_ms = (now_ns - self._batch_ns) // 1_000_000
            if waited_ms < self.options.trigger_delay_ms_max:
                return True
        self._batch_ns = now_ns
        return False

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
        return subscribed(self._asked(), self.options)

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
        """Limit `position` to logs that end at `end`; raises RecordsLost for lost records.

        `begins` of the result: the log starts of partitions that are new.
        """
        position = self._begun_again(position, end)
        beyond = [
            (topic, partition, offset)
            for topic, partition, offset in walk(position.offsets)
            if offset > offset_of(end.offsets, topic, partition, -1) >= 0
        ]
        written = self._asked().high_watermarks(build(beyond))
        reached: list[tuple[str, int, int]] = []
        begun_again: set[str] = set()
        for topic, partition, offset in walk(position.offsets):
            high = offset_of(end.offsets, topic, partition, -1)
            if high < offset <= offset_of(written, topic, partition, -1):
                self._hold(topic, partition, offset, high)
                reached.append((topic, partition, offset))
                continue
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
        fresh = _absent(position.offsets, end.offsets)
        first = self._asked().earliest(fresh) if fresh else {}
        return position._replace(
            offsets=build([*walk(position.offsets), *walk(first)]), begins=first
        )

    def _hold(self, topic: str, partition: int, offset: int, stable: int) -> None:
        """Log once that a partition waits for its last stable offset."""
        if (topic, partition) not in self._held:
            self._held.add((topic, partition))
            log.warning(
                "%s-%d: the stream is at offset %d, after the last stable offset %d: it was read"
                " with isolation.level=read_uncommitted before. Reading continues when the open"
                " transactions end; records of aborted ones were already read.",
                topic, partition, offset, stable,
            )  # fmt: skip

    def _begins(self, known: Offsets, last: StreamPosition, *, is_initial: bool) -> Offsets:
        """Where the batch that ends at `last` begins: `known`, with what `last` says of new
        partitions.

        An earlier version did not store the latter. Then they are looked up again, which is exact
        only if nothing can have been deleted before. Raises RecordsLost (failOnDataLoss).
        """
        begins = build([*walk(known), *walk(last.begins)])
        fresh = _absent(begins, last.offsets)
        looked_up = self._asked().earliest(fresh) if fresh else {}
        if is_initial and not last.begins:
            looked_up = build([*walk(known), *walk(looked_up)])
        for topic, partition, offset in walk(looked_up):
            if offset > 0 and self.options.fail_on_data_loss and not self._names(topic, partition):
                raise RecordsLost(
                    f"{topic}-{partition}: the batch to replay was planned by an earlier version,"
                    f" which did not store where it begins. It would begin at {offset} now, and"
                    " records before may have been lost. Start with a new checkpoint, or set"
                    " failOnDataLoss=false to continue with the remaining records.",
                    topic=topic,
                    partition=partition,
                )
        return build([*walk(begins), *walk(looked_up)])

    def _names(self, topic: str, partition: int) -> bool:
        """Whether startingOffsets gives the partition's offset as a number."""
        starting = self.options.starting
        return isinstance(starting, dict) and offset_of(starting, topic, partition, -1) >= 0


def _absent(known: Offsets, wanted: Offsets) -> Offsets:
    """Those partitions of `wanted` that `known` lacks, with offset 0."""
    return build([(t, p, 0) for t, p, _ in walk(wanted) if offset_of(known, t, p, -1) < 0])
