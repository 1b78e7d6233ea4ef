"""A topic into an Iceberg table, exactly once, with no checkpoint.

Invariants: the table is the only memory. A round reads how far the table has come, reads
the topic from there, and commits rows and ends in one snapshot. A kill at any moment leaves
either the snapshot before or the one after.
How two writers are kept apart: the commit is an overwrite of "these partitions from these
offsets on", validated serializably against the snapshot that the progress was read from. It
deletes nothing (nothing is there), but fails when somebody else has put files there since: an
orphaned JVM of a killed archive, for one. The lease only spares the work.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic_ns, sleep
from typing import Any, Literal

from headrace.pipeline.catalog import (
    ADDED_COLUMNS,
    OFFSETS_PROPERTY,
    TOPIC_IDS_PROPERTY,
    Progress,
    TableName,
    lease,
    load_table_or_none,
    open_catalog,
    read_progress,
)
from headrace.pipeline.cluster import Cluster
from headrace.pipeline.errors import RecordsLost, TableMoved
from headrace.pipeline.options import offsets_to_json
from headrace.pipeline.planning import Offsets, build, limited, offset_of, total, walk
from headrace.pipeline.position import Position, recreated, recreated_topics
from headrace.pipeline.session import SessionConfig, Warehouse, make_session


@dataclass(frozen=True)
class ArchiveConfig:
    """What to archive, where to, in which portions.

    `topic` may name several, with commas. A run ends when the high watermarks of its start are
    reached; a continuous one when `should_stop` says so, or the process is killed.
    """

    bootstrap: str
    topic: str
    warehouse: str | Path
    table: str = "headrace.archive"
    master: str = "local[*]"
    continuous: bool = False
    round_records_max: int = 2_000_000
    task_records_max: int = 500_000
    poll_interval_ms: int = 1_000
    fail_on_data_loss: bool = True
    compression: Literal["zstd", "snappy"] = "zstd"
    memory_mb: int = 2048
    client: dict[str, str] = field(default_factory=dict)

    @property
    def topics(self) -> tuple[str, ...]:
        """The topics by name."""
        return tuple(name.strip() for name in self.topic.split(",") if name.strip())

    @property
    def place(self) -> Warehouse:
        """The warehouse with the catalog that the table names."""
        return Warehouse(Path(self.warehouse), TableName.parse(self.table).catalog)


@dataclass(frozen=True)
class Round:
    """One commit."""

    number: int
    record_count: int
    elapsed_ms: int
    offsets: Offsets
    remaining: int

    @property
    def rate_per_s(self) -> int:
        """Records a second."""
        return int(self.record_count * 1000 / max(1, self.elapsed_ms))


@dataclass(frozen=True)
class ArchiveReport:
    """What a run did. `record_count` counts offsets: logs with holes hold fewer records."""

    table: str
    round_count: int
    record_count: int
    elapsed_ms: int
    offsets: Offsets

    @property
    def rate_per_s(self) -> int:
        """Records a second, over the whole run."""
        return int(self.record_count * 1000 / max(1, self.elapsed_ms))

    def __str__(self) -> str:
        return (
            f"{self.table}: {self.record_count:,} records in {self.round_count} rounds, "
            f"{self.elapsed_ms / 1000:.1f} s ({self.rate_per_s:,}/s); exact up to "
            + ", ".join(
                f"{topic}-{partition}@{end}" for topic, partition, end in walk(self.offsets)
            )
        )


OnRound = Callable[[Round], None]


def run_archive(
    config: ArchiveConfig,
    *,
    spark: Any = None,
    on_round: OnRound | None = None,
    should_stop: Callable[[], bool] = lambda: False,
) -> ArchiveReport:
    """Archive until done or told to stop; with `spark` None, in a session of its own.

    Raises LeaseHeld when another process archives into the table, RecordsLost when retention
    was faster (fail_on_data_loss), TopicRecreated when the table holds the records of a former
    topic of that name, TableMoved when another writer commits all the time.
    """
    with lease(config.place, TableName.parse(config.table)):
        own = spark is None
        if own:
            spark = make_session(
                SessionConfig(config.master, warehouse=config.place, memory_mb=config.memory_mb)
            )
        try:
            return _Archive(config, spark).run(on_round, should_stop)
        finally:
            if own:
                spark.stop()


class _Archive:
    """The loop of rounds."""

    def __init__(self, config: ArchiveConfig, spark: Any) -> None:
        self._config = config
        self._spark = spark
        self._table = TableName.parse(config.table)
        self._catalog = open_catalog(config.place)
        self._client = {**config.client, "bootstrap.servers": config.bootstrap}
        self._cluster = Cluster(self._client)

    def run(self, on_round: OnRound | None, should_stop: Callable[[], bool]) -> ArchiveReport:
        begun_ns = monotonic_ns()
        self._create_table()
        pinned = None if self._config.continuous else self._latest()
        rounds = records = lost_races = 0
        while True:
            round_ns = monotonic_ns()
            progress = self._progress()
            target = self._latest() if pinned is None else pinned
            start = self._start(progress, target)
            end = limited(start, target.offsets, self._config.round_records_max)
            size = total(start, end)
            if size and not should_stop():
                try:
                    self._commit(progress, start, Position(end, target.topic_ids))
                except TableMoved:
                    lost_races += 1
                    if lost_races > 5:
                        raise
                    continue
                rounds, records = rounds + 1, records + size
                if on_round is not None:
                    elapsed_ms = (monotonic_ns() - round_ns) // 1_000_000
                    on_round(Round(rounds, size, elapsed_ms, end, total(end, target.offsets)))
            elif pinned is not None or should_stop():
                elapsed_ms = (monotonic_ns() - begun_ns) // 1_000_000
                return ArchiveReport(self._config.table, rounds, records, elapsed_ms, start)
            else:
                sleep(self._config.poll_interval_ms / 1000)

    def _create_table(self) -> None:
        table = load_table_or_none(self._catalog, self._table)
        if table is not None:
            self._add_columns({field.name for field in table.schema().fields})
            return
        self._spark.sql(
            f"CREATE NAMESPACE IF NOT EXISTS {self._table.catalog}.{self._table.namespace}"
        )
        # Bounds of offset are what a resume reads; those of the payload would only cost.
        metrics = "write.metadata.metrics.column"
        added = ", ".join(f"{name} {kind}" for name, kind in ADDED_COLUMNS.items())
        self._spark.sql(
            f"""CREATE TABLE IF NOT EXISTS {self._table.in_spark} (
                topic string, partition int, offset bigint, timestamp timestamp, key binary,
                headers array<struct<key: string, value: binary>>, value binary, {added})
            USING iceberg PARTITIONED BY (topic, partition)
            TBLPROPERTIES ('format-version'='2', 'write.distribution-mode'='none',
                'write.spark.fanout.enabled'='true', 'commit.retry.num-retries'='20',
                'write.parquet.compression-codec'='{self._config.compression}',
                'write.metadata.delete-after-commit.enabled'='true',
                'write.metadata.previous-versions-max'='20',
                '{metrics}.offset'='full', '{metrics}.timestamp'='full',
                '{metrics}.key'='none', '{metrics}.value'='none')"""
        )

    def _add_columns(self, present: set[str]) -> None:
        """Bring the table of an earlier version up to date; its rows are null there."""
        for name, kind in ADDED_COLUMNS.items():
            if name not in present:
                self._spark.sql(f"ALTER TABLE {self._table.in_spark} ADD COLUMN {name} {kind}")

    def _progress(self) -> Progress:
        return read_progress(self._catalog.load_table(self._table.in_catalog))

    def _latest(self) -> Position:
        found = self._cluster.subscription_of(self._config.topics, None)
        return Position(self._cluster.latest(found.partitions), found.topic_ids)

    def _start(self, progress: Progress, target: Position) -> Offsets:
        """Where each partition goes on: after the table's last offset, else where its log starts.

        Raises RecordsLost when the log starts later than the table ends, or ends before it;
        TopicRecreated whatever `fail_on_data_loss` says, for offsets of two topics under one name
        would meet in the table.
        """
        for topic in recreated_topics(progress.topic_ids, target.topic_ids):
            raise recreated(
                topic,
                progress.topic_ids,
                target.topic_ids,
                f"{self._config.table} holds records of the former one: archive into a new table.",
            )
        first = self._cluster.earliest(target.offsets)
        entries = []
        for topic, partition, high in walk(target.offsets):
            low = offset_of(first, topic, partition, 0)
            stands = offset_of(progress.offsets, topic, partition, low)
            if (stands < low or stands > high) and self._config.fail_on_data_loss:
                raise RecordsLost(
                    f"{topic}-{partition}: the table ends at offset {stands}, the log holds {low} "
                    f"to {high}. Retention was faster than the archive, or the log was truncated, "
                    "or the topic recreated. Archive into a new table, or set fail_on_data_loss to "
                    "false.",
                    topic=topic,
                    partition=partition,
                )
            entries.append((topic, partition, max(low, stands)))
        return build(entries)

    def _commit(self, progress: Progress, start: Offsets, end: Position) -> None:
        """Write [start, end) and record both, in one snapshot. Raises TableMoved."""
        from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
        from pyspark.errors import PySparkException
        from pyspark.sql.functions import expr

        reader = self._spark.read.format("headrace").option(
            "subscribe", ",".join(self._config.topics)
        )
        for name, value in self._client.items():
            reader = reader.option(f"kafka.{name}", value)
        # Partitions outside the round (deleted topics in the table) do not matter here.
        frame = (
            reader.option("startingOffsets", offsets_to_json(start))
            .option("endingOffsets", offsets_to_json(end.offsets))
            .option("topicIds", json.dumps(end.topic_ids))
            .option("failOnDataLoss", str(self._config.fail_on_data_loss).lower())
            .option("maxRecordsPerTask", str(self._config.task_records_max))
            .load()
        )
        recorded = json.dumps(end.offsets, sort_keys=True)
        topic_ids = json.dumps(progress.topic_ids | end.topic_ids, sort_keys=True)
        writer = (
            frame.writeTo(self._table.in_spark)
            .option(f"snapshot-property.{OFFSETS_PROPERTY}", recorded)
            .option(f"snapshot-property.{TOPIC_IDS_PROPERTY}", topic_ids)
            .option("isolation-level", "serializable")
        )
        if progress.snapshot_id is not None:
            writer = writer.option("validate-from-snapshot-id", str(progress.snapshot_id))
        try:
            writer.overwrite(expr(_beyond(start, end.offsets)))
        except (Py4JJavaError, PySparkException) as error:
            if "conflicting files" in str(error) or "ValidationException" in str(error):
                raise TableMoved(
                    f"{self._config.table}: another writer committed these offsets."
                ) from error
            raise


def _beyond(start: Offsets, end: Offsets) -> str:
    """The condition "partitions of this round, from its offsets on" in SQL."""
    return " OR ".join(
        f"(topic = '{topic}' AND partition = {partition} "
        f"AND offset >= {offset_of(start, topic, partition, 0)})"
        for topic, partition, offset in walk(end)
        if offset > offset_of(start, topic, partition, 0)
    )
