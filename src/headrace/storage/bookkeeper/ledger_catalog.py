"""The ledgers of all brokers, as listed in ZooKeeper, and their missing copies.

Invariants: reads metadata only, in batches; opens no ledger and changes none.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from headrace.errors import HeadraceError, MetadataUnavailable, StorageUnavailable
from headrace.storage.bookkeeper.ledger_metadata import LedgerState
from headrace.storage.bookkeeper.replication import missing_copies
from headrace.storage.ledger import LedgerId, LedgerRecord

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from headrace.storage.bookkeeper.ledger_metadata import Ensemble
    from headrace.storage.bookkeeper.open_ledger import OpenLedger, StoreState
    from headrace.storage.bookkeeper.writing_ledger import WritingLedger

_LISTED_AT_ONCE = 64
_GAPS_MAX = 10_000


class LedgerCatalog:
    """The ledgers of one Headrace cluster, whose name is in their metadata."""

    def __init__(self, cluster: StoreState, name: str) -> None:
        self._cluster = cluster
        self.mark = {"application": b"headrace", "cluster": name.encode()}
        """Labels in the metadata of every ledger of these brokers, so that only those are garbage
        collected."""
        self._gaps: dict[int, tuple[int, tuple[Ensemble, ...]]] = {}
        """Ledgers sealed here with missing copies on available bookies -> (number of copies,
        ensembles at that time)."""

    async def ids(self) -> Sequence[LedgerId]:
        """All ledgers, of every creator, by id. Raises StorageUnavailable."""
        try:
            return [LedgerId(ledger) for ledger in await self._cluster.service.ledgers()]
        except MetadataUnavailable as error:
            raise StorageUnavailable(f"cannot list the ledgers now: {error}") from error

    async def records_of(self, ledgers: Sequence[LedgerId]) -> Sequence[LedgerRecord]:
        """The subset created by brokers of this cluster. Raises StorageUnavailable."""
        found: list[LedgerRecord] = []
        try:
            for at in range(0, len(ledgers), _LISTED_AT_ONCE):
                batch = ledgers[at : at + _LISTED_AT_ONCE]
                found += filter(None, await asyncio.gather(*map(self._record, batch)))
        except MetadataUnavailable as error:
            raise StorageUnavailable(f"cannot list the ledgers now: {error}") from error
        return found

    async def _record(self, ledger: int) -> LedgerRecord | None:
        try:
            metadata = (await self._cluster.service.read(ledger)).metadata
        except MetadataUnavailable:
            raise
        except HeadraceError:
            return None  # deleted, or another application's in an unknown format
        if not self.mark.items() <= metadata.custom.items():
            return None
        return LedgerRecord(
            LedgerId(ledger),
            metadata.state is LedgerState.CLOSED,
            metadata.created_ms,
            metadata.custom,
            metadata.length,
            missing_copies(metadata, self._present()),
        )

    def sealed_here(self, ledger: int, writing: WritingLedger) -> None:
        """Record the missing copies of a ledger that its metadata does not show."""
        if writing.copies_missing and len(self._gaps) < _GAPS_MAX:
            ensembles = writing.opened.versioned.metadata.ensembles
            self._gaps[ledger] = (writing.copies_missing, ensembles)

    def forget(self, ledger: int) -> None:
        """Discard the record of a ledger's missing copies."""
        self._gaps.pop(ledger, None)

    async def lacking(self, ledgers: Sequence[LedgerId]) -> Mapping[LedgerId, int]:
        """See ReplicatesLedgers."""
        found: dict[LedgerId, int] = {}
        for at in range(0, len(ledgers), _LISTED_AT_ONCE):
            batch = ledgers[at : at + _LISTED_AT_ONCE]
            counts = await asyncio.gather(*map(self._copies_lacking, batch))
            found.update({one: count for one, count in zip(batch, counts, strict=True) if count})
        return found

    async def _copies_lacking(self, ledger: LedgerId) -> int:
        try:
            metadata = (await self._cluster.service.read(ledger)).metadata
        except MetadataUnavailable as error:
            raise StorageUnavailable(f"cannot check ledger {ledger}: {error}") from error
        except HeadraceError:
            return 0  # `cluster verify` reports missing ledgers itself
        copies, ensembles = self._gaps.get(ledger, (0, None))
        if ensembles != metadata.ensembles:
            copies = 0  # re-replicated since, to other bookies
        return copies + missing_copies(metadata, self._present()).copies

    async def machines(
        self, ledger: LedgerId, opened: OpenLedger | None, position: int | None
    ) -> Sequence[str]:
        """See ReplicatesLedgers. `opened`: the ledger, if it is open here."""
        try:
            metadata = (await self._cluster.service.read(ledger)).metadata
        except MetadataUnavailable as error:
            raise StorageUnavailable(f"cannot look up ledger {ledger}: {error}") from error
        except HeadraceError:
            return ()  # `cluster verify` reports missing ledgers itself
        first, last = 0, None
        if opened is not None and position is not None:
            first, after = opened.index.before(position)[0], opened.index.after(position)
            last = None if after is None else after[0]
        return metadata.bookies_between(first, last)

    def _present(self) -> frozenset[str]:
        cluster = self._cluster
        return frozenset(cluster.pool.state(cluster.clock.now_ns()).registered)
