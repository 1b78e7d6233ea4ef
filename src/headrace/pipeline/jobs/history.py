"""The records of a topic, of which its archive may hold the older ones: table and log as one.

Invariants: an offset comes from one of the two, from the table below what its archive has recorded
as complete, and from the log above; so brokers send nothing that is archived, and what the log has
deleted since is read all the same. A gap between the two is RecordsLost.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from headrace.pipeline.catalog import APPEND, MODE_PROPERTY, TableName
from headrace.pipeline.errors import TableUnusable
from headrace.pipeline.jobs.windows import (
    Bounds,
    Connection,
    Window,
    limits,
    read_table,
    read_window,
    resolve_window,
    within_sql,
)
from headrace.pipeline.options import EARLIEST, parse_source
from headrace.pipeline.planning import Offsets, build, larger, offset_of, walk
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
        rows = self._rows()
        start, end, topic_ids = limits(self.connection.cluster, topics, bounds)
        if bounds.until_ms is not None:
            end = _lowered(end, rows, bounds.until_ms)
        if bounds.from_offsets is None:
            start = _lowered(start, rows, bounds.since_ms)
        else:
            start = _from_first(start, rows, bounds.from_offsets)
        return Window(start, end, topic_ids).not_reversed()

    def read(self, window: Window) -> Any:
        """The records of a window, those of one partition in no order if there is a table. Raises
        TopicRecreated, and RecordsLost when it is read."""
        if self.table is None:
            return read_window(self.spark, self.connection, window)
        older = read_table(self.spark, self.table, window)
        reached = larger(window.start, older.archived_to)
        seam = build(
            [(t, p, min(end, offset_of(reached, t, p, 0))) for t, p, end in walk(window.end)]
        )
        newer = read_window(self.spark, self.connection, window._replace(start=seam))
        archived = older.frame.where(within_sql(window._replace(end=seam)))
        return archived.unionByName(newer.select(*archived.columns))

    def in_order(self, records: Any, window: Window) -> Any:
        """What `read` returned, each partition in the order of offsets in one task."""
        if self.table is None:
            return records
        tasks = sum(map(len, window.end.values()))
        place = ("topic", "partition")
        return records.repartition(tasks, *place).sortWithinPartitions(*place, "offset")

    def _rows(self) -> Any:
        """All rows of the table. Raises TableUnusable unless it holds each record as it was."""
        assert self.table is not None, "asked with a table only"
        name, rows = self.table.in_spark, read_table(self.spark, self.table).frame
        mode = java_table(self.spark, self.table).properties().get(MODE_PROPERTY) or APPEND
        if mode != APPEND or rows.schema["value"].dataType.typeName() != "binary":
            holds = "typed values" if mode == APPEND else "the latest record of each key alone"
            raise TableUnusable(
                f"{name} holds {holds}, so records cannot be read from it as they were. Nothing was"
                " read or written. Read the topic without the table, or archive it as bytes in mode"
                " append."
            )
        return rows


def _lowered(offsets: Offsets, rows: Any, since_ms: int | None) -> Offsets:
    """The offsets, or the first in the table of a time not before `since_ms`, if smaller."""
    if since_ms is not None:
        rows = rows.where(f"timestamp >= timestamp_millis({since_ms})")
    first = {
        (row["topic"], row["partition"]): row["first"]
        for row in rows.groupBy("topic", "partition").agg({"offset": "min"})
        .withColumnRenamed("min(offset)", "first").collect()
    }  # fmt: skip
    return build([(t, p, min(o, first.get((t, p), o))) for t, p, o in walk(offsets)])


def _from_first(start: Offsets, rows: Any, asked: str) -> Offsets:
    """The start, where it is asked for as the first record, from the table's first."""
    named = parse_source({"subscribe": "-", "bootstrap.servers": "-", "startingOffsets": asked})
    first = _lowered(start, rows, None)
    marks = {} if isinstance(named.starting, str) else named.starting
    default = EARLIEST if named.starting != "latest" else 0
    return build([
        (t, p, offset_of(first, t, p, o) if offset_of(marks, t, p, default) == EARLIEST else o)
        for t, p, o in walk(start)
    ])  # fmt: skip
