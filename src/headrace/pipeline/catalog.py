"""Iceberg tables without a JVM: their catalog, a table's progress, and its lease.

Invariants: pyiceberg reads what Spark writes, and both use the same catalog name. The table itself
is the only record of an archive's progress: there is no checkpoint to lose.
"""

from __future__ import annotations

import fcntl
import json
import re
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from headrace.pipeline.errors import (
    CATALOG_REFUSALS,
    CatalogUnavailable,
    OptionInvalid,
    TableUnusable,
)
from headrace.pipeline.leases import hold
from headrace.pipeline.planning import Offsets, build, larger, walk
from headrace.records.tenant_names import key_of
from headrace.storage.tiering.table_catalog import CATALOG, rest_catalog, table_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from headrace.pipeline.position import TopicIds
    from headrace.pipeline.warehouse import Warehouse

SHARED_TABLE = "headrace.archive"
"""What earlier versions archived all topics into by default."""
_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_WORD = re.compile(r"`([^`]+)`|([A-Za-z0-9_]+)")
_NAME = re.compile(
    r"(?:`[A-Za-z0-9._ -]+`|[A-Za-z0-9_]+)(?:\.(?:`[A-Za-z0-9._ -]+`|[A-Za-z0-9_]+)){1,2}"
)
MODE_PROPERTY = "headrace.mode"  # do not change: stored
APPEND, UPSERT = "append", "upsert"  # do not change: stored
OFFSETS_PROPERTY = "headrace.offsets"  # do not change: stored
OFFSETS_AT_PROPERTY = "headrace.offsets-at"  # do not change: stored
"""Of a table whose properties have ends: the snapshot that was current then, as JSON. A rollback
changes no property, so ends of a snapshot that it removed are known by this."""
TOPIC_IDS_PROPERTY = "headrace.topic-ids"  # do not change: stored
COMPLETE_PROPERTY = "headrace.complete-until-ms"  # do not change: stored
"""Of a snapshot: until when the one before it held all that was in the log."""
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
        """`namespace.name`, or `catalog.namespace.name`; other words than identifiers are written
        in backticks. Raises OptionInvalid."""
        words = [quoted or plain for quoted, plain in _WORD.findall(text)]
        if len(words) == 2:
            words = [CATALOG, *words]
        if len(words) != 3 or not _NAME.fullmatch(text):
            raise OptionInvalid(
                f"A table is named [catalog.]namespace.name, not {text!r}. Put words that have"
                " other characters than letters, digits and _ into backticks: headrace.`my-topic`."
            )
        return cls(*words)

    @classmethod
    def of_topic(cls, topic: str) -> TableName:
        """The table of its own that a topic has by default: in a namespace of its tenant's own."""
        return cls(CATALOG, *table_of(topic))

    @property
    def in_spark(self) -> str:
        """The name in Spark SQL."""
        return ".".join(map(_quoted, self))

    @property
    def namespace_in_spark(self) -> str:
        """The namespace in Spark SQL."""
        return ".".join(map(_quoted, self[:2]))

    @property
    def in_catalog(self) -> tuple[str, str]:
        """The name within the catalog."""
        return (self.namespace, self.name)


def _quoted(word: str) -> str:
    return word if _IDENTIFIER.fullmatch(word) else f"`{word}`"


class Progress(NamedTuple):
    """The archived offsets and topic ids of a table, and the snapshot they were read from."""

    offsets: Offsets
    snapshot_id: int | None
    topic_ids: TopicIds
    record_bytes: float | None = None
    """The mean size of a record in the table's files; None without files."""
    table_uuid: str = ""


class Ancestry(NamedTuple):
    """The current snapshot and its ancestors."""

    ids: frozenset[int]
    """Of those that have not expired."""
    oldest_sequence: int
    """The sequence number of the oldest of them: expired ones have smaller numbers. -1: there is no
    snapshot. Whether the oldest has a parent says nothing: pyiceberg removes that of expired ones.
    """

    @classmethod
    def of(cls, snapshots: Iterable[tuple[int, int]]) -> Ancestry:
        """Of id and sequence number of the snapshots."""
        sequences = dict(snapshots)
        return cls(frozenset(sequences), min(sequences.values(), default=-1))

    def may_contain(self, snapshot_id: int, sequence: int) -> bool:
        """False only if the snapshot is certainly none of them, so that a rollback removed it."""
        return snapshot_id in self.ids or sequence <= self.oldest_sequence


_LOCK: Final = ".catalog.lock"
_LEASES: Final = ".leases"


def open_catalog(warehouse: Warehouse) -> Any:
    """The shared catalog, opened with pyiceberg. Raises CatalogUnavailable, OptionInvalid."""
    if warehouse.rest:
        with _answering(warehouse.rest):
            return rest_catalog(warehouse.catalog, warehouse.python_properties())
    from pyiceberg.catalog.sql import SqlCatalog
    from sqlalchemy.exc import DatabaseError, OperationalError

    try:
        with creating(warehouse):
            return SqlCatalog(warehouse.catalog, **warehouse.python_properties())
    except DatabaseError as error:
        if isinstance(error, OperationalError):  # its lock, or the disk
            raise
        raise OptionInvalid(
            f"{warehouse.catalog_file} is no catalog of tables: {error.orig}. Nothing was read or"
            " written. Restore the file, or give another warehouse."
        ) from error


def can_stage(catalog: Any) -> bool:
    """Whether a snapshot can be in a table without being the current one. Nessie has branches and
    tags of the whole catalog instead."""
    return bool(catalog.properties.get("nessie.is-nessie-catalog") != "true")


@contextmanager
def _answering(url: str) -> Iterator[None]:
    """Raise CatalogUnavailable, or OptionInvalid, where a REST catalog does not do what it is asked
    to, instead of its library's errors."""
    from pyiceberg import exceptions
    from requests import RequestException

    try:
        yield
    except (exceptions.RESTError, RequestException) as error:
        if type(error).__name__.removesuffix("Error") in CATALOG_REFUSALS:
            raise OptionInvalid(
                f"The catalog {url} refuses the request: {_first_line(error)}. Check --warehouse,"
                " and the login in HEADRACE_CATALOG_TOKEN or HEADRACE_CATALOG_CREDENTIAL"
                " (ID:SECRET)."
            ) from error
        raise CatalogUnavailable(
            f"The catalog {url} does not answer: {_first_line(error)}. Check that it runs and that"
            " this machine reaches it; the same command continues."
        ) from error


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0][:200].rstrip(".")


@contextmanager
def creating(warehouse: Warehouse) -> Iterator[None]:
    """Hold the lock under which the catalog's own tables, and namespaces, are created: pyiceberg
    and Iceberg look whether they are there, and then create them."""
    warehouse.make_folder(_LOCK)
    with (warehouse.folder / _LOCK).open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def loaded(catalog: Any, table: TableName) -> Any:
    """A table that exists, loaded. Raises CatalogUnavailable, OptionInvalid."""
    with _answering(catalog.properties["uri"]):
        return catalog.load_table(table.in_catalog)


def load_table_or_none(catalog: Any, table: TableName) -> Any:
    """Load the table, or return None if it does not exist."""
    from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError

    try:
        return loaded(catalog, table)
    except (NoSuchTableError, NoSuchNamespaceError):
        return None


def load_table(warehouse: Warehouse, table: TableName) -> Any:
    """Load the table. Raises OptionInvalid if it does not exist."""
    found = load_table_or_none(open_catalog(warehouse), table) if warehouse.is_there else None
    if found is None:
        raise OptionInvalid(
            f"There is no table {table.in_spark} in the warehouse {warehouse}. Check"
            " both names; the first run of an archive creates the table."
        )
    return found


def table_of_topic(warehouse: Warehouse, topic: str) -> TableName:
    """The table that a topic is archived into unless one is named: its own.

    If an earlier version archived the topic into the shared table, that continues. `topic` may be
    `acme/orders`. (No version has archived into a table that is named as Kafka's protocol names a
    tenant's topic: `TableName.parse` refuses the marks.)
    """
    key = key_of(topic)
    if warehouse.is_there:
        shared = TableName.parse(SHARED_TABLE)
        found = load_table_or_none(open_catalog(warehouse), shared)
        if found is not None and key in read_progress(found).offsets:
            return shared
    return TableName.of_topic(key)


def check_mode(table: Any, mode: str) -> None:
    """Raise TableUnusable if a table was made for the other mode."""
    present = table.properties.get(MODE_PROPERTY, APPEND)
    if present != mode:
        raise _unusable(
            f"it is in mode {present}, and mode {mode} was asked for: rows of the one are no rows"
            f" of the other. Ask for mode {present}, or name another table."
        )


def read_progress(table: Any) -> Progress:
    """Return the next offset of each partition, from the table's files, snapshots and properties.

    Files give the offsets that they hold; if the log has holes, the recorded ends may be larger.
    The largest value is correct, because each is written only after the records below it. For topic
    ids, the latest value wins. What a snapshot recorded that a rollback removed does not count.
    Raises TableUnusable if the table was altered so that they are not found.
    """
    from pyiceberg.table.snapshots import ancestors_of

    check_layout(table)
    snapshots = list(ancestors_of(table.current_snapshot(), table.metadata))
    ancestry = Ancestry.of((one.snapshot_id, one.sequence_number or 0) for one in snapshots)
    offsets = kept_offsets(table.properties, ancestry)
    topic_ids, uuid = recorded_topic_ids(table.properties), str(table.metadata.table_uuid)
    if not snapshots:
        return Progress(offsets, None, topic_ids, None, uuid)
    snapshot = snapshots[0]
    recorded_ids: TopicIds = {}
    offsets = larger(_from_files(table), offsets)
    for each in snapshots:
        if each.summary is not None:
            summary = each.summary.additional_properties
            offsets = larger(offsets, recorded_offsets(summary))
            recorded_ids = recorded_topic_ids(summary) | recorded_ids
    ids = topic_ids | recorded_ids
    return Progress(offsets, snapshot.snapshot_id, ids, _record_bytes(snapshot.summary), uuid)


def _record_bytes(summary: Any) -> float | None:
    totals = {} if summary is None else summary.additional_properties
    count, size = int(totals.get("total-records", 0)), int(totals.get("total-files-size", 0))
    return size / count if count else None


def recorded_topic_ids(properties: Any) -> TopicIds:
    """The topic ids in a snapshot's summary or a table's properties. Raises TableUnusable."""
    return _json_of(properties, TOPIC_IDS_PROPERTY)


def recorded_offsets(properties: Any) -> Offsets:
    """The archive's ends in a snapshot's summary or a table's properties. Raises TableUnusable."""
    found = _json_of(properties, OFFSETS_PROPERTY)
    try:
        return build([(topic, part, int(end)) for topic, part, end in walk(found)])
    except (AttributeError, TypeError, ValueError) as error:
        raise _unusable(
            f"its property {OFFSETS_PROPERTY} holds {str(found)[:_SHOWN_MAX]!r}, not offsets by"
            f" topic and partition. {_PROPERTY_STEP}"
        ) from error


def kept_offsets(properties: Any, ancestry: Ancestry) -> Offsets:
    """The ends in a table's properties; none if a rollback removed the snapshot that had them.

    Without OFFSETS_AT_PROPERTY, an earlier version or a person set them: they count. So they do if
    that snapshot has expired and may have been an ancestor. Raises TableUnusable.
    """
    at = _json_of(properties, OFFSETS_AT_PROPERTY)
    try:
        is_kept = not at or ancestry.may_contain(int(at["snapshot"]), int(at["sequence"]))
    except (KeyError, TypeError, ValueError) as error:
        raise _unusable(
            f"its property {OFFSETS_AT_PROPERTY} holds {str(at)[:_SHOWN_MAX]!r}, not a snapshot"
            f" with its sequence number. {_PROPERTY_STEP}"
        ) from error
    return recorded_offsets(properties) if is_kept else {}


def offsets_properties(table: Any, offsets: Offsets) -> dict[str, str]:
    """The properties that keep the ends of a table as it was loaded."""
    snapshot = table.current_snapshot()
    at = {}
    if snapshot is not None:
        at = {"snapshot": snapshot.snapshot_id, "sequence": snapshot.sequence_number or 0}
    return {
        OFFSETS_PROPERTY: json.dumps(offsets, sort_keys=True),
        OFFSETS_AT_PROPERTY: json.dumps(at),
    }


def _json_of(properties: Any, name: str) -> dict[str, Any]:
    text = (properties or {}).get(name)
    if text is None:
        return {}
    try:
        return dict(json.loads(text))
    except (ValueError, TypeError) as error:
        raise _unusable(
            f"its property {name} holds {text[:_SHOWN_MAX]!r}, not a JSON object. {_PROPERTY_STEP}"
        ) from error


def _unusable(what: str) -> TableUnusable:
    return TableUnusable(
        f"The table cannot be used for an archive: {what} Or archive into a new table."
    )


_SHOWN_MAX = 80
_PROPERTY_STEP = (
    "It is in the table's properties or in a snapshot's summary: roll the table back to a"
    " snapshot before the change, or unset the property (ALTER TABLE ... UNSET TBLPROPERTIES)."
)
_NEEDED = {"topic": "string", "partition": "int", "offset": "long"}
"""The columns by which progress is found, with their Iceberg types."""


def check_layout(table: Any) -> None:
    """Raise TableUnusable unless progress can be read: columns of a record's position, and
    partitions by topic and partition."""
    present = {field.name: str(field.field_type) for field in table.schema().fields}
    for name, kind in _NEEDED.items():
        if present.get(name) != kind:
            found = "is missing" if name not in present else f"has the type {present[name]}"
            raise _unusable(f"the column {name} {found}, but must be a {kind}. Restore it.")
    _partition_columns(table, table.spec())


def _partition_columns(table: Any, spec: Any) -> tuple[int, int]:
    """The places of topic and partition in the partition values of files of this spec."""
    sources = {
        field.source_id: index
        for index, field in enumerate(spec.fields)
        if str(field.transform) == "identity"
    }
    found = [sources.get(table.schema().find_field(name).field_id) for name in _PARTITIONED_BY]
    if None in found:
        raise _unusable(
            f"its partitioning ({spec.spec_id}) is {str(spec.fields)[:_SHOWN_MAX]}, and does not"
            " contain topic and partition as they are, by which the archive finds its place."
            " Restore it (ALTER TABLE ... ADD PARTITION FIELD topic; the same for partition), and"
            " rewrite the files that were written without it (rewrite_data_files with"
            " rewrite-all)."
        )
    topic, partition = found
    assert topic is not None, "checked above"
    assert partition is not None, "checked above"
    return topic, partition


_PARTITIONED_BY = ("topic", "partition")


def _from_files(table: Any) -> Offsets:
    offset_field = table.schema().find_field("offset").field_id
    places = {}
    offsets: Offsets = {}
    for task in table.scan().plan_files():
        data = task.file
        if data.spec_id not in places:
            places[data.spec_id] = _partition_columns(table, table.specs()[data.spec_id])
        topic, partition = (data.partition[place] for place in places[data.spec_id])
        bound = (data.upper_bounds or {}).get(offset_field)
        if bound is None or topic is None or partition is None:
            raise _unusable(
                f"the file {data.file_path} has no upper bound of offset, or no topic or"
                " partition: another writer added it. Remove its rows, or set the table property"
                " write.metadata.metrics.column.offset=full and rewrite its files (CALL"
                " headrace.system.rewrite_data_files with rewrite-all)."
            )
        end = int.from_bytes(bound, "little", signed=True) + 1
        offsets = larger(offsets, {topic: {str(partition): end}})
    return offsets


WRITTEN, MAINTAINED = "written", "maintained"
"""The purpose of a lease. Archive and maintenance do not exclude each other: maintenance changes no
records."""


@contextmanager
def lease(warehouse: Warehouse, table: TableName, purpose: str = WRITTEN) -> Iterator[None]:
    """Hold the machine-wide lease of `table` for this purpose. Raises LeaseHeld immediately, and
    OptionInvalid.

    The kernel releases it when the process dies. It only avoids wasted work: the table's
    compare-and-set prevents two writers from both succeeding (see jobs/archive.py).
    """
    name = table.in_spark if purpose == WRITTEN else f"{table.in_spark}.{purpose}"
    warehouse.make_folder(f"{_LEASES}/{name}")
    with hold(warehouse.folder / _LEASES / name, f"{table.in_spark} is being {purpose}"):
        yield
