"""The blob that a ledger is read from, whatever its format.

Invariants: counts requests, failures and damage, and logs the first damage of a blob. Knows no
format: what is damaged, its readers say.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from headrace.errors import DataCorrupt, StorageUnavailable

if TYPE_CHECKING:
    from headrace.storage.ledger import LedgerId
    from headrace.storage.tiering.blob_store import BlobStore
    from headrace.storage.tiering.tier import TierCounters

log = logging.getLogger(__name__)


class LedgerBlob:
    """One blob of one ledger."""

    __slots__ = ("_blobs", "_is_reported", "_name", "counters", "ledger")

    def __init__(
        self, ledger: LedgerId, blobs: BlobStore, name: str, counters: TierCounters
    ) -> None:
        self.ledger = ledger
        self.counters = counters
        self._blobs = blobs
        self._name = name
        self._is_reported = False

    @property
    def path(self) -> str | None:
        """Its file, if it is in a local folder."""
        return self._blobs.path_of(self._name)

    async def size(self) -> int:
        """Its size in bytes. Raises StorageUnavailable."""
        return await self._blobs.size(self._name)

    async def get(self, start: int, size: int) -> memoryview:
        """A range of it. Raises StorageUnavailable."""
        self.counters.cold_reads += 1
        try:
            return await self._blobs.get(self._name, start, size)
        except StorageUnavailable:
            self.counters.failures += 1
            raise

    def corrupt(self, position: int, problem: str, besides: str = "") -> DataCorrupt:
        """The error for corruption at `position` of the ledger; `besides`: what to restore, too."""
        return DataCorrupt(
            f"ledger {self.ledger} is corrupt at byte {position} ({problem}): its records there are"
            f" not served; restore {self._name} in {self._blobs.shown}{besides} from an older"
            " version",
            ledger=self.ledger,
            position=position,
        )

    def counted(self, damage: DataCorrupt) -> DataCorrupt:
        """The same error, counted, and logged if it is the first one of this blob."""
        self.counters.corrupt_blocks += 1
        if not self._is_reported:
            self._is_reported = True
            log.error("%s: %s", self._name, damage)
        return damage
