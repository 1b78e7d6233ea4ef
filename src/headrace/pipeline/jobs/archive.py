"""Archives a topic into an Iceberg table, exactly once, without a checkpoint.

Invariants: the table is the only state. A round reads the table's progress, reads the topic from
there, and commits rows and end offsets in one snapshot. A kill at any moment leaves either the
snapshot before or the one after.

How two writers are kept apart: the commit is an append that is validated against the snapshot that
the progress was read from (publishing.py). It fails if another writer has added rows of "these
partitions from these offsets on" since, such as the orphaned JVM of a killed archive. The lease
only avoids wasted work.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from threading import Event
from time import monotonic_ns, sleep
from typing import Any, Literal

from headrace.pipeline.catalog import (
    APPEND,
    COMPLETE_PROPERTY,
    OFFSETS_PROPERTY,
    TOPIC_IDS_PROPERTY,
    Progress,
    TableName,
    lease,
    loaded,
    open_catalog,
    read_progress,
    table_of_topic,
)
from headrace.pipeline.cluster import ClusterClient
from headrace.pipeline.errors import (
    CatalogUnavailable,
    LeaseHeld,
    OptionInvalid,
    RecordsLost,
    TableMoved,
)
from headrace.pipeline.jobs.layout import Layout, ensure_table
from headrace.pipeline.jobs.maintain import MaintainConfig, MaintainReport, run_maintain
from headrace.pipeline.jobs.pacing import Freshness, RoundPacer
from headrace.pipeline.jobs.table_group import TableGroup
from headrace.pipeline.jobs.typed_rounds import TypedRounds, pinned_values
from headrace.pipeline.options import offsets_to_json, topics_of
from headrace.pipeline.planning import Offsets, build, larger, limited, offset_of, total, walk
from headrace.pipeline.position import StreamPosition, recreated, recreated_topics
from headrace.pipeline.publishing import Publisher
from headrace.pipeline.session import SessionConfig, given_or_own, session_for
from headrace.pipeline.warehouse import Place, Warehouse
from headrace.storage.tiering.table_catalog import CATALOG

log = logging.getLogger(__name__)

_LOST_RACES_MAX = 5
_NO_GATE: AbstractContextManager[Any] = nullcontext()


@dataclass(frozen=True)
class ArchiveConfig:
    """What to archive, where to, and in which portions.

    `topic` may list several, separated by commas. With `table` None, each has a table of its own
    (`catalog.table_of_topic`). `mode` upsert keeps the latest record of each key of a partition,
    and deletes those whose latest value is null: what a compacted topic holds, without its history.
    A run ends at the high watermarks of its start; a continuous run ends when `should_stop` returns
    true or the process is killed.

    A continuous run begins a round when about `round_bytes_min` of files are pending, or the oldest
    record has waited for `round_wait_ms`. After every `maintain_rounds` rounds (None: never) it
    compacts the table and expires snapshots, except the last `keep_snapshots` and those younger
    than `snapshot_age_hours`. With `quiet_wait_ms`, a backlog of at most `quiet_bytes_max` waits
    only so long.

    A table that is made with `is_daily` is partitioned by day, too. `values` are the data source's
    options of typed values: then `value` has columns, and what cannot be decoded is in a side table
    (`layout.side_table`). `reads` are more options of the data source, such as `objects`.
    """

    bootstrap: str
    topic: str
    warehouse: Place
    table: str | None = None
    master: str = "local[*]"
    continuous: bool = False
    round_records_max: int = 2_000_000
    round_bytes_min: int = 64 << 20
    round_wait_ms: int = 60_000
    maintain_rounds: int | None = 60
    keep_snapshots: int = 10
    snapshot_age_hours: int = 24
    task_records_max: int = 500_000
    poll_interval_ms: int = 1_000
    fail_on_data_loss: bool = True
    compression: Literal["zstd", "snappy"] = "zstd"
    memory_mb: int = 2048
    client: dict[str, str] = field(default_factory=dict)
    mode: Literal["append", "upsert"] = "append"
    quiet_wait_ms: int | None = None
    quiet_bytes_max: int = 1 << 20
    is_daily: bool = False
    values: dict[str, str] = field(default_factory=dict, repr=False)
    reads: dict[str, str] = field(default_factory=dict)

    @property
    def topics(self) -> tuple[str, ...]:
        """The topics by name, as Kafka's protocol has them."""
        return topics_of(self.topic)

    @property
    def place(self) -> Warehouse:
        """The warehouse with the catalog named by the table."""
        catalog = CATALOG if self.table is None else TableName.parse(self.table).catalog
        return Warehouse.at(self.warehouse, catalog)

    def of_each_topic(self) -> list[ArchiveConfig]:
        """One with a table, for each table."""
        if self.table is not None:
            return [self]
        return [
            replace(self, topic=topic, table=table_of_topic(self.place, topic).in_spark)
            for topic in self.topics
        ]


@dataclass(frozen=True)
class ArchiveRound:
    """One commit."""

    number: int
    record_count: int
    elapsed_ms: int
    offsets: Offsets
    remaining: int
    table: str = ""
    lag_ms: int | None = None
    """How long its first record has waited at most; None: it was there before the run."""

    @property
    def rate_per_s(self) -> int:
        """Records a second."""
        return int(self.record_count * 1000 / max(1, self.elapsed_ms))


@dataclass(frozen=True)
class ArchiveReport:
    """The result of a run. `record_count` counts offsets: logs with holes hold fewer records.
    `is_done`: whether it was not stopped before the end that it had."""

    table: str
    round_count: int
    record_count: int
    elapsed_ms: int
    offsets: Offsets
    is_done: bool = True

    @property
    def rate_per_s(self) -> int:
        """Records a second, over the whole run."""
        return int(self.record_count * 1000 / max(1, self.elapsed_ms))

    def __str__(self) -> str:
        return (
            f"{self.table}: {self.record_count:,} records in {self.round_count}"
            f" round{'s' * (self.round_count != 1)}, {self.elapsed_ms / 1000:.1f} s"
            f" ({self.rate_per_s:,}/s); exact up to "
            + ", ".join(
                f"{topic}-{partition}@{end}" for topic, partition, end in walk(self.offsets)
            )
        )


OnRound = Callable[[ArchiveRound], None]
OnMaintenance = Callable[[MaintainReport], None]


def _ignore(_: object) -> None:
    pass


def run_archive(
    config: ArchiveConfig,
    *,
    spark: Any = None,
    on_round: OnRound | None = None,
    on_maintenance: OnMaintenance | None = None,
    should_stop: Callable[[], bool] = lambda: False,
    gate: AbstractContextManager[Any] = _NO_GATE,
) -> ArchiveReport:
    """Archive into one table until done or stopped; with `spark` None, in a session of its own. A
    round holds `gate`, with which a caller bounds how many run at the same time.

    Raises LeaseHeld if another process archives into the table, RecordsLost if retention deleted
    records first (fail_on_data_loss), TopicRecreated if the table holds the records of an earlier
    topic of that name, TableMoved if another writer keeps committing, OptionInvalid for several
    topics without a table.
    """
    configs = config.of_each_topic()
    if len(configs) != 1:
        raise OptionInvalid(
            f"{config.topic!r} has {len(configs)} topics, and each has a table of its own: use"
            " run_archives, or name a table for all."
        )
    (config,) = configs
    assert config.table is not None, "named above"
    with (
        lease(config.place, TableName.parse(config.table)),
        given_or_own(spark, _session(config)) as session,
    ):
        archive = _Archive(config, session, on_round or _ignore, on_maintenance or _ignore)
        archive.gate = gate
        return archive.run(should_stop)


def _session(config: ArchiveConfig) -> SessionConfig:
    return SessionConfig(config.master, warehouse=config.place, memory_mb=config.memory_mb)


def run_archives(
    config: ArchiveConfig,
    *,
    spark: Any = None,
    on_round: OnRound | None = None,
    on_maintenance: OnMaintenance | None = None,
    should_stop: Callable[[], bool] = lambda: False,
) -> list[ArchiveReport]:
    """Archive each topic into its table, at the same time, in one session. Raises as `run_archive`:
    the first error stops the others after their round."""
    configs = config.of_each_topic()
    failed = Event()

    def run(each: ArchiveConfig) -> ArchiveReport:
        try:
            return run_archive(
                each,
                spark=session,
                on_round=on_round,
                on_maintenance=on_maintenance,
                should_stop=lambda: failed.is_set() or should_stop(),
            )
        except BaseException:
            failed.set()
            raise

    with (
        given_or_own(spark, _session(config)) as session,
        ThreadPoolExecutor(len(configs)) as threads,
    ):
        return list(threads.map(run, configs))


class _Archive:
    """The loop of rounds."""

    def __init__(
        self,
        config: ArchiveConfig,
        spark: Any,
        on_round: OnRound = _ignore,
        on_maintenance: OnMaintenance = _ignore,
    ) -> None:
        self._config = config
        # A commit is staged by a setting of the session, so each archive has one.
        self._spark = session_for(spark, config.place)
        self.gate = _NO_GATE
        self._on_round, self._on_maintenance = on_round, on_maintenance
        assert config.table is not None, "of_each_topic names it"
        self._table = TableName.parse(config.table)
        self._catalog = open_catalog(config.place)
        self._publisher = Publisher(self._spark, self._table, self._catalog)
        self._typed = TypedRounds(self._spark, self._table, self._catalog, config.place)
        if config.values:
            self._spark.conf.set("spark.sql.caseSensitive", "true")  # as schemas are
        self._client = {**config.client, "bootstrap.servers": config.bootstrap}
        self._cluster = ClusterClient(self._client)
        self._group = TableGroup(self._cluster, self._table, config.mode)
        self._pacer = RoundPacer(
            bytes_min=config.round_bytes_min,
            wait_ms_max=config.round_wait_ms,
            records_max=config.round_records_max,
            quiet_wait_ms=config.quiet_wait_ms,
            quiet_bytes_max=config.quiet_bytes_max,
        )
        self._freshness = Freshness()
        self._complete_at_ms: int | None = None
        self._rounds = self._records = 0

    def run(self, should_stop: Callable[[], bool]) -> ArchiveReport:
        """Run rounds until the end of a run, or until stopped."""
        begun_ns = monotonic_ns()
        self._create_table()
        pinned = None if self._config.continuous else self._latest()
        progress = self._progress()
        lost_races = 0
        while True:
            looked_ms = _wall_ms()
            target = self._latest() if pinned is None else pinned
            progress = self._group.looked_again(progress, self._progress)
            start, written = self._start(progress, target)
            self._group.commit(progress, start, written)
            self._complete_at_ms = self._freshness.reached(start)
            self._freshness.looked(target.offsets, looked_ms)
            backlog = total(start, target.offsets)
            is_done = pinned is not None and not backlog
            if is_done or should_stop():
                is_done |= pinned is None
                elapsed_ms = (monotonic_ns() - begun_ns) // 1_000_000
                self._group.finish(progress, start, written)
                table = self._table.in_spark
                return ArchiveReport(table, self._rounds, self._records, elapsed_ms, start, is_done)
            now_ms = monotonic_ns() // 1_000_000
            is_due = self._pacer.is_due(backlog, progress.record_bytes, now_ms)
            if pinned is None and not is_due:
                sleep(self._config.poll_interval_ms / 1000)
                continue
            try:
                with self.gate:
                    self._round(progress, start, target)
            except TableMoved:
                lost_races += 1
                if lost_races > _LOST_RACES_MAX:
                    raise
            else:
                lost_races = 0
            progress = self._progress()

    def _round(self, progress: Progress, start: Offsets, target: StreamPosition) -> None:
        """Make one commit and the maintenance that is due after it. Raises TableMoved."""
        begun_ns = monotonic_ns()
        end = limited(start, target.offsets, self._config.round_records_max)
        size = total(start, end)
        self._commit(progress, start, StreamPosition(end, target.topic_ids))
        self._pacer.begun()
        self._rounds, self._records = self._rounds + 1, self._records + size
        elapsed_ms = (monotonic_ns() - begun_ns) // 1_000_000
        self._on_round(
            ArchiveRound(
                self._rounds,
                size,
                elapsed_ms,
                end,
                total(end, target.offsets),
                self._table.in_spark,
                self._lag_ms(),
            )
        )
        each = self._config.maintain_rounds
        if self._config.continuous and each is not None and self._rounds % each == 0:
            self._maintain()

    def _lag_ms(self) -> int | None:
        return None if self._complete_at_ms is None else _wall_ms() - self._complete_at_ms

    def _maintain(self) -> None:
        """Maintain the table between rounds: a failure here fails no round and is retried after
        later ones."""
        config = MaintainConfig(
            self._config.warehouse,
            self._table.in_spark,
            keep_snapshots=self._config.keep_snapshots,
            snapshot_age_hours=self._config.snapshot_age_hours,
            orphan_age_hours=None,  # lists every file: left to `headrace pipeline maintain`
        )
        try:
            self._on_maintenance(run_maintain(config, spark=self._spark))
        except LeaseHeld as error:
            log.info("%s", error)
        except _maintenance_errors():
            log.warning("%s: maintenance failed", self._table.in_spark, exc_info=True)

    def _create_table(self) -> None:
        layout = Layout(
            self._config.mode,
            self._config.compression,
            is_daily=self._config.is_daily,
            is_typed=bool(self._config.values),
        )
        ensure_table(self._spark, self._catalog, self._config.place, self._table, layout)

    def _progress(self) -> Progress:
        return read_progress(loaded(self._catalog, self._table))

    def _latest(self) -> StreamPosition:
        found = self._cluster.subscription_of(self._config.topics, None)
        return StreamPosition(self._cluster.latest(found.partitions), found.topic_ids)

    def _start(self, progress: Progress, target: StreamPosition) -> tuple[Offsets, StreamPosition]:
        """Where each partition resumes: after the table's last offset, else at its log start; and
        where its log ends, at least up to the target.

        Raises RecordsLost if the log starts after the table's end, or ends before it; brokers are
        told before. Raises TopicRecreated regardless of `fail_on_data_loss`, because offsets of two
        topics of one name would mix in the table.
        """
        for topic in recreated_topics(progress.topic_ids, target.topic_ids):
            raise recreated(
                topic,
                progress.topic_ids,
                target.topic_ids,
                f"{self._config.table} holds records of the old topic: archive into a new table.",
            )
        first = self._cluster.earliest(target.offsets)
        beyond = [
            (topic, partition, high)
            for topic, partition, high in walk(target.offsets)
            if offset_of(progress.offsets, topic, partition, 0) > high
        ]
        # Archived with read_uncommitted before: wait for the open transactions.
        ends = larger(target.offsets, self._cluster.high_watermarks(build(beyond)))
        written = StreamPosition(ends, target.topic_ids)
        start = larger(first, progress.offsets)
        start = build([(t, p, offset_of(start, t, p, 0)) for t, p, _ in walk(ends)])
        if self._config.fail_on_data_loss:
            try:
                _check_complete(progress.offsets, first, ends)
            except RecordsLost:
                self._group.finish(progress, start, written)
                raise
        return start, written

    def _commit(self, progress: Progress, start: Offsets, end: StreamPosition) -> None:
        """Write [start, end) and record both, in one snapshot. Raises TableMoved."""
        frame = self._frame(start, end)
        topic_ids = json.dumps(progress.topic_ids | end.topic_ids, sort_keys=True)
        properties = {
            OFFSETS_PROPERTY: json.dumps(end.offsets, sort_keys=True),
            TOPIC_IDS_PROPERTY: topic_ids,
        }
        if self._complete_at_ms is not None:
            properties[COMPLETE_PROPERTY] = str(self._complete_at_ms)
        if not self._config.values:
            self._publish(frame, progress, start, end, properties)
            return
        with self._typed.split(frame, start, end.offsets, properties) as rows:
            self._publish(rows, progress, start, end, properties)

    def _publish(
        self,
        frame: Any,
        progress: Progress,
        start: Offsets,
        end: StreamPosition,
        properties: dict[str, str],
    ) -> None:
        if self._config.mode != APPEND:
            self._publisher.merge(
                frame, since_snapshot_id=progress.snapshot_id, properties=properties
            )
            return
        self._publisher.commit(
            frame,
            start,
            end.offsets,
            since_snapshot_id=progress.snapshot_id,
            properties=properties,
        )

    def _frame(self, start: Offsets, end: StreamPosition) -> Any:
        """The records [start, end)."""
        reader = self._spark.read.format("headrace").option(
            "subscribe", ",".join(self._config.topics)
        )
        for name, value in self._client.items():
            reader = reader.option(f"kafka.{name}", value)
        # Partitions outside the round (deleted topics in the table) are irrelevant here.
        return (
            reader.option("startingOffsets", offsets_to_json(start))
            .option("endingOffsets", offsets_to_json(end.offsets))
            .option("topicIds", json.dumps(end.topic_ids))
            .option("failOnDataLoss", str(self._config.fail_on_data_loss).lower())
            .option("maxRecordsPerTask", str(self._config.task_records_max))
            .options(**pinned_values(self._config.values, self._config.topics))
            .options(**self._config.reads)
            .load()
        )


def _check_complete(reached: Offsets, first: Offsets, ends: Offsets) -> None:
    """Raise RecordsLost if a log starts after the table's end, or ends before it."""
    for topic, partition, high in walk(ends):
        low = offset_of(first, topic, partition, 0)
        stands = offset_of(reached, topic, partition, low)
        if stands < low or stands > high:
            raise RecordsLost(
                f"{topic}-{partition}: the table ends at offset {stands}, but the log holds {low}"
                f" to {high}. Retention deleted records before they were archived, or the log was"
                " truncated, or the topic recreated. Archive into a new table, or set"
                " fail_on_data_loss to false.",
                topic=topic,
                partition=partition,
            )


def _wall_ms() -> int:
    return int(datetime.now(UTC).timestamp() * 1000)


def _maintenance_errors() -> tuple[type[Exception], ...]:
    from py4j.protocol import Py4JJavaError
    from pyspark.errors import PySparkException

    return (CatalogUnavailable, Py4JJavaError, PySparkException)
