"""Ledgers in Apache BookKeeper: the LedgerStore of a cluster.

Invariants: knows which ledgers are open here and delegates the work on them. Only the store that
created a ledger writes to it; any other recovers it first, which closes it permanently. So an open
ledger is either being written here, or sealed. The protocol and its invariants are in
`docs/BOOKKEEPER.md`.
"""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import TYPE_CHECKING

from headrace.errors import (
    HeadraceError,
    LedgerFenced,
    LedgerLost,
    MetadataUnavailable,
    Rejected,
    StorageUnavailable,
    VersionConflict,
)
from headrace.runtime.free_memory import retain_freed
from headrace.runtime.randomness import SystemRandomness
from headrace.runtime.tasks import Tasks
from headrace.storage.bookkeeper.bookie_connection import Bookies
from headrace.storage.bookkeeper.bookie_directory import BookieDirectory
from headrace.storage.bookkeeper.bookie_health import BookieHealth
from headrace.storage.bookkeeper.ensemble import BookiePool
from headrace.storage.bookkeeper.entry_cache import EntryCache
from headrace.storage.bookkeeper.entry_reader import EntryReader
from headrace.storage.bookkeeper.id_check import ids_ahead, is_held, skip_ids
from headrace.storage.bookkeeper.id_mark import IdMark
from headrace.storage.bookkeeper.inline_checkpoints import read_inline_checkpoints
from headrace.storage.bookkeeper.ledger_catalog import LedgerCatalog
from headrace.storage.bookkeeper.ledger_metadata import Ensemble, LedgerMetadata, LedgerState
from headrace.storage.bookkeeper.metadata_service import LedgerMetadataService, unknown
from headrace.storage.bookkeeper.open_ledger import (
    InFlightBudget,
    OpenLedger,
    OpenLedgers,
    StoreState,
)
from headrace.storage.bookkeeper.position_reader import PositionReader
from headrace.storage.bookkeeper.quorum import Quorum
from headrace.storage.bookkeeper.recovering_ledger import open_closed, recover_ledger
from headrace.storage.bookkeeper.wire import DISCONNECTED, master_key
from headrace.storage.bookkeeper.writing_ledger import WritingLedger, sealed
from headrace.storage.ledger import (
    FOOTER_BYTES_MAX,
    Buffer,
    Copies,
    IdsAhead,
    InlineCheckpoint,
    LedgerId,
    LedgerInfo,
    LedgerRecord,
    Replicas,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from headrace.runtime.clock import Clock
    from headrace.runtime.completion import Completion
    from headrace.runtime.randomness import Randomness
    from headrace.storage.bookkeeper.metadata_service import VersionedLedger, ZooKeeperCalls
    from headrace.storage.bookkeeper.settings import BookKeeperSettings

log = logging.getLogger(__name__)

LOOKS_AT_ONCE = 16
FRAME_BYTES_KEPT = 4 << 20
"""Larger than entry frames: returning those to the system took a quarter of an append's CPU."""


class BookKeeperLedgerStore:
    """See LedgerStore."""

    def __init__(
        self,
        zookeeper: ZooKeeperCalls,
        settings: BookKeeperSettings,
        clock: Clock,
        randomness: Randomness | None = None,
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._tasks = Tasks()
        pool = BookiePool(
            settings.racks,
            quarantine_first_ms=settings.quarantine_first_ms,
            quarantine_max_ms=settings.quarantine_max_ms,
        )
        self._directory = BookieDirectory(
            zookeeper, settings.ledgers_root, pool, self._tasks, self._bookies_changed
        )
        bookies = Bookies(
            self._directory.resolve,
            self._tasks,
            timeout_ms=settings.add_timeout_ms,
            bytes_max=settings.bookie_bytes_max,
            tls=settings.tls,
            credential=settings.credential,
            lost=lambda bookie: self._health.failed(bookie, DISCONNECTED),
        )
        self._health = BookieHealth(
            pool, bookies, clock, settings.add_timeout_ms, self._spares_changed
        )
        self._cluster = StoreState(
            bookies,
            LedgerMetadataService(
                zookeeper, settings.ledgers_root, timeout_ms=settings.metadata_timeout_ms
            ),
            pool,
            self._health,
            EntryCache(settings.cache_bytes),
            InFlightBudget(settings.in_flight_bytes_max),
            self._tasks,
            clock,
            randomness or SystemRandomness(),
            settings,
            asyncio.Semaphore(LOOKS_AT_ONCE),  # noqa: TID251  # of tasks
        )
        self._id_mark = IdMark(self._cluster)
        self._reader = EntryReader(
            bookies,
            lambda bookie: pool.is_quarantined(bookie, clock.now_ns()),
            self._health.damaged,
            hedge_ms=settings.read_hedge_ms,
        )
        self._positions = PositionReader(self._reader, self._cluster.cache)
        self._opened = OpenLedgers(settings.opened_bytes_max)
        self._writing: dict[int, WritingLedger] = {}
        self._catalog = LedgerCatalog(self._cluster, settings.cluster)
        self._opening: dict[tuple[int, bool], asyncio.Future[OpenLedger]] = {}
        self._is_closed = False
        self._refusal = ""
        """Why no ledgers are created; "" if they are."""

    @classmethod
    async def open(
        cls,
        zookeeper: ZooKeeperCalls,
        settings: BookKeeperSettings,
        clock: Clock,
        randomness: Randomness | None = None,
    ) -> BookKeeperLedgerStore:
        """A store with its bookies discovered. Raises StorageUnavailable."""
        retain_freed(FRAME_BYTES_KEPT, settings.cache_bytes + settings.in_flight_bytes_max)
        store = cls(zookeeper, settings, clock, randomness)
        try:
            await store._directory.open()
        except MetadataUnavailable as error:
            await store.close()
            raise StorageUnavailable(f"cannot reach ZooKeeper: {error}") from error
        return store

    async def close(self) -> None:
        """Stop immediately: the outcome of unacknowledged appends is unknown, as after a crash."""
        self._is_closed = True
        for ledger, writing in self._writing.items():
            writing.end(LedgerLost(f"ledger {ledger}: the store was closed", ledger=ledger))
        self._health.close()
        self._cluster.bookies.close()
        await self._tasks.close()

    # --- writing -----------------------------------------------------------------------------

    async def create(
        self, labels: Mapping[str, bytes] | None = None, copies: Copies | None = None
    ) -> LedgerId:
        """See LedgerStore. `labels` are stored in the metadata; `copies` is reduced if there are
        too few bookies, as described in `BookKeeperSettings`."""
        cluster = self._cluster
        settings = self._settings
        wanted = settings.quorum if copies is None else Quorum(*copies)
        chosen, bookies = cluster.pool.choose_ensemble(
            wanted, self._clock.now_ns(), cluster.randomness.below
        )
        metadata = LedgerMetadata(
            chosen,
            (Ensemble(0, bookies),),
            password=settings.password,
            created_ms=self._clock.now_ms(),
            custom={**(labels or {}), **self._catalog.mark},
        )
        check = partial(self._check_new, bookies)
        ledger, versioned = await cluster.service.create(metadata, check)
        opened = OpenLedger(ledger, versioned)
        writing = WritingLedger(
            opened, cluster, master_key(settings.password), wanted.write - chosen.write
        )
        self._opened.add(opened)
        self._writing[ledger] = writing
        writing.watch()
        return LedgerId(ledger)

    async def _check_new(self, bookies: Sequence[str], ledger: int) -> None:
        """Record that the id is taken. Raise StorageUnavailable if a ledger has had it, now and
        from then on: where ZooKeeper has lost ledgers, it has lost chains, too, and records would
        be lost with them."""
        if not self._refusal and await is_held(self._cluster, ledger, bookies):
            self._refusal = (
                f"ZooKeeper has allocated ledger id {ledger} again, which bookies have records of:"
                " it has lost changes, by a restored backup or a fault of its own. This broker"
                " creates no more ledgers. Stop the bookies, which delete unlisted ledgers within"
                " minutes, restore ZooKeeper from a newer backup or a server that has the changes,"
                " and restart the brokers; see `headrace cluster repair`"
            )
            log.error("%s", self._refusal)
        if self._refusal:
            raise StorageUnavailable(self._refusal, ledger=ledger)
        await self._id_mark.cover(ledger)

    def append(
        self, ledger: LedgerId, parts: Sequence[Buffer], size: int, flush_ms: int | None
    ) -> tuple[int, Completion]:
        """See LedgerStore; `flush_ms` is ignored: bookies sync before they answer."""
        writing = self._writing.get(ledger)
        if writing is None:
            raise sealed(ledger) if ledger in self._opened else unknown(ledger)
        return writing.append(parts, size)

    def append_checkpoint(self, ledger: LedgerId, data: bytes) -> None:
        """See StoresInlineCheckpoints."""
        writing = self._writing.get(ledger)
        if writing is None:
            raise sealed(ledger) if ledger in self._opened else unknown(ledger)
        writing.append_checkpoint(data)

    async def seal(self, ledger: LedgerId, footer: bytes) -> None:
        """See LedgerStore. Sealing again with the same footer changes nothing."""
        if len(footer) > FOOTER_BYTES_MAX:
            raise Rejected(
                f"a footer of {len(footer)} bytes: the limit is {FOOTER_BYTES_MAX}",
                limit=FOOTER_BYTES_MAX,
                actual=len(footer),
            )
        writing = self._writing.get(ledger)
        if writing is None:
            opened = await self._open(ledger)
            if opened.footer == footer:
                return
            raise sealed(ledger)
        try:
            await writing.seal(bytes(footer))
        except MetadataUnavailable as error:
            raise StorageUnavailable(f"cannot seal ledger {ledger} now: {error}") from error
        if self._writing.pop(ledger, None) is not None:
            self._opened.add_sealed(writing.opened)
            self._catalog.sealed_here(ledger, writing)

    def release(self, ledger: LedgerId) -> None:
        """See ReleasesLedgers."""
        writing = self._writing.pop(ledger, None)
        if writing is not None:
            writing.release()
        self.forget(ledger)

    # --- reading -----------------------------------------------------------------------------

    def read_cached(self, ledger: LedgerId, position: int, size: int) -> Buffer | None:
        """See LedgerStore. Also None for a ledger that is not open here yet."""
        opened = self._opened.get(ledger)
        if opened is None:
            return None
        size = min(size, opened.end - position)
        if size <= 0:
            return b""
        return self._cluster.cache.get(ledger, position, size)

    async def read(self, ledger: LedgerId, position: int, size: int) -> Buffer:
        """See LedgerStore."""
        return await self._positions.read(await self._open(ledger), position, size)

    async def checkpoints(self, ledger: LedgerId) -> Sequence[InlineCheckpoint]:
        """See StoresInlineCheckpoints: searches the last `SEARCHED_BYTES_MAX` of the ledger."""
        return await read_inline_checkpoints(await self._open(ledger), self._positions)

    @property
    def cached_bytes(self) -> int:
        """See CachesBytes: entries, and indexes of sealed ledgers."""
        return self._cluster.cache.bytes_held + self._opened.sealed_bytes

    def list(self) -> Sequence[LedgerInfo]:
        """The ledgers open here, by id; `records` finds those of all brokers."""
        return self._opened.infos

    async def records(self) -> Sequence[LedgerRecord]:
        """All ledgers of this cluster's brokers, by id. For garbage collection, not for requests:
        it reads the metadata of every ledger. Raises StorageUnavailable."""
        return await self.records_of(await self.ledger_ids())

    async def ledger_ids(self) -> Sequence[LedgerId]:
        """All ledgers, of every creator, by id. Raises StorageUnavailable."""
        return await self._catalog.ids()

    async def ids_ahead(self) -> IdsAhead | None:
        """See NumbersLedgers."""
        return await ids_ahead(self._cluster, self._id_mark)

    async def skip_ids(self, last: int) -> None:
        """See NumbersLedgers."""
        await skip_ids(self._cluster, last)

    async def records_of(self, ledgers: Sequence[LedgerId]) -> Sequence[LedgerRecord]:
        """The subset created by brokers of this cluster. Raises StorageUnavailable."""
        return await self._catalog.records_of(ledgers)

    async def all_ledgers(self) -> Sequence[LedgerId]:
        """All ledgers of this cluster's brokers, by id. Raises StorageUnavailable."""
        return [record.ledger for record in await self.records()]

    # --- copies ------------------------------------------------------------------------------

    def replication(self) -> Replicas:
        """See ReplicatesLedgers."""
        state = self._cluster.pool.state(self._clock.now_ns())
        lacking = {
            LedgerId(ledger): writing.copies_missing
            for ledger, writing in self._writing.items()
            if writing.is_lacking
        }
        return Replicas(
            state.known,
            state.registered,
            state.read_only,
            state.quarantined,
            state.writable,
            self._settings.quorum.ack,
            lacking,
            self._refusal,
            self._health.damaged_copies,
        )

    def without_bookie(self) -> Sequence[int]:
        """The ledgers written here with a slot without a bookie."""
        return [
            ledger
            for ledger, writing in self._writing.items()
            if writing.handle.lost and writing.error is None
        ]

    async def lacking(self, ledgers: Sequence[LedgerId]) -> Mapping[LedgerId, int]:
        """See ReplicatesLedgers."""
        return await self._catalog.lacking(ledgers)

    async def machines(self, ledger: LedgerId, position: int | None = None) -> Sequence[str]:
        """See ReplicatesLedgers."""
        return await self._catalog.machines(ledger, self._opened.get(ledger), position)

    # --- takeover and deletion ---------------------------------------------------------------

    async def recover(self, ledger: LedgerId) -> LedgerInfo:
        """See LedgerStore; the ledger is sealed afterwards, whichever broker wrote it."""
        return (await self._open(ledger, fence=True)).info

    async def open_when_sealed(self, ledger: LedgerId) -> None:
        """See FollowsSeals."""
        await self._open(ledger, closed=await self._cluster.service.wait_closed(ledger))

    async def _open(
        self, ledger: int, *, fence: bool = False, closed: VersionedLedger | None = None
    ) -> OpenLedger:
        """The ledger, opened for reading: recovered first if `fence` and it is not closed.

        `closed`: its metadata, if just read.
        """
        opened = self._opened.get(ledger)
        if opened is not None and (opened.is_sealed or not fence):
            return opened
        opening = self._opening.get((ledger, fence))
        if opening is None:
            if self._is_closed:
                raise StorageUnavailable(
                    f"cannot open ledger {ledger}: the store was closed; use another"
                )
            opening = self._opening[ledger, fence] = asyncio.get_running_loop().create_future()
            self._tasks.spawn(
                self._open_for_all(ledger, fence, closed, opening), f"open ledger {ledger}"
            )
        # Shared with other callers: cancelling one must not stop it.
        return await asyncio.shield(opening)

    async def _open_for_all(
        self,
        ledger: int,
        fence: bool,
        closed: VersionedLedger | None,
        opening: asyncio.Future[OpenLedger],
    ) -> None:
        try:
            opening.set_result(await self._open_now(ledger, fence, closed))
        except HeadraceError as error:
            opening.set_exception(error)
            opening.exception()  # there may be no caller
        except Exception:
            # Cancelling the future instead would hide the failure from its callers.
            opening.set_exception(
                StorageUnavailable(
                    f"cannot open ledger {ledger}: an internal error, see the broker's log",
                    ledger=ledger,
                )
            )
            opening.exception()
            raise
        except BaseException:
            opening.cancel()
            raise
        finally:
            del self._opening[ledger, fence]

    async def _open_now(
        self, ledger: int, fence: bool, closed: VersionedLedger | None
    ) -> OpenLedger:
        before = self._opened.get(ledger)
        try:
            versioned = closed or await self._cluster.service.read(ledger)
        except MetadataUnavailable as error:
            raise StorageUnavailable(f"cannot open ledger {ledger} now: {error}") from error
        if versioned.metadata.state is not LedgerState.CLOSED:
            if not fence:
                raise StorageUnavailable(
                    f"ledger {ledger} is being written by another broker: recover it first, or wait"
                    " until it is sealed",
                    ledger=ledger,
                )
            versioned = await recover_ledger(ledger, versioned, self._cluster)
        opened = await open_closed(
            ledger, versioned, self._reader, None if before is None else before.index
        )
        writing = self._writing.pop(ledger, None)
        if writing is not None:
            writing.end(
                LedgerFenced(f"ledger {ledger} was recovered and is now sealed", ledger=ledger)
            )
        self._opened.add_sealed(opened)
        return opened

    async def delete(self, ledger: LedgerId) -> None:
        """See LedgerStore. An open ledger is recovered first: otherwise a writer could still get
        acknowledgements for the deleted ledger."""
        try:
            versioned = await self._closed(ledger)
            await self._cluster.service.delete(ledger, versioned.version)
        except VersionConflict as error:
            raise StorageUnavailable(f"ledger {ledger} was just changed: try again") from error
        except MetadataUnavailable as error:
            raise StorageUnavailable(f"cannot delete ledger {ledger} now: {error}") from error
        self.forget(ledger)

    async def _closed(self, ledger: int) -> VersionedLedger:
        versioned = await self._cluster.service.read(ledger)
        if versioned.metadata.state is LedgerState.CLOSED:
            return versioned
        versioned = await recover_ledger(ledger, versioned, self._cluster)
        writing = self._writing.pop(ledger, None)
        if writing is not None:
            writing.end(unknown(ledger))
        return versioned

    def forget(self, ledger: int) -> None:
        """Drop a ledger's state from memory; it is reopened on the next read."""
        if ledger not in self._writing:
            self._opened.forget(ledger)
        self._catalog.forget(ledger)
        self._cluster.cache.forget(ledger)

    def _bookies_changed(self) -> None:
        self._health.registrations_changed()
        self._spares_changed()

    def _spares_changed(self) -> None:
        for writing in list(self._writing.values()):
            writing.spares_changed()
