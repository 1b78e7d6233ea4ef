"""The data source `headrace`: a topic as a table, for batches and streams.

Invariants: plans in the driver's planner process, reads in workers. A pickled reader carries
options only. Spark imports this module in every worker: keep it light.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from headrace.pipeline.arrow import SCHEMA
from headrace.pipeline.catalog_tables import (
    check_columns,
    options_of_new,
    options_of_read,
    with_options,
)
from headrace.pipeline.cluster import (
    ClusterClient,
    check_present,
    resolve_end,
    resolve_start,
    subscribed,
)
from headrace.pipeline.options import SourceOptions, parse_sink, parse_source
from headrace.pipeline.planning import Offsets, build, offset_of, ranges_between, walk
from headrace.pipeline.position import recreated, recreated_topics
from headrace.pipeline.stream_reader import HeadraceStreamReader
from headrace.pipeline.tasks import object_lists, read_task, tasks

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from pyspark.sql.datasource import Filter
    from pyspark.sql.types import StructType

    from headrace.pipeline.sink import BatchWriter, StreamWriter


class HeadraceReader(DataSourceReader):
    """A bounded read, planned once."""

    def __init__(self, options: SourceOptions) -> None:
        self.options = options

    def partitions(self) -> Sequence[InputPartition]:
        """Plan the tasks. Raises OptionInvalid, RecordsLost, TopicRecreated."""
        options = self.options
        cluster = ClusterClient(options.client)
        present, topic_ids = subscribed(cluster, options)
        for topic in recreated_topics(options.topic_ids, topic_ids):
            raise recreated(
                topic, options.topic_ids, topic_ids, "Omit topicIds to read the new topic."
            )
        start = resolve_start(cluster, options, present)
        end = resolve_end(cluster, options, present)
        # A start after the end (for example both by time) is an empty read, not data loss.
        end = build([(t, p, max(o, offset_of(start, t, p, 0))) for t, p, o in walk(end)])
        start, end = self._filtered(cluster, start, end)
        start, end = bounded(cluster, options, start, end)
        lists = object_lists(options, cluster)
        return tasks(ranges_between(start, end), options, topic_ids, lists)

    def _filtered(
        self, cluster: ClusterClient, start: Offsets, end: Offsets
    ) -> tuple[Offsets, Offsets]:
        """[start, end) without what the query's predicates exclude."""
        wanted = self.options.row_filter
        start, end = wanted.bounded(start, wanted.chosen(end))
        if wanted.time_ms_min is not None:
            since = cluster.at_time(end, wanted.time_ms_min)
            start = build(
                [
                    (t, p, min(max(o, offset_of(since, t, p, 0)), offset_of(end, t, p, o)))
                    for t, p, o in walk(start)
                ]
            )
        return start, end

    def read(self, partition: InputPartition | None) -> Iterator[Any]:
        """Read the records of one task."""
        return read_task(partition, self.options)


class FilteringReader(HeadraceReader):
    """A bounded read that takes predicates of the query.

    Spark 4.1 refuses a reader that can do so unless spark.sql.python.filterPushdown.enabled is
    true, so it gets one only in the process that passes predicates on. And it keeps the tasks that
    were planned for a query's predicates for the DataFrame: a later query of the same DataFrame
    without such predicates would get them again, and so only some rows. Hence the option.
    """

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802
        """Take what is applied exactly; yield the others back."""
        for each in filters:
            taken = self.options.row_filter.with_predicate(each)
            if taken is None:
                yield each
            else:
                self.options = replace(self.options, row_filter=taken)


_PUSHDOWN_MODULE = "data_source_pushdown_filters"


def _is_asked_for_filters() -> bool:
    """Whether the caller's caller is Spark's process that passes predicates on."""
    return Path(sys._getframe(2).f_code.co_filename).stem == _PUSHDOWN_MODULE  # noqa: SLF001


class HeadraceDataSource(DataSource):
    """`format("headrace")`."""

    @classmethod
    def name(cls) -> str:
        """The name for `format`."""
        return "headrace"

    def schema(self) -> str | StructType:
        """The columns of a read. Raises OptionInvalid."""
        of_table = options_of_new(self.options)
        options = parse_source(self.options if of_table is None else of_table)
        if options.typed is None and of_table is None:
            return SCHEMA
        columns = _columns(options)
        return columns if of_table is None else with_options(columns, of_table)

    def _options_of(self, columns: StructType) -> SourceOptions:
        """Those of a read. Raises OptionInvalid."""
        given = options_of_read(self.options, columns)
        options = parse_source(given)
        if options.typed is not None and given is not self.options:
            check_columns(columns, _columns(options))
        return options

    def reader(self, schema: StructType) -> HeadraceReader:
        """A bounded read."""
        options = self._options_of(schema)
        is_filtering = options.pushes_filters and _is_asked_for_filters()
        return FilteringReader(options) if is_filtering else HeadraceReader(options)

    def streamReader(self, schema: StructType) -> HeadraceStreamReader:  # noqa: N802
        """An unbounded read."""
        return HeadraceStreamReader(self._options_of(schema))

    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:
        """A bounded write."""
        from headrace.pipeline.sink import BatchWriter

        return BatchWriter(parse_sink(self.options), schema, overwrite=overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:  # noqa: N802
        """A stream's write, once per micro-batch."""
        from headrace.pipeline.sink import StreamWriter

        return StreamWriter(parse_sink(self.options), schema)


def _columns(options: SourceOptions) -> StructType:
    import pyarrow as pa

    from headrace.pipeline.typed.columns import columns_with, typed_schema

    return columns_with(pa.binary()) if options.typed is None else typed_schema(options)


def bounded(
    cluster: ClusterClient, options: SourceOptions, start: Offsets, end: Offsets
) -> tuple[Offsets, Offsets]:
    """Limit [start, end) to what the log holds; raises RecordsLost if failOnDataLoss is set."""
    if options.fail_on_data_loss:
        check_present(cluster, start, end)
        return start, end
    first, last = cluster.earliest(end), cluster.latest(end)
    kept_end = [(t, p, min(o, offset_of(last, t, p, o))) for t, p, o in walk(end)]
    kept_start = [(t, p, max(o, offset_of(first, t, p, o))) for t, p, o in walk(start)]
    return build(kept_start), build(kept_end)
