"""Appends rows to an Iceberg table, provided that no other writer has added the same offsets.

Responsibilities: the commit of a round. Knows no topics beyond their offsets, and no progress.

Iceberg validates overwrites, but not appends; and an overwrite, even of nothing, is invisible to
streaming and incremental readers of the table. So a commit takes two steps. Spark writes the files
and *stages* them: a snapshot with a write-audit-publish id, which no reader sees. Then its files
are added by an OverwriteFiles operation that replaces nothing, which Iceberg records as an append
and validates against the snapshot that the progress was read from. A kill between the steps leaves
a staged snapshot, which expires like others.

Relies on this behaviour of Iceberg 1.12: `BaseOverwriteFiles.operation` is `append` if files are
added and none is deleted; compaction (`replace`) does not count as a conflict.
"""

from __future__ import annotations

from threading import Lock
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from headrace.pipeline.errors import TableMoved
from headrace.pipeline.planning import offset_of, walk

if TYPE_CHECKING:
    from collections.abc import Mapping

    from headrace.pipeline.catalog import TableName
    from headrace.pipeline.planning import Offsets

WAP_PROPERTY = "write.wap.enabled"
"""The table property without which Spark ignores the id and does not stage."""
_WAP_ID = "wap.id"
_CONFLICTS = ("conflicting files", "ValidationException")


_staging = Lock()
"""The id is a setting of the session, which several archives of a process may share."""


class Publisher:
    """Commits to one table."""

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

        Raises TableMoved if rows at or after `start` were added since the snapshot.
        """
        wap_id = f"headrace-{uuid4().hex}"
        with _staging:
            self._spark.conf.set("spark.wap.id", wap_id)
            try:
                frame.writeTo(self._table.in_spark).append()
            finally:
                self._spark.conf.unset("spark.wap.id")
        self._publish(self._staged(wap_id), start, end, since_snapshot_id, properties)

    def _staged(self, wap_id: str) -> int:
        """The id of the staged snapshot."""
        for snapshot in reversed(self._catalog.load_table(self._table.in_catalog).snapshots()):
            if snapshot.summary and snapshot.summary.additional_properties.get(_WAP_ID) == wap_id:
                return int(snapshot.snapshot_id)
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
        from py4j.protocol import Py4JJavaError

        jvm = self._spark._jvm  # noqa: SLF001 - pyspark has no public way
        table = jvm.org.apache.iceberg.spark.Spark3Util.loadIcebergTable(
            self._spark._jsparkSession,  # noqa: SLF001
            self._table.in_spark,
        )
        files = list(table.snapshot(staged_id).addedDataFiles(table.io()))
        # Without files an overwrite would be recorded as such, and nothing can conflict.
        update = table.newOverwrite() if files else table.newAppend()
        for file in files:
            update.addFile(file)
        if files:
            expressions = jvm.org.apache.iceberg.expressions.Expressions
            update.conflictDetectionFilter(_beyond(expressions, start, end))
            update.validateNoConflictingData()
            if since_snapshot_id is not None:
                update.validateFromSnapshot(since_snapshot_id)
        for name, value in properties.items():
            update.set(name, value)
        try:
            update.commit()
        except Py4JJavaError as error:
            if any(phrase in str(error) for phrase in _CONFLICTS):
                raise TableMoved(
                    f"{self._table.in_spark}: another writer committed these offsets."
                ) from error
            raise


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
