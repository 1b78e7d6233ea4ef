"""Verifies that published records are stored and archived: counts, bounds, gaps, duplicates, bytes.

Invariants: reads only. The log is read as any client reads it, the table as any engine does. Each
side is reduced to a few figures per partition; single offsets and columns are compared only where
these differ.

How contents are compared: one pass over each side computes, per partition, the count, the bounds,
and, of a 64-bit hash over every stored field (fingerprint.py), the exclusive or and the sum of its
low half. A client returns each offset of a log once, so a table that agrees in all of them holds
the same records, each once, barring a hash collision (2^-64 for a record that differs). Sides that
differ are counted again by offset, and compared column by column.

What a proof covers: the records between log start and log end. The table is read as one snapshot,
taken between two looks at the log's end, so that rows at or after the second one cannot be records
of this log. Rows elsewhere in the table are counted by one pass over it: they are either problems
(`problems`) or named as not covered (`not_covered`). In a compacted topic the table keeps records
that the log has dropped; each must have a later record of its key in the table, or be a tombstone.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from headrace.pipeline import fingerprint
from headrace.pipeline.catalog import ADDED_COLUMNS, TableName
from headrace.pipeline.cluster import ClusterClient, is_compacted
from headrace.pipeline.jobs.coverage import (
    Ends,
    Outside,
    look_outside,
    read_pinned_table,
    without_superseded,
)
from headrace.pipeline.options import offsets_to_json
from headrace.pipeline.planning import Offsets, offset_of, walk

if TYPE_CHECKING:
    from collections.abc import Mapping

_SAMPLE_MAX = 10
_STORED = ("partition", "offset", *(column.name for column in fingerprint.COLUMNS))
_HASHED = ("partition", "offset", f"{fingerprint.record_hash()} AS hash")
_LOW_HALF = "sum(hash & 4294967295)"


@dataclass(frozen=True)
class ReconcileConfig:
    """Which topic to compare with which table. `published` are the producers' counts, `reads` more
    options of the data source."""

    bootstrap: str
    topic: str
    table: str = "headrace.archive"
    published: Mapping[int, int] | None = None
    client: dict[str, str] = field(default_factory=dict)
    reads: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Side:
    """The figures of one partition on one side; bounds are -1 if it is empty."""

    count: int = 0
    distinct: int = 0
    first: int = -1
    last: int = -1
    fingerprint: tuple[int, int] = (0, 0)

    @property
    def duplicate_count(self) -> int:
        """Records in excess of one per offset."""
        return self.count - self.distinct


class Difference(NamedTuple):
    """A record that both sides hold, and the columns in which they differ."""

    offset: int
    columns: tuple[str, ...]

    def __str__(self) -> str:
        return f"offset {self.offset}: {', '.join(self.columns)}"


class Differences(NamedTuple):
    """The number of a partition's differing records, and the first of them."""

    number: int = 0
    first: tuple[Difference, ...] = ()


@dataclass(frozen=True)
class PartitionProof:
    """One partition on all sides, and its discrepancies.

    `beyond_count`: rows of the table at or after the log's end. `archived_to`: where the archive
    says that it ends, -1 if it does not. `written_to`: the log's end with open transactions.
    """

    partition: int
    log_start: int
    high_watermark: int
    stored: Side
    archived: Side
    published_count: int | None = None
    beyond_count: int = 0
    archived_to: int = -1
    written_to: int = -1
    missing: tuple[int, ...] = ()
    missing_count: int = 0
    surplus_count: int = 0
    differing: tuple[Difference, ...] = ()
    differing_count: int = 0

    @property
    def problems(self) -> list[str]:
        """The discrepancies as text; empty if all sides agree."""
        found = []
        if self.published_count is not None and self.published_count != self.stored.count:
            found.append(f"published {self.published_count}, stored {self.stored.count}")
        if self.stored.duplicate_count:
            found.append(f"{self.stored.duplicate_count} offsets stored twice")
        if self.missing_count:
            some = ", ".join(map(str, self.missing))
            found.append(f"{self.missing_count} missing in the table (offsets {some})")
        if self.surplus_count:
            found.append(f"{self.surplus_count} in the table but not in the log")
        if self.beyond_count:
            found.append(
                f"{self.beyond_count} in the table at or after the log's end"
                f" {self.high_watermark}: the log was truncated, or another writer added them"
            )
        if self.archived_to > self.written_to >= 0:
            found.append(
                f"archived up to {self.archived_to}, but the log ends at {self.written_to}: it was"
                " truncated"
            )
        if self.archived.duplicate_count:
            found.append(f"{self.archived.duplicate_count} archived twice")
        if self.differing_count:
            some = "; ".join(map(str, self.differing))
            found.append(f"{self.differing_count} differ from the log ({some})")
        if not found and self.stored != self.archived:
            found.append("the sides differ, and changed during the comparison: run again")
        return found


@dataclass(frozen=True)
class ReconcileReport:
    """The result for a topic."""

    topic: str
    table: str
    partitions: tuple[PartitionProof, ...]
    elsewhere: tuple[str, ...] = ()
    not_covered: tuple[str, ...] = ()

    @property
    def is_exact(self) -> bool:
        """Published = stored = archived within `covers`, with no gap, duplicate, or row from
        nowhere."""
        return not self.problems

    @property
    def is_proven(self) -> bool:
        """Exact, and of something: records, or counts of producers that say that there are none."""
        was_counted = any(proof.published_count is not None for proof in self.partitions)
        return self.is_exact and bool(self.stored_count or was_counted)

    @property
    def covers(self) -> list[str]:
        """What was compared; rows of the table outside are in `not_covered`."""
        return [
            f"{self.topic}-{proof.partition}: offsets {proof.log_start} to {proof.high_watermark}"
            for proof in self.partitions
        ]

    @property
    def stored_count(self) -> int:
        """Records in the log."""
        return sum(proof.stored.count for proof in self.partitions)

    @property
    def archived_count(self) -> int:
        """Records in the table, within the log's bounds."""
        return sum(proof.archived.count for proof in self.partitions)

    @property
    def watermark_count(self) -> int:
        """High watermarks minus log starts: equals `stored_count` unless the log has holes."""
        return sum(proof.high_watermark - proof.log_start for proof in self.partitions)

    @property
    def problems(self) -> list[str]:
        """All problems, with their partition; then those outside the topic's partitions."""
        return [
            *(
                f"{self.topic}-{proof.partition}: {problem}"
                for proof in self.partitions
                for problem in proof.problems
            ),
            *self.elsewhere,
        ]


def run_reconcile(config: ReconcileConfig, *, spark: Any) -> ReconcileReport:
    """Compare log and table now, from each partition's log start to its high watermark.

    Table records from before the log start (deleted from the log by retention) are not compared.
    Raises OptionInvalid if the topic does not exist, TableUnusable if the table was altered.
    """
    cluster = ClusterClient({**config.client, "bootstrap.servers": config.bootstrap})
    subscribed, topic_ids = cluster.subscription_of((config.topic,), None)
    start, end = cluster.earliest(subscribed), cluster.latest(subscribed)
    pinned = read_pinned_table(spark, TableName.parse(config.table))
    ends = Ends(start, end, cluster.latest(subscribed), cluster.high_watermarks(subscribed))
    outside = look_outside(config.topic, pinned, ends, topic_ids)
    log = _log_frame(config, spark, start, end)
    table = _table_frame(config, pinned.frame, start, end)
    stored, archived = sides_of(log), sides_of(table)
    superseded: list[str] = []
    if stored != archived and is_compacted(cluster.configuration(config.topic)):
        table, superseded = without_superseded(config.topic, log, table, pinned.frame)
        archived = sides_of(table)
    if stored != archived:
        stored, archived = sides_by_offset(log), sides_by_offset(table)
    differences = {} if stored == archived else _differences(log, table)
    proofs = []
    for _, partition, _ in walk(end):
        sides = stored.get(partition, Side()), archived.get(partition, Side())
        figures = _figures(log, table, partition, *sides)
        differing = differences.get(partition, Differences())
        proofs.append(_proof(config, ends, outside, partition, figures, differing))
    return ReconcileReport(
        config.topic,
        config.table,
        tuple(proofs),
        elsewhere=tuple(outside.problems),
        not_covered=(*outside.not_covered, *superseded),
    )


class _Figures(NamedTuple):
    """What distinguishes the sides of one partition."""

    stored: Side
    archived: Side
    missing: tuple[int, ...] = ()
    missing_count: int = 0
    surplus_count: int = 0


def _figures(log: Any, table: Any, partition: int, stored: Side, archived: Side) -> _Figures:
    if stored == archived:
        return _Figures(stored, archived)
    missing_count, missing = _only_in(log, table, partition)
    surplus_count, _ = _only_in(table, log, partition)
    return _Figures(stored, archived, tuple(missing), missing_count, surplus_count)


def _proof(
    config: ReconcileConfig,
    ends: Ends,
    outside: Outside,
    partition: int,
    figures: _Figures,
    differing: Differences,
) -> PartitionProof:
    topic = config.topic
    return PartitionProof(
        partition,
        log_start=offset_of(ends.start, topic, partition, 0),
        high_watermark=offset_of(ends.end, topic, partition, 0),
        stored=figures.stored,
        archived=figures.archived,
        published_count=None if config.published is None else config.published.get(partition, 0),
        beyond_count=outside.beyond.get(partition, 0),
        archived_to=offset_of(outside.archived_to, topic, partition, -1),
        written_to=offset_of(ends.written, topic, partition, -1),
        missing=figures.missing,
        missing_count=figures.missing_count,
        surplus_count=figures.surplus_count,
        differing=differing.first,
        differing_count=differing.number,
    )


def _log_frame(config: ReconcileConfig, spark: Any, start: Offsets, end: Offsets) -> Any:
    reader = spark.read.format("headrace").option("subscribe", config.topic)
    for name, value in config.client.items():
        reader = reader.option(f"kafka.{name}", value)
    return (
        reader.option("bootstrap.servers", config.bootstrap)
        .option("startingOffsets", offsets_to_json(start))
        .option("endingOffsets", offsets_to_json(end))
        .options(**config.reads)
        .load()
        .select(*_STORED)
    )


def _table_frame(config: ReconcileConfig, table: Any, start: Offsets, end: Offsets) -> Any:
    """Read the table; columns that an earlier version did not archive are null."""
    from pyspark.sql.functions import col, expr

    within = " OR ".join(
        f"(partition = {partition} AND offset >= {offset_of(start, config.topic, partition, 0)} "
        f"AND offset < {high})"
        for _, partition, high in walk(end)
    )
    for name in set(_STORED) - set(table.columns):
        table = table.withColumn(name, expr(f"CAST(NULL AS {ADDED_COLUMNS[name]})"))
    return table.where((col("topic") == config.topic) & expr(within)).select(*_STORED)


def sides_of(frame: Any) -> dict[int, Side]:
    """Compute each partition's figures in one pass, assuming that offsets are distinct."""
    from pyspark.sql.functions import expr

    figures = ("count(*)", "count(*)", "min(offset)", "max(offset)", "bit_xor(hash)", _LOW_HALF)
    rows = frame.selectExpr(*_HASHED).groupBy("partition").agg(*map(expr, figures))
    return {row[0]: _side_of(row) for row in rows.collect()}


def sides_by_offset(frame: Any) -> dict[int, Side]:
    """Compute each partition's figures; a repeated offset counts once in `distinct`."""
    from pyspark.sql.functions import expr

    each = ("count(*) AS times", "max(hash) AS hash")
    figures = ("sum(times)", "count(*)", "min(offset)", "max(offset)", "bit_xor(hash)", _LOW_HALF)
    offsets = frame.selectExpr(*_HASHED).groupBy("partition", "offset").agg(*map(expr, each))
    rows = offsets.groupBy("partition").agg(*map(expr, figures))
    return {row[0]: _side_of(row) for row in rows.collect()}


def _side_of(row: Any) -> Side:
    _, count, distinct, first, last, exclusive_or, low_half = row
    return Side(count, distinct, first, last, (exclusive_or, low_half))


def _only_in(left: Any, right: Any, partition: int) -> tuple[int, list[int]]:
    """Return how many offsets only `left` holds, and the first of them."""
    here = left.where(f"partition = {partition}").select("offset").distinct()
    there = right.where(f"partition = {partition}").select("offset").distinct()
    only = here.join(there, "offset", "left_anti").orderBy("offset")
    sample = [row["offset"] for row in only.limit(_SAMPLE_MAX).collect()]
    return (only.count() if sample else 0), sample


def _differences(log: Any, table: Any) -> dict[int, Differences]:
    """Find, by partition, records that both sides hold at the same offset with different
    contents."""
    from pyspark.sql.functions import col, expr

    place = [col("partition"), col("offset")]
    names = {column: fingerprint.hash_name(column) for column in fingerprint.COLUMNS}
    hashes = [expr(column.hashed).alias(name) for column, name in names.items()]
    here = log.select(*place, *hashes).alias("here")
    there = table.select(*place, *hashes).alias("there")
    unlike = [
        f"if(here.{name} = there.{name}, NULL, '{column.name}')" for column, name in names.items()
    ]
    found = (
        here.join(there, ["partition", "offset"])
        .select(*place, expr(f"array_compact(array({', '.join(unlike)}))").alias("columns"))
        .where("size(columns) > 0")
        .dropDuplicates(["partition", "offset"])
    )
    differences = {}
    for partition, count in found.groupBy("partition").count().collect():
        some = found.where(f"partition = {partition}").orderBy("offset").limit(_SAMPLE_MAX)
        first = tuple(Difference(row["offset"], tuple(row["columns"])) for row in some.collect())
        differences[partition] = Differences(count, first)
    return differences
