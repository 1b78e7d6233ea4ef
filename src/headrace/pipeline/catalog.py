"""Iceberg tables without a JVM: the SQLite catalog, a table's progress, and its lease.

Invariants: pyiceberg reads what Spark writes, and both use the same catalog name. The table itself
is the only record of an archive's progress: there is no checkpoint to lose.
"""

from __future__ import annotations

import fcntl
import json
import os
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from headrace.pipeline.errors import LeaseHeld, OptionInvalid
from headrace.pipeline.planning import Offsets, larger
from headrace.pipeline.session import CATALOG, Warehouse

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headrace.pipeline.position import TopicIds

OFFSETS_PROPERTY = "headrace.offsets"  # do not change: stored
TOPIC_IDS_PROPERTY = "headrace.topic-ids"  # do not change: stored
ADDED_COLUMNS = {
    "timestampType": "int",
    "raw": "struct<timestampMs: bigint, headerKeys: array<binary>>",
}
"""Columns that tables of earlier versions lack, with their SQL types; an archive adds them."""


class TableName(NamedTuple):
    """A table in a namespace of a catalog."""

    catalog: str
    namespace: str
    name: str

    @classmethod
    def parse(cls, text: str) -> TableName:
        """`namespace.name`, or `catalog.namespace.name`. Raises OptionInvalid."""
        words = text.split(".")
        if len(words) == 2:
            words = [CATALOG, *words]
        if len(words) != 3 or not all(word.replace("_", "").isalnum() for word in words):
            raise OptionInvalid(f"A table is named [catalog.]namespace.name, not {text!r}.")
        return cls(*words)

    @property
    def in_spark(self) -> str:
        """The name in Spark SQL."""
        return f"{self.catalog}.{self.namespace}.{self.name}"

    @property
    def in_catalog(self) -> tuple[str, str]:
        """The name within the catalog."""
        return (self.namespace, self.name)


class Progress(NamedTuple):
    """The archived offsets and topic ids of a table, and the snapshot they were read from."""

    offsets: Offsets
    snapshot_id: int | None
    topic_ids: TopicIds
    record_bytes: float | None = None
    """The mean size of a record in the table's files; None without files."""


def open_catalog(warehouse: Warehouse) -> Any:
    """The shared catalog, opened with pyiceberg."""
    from pyiceberg.catalog.sql import SqlCatalog

    warehouse.folder.mkdir(parents=True, exist_ok=True)
    return SqlCatalog(
        warehouse.catalog,
        uri=f"sqlite:///{warehouse.catalog_file.resolve()}?timeout=30",
        warehouse=f"file://{warehouse.folder.resolve()}",
    )


def load_table_or_none(catalog: Any, table: TableName) -> Any:
    """Load the table, or return None if it does not exist."""
    from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError

    try:
        return catalog.load_table(table.in_catalog)
    except (NoSuchTableError, NoSuchNamespaceError):
        return None


def load_table(warehouse: Warehouse, table: TableName) -> Any:
    """Load the table. Raises OptionInvalid if it does not exist."""
    # Opening a catalog creates it.
    is_there = warehouse.catalog_file.is_file()
    found = load_table_or_none(open_catalog(warehouse), table) if is_there else None
    if found is None:
        raise OptionInvalid(
            f"There is no table {table.in_spark} in the warehouse {warehouse.folder}. Check"
            " both names; the first run of an archive creates the table."
        )
    return found


def read_progress(table: Any) -> Progress:
    """Return the next offset of each partition, from the table's files, snapshots and properties.

    Files give the offsets that they hold; if the log has holes, the recorded ends may be larger.
    The largest value is correct, because each is written only after the records below it. For topic
    ids, the latest value wins.
    """
    snapshot = table.current_snapshot()
    topic_ids = _json_of(table.properties, TOPIC_IDS_PROPERTY)
    if snapshot is None:
        return Progress(_recorded(table.properties), None, topic_ids)
    recorded_ids: TopicIds = {}
    offsets = larger(_from_files(table), _recorded(table.properties))
    # Ancestors only: a snapshot that a rollback removed still exists, but its records do not count.
    each = snapshot
    while each is not None:
        if each.summary is not None:
            summary = each.summary.additional_properties
            offsets = larger(offsets, _recorded(summary))
            recorded_ids = _json_of(summary, TOPIC_IDS_PROPERTY) | recorded_ids
        parent = each.parent_snapshot_id
        each = None if parent is None else table.metadata.snapshot_by_id(parent)
    ids = topic_ids | recorded_ids
    return Progress(offsets, snapshot.snapshot_id, ids, _record_bytes(snapshot.summary))


def _record_bytes(summary: Any) -> float | None:
    totals = {} if summary is None else summary.additional_properties
    count, size = int(totals.get("total-records", 0)), int(totals.get("total-files-size", 0))
    return size / count if count else None


def _recorded(properties: Any) -> Offsets:
    return _json_of(properties, OFFSETS_PROPERTY)


def _json_of(properties: Any, name: str) -> dict[str, Any]:
    text = (properties or {}).get(name)
    return {} if text is None else dict(json.loads(text))


def _from_files(table: Any) -> Offsets:
    offset_field = table.schema().find_field("offset").field_id
    offsets: Offsets = {}
    for task in table.scan().plan_files():
        data = task.file
        bound = (data.upper_bounds or {}).get(offset_field)
        assert bound is not None, f"{data.file_path} has no bounds for the column offset"
        topic, partition = data.partition[0], data.partition[1]
        end = int.from_bytes(bound, "little", signed=True) + 1
        offsets = larger(offsets, {topic: {str(partition): end}})
    return offsets


WRITTEN, MAINTAINED = "written", "maintained"
"""The purpose of a lease. Archive and maintenance do not exclude each other: maintenance changes no
records."""


@contextmanager
def lease(warehouse: Warehouse, table: TableName, purpose: str = WRITTEN) -> Iterator[None]:
    """Hold the machine-wide lease of `table` for this purpose. Raises LeaseHeld immediately.

    The kernel releases it when the process dies. It only avoids wasted work: the table's
    compare-and-set prevents two writers from both succeeding (see jobs/archive.py).
    """
    folder = warehouse.folder / ".leases"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / (table.in_spark if purpose == WRITTEN else f"{table.in_spark}.{purpose}")
    with path.open("a+") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            stream.seek(0)
            holder = stream.read().strip() or "unknown"
            raise LeaseHeld(
                f"{table.in_spark} is being {purpose} by process {holder}. Wait for it, or stop "
                "it.",
                holder=holder,
            ) from error
        stream.truncate(0)
        stream.write(str(os.getpid()))
        stream.flush()
        yield
