"""The data source `headrace`: a topic as a table, in batches and as a stream.

Rules of the room: planning in the driver's planner process, reading in workers; a reader that
is pickled carries options only. Spark imports this module in every worker: keep it light.

What Spark 4.1 does, and this module leans on: a new stream asks `latestOffset` before
`initialOffset`; a restarted one calls `partitions(X, X)` (or replays `partitions(start, end)`)
first, so the position is learned there; `read` runs elsewhere and sees nothing of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
)

from headrace.pipeline.cluster import Cluster, check_present, resolve_end, resolve_start
from headrace.pipeline.errors import RecordsLost
from headrace.pipeline.options import SourceOptions, parse_sink, parse_source
from headrace.pipeline.planning import (
    OffsetRange,
    Offsets,
    build,
    limited,
    offset_of,
    ranges_between,
    split,
    walk,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pyspark.sql.types import StructType

    from headrace.pipeline.sink import BatchWriter, StreamWriter

SCHEMA = (
    "topic string, partition int, offset bigint, timestamp timestamp, timestampType int, "
    "key binary, headers array<struct<key: string, value: binary>>, value binary"
)


class TopicRange(InputPartition):
    """One Spark task: a range of offsets."""

    def __init__(self, piece: OffsetRange) -> None:
        super().__init__(tuple(piece))

    @property
    def piece(self) -> OffsetRange:
        """The range as a typed value."""
        return OffsetRange(*self.value)


class HeadraceReader(DataSourceReader):
    """A bounded read, planned once."""

    def __init__(self, options: SourceOptions) -> None:
        self.options = options

    def partitions(self) -> Sequence[InputPartition]:
        """The tasks. Raises OptionInvalid, RecordsLost."""
        options = self.options
        cluster = Cluster(options.client)
        subscribed = cluster.partitions_of(options.topics, options.pattern)
        start = resolve_start(cluster, options, subscribed)
        end = resolve_end(cluster, options, subscribed)
        # A start beyond the end (both by time, say) is an empty read, not a loss.
        end = build([(t, p, max(o, offset_of(start, t, p, 0))) for t, p, o in walk(end)])
        start, end = bounded(cluster, options, start, end)
        return tasks(ranges_between(start, end), options)

    def read(self, partition: InputPartition | None) -> Iterator[Any]:
        """The records of one task."""
        return read_task(partition, self.options)


class HeadraceStreamReader(DataSourceStreamReader):
    """A stream that limits itself: Spark 4.1 has no admission control for Python sources."""

    def __init__(self, options: SourceOptions, cluster: Cluster | None = None) -> None:
        self.options = options
        self._cluster = cluster
        self._initial: Offsets | None = None
        self._position: Offsets | None = None
        self._pinned: Offsets | None = None

    def initialOffset(self) -> Offsets:  # noqa: N802 - Spark's name
        """Where a new stream begins; the same answer for the life of this reader."""
        if self._initial is None:
            cluster = self._asked()
            self._initial = resolve_start(cluster, self.options, self._subscribed())
        return self._initial

    def latestOffset(self) -> Offsets:  # noqa: N802 - Spark's name
        """The end of the next batch: the high watermark, or less by maxOffsetsPerTrigger.

        With `pinEnd` the high watermark is the one of the first call. Raises RecordsLost when
        the log ends before the position of the stream.
        """
        position = self.initialOffset() if self._position is None else self._position
        end = self._pinned
        if end is None:
            cluster = self._asked()
            subscribed = self._subscribed()
            end = cluster.latest(subscribed)
            position = self._with_new_partitions(cluster, position, subscribed)
            if self.options.pin_end:
                self._pinned = end
        if self.options.fail_on_data_loss:
            _check_forward(position, end)
        return limited(position, end, self.options.offsets_per_trigger_max)

    def partitions(self, start: Offsets, end: Offsets) -> Sequence[InputPartition]:
        """The tasks of one batch. Called with start = end on a restart: learns the position."""
        self._position = end
        if start == end:
            return []
        if self.options.fail_on_data_loss:
            check_present(self._asked(), self._with_new_partitions(None, start, end), end)
        return tasks(ranges_between(start, end), self.options)

    def read(self, partition: InputPartition | None) -> Iterator[Any]:
        """The records of one task; leans on nothing but the options."""
        return read_task(partition, self.options)

    def commit(self, end: Offsets) -> None:
        """Nothing to do: progress is Spark's checkpoint."""

    def stop(self) -> None:
        """Let the client go."""
        self._cluster = None

    def _asked(self) -> Cluster:
        if self._cluster is None:
            self._cluster = Cluster(self.options.client)
        return self._cluster

    def _subscribed(self) -> Offsets:
        return self._asked().partitions_of(self.options.topics, self.options.pattern)

    def _with_new_partitions(
        self, cluster: Cluster | None, known: Offsets, wanted: Offsets
    ) -> Offsets:
        """`known`, and for partitions that appeared since, where their log begins."""
        fresh = build([(t, p, 0) for t, p, _ in walk(wanted) if offset_of(known, t, p, -1) < 0])
        if not fresh:
            return known
        first = (cluster or self._asked()).earliest(fresh)
        return build([*walk(known), *walk(first)])


class HeadraceDataSource(DataSource):
    """`format("headrace")`."""

    @classmethod
    def name(cls) -> str:
        """The word for `format`."""
        return "headrace"

    def schema(self) -> str:
        """The columns of a read."""
        return SCHEMA

    def reader(self, schema: StructType) -> HeadraceReader:
        """A bounded read."""
        return HeadraceReader(parse_source(self.options))

    def streamReader(self, schema: StructType) -> HeadraceStreamReader:  # noqa: N802
        """An unbounded read."""
        return HeadraceStreamReader(parse_source(self.options))

    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:
        """A bounded write."""
        from headrace.pipeline.sink import BatchWriter

        return BatchWriter(parse_sink(self.options), schema, overwrite=overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:  # noqa: N802
        """A stream's write, once per micro-batch."""
        from headrace.pipeline.sink import StreamWriter

        return StreamWriter(parse_sink(self.options), schema)


def read_task(partition: InputPartition | None, options: SourceOptions) -> Iterator[Any]:
    """The records of one task; Spark makes one of None where there is nothing to read."""
    from headrace.pipeline.fetch import read_range

    if partition is None:
        return iter(())
    assert isinstance(partition, TopicRange), "planned here"
    return read_range(partition.piece, options)


def tasks(ranges: list[OffsetRange], options: SourceOptions) -> list[InputPartition]:
    """Ranges cut to the options' bounds."""
    pieces = split(ranges, options.partitions_min, options.records_per_task_max)
    return [TopicRange(piece) for piece in pieces]


def bounded(
    cluster: Cluster, options: SourceOptions, start: Offsets, end: Offsets
) -> tuple[Offsets, Offsets]:
    """[start, end) as far as the log holds it; raises RecordsLost when told to."""
    if options.fail_on_data_loss:
        check_present(cluster, start, end)
        return start, end
    first, last = cluster.earliest(end), cluster.latest(end)
    kept_end = [(t, p, min(o, offset_of(last, t, p, o))) for t, p, o in walk(end)]
    kept_start = [(t, p, max(o, offset_of(first, t, p, o))) for t, p, o in walk(start)]
    return build(kept_start), build(kept_end)


def _check_forward(position: Offsets, end: Offsets) -> None:
    for topic, partition, offset in walk(position):
        if offset > offset_of(end, topic, partition, -1):
            raise RecordsLost(
                f"{topic}-{partition}: the stream stands at {offset}, the log ends at "
                f"{offset_of(end, topic, partition, -1)}: the topic was deleted or made anew. "
                "Start with a new checkpoint, or set failOnDataLoss=false.",
                topic=topic,
                partition=partition,
            )
