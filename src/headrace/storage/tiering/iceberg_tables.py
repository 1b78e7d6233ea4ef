"""The data files of topics' Iceberg tables, protected by tags.

Invariants: adds and removes tags of its own, and changes nothing else. A tag without expiry keeps
its snapshot, and a snapshot keeps its files from expiry, compaction and orphan removal. A REST
catalog has maintenance of its own, which may not heed tags: its tables are refused unless they, or
the catalog, say that it does. Runs in threads: a catalog may take seconds.
"""

from __future__ import annotations

import asyncio
import json
import struct
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from headrace.errors import HeadraceError, RequestInvalid, StorageUnavailable
from headrace.runtime.disk import SystemDisk
from headrace.storage.tiering.blob_store import sync_file
from headrace.storage.tiering.recipe_format import TableFile
from headrace.storage.tiering.table_catalog import (
    NAMESPACE,
    TENANT_NAMESPACE,
    TableCatalog,
    table_of,
    topic_of,
)
from headrace.storage.tiering.table_files import ProtectedFiles, Protection
from headrace.storage.tiering.table_sources import TableSources
from headrace.storage.tiering.table_tags import TableTag

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from headrace.runtime.disk import Disk
    from headrace.storage.ledger import LedgerId
    from headrace.storage.tiering.table_files import TablePlace

SETTLED: Final = "headrace.offsets"
"""The table's property: the ends of the partitions when maintenance last ran."""
SETTLED_AT: Final = "headrace.offsets-at"
"""And the snapshot that was current then: after a rollback to an earlier one, rows up to these ends
are written again, and not compacted yet."""
_FOREVER_MS: Final = 2**63 - 1
_ATTEMPTS: Final = 5
_DIGESTS_MAX: Final = 256
_SYNCED_MAX: Final = 4096
_OFFSET: Final = struct.Struct("<q")


class IcebergTables:
    """See TableFiles."""

    def __init__(self, catalog: TableCatalog, owner: str, disk: Disk | None = None) -> None:
        """`owner` is the prefix of the objects: clusters may share a table."""
        self._catalog = catalog
        self._owner = owner
        self._disk = disk or SystemDisk()
        self._sources = TableSources()
        self._digests: dict[tuple[str, int], str] = {}
        self._synced: dict[str, None] = {}
        """Metadata files, which do not change once written."""

    @classmethod
    def open(cls, tables: str, owner: str, catalog: str = "") -> IcebergTables:
        """The tables of a warehouse (see TableCatalog). Raises RequestInvalid."""
        try:
            import pyarrow.parquet  # noqa: F401 - that it is there
            import pyiceberg.catalog.sql  # noqa: F401
        except ImportError as error:
            raise RequestInvalid(
                f"--tables needs a package that is not installed ({error.name}): pip install"
                " 'headrace[pipeline]'"
            ) from error
        return cls(TableCatalog(tables, catalog), owner)

    async def settled(self, topic: str) -> Mapping[int, int]:
        """See TableFiles."""
        found: Mapping[int, int] = await self._in_thread(self._settled, topic)
        return found

    async def protect(
        self, place: TablePlace, base_offset: int, end_offset: int
    ) -> ProtectedFiles | None:
        """See TableFiles."""
        found: ProtectedFiles | None = await self._in_thread(
            self._protect, place, base_offset, end_offset
        )
        return found

    async def is_protected(self, topic: str, ledger: LedgerId, snapshot: int) -> bool:
        """See TableFiles."""
        return bool(await self._in_thread(self._is_protected, topic, ledger, snapshot))

    async def protected(self, topics: Collection[str]) -> Protection:
        """See TableFiles."""
        found: Protection = await self._in_thread(self._protected, topics)
        return found

    async def release(self, topic: str, ledger: LedgerId, snapshot: int | None = None) -> None:
        """See TableFiles."""
        await self._in_thread(self._release, topic, ledger, snapshot)

    def close(self) -> None:
        """See TableFiles."""
        self._sources.close()

    # --- in a thread ---------------------------------------------------------------------------

    def _settled(self, topic: str) -> Mapping[int, int]:
        table = self._table(topic)
        if table is None:
            return {}
        self._check(topic, table)
        try:
            at = json.loads(table.properties.get(SETTLED_AT, "{}")).get("snapshot")
            if at is not None and at not in _current_and_ancestors(table):
                return {}
            offsets = json.loads(table.properties.get(SETTLED, "{}")).get(topic, {})
            return {int(partition): int(end) for partition, end in offsets.items()}
        except (ValueError, AttributeError, TypeError):  # altered by hand: nothing is settled
            return {}

    def _check(self, topic: str, table: Any) -> None:
        reason = self._catalog.why_not(table)
        if reason is not None:
            raise StorageUnavailable(
                f"the table of {topic} may not have the only copy of records, for {reason}: object"
                " storage keeps them; otherwise set headrace.table.replaces.objects=false"
            )

    def _protect(self, place: TablePlace, base: int, end: int) -> ProtectedFiles | None:
        table = self._table(place.topic)
        if table is not None:
            self._check(place.topic, table)
        tag = None if table is None else self._tag_of(table, place.ledger)
        if tag is None:
            tag = self._add_tag(place, base, end)
        # Of the snapshot that the catalog says is tagged, whatever happened since it was read.
        table = self._table(place.topic)
        known = None if table is None or tag is None else table.refs().get(tag.name)
        if known is None or table.snapshot_by_id(known.snapshot_id) is None:
            return None
        found = self._planned(table, known.snapshot_id, place, base, end)
        if not found:  # it was tagged for an earlier ledger of this number
            self._release(place.topic, place.ledger, known.snapshot_id)
            return None
        paths = sorted((path, size) for path, size, _ in found)
        files = [TableFile(path, size, self._digest(path, size)) for path, size in paths]
        self._sync_metadata(table, known.snapshot_id)
        return ProtectedFiles(known.snapshot_id, files)

    def _add_tag(self, place: TablePlace, base: int, end: int) -> TableTag | None:
        """Tag the current snapshot, again if the table changed meanwhile, as in maintenance."""
        from pyiceberg.exceptions import CommitFailedException

        for left in reversed(range(_ATTEMPTS)):
            table = self._table(place.topic)
            snapshot = None if table is None else table.current_snapshot()
            if snapshot is None:
                return None
            found = self._planned(table, snapshot.snapshot_id, place, base, end)
            if not found:
                return None
            end_row = max(last for _, _, last in found) + 1
            tag = TableTag(self._owner, place.partition, end_row, place.ledger)
            change = table.manage_snapshots()
            try:
                change.create_tag(snapshot.snapshot_id, tag.name, _FOREVER_MS).commit()
                return tag
            except CommitFailedException:
                if not left:
                    raise
        return None

    def _planned(
        self, table: Any, snapshot_id: int, place: TablePlace, base: int, end: int
    ) -> set[tuple[str, int, int]] | None:
        """Path, size and last offset of the files with an offset range; None if some rows of theirs
        were deleted, or a file is elsewhere."""
        field = table.schema().find_field("offset").field_id
        rows = f"topic = '{place.topic}' and partition = {place.partition}"
        found: set[tuple[str, int, int]] = set()
        for task in table.scan(row_filter=rows, snapshot_id=snapshot_id).plan_files():
            if task.delete_files or not self._catalog.holds(task.file.file_path):
                return None
            lower = task.file.lower_bounds.get(field)
            upper = task.file.upper_bounds.get(field)
            if lower is None or upper is None:
                return None
            first_of, last_of = _OFFSET.unpack(lower)[0], _OFFSET.unpack(upper)[0]
            if first_of < end and last_of >= base:
                found.add((task.file.file_path, task.file.file_size_in_bytes, last_of))
        return found

    def _is_protected(self, topic: str, ledger: LedgerId, snapshot: int) -> bool:
        table = self._table(topic)
        return (
            table is not None
            and self._tag_of(table, ledger, snapshot) is not None
            and table.snapshot_by_id(snapshot) is not None
        )

    def _protected(self, topics: Collection[str]) -> Protection:
        from requests import RequestException

        ledgers: set[tuple[str, LedgerId]] = set()
        unread: dict[str, str] = {}
        namespaces = {NAMESPACE, *(table_of(topic)[0] for topic in topics), *self._of_tenants()}
        for topic in chain.from_iterable(map(self._topics, sorted(namespaces))):
            try:
                table = self._table(topic)
                names = () if table is None else table.refs()
            except RequestException:  # the others would wait for no answer as long, too
                raise
            except Exception as error:  # noqa: BLE001 - as in `_in_thread`, but of one table
                unread[topic] = _first_line(error)
                continue
            tags = (tag for tag in map(TableTag.parse, names) if tag is not None)
            ledgers |= {(topic, tag.ledger) for tag in tags if tag.owner == self._owner}
        return Protection(frozenset(ledgers), unread)

    def _of_tenants(self) -> Sequence[str]:
        """The namespaces of tenants' tables, also of those whose last topic was deleted; none where
        the catalog does not list them."""
        from pyiceberg.exceptions import ForbiddenError

        catalog = self._catalog.opened()
        try:
            found = () if catalog is None else catalog.list_namespaces()
        except (ForbiddenError, NotImplementedError):
            return []
        return [one[0] for one in found if len(one) == 1 and one[0].startswith(TENANT_NAMESPACE)]

    def _topics(self, namespace: str) -> Sequence[str]:
        """The topics that have tables in a namespace."""
        from pyiceberg.exceptions import NoSuchNamespaceError

        catalog = self._catalog.opened()
        try:
            names = () if catalog is None else catalog.list_tables(namespace)
        except NoSuchNamespaceError:
            return []
        return [topic for _, name in names if (topic := topic_of(namespace, name)) is not None]

    def _release(self, topic: str, ledger: LedgerId, snapshot: int | None) -> None:
        table = self._table(topic)
        tag = None if table is None else self._tag_of(table, ledger, snapshot)
        if tag is not None:  # the commit fails if it names another snapshot now
            table.manage_snapshots().remove_tag(tag.name).commit()

    def _tag_of(self, table: Any, ledger: LedgerId, snapshot: int | None = None) -> TableTag | None:
        for name, ref in table.refs().items():
            tag = TableTag.parse(name)
            if (
                tag is not None
                and (tag.owner, tag.ledger) == (self._owner, ledger)
                and snapshot in {None, ref.snapshot_id}
            ):
                return tag
        return None

    def _table(self, topic: str) -> Any:
        from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError

        catalog = self._catalog.opened()
        try:
            return None if catalog is None else catalog.load_table(table_of(topic))
        except (NoSuchTableError, NoSuchNamespaceError):
            return None

    def _digest(self, path: str, size: int) -> str:
        found = self._digests.get((path, size))
        if found is None:
            self._sync(path)
            found = self._sources.digest(TableFile(path, size, ""))
            while len(self._digests) >= _DIGESTS_MAX:
                del self._digests[next(iter(self._digests))]
            self._digests[path, size] = found
        return found

    def _sync_metadata(self, table: Any, snapshot_id: int) -> None:
        """Sync what leads from the catalog to the files of a tagged snapshot.

        Without it a loss of power leaves files that nothing names, which a repair of the table
        would delete as orphans.
        """
        snapshot = table.snapshot_by_id(snapshot_id)
        manifests = (one.manifest_path for one in snapshot.manifests(table.io))
        for path in (*manifests, snapshot.manifest_list, table.metadata_location):
            if path not in self._synced:
                self._sync(path)
                while len(self._synced) >= _SYNCED_MAX:
                    del self._synced[next(iter(self._synced))]
                self._synced[path] = None
        if self._catalog.catalog_file is not None:
            self._sync(str(self._catalog.catalog_file))

    def _sync(self, path: str) -> None:
        """Sync a file, which who wrote it did not do: it is to be the only copy of records.

        An object in S3 is durable once it can be read.
        """
        if "://" in path.removeprefix("file://"):
            return
        local = Path(path.removeprefix("file:")).resolve()
        roots = (self._catalog.files, self._catalog.folder)
        tops = [one for one in roots if one is not None and local.is_relative_to(one)]
        sync_file(local, tops[0] if tops else local.parent, self._disk)

    async def _in_thread(self, function: Any, *arguments: Any) -> Any:
        try:
            return await asyncio.to_thread(function, *arguments)
        except HeadraceError:
            raise
        except Exception as error:  # whatever the libraries make of damaged metadata
            raise StorageUnavailable(
                f"the tables in {self._catalog.shown} cannot be used now ({error}): object storage"
                " keeps the records; the next round tries again",
            ) from error


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def _current_and_ancestors(table: Any) -> set[int]:
    from pyiceberg.table.snapshots import ancestors_of

    return {one.snapshot_id for one in ancestors_of(table.current_snapshot(), table.metadata)}
