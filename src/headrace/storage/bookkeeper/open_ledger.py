"""What the store knows of one ledger, and what all ledgers of a store share.

Rules of the room: values that writing, recovering and reading hand to each other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from headrace.storage.bookkeeper.entries import EntryIndex
from headrace.storage.ledger import LedgerId, LedgerInfo

if TYPE_CHECKING:
    from collections.abc import Sequence
    from collections.abc import Set as AbstractSet

    from headrace.runtime.clock import Clock
    from headrace.runtime.randomness import Randomness
    from headrace.runtime.tasks import Tasks
    from headrace.storage.bookkeeper.bookie_connection import Bookies
    from headrace.storage.bookkeeper.ensemble import BookiePool
    from headrace.storage.bookkeeper.entry_cache import EntryCache
    from headrace.storage.bookkeeper.metadata_service import LedgerMetadataService, Versioned
    from headrace.storage.bookkeeper.settings import BookKeeperSettings


class Cluster(NamedTuple):
    """What all ledgers of one store share."""

    bookies: Bookies
    service: LedgerMetadataService
    pool: BookiePool
    cache: EntryCache
    tasks: Tasks
    clock: Clock
    randomness: Randomness
    settings: BookKeeperSettings

    def choose_spare(
        self, ensemble: Sequence[str], slot: int, excluded: AbstractSet[str]
    ) -> str | None:
        """A bookie for a slot whose own has failed."""
        return self.pool.choose_spare(
            ensemble, slot, excluded, self.clock.now_ns(), self.randomness.below
        )

    def bookie_failed(self, bookie: str) -> None:
        """No new ensembles for it, for a while."""
        self.pool.failed(bookie, self.clock.now_ns())


class OpenLedger:
    """A ledger that can be read here."""

    __slots__ = ("end", "footer", "index", "is_sealed", "last_entry", "ledger", "versioned")

    def __init__(self, ledger: int, versioned: Versioned) -> None:
        self.ledger = ledger
        self.versioned = versioned
        self.index = EntryIndex()
        self.last_entry = -1
        """The last entry that holds bytes which may be read."""
        self.end = 0
        """Bytes that may be read."""
        self.is_sealed = False
        self.footer: bytes | None = None

    @property
    def info(self) -> LedgerInfo:
        """As the seam tells it."""
        return LedgerInfo(LedgerId(self.ledger), self.end, self.is_sealed, self.footer)
