"""A ledger store with object storage beneath: implements LedgerStore and Tier.

Invariants: ledgers that are not offloaded belong to the inner store, at the cost of one dict
lookup here. The log says which ledgers are offloaded (`attach`); this class never infers it from
names. An object is trusted after it was read back and verified, and its bytes are verified on every
read.

Objects are deleted in the background, so that no partition waits for object storage. Objects that
could not be deleted are orphans, which the garbage collector of objects finds.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, TypeVar

from headrace.errors import (
    DataCorrupt,
    HeadraceError,
    LedgerSealed,
    LedgerUnknown,
    StorageUnavailable,
)
from headrace.runtime.disk import SystemDisk
from headrace.runtime.tasks import Tasks
from headrace.storage.ledger import (
    Buffer,
    CachesBytes,
    Copies,
    FollowsSeals,
    InlineCheckpoint,
    LedgerId,
    LedgerInfo,
    LedgerStore,
    LocatesBytes,
    NamesFiles,
    ReleasesLedgers,
    StoresInlineCheckpoints,
    WritesInBulk,
)
from headrace.storage.tiering.ledger_blob import LedgerBlob
from headrace.storage.tiering.object_files import ObjectFile, ObjectFiles
from headrace.storage.tiering.object_format import ledger_of_name, object_name
from headrace.storage.tiering.offload import UploadRate, read_back, write_object
from headrace.storage.tiering.read_ahead import ReadAhead
from headrace.storage.tiering.recipe_format import ledger_of_recipe, recipe_name
from headrace.storage.tiering.recipe_ledger import RebuiltRuns, RecipeLedger
from headrace.storage.tiering.recipe_writing import write_recipe
from headrace.storage.tiering.remote_ledger import RemoteLedger
from headrace.storage.tiering.tier import StoredObject, TierCounters

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence

    from headrace.runtime.clock import Clock
    from headrace.runtime.completion import Completion
    from headrace.runtime.file_bytes import FileBytes
    from headrace.storage.ledger import BulkWriter
    from headrace.storage.tiering.blob_store import BlobStore
    from headrace.storage.tiering.recipe_format import TableFile
    from headrace.storage.tiering.table_files import TableFiles

T = TypeVar("T")

log = logging.getLogger(__name__)

OPENED_MAX = 256
"""Ledgers with checksums in memory: 16 KiB per GiB of a ledger."""
OTHER_FILES = (
    "its object is gone, and the snapshot that was tagged has other files than its recipe names"
)
DELETE_DELAYS_S = (0, 5, 60, 600)
"""Delays before the attempts to delete objects; after the last, garbage collection does it."""


def _known(ledgers: Mapping[LedgerId, T], ledger: LedgerId) -> T:
    if ledger not in ledgers:
        raise LedgerUnknown(f"ledger {ledger} is not offloaded: it was deleted", ledger=ledger)
    return ledgers[ledger]


async def _opened_again(remote: RemoteLedger | RecipeLedger) -> RemoteLedger | RecipeLedger:
    """A ledger that is there now: its object may have been deleted since it was opened."""
    await remote.open()
    return remote


class TieredLedgerStore:
    """See LedgerStore and Tier."""

    def __init__(
        self,
        inner: LedgerStore,
        blobs: BlobStore,
        prefix: str,
        clock: Clock,
        *,
        cache_bytes_max: int = 64 << 20,
        offload_bytes_per_s: int | None = None,
        is_inner_shared: bool = False,
        tables: TableFiles | None = None,
    ) -> None:
        """Objects are stored under `prefix`, which no other cluster uses.

        `offload_bytes_per_s` None: unlimited. `is_inner_shared`: other brokers use the inner
        store's ledgers, too. Then none is deleted here: a broker that was paused might still write
        to it and acknowledge the writes.
        """
        self._inner = inner
        self._blobs = blobs
        self.prefix = prefix
        self._is_inner_shared = is_inner_shared
        self.tables = tables
        """As `prefix`: see Tier."""
        self._pace = UploadRate(clock, offload_bytes_per_s)
        self._attached: dict[LedgerId, int] = {}
        """Offloaded ledgers and their sizes."""
        self._remote: dict[LedgerId, RemoteLedger | RecipeLedger] = {}
        """The subset that is read from objects, or by recipes."""
        self._opened: dict[RemoteLedger | RecipeLedger, None] = {}
        self._runs = RebuiltRuns()
        self._ahead = ReadAhead(cache_bytes_max)
        self._files = ObjectFiles(SystemDisk(), clock)
        self._local = inner if isinstance(inner, LocatesBytes) else None
        self._named = inner if isinstance(inner, NamesFiles) else None
        self._to_delete: dict[str, None] = {}
        self._deleting: asyncio.Task[None] | None = None
        self._tasks = Tasks()
        self.counters = TierCounters()

    async def close(self) -> None:
        """End background tasks. The inner store is closed by its owner."""
        if self.tables is not None:
            self.tables.close()
        await self._tasks.close()
        await self._ahead.close()
        self._files.close()
        self._runs.close()

    # --- LedgerStore -------------------------------------------------------------------------

    async def create(
        self, labels: Mapping[str, bytes] | None = None, copies: Copies | None = None
    ) -> LedgerId:
        """See LedgerStore."""
        return await self._inner.create(labels, copies)

    def append(
        self, ledger: LedgerId, parts: Sequence[Buffer], size: int, flush_ms: int | None
    ) -> tuple[int, Completion]:
        """See LedgerStore."""
        try:
            return self._inner.append(ledger, parts, size, flush_ms)
        except LedgerUnknown:
            if ledger in self._remote:
                raise _sealed(ledger) from None
            raise

    def append_checkpoint(self, ledger: LedgerId, data: bytes) -> None:
        """See StoresInlineCheckpoints; dropped if the inner store does not support them."""
        if isinstance(self._inner, StoresInlineCheckpoints):
            self._inner.append_checkpoint(ledger, data)

    async def checkpoints(self, ledger: LedgerId) -> Sequence[InlineCheckpoint]:
        """See StoresInlineCheckpoints; objects have none: only sealed ledgers are offloaded."""
        if ledger in self._remote or not isinstance(self._inner, StoresInlineCheckpoints):
            return ()
        return await self._inner.checkpoints(ledger)

    def release(self, ledger: LedgerId) -> None:
        """See ReleasesLedgers."""
        if isinstance(self._inner, ReleasesLedgers):
            self._inner.release(ledger)

    async def open_when_sealed(self, ledger: LedgerId) -> None:
        """See FollowsSeals; returns at once if the inner store does not support it."""
        if isinstance(self._inner, FollowsSeals):
            await self._inner.open_when_sealed(ledger)

    @property
    def cached_bytes(self) -> int:
        """See CachesBytes."""
        return self._inner.cached_bytes if isinstance(self._inner, CachesBytes) else 0

    def read_cached(self, ledger: LedgerId, position: int, size: int) -> Buffer | None:
        """See LedgerStore."""
        remote = self._remote.get(ledger)
        if remote is None:
            return self._inner.read_cached(ledger, position, size)
        place = self._file_of(remote, position)
        if place is not None:
            size = min(size, remote.size - position)
            found = self._files.read(place, position, size) if size > 0 else b""
            if found is not None:
                self._count(size)
                return found
        return self._ahead.cached(remote, position, size) if remote.is_open else None

    def locate_cached(self, ledger: LedgerId, position: int, size: int) -> FileBytes | None:
        """See LocatesBytes. An object in a folder is a file like any other, once verified."""
        remote = self._remote.get(ledger)
        if remote is None:
            return (
                None if self._local is None else self._local.locate_cached(ledger, position, size)
            )
        place = self._file_of(remote, position)
        located = None if place is None else self._files.locate(place, position, size)
        if located is not None:
            self._count(size)
        return located

    def file_of(self, ledger: LedgerId) -> str | None:
        """See NamesFiles. Not supported for objects, which are verified on reading."""
        if ledger in self._remote or self._named is None:
            return None
        return self._named.file_of(ledger)

    def bulk_writer(self, ledger: LedgerId) -> BulkWriter | None:
        """See WritesInBulk."""
        inner = self._inner
        return inner.bulk_writer(ledger) if isinstance(inner, WritesInBulk) else None

    def _file_of(self, remote: RemoteLedger | RecipeLedger, position: int) -> ObjectFile | None:
        """The file to read from at `position`, if there is one and nothing is being read ahead.

        A reader that is read ahead for stays so until the rest of the file is cached: otherwise
        both paths would alternate, and both read ahead.
        """
        place = remote.place
        if place is None or not self._ahead.is_at(remote, position):
            return place
        return place if self._files.holds_on(place, position) else None

    def _count(self, size: int) -> None:
        self.counters.cold_reads += 1
        self.counters.cold_bytes += size

    async def read(self, ledger: LedgerId, position: int, size: int) -> Buffer:
        """See LedgerStore. Raises DataCorrupt if an object is corrupt."""
        remote = self._remote.get(ledger)
        if remote is None:
            try:
                return await self._inner.read(ledger, position, size)
            except LedgerUnknown:
                remote = self._remote.get(ledger)  # deleted locally during the read
                if remote is None:
                    raise
        remote = await self._open(remote)
        found = self.read_cached(ledger, position, size)
        if found is not None:
            return found
        return await self._from(remote, lambda one: self._ahead.read(one, position, size))

    async def seal(self, ledger: LedgerId, footer: bytes) -> None:
        """See LedgerStore."""
        remote = self._remote.get(ledger)
        if remote is None:
            await self._inner.seal(ledger, footer)
        elif (await self.recover(ledger)).footer != footer:
            raise _sealed(ledger)

    async def recover(self, ledger: LedgerId) -> LedgerInfo:
        """See LedgerStore."""
        remote = self._remote.get(ledger)
        if remote is None:
            return await self._inner.recover(ledger)
        footer = await self._from(remote, lambda one: one.read_footer())
        return LedgerInfo(ledger, remote.size, is_sealed=True, footer=footer)

    async def delete(self, ledger: LedgerId) -> None:
        """See LedgerStore; the object is deleted in the background."""
        is_remote = ledger in self._remote
        if ledger in self._attached:
            self.discard(ledger)
        try:
            await self._inner.delete(ledger)
        except LedgerUnknown:
            if not is_remote:
                raise

    def list(self) -> Sequence[LedgerInfo]:
        """See LedgerStore: the inner store's ledgers; `list_objects` lists the others."""
        return self._inner.list()

    # --- Tier --------------------------------------------------------------------------------

    @property
    def shown(self) -> str:
        """See Tier."""
        return self._blobs.shown

    def attach(
        self, ledger: LedgerId, size: int, *, is_local: bool, is_tabled: bool = False
    ) -> None:
        """See Tier."""
        self._attached[ledger] = size
        if not is_tabled:
            self._to_delete.pop(self._name(ledger), None)
        before = self._remote.get(ledger)
        if is_local or isinstance(before, RecipeLedger) or (before is not None and not is_tabled):
            return  # a recipe replaces an object, never the reverse
        self._forget(ledger)
        make = self._recipe_ledger if is_tabled else self._remote_ledger
        self._remote[ledger] = make(ledger, size)

    async def offload(self, ledger: LedgerId) -> int:
        """See Tier."""
        info = await self._inner.recover(ledger)
        assert info.is_sealed, "only sealed ledgers are offloaded"
        name = self._name(ledger)
        try:
            written = await write_object(self._inner, info, self._blobs, name, self._pace)
            await read_back(self._blobs, name, written)
        except (StorageUnavailable, DataCorrupt):
            self.counters.failures += 1
            raise
        self.counters.offloads += 1
        self.counters.offload_bytes += info.end
        return info.end

    async def is_whole(self, ledger: LedgerId) -> bool:
        """See Tier."""
        try:
            return await self._remote_ledger(ledger, _known(self._attached, ledger)).is_whole()
        except StorageUnavailable as error:
            if error.fields.get("is_missing"):
                return False
            raise
        except DataCorrupt:
            return False

    async def drop_local(self, ledger: LedgerId) -> None:
        """See Tier."""
        self.attach(ledger, _known(self._attached, ledger), is_local=False)
        if self._is_inner_shared:
            return
        try:
            await self._inner.delete(ledger)
        except LedgerUnknown:
            log.debug("ledger %d had no local copy", ledger)

    async def write_recipe(self, ledger: LedgerId, files: Sequence[TableFile]) -> str | None:
        """See Tier."""
        remote = _known(self._remote, ledger)
        name, size, reason = self._recipe_name(ledger), remote.size, None
        recipe = self._recipe_ledger(ledger, size)
        try:
            if isinstance(await self._from(remote, _opened_again), RemoteLedger):
                source = self._remote_ledger(ledger, size)
                reason = await write_recipe(source, self._blobs, name, files, self._runs.rows)
            elif not set(await recipe.files()) <= set(files):
                reason = OTHER_FILES
            if reason is None:
                await recipe.rebuild_all()
            return reason
        except (StorageUnavailable, DataCorrupt):
            self.counters.failures += 1
            raise

    def has_recipe(self, ledger: LedgerId) -> bool:
        """See Tier."""
        return isinstance(self._remote.get(ledger), RecipeLedger)

    async def check_recipe(self, ledger: LedgerId) -> Sequence[str]:
        """See Tier."""
        return await self._recipe_ledger(ledger, _known(self._attached, ledger)).check_files()

    def discard_object(self, ledger: LedgerId) -> None:
        """See Tier."""
        if isinstance(self._remote.get(ledger), RemoteLedger):  # another broker has replaced it
            self.attach(ledger, _known(self._attached, ledger), is_local=False, is_tabled=True)
        self._delete_later(self._name(ledger))

    def discard(self, ledger: LedgerId) -> None:
        """See Tier."""
        self._attached.pop(ledger, None)
        self._forget(ledger)
        self._delete_later(self._recipe_name(ledger), self._name(ledger))

    def _forget(self, ledger: LedgerId) -> None:
        remote = self._remote.pop(ledger, None)
        if remote is not None:
            self._opened.pop(remote, None)
            self._ahead.forget(ledger)
            if remote.place is not None:
                self._files.forget(remote.place.path)

    def _delete_later(self, *names: str) -> None:
        self._to_delete.update(dict.fromkeys(names))
        if self._deleting is None or self._deleting.done():
            self._deleting = self._tasks.start(self._delete_objects(), "deleting objects")

    async def list_objects(self) -> AsyncIterator[StoredObject]:
        """See Tier."""
        async for blob in self._blobs.list(f"{self.prefix}/ledgers"):
            for of_name in (ledger_of_name, ledger_of_recipe):
                if (ledger := of_name(blob.name)) is not None:
                    is_recipe = of_name is ledger_of_recipe
                    yield StoredObject(ledger, blob.size_bytes, blob.modified_ms, is_recipe)

    # --- internal ----------------------------------------------------------------------------

    def _name(self, ledger: LedgerId) -> str:
        return f"{self.prefix}/{object_name(ledger)}"

    def _remote_ledger(self, ledger: LedgerId, size: int) -> RemoteLedger:
        return RemoteLedger(self._blob(ledger, self._name(ledger)), size)

    def _recipe_name(self, ledger: LedgerId) -> str:
        return f"{self.prefix}/{recipe_name(ledger)}"

    def _recipe_ledger(self, ledger: LedgerId, size: int) -> RecipeLedger:
        return RecipeLedger(self._blob(ledger, self._recipe_name(ledger)), size, self._runs)

    def _blob(self, ledger: LedgerId, name: str) -> LedgerBlob:
        return LedgerBlob(ledger, self._blobs, name, self.counters)

    async def _open(self, remote: RemoteLedger | RecipeLedger) -> RemoteLedger | RecipeLedger:
        """Open it, or its recipe, also if the metadata is from before that replaced the object."""
        if not remote.is_open:
            try:
                await remote.open()
            except StorageUnavailable as error:
                remote = await self._recipe_instead(remote, error)
            while len(self._opened) >= OPENED_MAX:
                oldest = next(iter(self._opened))
                del self._opened[oldest]
                oldest.shut()
        self._opened.pop(remote, None)
        self._opened[remote] = None
        return remote

    async def _from(
        self,
        remote: RemoteLedger | RecipeLedger,
        read: Callable[[RemoteLedger | RecipeLedger], Awaitable[T]],
    ) -> T:
        """What `read` finds in an opened ledger, or in its recipe if the object has been deleted
        since it was opened."""
        remote = await self._open(remote)
        try:
            return await read(remote)
        except StorageUnavailable as error:
            return await read(await self._open(await self._recipe_instead(remote, error)))

    async def _recipe_instead(
        self, remote: RemoteLedger | RecipeLedger, error: StorageUnavailable
    ) -> RecipeLedger:
        """The recipe of a ledger whose object failed with `error`, if it has replaced the object.

        Raises the error if it has not.
        """
        if not error.fields.get("is_missing") or isinstance(remote, RecipeLedger):
            raise error
        recipe = self._remote.get(remote.ledger)  # by another reader, or from the chain
        if not isinstance(recipe, RecipeLedger):
            recipe = self._recipe_ledger(remote.ledger, remote.size)
        try:
            await recipe.open()
        except StorageUnavailable:
            raise error from None
        if self._remote.get(remote.ledger) is remote:
            self._forget(remote.ledger)
            self._remote[remote.ledger] = recipe
        return recipe

    async def _delete_objects(self) -> None:
        """Delete the queued objects, and those queued meanwhile."""
        reason: HeadraceError | None = None
        for delay_s in DELETE_DELAYS_S:
            await asyncio.sleep(delay_s)
            try:
                while self._to_delete:
                    name = next(iter(self._to_delete))
                    await self._blobs.delete(name)
                    self._to_delete.pop(name, None)
                    self.counters.deletes += 1
                return
            except HeadraceError as error:
                self.counters.failures += 1
                reason = error
        log.warning(
            "cannot delete %d objects of deleted ledgers now, daily garbage collection retries: %s",
            len(self._to_delete),
            reason,
        )
        self._to_delete.clear()


def _sealed(ledger: LedgerId) -> LedgerSealed:
    return LedgerSealed(
        f"ledger {ledger} is sealed and offloaded: append to the next ledger",
        ledger=ledger,
    )
