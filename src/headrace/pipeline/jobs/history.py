"""The records of a topic, of which its archive may hold the older ones: table and log as one.

Invariants: an offset comes from one of the two, from the table below what its archive has recorded
as complete, and from the log above; so brokers send nothing that is archived, and what the log has
deleted since is read all the same. A gap between the two is RecordsLost.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from headrace.pipeline.catalog import APPEND, MODE_PROPERTY, TableName
from headrace.pipeline.errors import TableUnusable
from headrace.pipeline.jobs.coverage import read_pinned_table
from headrace.pipeline.jobs.windows import (
    Bounds,
    Connection,
    Window,
    limits,
    read_table,
    read_window,
    resolve_window,
)
from headrace.pipeline.options import EARLIEST, parse_source
from headrace.pipeline.planning import Offsets, build, offset_of, walk
from headrace.pipeline.publishing import java_table


class History(NamedTuple):
    """What records are read from: the log and, with `table`, an archive of the topics."""

    spark: Any
    connection: Connection
    table: TableName | None = None

    def resolve(self, topics: tuple[str, ...], bounds: Bounds) -> Window:
        """The offsets of a window, as `resolve_window` finds them in the log; with a table also
        where the log has deleted them. Raises OptionInvalid, BrokerUnavailable, TableUnusable."""
        if self.table is None:
            return resolve_window(self.connection.cluster, topics, bounds)
        self._check()
        start, end, topic_ids = limits(self.connection.cluster, topics, bounds)
        if bounds.until_ms is not None:
            end = self._lowered(end, bounds.until_ms)
        if bounds.from_offsets is None:
            start = self._lowered(start, bounds.since_ms)
        else:
            start = self._from_first(start, bounds.from_offsets)
        return Window(start, end, topic_ids).not_reversed()

    def read(self, window: Window) -> Any:
        """The records of a window, those of one partition in no order if there is a table. Raises
        TopicRecreated, and RecordsLost when it is read."""
        if self.table is None:
            return read_window(self.spark, self.connection, window)
        archived_to = read_pinned_table(self.spark, self.table).archived_to
        seam = build([
            (t, p, min(end, max(offset_of(window.start, t, p, 0), offset_of(archived_to, t, p, 0))))
            for t, p, end in walk(window.end)
        ])  # fmt: skip
        older = read_table(self.spark, self.table, window._replace(end=seam)).frame
        newer = window._replace(start=seam)
        return older.unionByName(
            read_window(self.spark, self.connection, newer).select(*older.columns)
        )

    def in_order(self, records: Any, window: Window) -> Any:
        """What `read` returned, each partition in the order of offsets in one task."""
        if self.table is None:
            return records
        tasks = sum(map(len, window.end.values()))
        place = ("topic", "partition")
        return records.repartition(tasks, *place).sortWithinPartitions(*place, "offset")

    def _check(self) -> None:
        """Raise TableUnusable unless the table holds each record as it was."""
        assert self.table is not None, "asked with a table only"
        name = self.table.in_spark
        fields = {
            one.name: one.dataType.typeName()
            for one in read_table(self.spark, self.table).frame.schema
        }
        mode = java_table(self.spark, self.table).properties().get(MODE_PROPERTY) or APPEND
        if mode != APPEND or fields["value"] != "binary":
            holds = "typed values" if mode == APPEND else "the latest record of each key alone"
            raise TableUnusable(
                f"{name} holds {holds}, so records cannot be read from it as they were. Nothing was"
                " read or written. Read the topic without the table, or archive it as bytes in mode"
                " append."
            )

    def _lowered(self, offsets: Offsets, since_ms: int | None) -> Offsets:
        """The offsets, or the first in the table of a time not before `since_ms`, if smaller."""
        assert self.table is not None, "asked with a table only"
        rows = read_table(self.spark, self.table).frame
        if since_ms is not None:
            rows = rows.where(f"timestamp >= timestamp_millis({since_ms})")
        first = {
            (row["topic"], row["partition"]): row["first"]
            for row in rows.groupBy("topic", "partition").agg({"offset": "min"})
            .withColumnRenamed("min(offset)", "first").collect()
        }  # fmt: skip
        return build([(t, p, min(o, first.get((t, p), o))) for t, p, o in walk(offsets)])

    def _from_first(self, start: Offsets, asked: str) -> Offsets:
        """The start, where it is asked for as the first record, from the table's first."""
        named = parse_source({"subscribe": "-", "bootstrap.servers": "-", "startingOffsets": asked})
        first = self._lowered(start, None)
        marks = {} if isinstance(named.starting, str) else named.starting
        default = EARLIEST if named.starting != "latest" else 0
        return build([
            (t, p, offset_of(first, t, p, o) if offset_of(marks, t, p, default) == EARLIEST else o)
            for t, p, o in walk(start)
        ])  # fmt: skip
