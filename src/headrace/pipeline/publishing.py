"""Commits to an Iceberg table that other writers may change meanwhile.

Responsibilities: the commit of an archive's round, provided that no other writer has added the same
offsets; rows in the place of others. Knows no topics beyond their offsets, and no progress.

Iceberg validates overwrites, but not appends; and an overwrite, even of nothing, is invisible to
streaming and incremental readers of the table. So a commit takes two steps. Spark writes the files
and *stages* them: a snapshot with a write-audit-publish id, which no reader sees. Then its files
are added by an OverwriteFiles operation that replaces nothing, which Iceberg records as an append
and validates against the snapshot that the progress was read from. A kill between the steps leaves
a staged snapshot, which expires like others.

A merge is staged, too, and so is a round without rows: it becomes the current snapshot only if the
table still is what the progress was read from, by a commit that Iceberg compares and sets. Rows
that replace others are a deletion and an append on a branch, whose end becomes the current snapshot
in the same way.

Nessie has one snapshot for each table: readers would see what is staged, before anything compared
it. There a round is one overwrite of its own offsets, which Iceberg validates in the same way, and
which replaces rows, if at all, by the same. Its readers cannot stream, which needs earlier
snapshots; and there are no merges, which cannot be told which snapshot to follow.

Relies on this behaviour of Iceberg 1.12: `BaseOverwriteFiles.operation` is `append` if files are
added and none is deleted; compaction (`replace`) does not count as a conflict;
`TableOperations.commit` fails if the table's metadata is not the one that it is given any more.
"""

from __future__ import annotations

import logging
import re
from contextlib import contextmanager
from threading import Event, Thread
from time import time_ns
from typing import TYPE_CHECKING, Any, TypeVar
from uuid import uuid4

from headrace.pipeline.catalog import can_stage, loaded, open_catalog
from headrace.pipeline.errors import OptionInvalid, TableMoved, TableUnusable
from headrace.pipeline.planning import offset_of, walk
from headrace.pipeline.warehouse import Warehouse

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from headrace.pipeline.catalog import TableName
    from headrace.pipeline.planning import Offsets
    from headrace.pipeline.warehouse import Place

Result = TypeVar("Result")
_log = logging.getLogger(__name__)

WAP_PROPERTY = "write.wap.enabled"
"""The table property without which Spark ignores the id and does not stage."""
_WAP_ID = "wap.id"
_SNAPSHOT_PROPERTY = "spark.sql.iceberg.snapshot-property."
_MERGE = """MERGE INTO {table} t USING {rows} s
    ON t.topic = s.topic AND t.partition = s.partition AND t.key <=> s.key
    WHEN MATCHED AND s.value IS NULL AND s.offset > t.offset THEN DELETE
    WHEN MATCHED AND s.offset > t.offset THEN UPDATE SET *
    WHEN NOT MATCHED AND s.value IS NOT NULL THEN INSERT *"""
_BRANCH_KEPT_MS = 24 * 3_600_000
"""After how long without a renewal a branch is one of a writer that was killed."""
_RENEWED_EVERY_S = 3_600.0
_BRANCH = re.compile(r"headrace_(\d+)_[0-9a-f]{32}")  # do not change: stored
"""The name of a branch of ours says when it was made (in ms), which Iceberg does not."""
REPLACEMENTS_MAX = 10
_CONFLICTS = ("conflicting files", "ValidationException", "CommitFailedException")


def java_table(spark: Any, table: TableName) -> Any:
    """Iceberg's own object of a table, as it is now."""
    return spark._jvm.org.apache.iceberg.spark.Spark3Util.loadIcebergTable(  # noqa: SLF001 - pyspark has no public way
        spark._jsparkSession,  # noqa: SLF001
        table.in_spark,
    )


def check_replaceable(warehouse: Place, table: TableName) -> None:
    """Raise OptionInvalid, before a job reads, if `replace_rows` cannot replace rows in a catalog.

    Raises CatalogUnavailable.
    """
    place = Warehouse.at(warehouse, table.catalog)
    if place.rest and not can_stage(open_catalog(place)):
        raise OptionInvalid(
            f"Rows of {table.in_spark} cannot be replaced: its catalog, Nessie, keeps one snapshot"
            " of a table, and rows are replaced on a branch of it. Nothing was read or written."
            " Give --warehouse and --catalog of another catalog, such as a directory, for this"
            " table."
        )


def replace_rows(
    rows: Any, table: TableName, columns: str, replaced: str, *, spark: Any, added: str = ""
) -> None:
    """Put rows into a table instead of those `replaced` (SQL), in one commit.

    `columns` and `added` (DDL) are those of a table that is not there yet; an older table gets the
    `added` ones that it lacks. If another writer was first, the deletion begins again on what it
    wrote; the rows are computed once. (Iceberg's overwrite of a range refuses once compaction has
    put rows of two ranges into one file.) Raises OptionInvalid if the table is for other rows, of
    which `replaced` may name some, and TableMoved if others were first time after time. Callers
    look first whether the catalog can do this (`check_replaceable`).
    """
    name = table.in_spark
    listed = f"{columns}, {added}" if added else columns
    spark.sql(f"CREATE NAMESPACE IF NOT EXISTS {table.namespace_in_spark}")
    spark.sql(f"CREATE TABLE IF NOT EXISTS {name} ({listed}) USING iceberg")
    held = spark.table(name).columns
    if others := _lacking(columns, held):
        raise OptionInvalid(
            f"The table {name} is for other rows: it has no column {others[0].split()[0]}. Nothing"
            " was written. Give the name of another table; the first run creates it."
        )
    if lacking := _lacking(added, held):
        spark.sql(f"ALTER TABLE {name} ADD COLUMNS ({', '.join(lacking)})")
    files: list[Any] | None = None
    for _ in range(REPLACEMENTS_MAX):
        with _branch(spark, table) as (branch, since_snapshot_id):
            there = f"{name}.branch_{branch}"
            spark.sql(f"DELETE FROM {there} WHERE {replaced}")  # noqa: S608 - of callers
            if files is None:
                _renew(spark, table, branch)  # its snapshot is the deletion now, and young
                rows.writeTo(there).append()
                written = java_table(spark, table)
                files = list(written.snapshot(branch).addedDataFiles(written.io()))
            else:
                again = java_table(spark, table).newAppend().toBranch(branch)
                for file in files:
                    again.appendFile(file)
                again.commit()
            operations = java_table(spark, table).operations()
            staged = operations.current().ref(branch)
            if staged is None:
                raise TableMoved(
                    f"{name}: the branch {branch}, on which its rows were about to be replaced, was"
                    " removed meanwhile. Nothing was changed. Run this again."
                )
            staged_id = staged.snapshotId()
            if _set_current(spark, operations, staged_id, since_snapshot_id):
                return
    raise TableMoved(
        f"{name}: other writers changed the table each of {REPLACEMENTS_MAX} times that its rows"
        " were about to be replaced. Nothing was changed. Run this again when fewer are at work."
    )


def _lacking(columns: str, held: Sequence[str]) -> list[str]:
    listed = (one.strip() for one in columns.split(","))
    return [one for one in listed if one and one.split()[0] not in held]


@contextmanager
def _branch(spark: Any, table: TableName) -> Iterator[tuple[str, int | None]]:
    """A branch of the table as it is, which is dropped at the end, and the current snapshot.

    A thread renews it meanwhile, each hour: rows may take days to compute. Branches of writers that
    were killed are dropped with it.
    """
    now_ms = _wall_ms()
    name = f"headrace_{now_ms}_{uuid4().hex}"
    drop_stale_branches(spark, table, now_ms)

    def make() -> int | None:
        found = java_table(spark, table)
        current = found.currentSnapshot()
        since = None if current is None else int(current.snapshotId())
        made = found.manageSnapshots()
        made = made.createBranch(name) if since is None else made.createBranch(name, since)
        made.setMaxRefAgeMs(name, _age_ms(current, now_ms) + _BRANCH_KEPT_MS).commit()
        return since

    since = _repeated(make)
    is_over = Event()
    Thread(target=_keep_renewed, args=(spark, table, name, is_over), daemon=True).start()
    try:
        yield name, since
    finally:
        is_over.set()
        _drop_branches(spark, table, [name])


def _wall_ms() -> int:
    return time_ns() // 1_000_000


def _age_ms(snapshot: Any, now_ms: int) -> int:
    return 0 if snapshot is None else max(0, now_ms - int(snapshot.timestampMillis()))


def _repeated(change: Callable[[], Result]) -> Result:
    """Make a change of branches, again where another commit was first: Iceberg does not repeat
    these."""
    for left in reversed(range(REPLACEMENTS_MAX)):
        try:
            return change()
        except Exception as error:
            if not left or not _is_conflict(error):
                raise
    raise AssertionError("the last attempt returns or raises")


def _renew(spark: Any, table: TableName, name: str) -> None:
    """Keep a branch for a day from now. Iceberg, and tools for it, expire branches by the age of
    their snapshot, not by their own: that is what the limit counts from."""

    def change() -> None:
        found = java_table(spark, table)
        age_ms = _age_ms(found.snapshot(name), _wall_ms())
        found.manageSnapshots().setMaxRefAgeMs(name, age_ms + _BRANCH_KEPT_MS).commit()

    _repeated(change)


def _keep_renewed(spark: Any, table: TableName, name: str, is_over: Event) -> None:
    while not is_over.wait(_RENEWED_EVERY_S):
        try:
            _renew(spark, table, name)
        except Exception as error:  # noqa: BLE001 - Java's, of any kind; the next one may succeed
            if not is_over.is_set():
                why = str(error).partition("\n")[0]
                _log.warning("%s: branch %s is not renewed now: %s", table.in_spark, name, why)


def drop_stale_branches(spark: Any, table: TableName, now_ms: int) -> int:
    """Remove the branches that killed writers made and renewed a day ago or earlier; returns their
    number."""
    there = java_table(spark, table)
    found = [_BRANCH.fullmatch(name) for name in there.refs()]
    stale = [
        one[0]
        for one in found
        if one and now_ms - int(one[1]) > _BRANCH_KEPT_MS and not _is_kept(there, one[0], now_ms)
    ]
    return _drop_branches(spark, table, stale)


def _is_kept(table: Any, branch: str, now_ms: int) -> bool:
    """Whether a branch has been renewed; one without a limit is older than that."""
    limit_ms = table.refs()[branch].maxRefAgeMs()
    return limit_ms is not None and _age_ms(table.snapshot(branch), now_ms) <= int(limit_ms)


def _drop_branches(spark: Any, table: TableName, names: Sequence[str]) -> int:
    """Remove branches; returns how many. A failure is logged: what was to be written is written, or
    has an error of its own."""
    if not names:
        return 0

    def drop() -> int:
        there = java_table(spark, table)
        change, here = there.manageSnapshots(), [one for one in names if one in there.refs()]
        for name in here:
            change.removeBranch(name)
        if here:
            change.commit()
        return len(here)

    try:
        return _repeated(drop)
    except Exception as error:  # noqa: BLE001 - Java's, of any kind
        _log.warning(
            "%s: the branch %s could not be removed, and keeps its snapshots and files: %s. The"
            " rows are not affected. The first write or maintenance after a day removes it.",
            table.in_spark, ", ".join(names), str(error).splitlines()[0],
        )  # fmt: skip
        return 0


def _set_current(
    spark: Any, operations: Any, staged_id: int, since_snapshot_id: int | None
) -> bool:
    """Make a staged snapshot the current one in the place of `since_snapshot_id`, which the commit
    itself compares: of the metadata that `operations` have loaded there is one successor. False if
    the table has changed."""
    seen = operations.current()
    current = seen.currentSnapshot()
    if (current and current.snapshotId()) != since_snapshot_id:
        return False
    metadata = spark._jvm.org.apache.iceberg.TableMetadata  # noqa: SLF001 - pyspark has no public way
    changed = metadata.buildFrom(seen).setBranchSnapshot(staged_id, "main")
    try:
        operations.commit(seen, changed.build())
    except Exception as error:
        if _is_conflict(error):
            return False
        raise
    return True


def _is_conflict(error: Exception) -> bool:
    return any(phrase in str(error) for phrase in _CONFLICTS)


class Publisher:
    """Commits to one table. The session is its own: a commit is staged by a setting of it."""

    def __init__(self, spark: Any, table: TableName, catalog: Any) -> None:
        self._spark = spark
        self._table = table
        self._catalog = catalog

    def commit(
        self,
        frame: Any,
        start: Offsets,
        end: Offsets,
        *,
        since_snapshot_id: int | None,
        properties: Mapping[str, str],
    ) -> None:
        """Append the rows of `frame`, which are those of [start, end), with snapshot properties.

        Raises TableMoved if rows at or after `start` were added since the snapshot, or if a
        rollback removed it.
        """
        if not can_stage(self._catalog):
            self._overwrite(frame, start, end, since_snapshot_id, properties)
            return
        with self._staging(properties) as wap_id:
            frame.writeTo(self._table.in_spark).append()
        self._publish(self._staged(wap_id), start, end, since_snapshot_id, properties)

    def _overwrite(
        self,
        frame: Any,
        start: Offsets,
        end: Offsets,
        since_snapshot_id: int | None,
        properties: Mapping[str, str],
    ) -> None:
        """`commit` in one step."""
        writer = frame.writeTo(self._table.in_spark).option("isolation-level", "serializable")
        if since_snapshot_id is not None:
            writer = writer.option("validate-from-snapshot-id", since_snapshot_id)
        for name, value in properties.items():
            writer = writer.option(f"snapshot-property.{name}", value)
        with self._refusing():
            writer.overwrite(_within(start, end))

    def merge(
        self,
        frame: Any,
        *,
        since_snapshot_id: int | None,
        properties: Mapping[str, str],
    ) -> None:
        """Replace the rows of the keys in `frame` by its latest ones, and delete those whose latest
        record is a tombstone, with snapshot properties.

        A key is one of a partition, as for compaction. Raises TableMoved if the table has changed
        since the snapshot: a key that a later tombstone deleted would be inserted again.
        """
        from pyspark.sql import Window
        from pyspark.sql import functions as f

        latest = Window.partitionBy("topic", "partition", "key").orderBy(f.col("offset").desc())
        rows = frame.withColumn("_rank", f.row_number().over(latest))
        view = f"headrace_{uuid4().hex}"
        rows.where("_rank = 1").drop("_rank").createOrReplaceTempView(view)
        try:
            with self._staging(properties) as wap_id, self._refusing():
                self._spark.sql(_MERGE.format(table=self._table.in_spark, rows=view))
                if self._staged_or_none(wap_id) is None:  # nothing to change in an empty table
                    frame.where("false").writeTo(self._table.in_spark).append()
        finally:
            self._spark.catalog.dropTempView(view)
        self._advance(self._staged(wap_id), since_snapshot_id)

    @contextmanager
    def _staging(self, properties: Mapping[str, str]) -> Iterator[str]:
        """Yield the id under which the next commit is staged, with these snapshot properties."""
        wap_id = f"headrace-{uuid4().hex}"
        settings = {_SNAPSHOT_PROPERTY + name: value for name, value in properties.items()}
        settings["spark.wap.id"] = wap_id
        for name, value in settings.items():
            self._spark.conf.set(name, value)
        try:
            yield wap_id
        finally:
            for name in settings:
                self._spark.conf.unset(name)

    @contextmanager
    def _refusing(self) -> Iterator[None]:
        """Raise TableMoved where Iceberg refuses a commit because the table has changed."""
        try:
            yield
        except Exception as error:
            if _is_conflict(error):
                raise self._overtaken() from error
            raise

    def _advance(self, staged_id: int, since_snapshot_id: int | None) -> None:
        """Make the staged snapshot, which follows `since_snapshot_id`, the current one."""
        operations = java_table(self._spark, self._table).operations()
        staged = operations.current().snapshot(staged_id)
        follows = staged is not None and staged.parentId() == since_snapshot_id
        if not follows or not _set_current(self._spark, operations, staged_id, since_snapshot_id):
            raise self._overtaken()

    @property
    def _iceberg(self) -> Any:
        return self._spark._jvm.org.apache.iceberg  # noqa: SLF001 - pyspark has no public way

    def _overtaken(self) -> TableMoved:
        return TableMoved(
            f"{self._table.in_spark}: another writer changed the table during this round, which was"
            " not committed. Run the archive again; if this repeats, end the other writer."
        )

    def _staged_or_none(self, wap_id: str) -> Any:
        table = loaded(self._catalog, self._table)
        for snapshot in reversed(table.snapshots()):
            if snapshot.summary and snapshot.summary.additional_properties.get(_WAP_ID) == wap_id:
                if snapshot.snapshot_id == table.metadata.current_snapshot_id:
                    raise TableUnusable(
                        f"{self._table.in_spark}: the catalog made a staged snapshot the current"
                        " one, so that two writers could undo each other's commits. The round is in"
                        " the table. Keep topics' tables in another catalog."
                    )
                return snapshot
        return None

    def _staged(self, wap_id: str) -> int:
        """The id of the staged snapshot."""
        staged = self._staged_or_none(wap_id)
        if staged is not None:
            return int(staged.snapshot_id)
        raise TableMoved(
            f"{self._table.in_spark}: the files of this round were not staged, or their snapshot"
            f" has expired. The table property {WAP_PROPERTY} must be true; an archive sets it"
            " when it starts."
        )

    def _publish(
        self,
        staged_id: int,
        start: Offsets,
        end: Offsets,
        since_snapshot_id: int | None,
        properties: Mapping[str, str],
    ) -> None:
        table = java_table(self._spark, self._table)
        files = list(table.snapshot(staged_id).addedDataFiles(table.io()))
        if not files:
            # Iceberg would record an overwrite without files as such, and validates no append.
            self._advance(staged_id, since_snapshot_id)
            return
        update = table.newOverwrite()
        for file in files:
            update.addFile(file)
        update.conflictDetectionFilter(_beyond(self._iceberg.expressions.Expressions, start, end))
        update.validateNoConflictingData()
        if since_snapshot_id is not None:
            update.validateFromSnapshot(since_snapshot_id)
        for name, value in properties.items():
            update.set(name, value)
        with self._refusing():
            update.commit()


def _within(start: Offsets, end: Offsets) -> Any:
    """The column "records of this round"."""
    from pyspark.sql import functions as f

    found = f.lit(False)
    for topic, partition, last in walk(end):
        begin = offset_of(start, topic, partition, 0)
        if last > begin:
            place = (f.col("topic") == topic) & (f.col("partition") == partition)
            found |= place & (f.col("offset") >= begin) & (f.col("offset") < last)
    return found


def _beyond(expressions: Any, start: Offsets, end: Offsets) -> Any:
    """The expression "partitions of this round, from its offsets on"."""
    both, either = getattr(expressions, "and"), getattr(expressions, "or")
    found = expressions.alwaysFalse()
    for topic, partition, offset in walk(end):
        begin = offset_of(start, topic, partition, 0)
        if offset > begin:
            place = both(
                expressions.equal("topic", topic), expressions.equal("partition", partition)
            )
            found = either(found, both(place, expressions.greaterThanOrEqual("offset", begin)))
    return found
