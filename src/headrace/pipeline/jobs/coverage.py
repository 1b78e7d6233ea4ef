"""What of a table a reconciliation covers, and what becomes of the rest.

Responsibilities: one snapshot of the table, rows outside the log's bounds, and records that only a
compacted log has dropped. Reads only; the comparison itself is `reconcile.py`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from headrace.pipeline.catalog import Ancestry, kept_offsets, recorded_offsets, recorded_topic_ids
from headrace.pipeline.errors import OptionInvalid
from headrace.pipeline.planning import Offsets, larger, offset_of, walk
from headrace.pipeline.publishing import java_table

if TYPE_CHECKING:
    from collections.abc import Iterable

    from headrace.pipeline.catalog import TableName
    from headrace.pipeline.position import TopicIds

_PLACE = ["partition", "offset"]


class Ends(NamedTuple):
    """The log's bounds.

    `end` is read before the table's snapshot and `end_after` after it; `written` includes open
    transactions.
    """

    start: Offsets
    end: Offsets
    end_after: Offsets
    written: Offsets


class PinnedTable(NamedTuple):
    """One snapshot of a table, and what its archive has recorded up to there."""

    frame: Any
    archived_to: Offsets
    topic_ids: TopicIds


@dataclass
class Outside:
    """The rows of the table outside [start, end) of the topic's partitions."""

    archived_to: Offsets
    beyond: dict[int, int] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    not_covered: list[str] = field(default_factory=list)


def read_pinned_table(spark: Any, table: TableName) -> PinnedTable:
    """The table as it is now, whatever is committed later. Raises OptionInvalid if it is not
    there."""
    name = table.in_spark
    if not spark.catalog.tableExists(name):
        raise OptionInvalid(
            f"There is no table {name} in the warehouse. Nothing was read or written. Check both"
            " names; the first run of an archive creates the table."
        )
    main = spark.table(f"{name}.refs").where("name = 'main'").first()
    reader = spark.read
    if main is not None:
        reader = reader.option("versionAsOf", main.snapshot_id)
    frame = reader.table(name)
    # A snapshot is read with the columns that it was written with: leave out dropped ones.
    shown = spark.table(name).columns
    frame = frame.select(*(column for column in frame.columns if column in shown))
    found = java_table(spark, table)
    ancestors = spark._jvm.org.apache.iceberg.util.SnapshotUtil  # noqa: SLF001 - no public way
    snapshots = [found.snapshot(each) for each in ancestors.currentAncestorIds(found)]
    properties = dict(found.properties())
    ancestry = Ancestry.of((one.snapshotId(), one.sequenceNumber()) for one in snapshots)
    archived_to = kept_offsets(properties, ancestry)
    topic_ids = recorded_topic_ids(properties)
    for one in reversed(snapshots):
        recorded = dict(one.summary())
        archived_to = larger(archived_to, recorded_offsets(recorded))
        topic_ids |= recorded_topic_ids(recorded)
    return PinnedTable(frame, archived_to, topic_ids)


def look_outside(topic: str, table: PinnedTable, ends: Ends, topic_ids: TopicIds) -> Outside:
    """Count the rows of the table that a comparison of [start, end) does not see."""
    from pyspark.sql.functions import expr

    place = table.frame.select("topic", "partition", expr(_place_sql(topic, ends)).alias("place"))
    counts = place.groupBy("topic", "partition", "place").count().collect()
    found = sort_outside(topic, table.archived_to, ends, [tuple(row) for row in counts])
    before, now = table.topic_ids.get(topic), topic_ids.get(topic)
    if before is not None and now is not None and before != now:
        found.problems.append(
            f"{topic} was deleted and recreated: the table holds the records of id {before}, and"
            f" the topic's id is {now} now"
        )
    return found


BEFORE, WITHIN, SINCE, BEYOND, NOWHERE = range(5)
"""Before the log start; compared; archived since; after the log's end; no such partition."""


def _place_sql(topic: str, ends: Ends) -> str:
    """A row's place as SQL. An offset that is null is nowhere."""
    cases = []
    for _, partition, end in walk(ends.end):
        start = offset_of(ends.start, topic, partition, 0)
        after = max(end, offset_of(ends.end_after, topic, partition, 0))
        cases.append(
            f"WHEN partition = {partition} AND offset IS NOT NULL THEN CASE"
            f" WHEN offset < {start} THEN {BEFORE} WHEN offset < {end} THEN {WITHIN}"
            f" WHEN offset < {after} THEN {SINCE} ELSE {BEYOND} END"
        )
    return f"CASE {' '.join(cases)} ELSE {NOWHERE} END"


def sort_outside(
    topic: str,
    archived_to: Offsets,
    ends: Ends,
    counts: Iterable[tuple[str | None, int | None, int, int]],
) -> Outside:
    """Sort (topic, partition, place, count) into problems and what is not covered."""
    found = Outside(archived_to)
    others: dict[str | None, int] = {}
    for name, partition, place, count in sorted(counts, key=repr):
        if name != topic:
            others[name] = others.get(name, 0) + count
        elif place == NOWHERE or partition is None:
            found.problems.append(
                f"{topic}-{partition}: {count} rows in the table, but the topic has no such"
                " partition or offset"
            )
        elif place == BEYOND:
            found.beyond[partition] = count
        elif place == BEFORE:
            start = offset_of(ends.start, topic, partition, 0)
            found.not_covered.append(
                f"{topic}-{partition}: {count} rows before the log start {start}"
            )
        elif place == SINCE:
            found.not_covered.append(
                f"{topic}-{partition}: {count} rows archived during the comparison"
            )
    for name, count in others.items():
        if name in archived_to:
            found.not_covered.append(f"{count} rows of topic {name}: reconcile that topic, too")
        else:
            found.problems.append(f"{count} rows of topic {name}, which no archive has recorded")
    return found


def without_superseded(topic: str, log: Any, table: Any, whole: Any) -> tuple[Any, list[str]]:
    """Leave out the rows that compaction has removed from the log, rightly; and count them.

    `whole` is the whole table, for the later record of a key. Rows that the log should still hold
    stay.
    """
    from pyspark.sql.functions import col, expr

    last = (
        whole.where((col("topic") == topic) & expr("key IS NOT NULL"))
        .groupBy("partition", "key")
        .agg(expr("max(offset) AS last_offset"))
    )
    superseded = (
        table.join(log.select(*_PLACE), _PLACE, "left_anti")
        .join(last, ["partition", "key"])
        .where("value IS NULL OR offset < last_offset")
        .select(*_PLACE)
    )
    counts = superseded.groupBy("partition").agg(
        expr("count(*)"), expr("count(*) - count(DISTINCT offset)")
    )
    said = [
        f"{topic}-{partition}: {count} records that compaction has removed from the log"
        + (f", {twice} of them archived twice" if twice else "")
        for partition, count, twice in sorted(map(tuple, counts.collect()))
    ]
    return table.join(superseded.distinct(), _PLACE, "left_anti"), said
