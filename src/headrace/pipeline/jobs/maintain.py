"""Maintenance of a table: compaction, snapshot expiry, removal of orphan files and stale branches.

Invariants: never changes the table's records. The archive resumes from the table's own state, so
its end offsets are written into the table's properties before a snapshot is expired. A table of a
job's results, such as violations or events, has none. Both may run
concurrently: compaction replaces files and adds no records, so neither commit invalidates the
other; an archive whose starting snapshot expires reads its progress again.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from time import monotonic_ns, time_ns
from typing import Any

from headrace.pipeline.catalog import (
    MAINTAINED,
    MODE_PROPERTY,
    OFFSETS_PROPERTY,
    TOPIC_IDS_PROPERTY,
    TableName,
    can_stage,
    lease,
    load_table,
    loaded,
    offsets_properties,
    open_catalog,
    read_progress,
)
from headrace.pipeline.kept_files import kept_ends, rest_of_table
from headrace.pipeline.publishing import drop_stale_branches
from headrace.pipeline.session import SessionConfig, given_or_own
from headrace.pipeline.warehouse import Place, Warehouse

# Iceberg refuses less: a younger file may belong to a commit in progress
_ORPHAN_AGE_HOURS_MIN = 24
_GC = "gc.enabled"
"""Iceberg's property of a table whose files others may need. Nessie sets it to false."""


@dataclass(frozen=True)
class MaintainConfig:
    """The maintenance steps of a table. None skips a step."""

    warehouse: Place
    table: str = "headrace.archive"
    target_file_bytes: int | None = 256 << 20
    files_min: int = 5
    keep_snapshots: int | None = 10
    snapshot_age_hours: int = 24
    orphan_age_hours: int | None = 72
    session: SessionConfig = field(default_factory=SessionConfig)


@dataclass(frozen=True)
class MaintainReport:
    """The result of the steps."""

    files_rewritten: int
    files_added: int
    snapshots_expired: int
    orphans_removed: int
    elapsed_ms: int
    is_catalogs_own: bool = False
    """Whether snapshots and orphan files are left to the catalog's own maintenance."""

    def __str__(self) -> str:
        removed = (
            f" {self.snapshots_expired:,} snapshots and {self.orphans_removed:,} orphan files"
            " removed"
        )
        left = f" snapshots and orphan files left to the catalog ({_GC}=false)"
        return (
            f"{self.files_rewritten:,} files compacted into {self.files_added:,},"
            f"{left if self.is_catalogs_own else removed}, {self.elapsed_ms / 1000:.1f} s"
        )


def run_maintain(config: MaintainConfig, *, spark: Any = None) -> MaintainReport:
    """Run the steps; an archive may run concurrently. Raises LeaseHeld if other maintenance runs,
    OptionInvalid if the table does not exist."""
    begun_ns = monotonic_ns()
    table = TableName.parse(config.table)
    warehouse = Warehouse.at(config.warehouse, table.catalog)
    found = load_table(warehouse, table)
    removes = str(found.properties.get(_GC, "true")).lower() == "true"
    is_archive = _is_archive(found)
    settings = replace(config.session, warehouse=warehouse)
    with lease(warehouse, table, MAINTAINED), given_or_own(spark, settings) as session:
        drop_stale_branches(session, table, time_ns() // 1_000_000)
        if is_archive and not can_stage(found.catalog):  # compaction leaves its snapshot alone
            _keep_offsets(session, warehouse, table)
        rewritten, added = _compact(session, config, table, warehouse, by_offset=is_archive)
        if is_archive:
            _keep_offsets(session, warehouse, table)
        expired = orphans = 0
        if removes:
            expired = _expire(session, config, table, warehouse)
            orphans = _remove_orphans(session, config, table, is_remote=warehouse.is_remote)
    elapsed_ms = (monotonic_ns() - begun_ns) // 1_000_000
    return MaintainReport(rewritten, added, expired, orphans, elapsed_ms, not removes)


def _is_archive(table: Any) -> bool:
    """Whether the table has an archive's progress, also if it was altered by hand."""
    said = {MODE_PROPERTY, OFFSETS_PROPERTY} & table.properties.keys()
    return bool(said) or not table.spec().is_unpartitioned()


def _compact(
    spark: Any, config: MaintainConfig, table: TableName, warehouse: Warehouse, *, by_offset: bool
) -> tuple[int, int]:
    if config.target_file_bytes is None:
        return 0, 0
    kept = rest_of_table(table.name, kept_ends(loaded(open_catalog(warehouse), table).refs()))
    where = "" if kept is None else f"where => '{kept}',"
    order = "strategy => 'sort', sort_order => 'offset ASC'," if by_offset else ""
    row = spark.sql(
        f"""CALL {table.catalog}.system.rewrite_data_files(
            table => '{table.in_spark}', {order} {where}
            options => map('min-input-files', '{config.files_min}',
                           'target-file-size-bytes', '{config.target_file_bytes}'))"""
    ).first()
    return int(row["rewritten_data_files_count"]), int(row["added_data_files_count"])


def _keep_offsets(spark: Any, warehouse: Warehouse, table: TableName) -> None:
    found = loaded(open_catalog(warehouse), table)
    progress = read_progress(found)
    kept = {
        **offsets_properties(found, progress.offsets),
        TOPIC_IDS_PROPERTY: json.dumps(progress.topic_ids, sort_keys=True),
    }
    pairs = ", ".join(f"'{name}'='{value}'" for name, value in kept.items())
    spark.sql(f"ALTER TABLE {table.in_spark} SET TBLPROPERTIES ({pairs})")


def _expire(spark: Any, config: MaintainConfig, table: TableName, warehouse: Warehouse) -> int:
    if config.keep_snapshots is None:
        return 0
    catalog = open_catalog(warehouse)
    before = len(loaded(catalog, table).metadata.snapshots)
    spark.sql(
        f"""CALL {table.catalog}.system.expire_snapshots(
            table => '{table.in_spark}',
            older_than => {_hours_ago(config.snapshot_age_hours)},
            retain_last => {int(config.keep_snapshots)})"""
    ).collect()
    return before - len(loaded(catalog, table).metadata.snapshots)


def _hours_ago(hours: int) -> str:
    """Format a literal: a procedure takes no expressions.

    It names its zone: without one, Spark would read it in the session's.
    """
    moment = datetime.now(UTC) - timedelta(hours=hours)
    return f"TIMESTAMP '{moment:%Y-%m-%d %H:%M:%S.%f}+00:00'"


def _remove_orphans(
    spark: Any, config: MaintainConfig, table: TableName, *, is_remote: bool
) -> int:
    if config.orphan_age_hours is None:
        return 0
    hours = max(_ORPHAN_AGE_HOURS_MIN, config.orphan_age_hours)
    return len(
        spark.sql(
            f"""CALL {table.catalog}.system.remove_orphan_files(
                table => '{table.in_spark}',
                older_than => {_hours_ago(hours)},
                prefix_listing => {str(is_remote).lower()})"""
        ).collect()
    )
