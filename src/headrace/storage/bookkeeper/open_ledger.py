"""The state of one open ledger, and the state shared by all ledgers of a store.

Invariants: values shared by writing, recovery and reading.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, NamedTuple

from headrace.storage.bookkeeper.entries import EntryIndex
from headrace.storage.ledger import LedgerId, LedgerInfo

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from collections.abc import Set as AbstractSet

    from headrace.runtime.clock import Clock
    from headrace.runtime.randomness import Randomness
    from headrace.runtime.tasks import Tasks
    from headrace.storage.bookkeeper.bookie_connection import Bookies
    from headrace.storage.bookkeeper.bookie_health import BookieHealth
    from headrace.storage.bookkeeper.ensemble import BookiePool
    from headrace.storage.bookkeeper.entry_cache import EntryCache
    from headrace.storage.bookkeeper.metadata_service import LedgerMetadataService, VersionedLedger
    from headrace.storage.bookkeeper.settings import BookKeeperSettings


class InFlightBudget:
    """Limits the bytes in flight of all ledgers together; ledgers without room wait in line.

    Without a limit, a burst would exceed the limit of every bookie, and so fail them all.
    """

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._taken = 0
        self._waiting: deque[Callable[[], None]] = deque()

    def take(self, size: int) -> bool:
        """Reserve room for an entry, if there is any; a single entry always fits."""
        if self._taken and self._taken + size > self._bytes_max:
            return False
        self._taken += size
        return True

    def wait(self, go_on: Callable[[], None]) -> None:
        """Call `go_on` when there may be room."""
        self._waiting.append(go_on)

    def release(self, size: int) -> None:
        """Release reserved room."""
        self._taken -= size
        if self._waiting and self._taken < self._bytes_max:
            asyncio.get_running_loop().call_soon(self._waiting.popleft())


class StoreState(NamedTuple):
    """State shared by all ledgers of one store."""

    bookies: Bookies
    service: LedgerMetadataService
    pool: BookiePool
    health: BookieHealth
    cache: EntryCache
    room: InFlightBudget
    tasks: Tasks
    clock: Clock
    randomness: Randomness
    settings: BookKeeperSettings
    looks: asyncio.Semaphore  # noqa: TID251  # of tasks
    """Held while a writer rereads its ledger's metadata."""

    def choose_spare(
        self, ensemble: Sequence[str], slot: int, excluded: AbstractSet[str]
    ) -> str | None:
        """A replacement for the failed bookie in a slot."""
        return self.pool.choose_spare(
            ensemble, slot, excluded, self.clock.now_ns(), self.randomness.below
        )

    def bookie_failed(self, bookie: str, code: int) -> None:
        """Exclude a failed bookie from new ensembles until it answers again."""
        self.health.failed(bookie, code)


class OpenLedgers:
    """The ledgers of a store that are open for reading, with a memory limit for sealed ones."""

    def __init__(self, sealed_bytes_max: int) -> None:
        self._opened: dict[int, OpenLedger] = {}
        self._sealed: dict[int, int] = {}
        """Memory used by each sealed ledger, oldest first."""
        self._sealed_bytes_max = sealed_bytes_max
        self.sealed_bytes = 0

    def __contains__(self, ledger: int) -> bool:
        return ledger in self._opened

    def get(self, ledger: int) -> OpenLedger | None:
        """The ledger, if it is open."""
        return self._opened.get(ledger)

    @property
    def infos(self) -> list[LedgerInfo]:
        """The state of each ledger, by id."""
        return [opened.info for _, opened in sorted(self._opened.items())]

    def add(self, opened: OpenLedger) -> None:
        """Add a ledger being written, kept until it is sealed or forgotten."""
        self._opened[opened.ledger] = opened

    def add_sealed(self, opened: OpenLedger) -> None:
        """Add a sealed ledger, evicting the oldest ones above the limit."""
        self.forget(opened.ledger)
        self._opened[opened.ledger] = opened
        self._sealed[opened.ledger] = opened.size_bytes
        self.sealed_bytes += opened.size_bytes
        while self.sealed_bytes > self._sealed_bytes_max and len(self._sealed) > 1:
            self.forget(next(iter(self._sealed)))

    def forget(self, ledger: int) -> None:
        """Drop it; it is reopened on the next read."""
        self._opened.pop(ledger, None)
        self.sealed_bytes -= self._sealed.pop(ledger, 0)


class OpenLedger:
    """A ledger open for reading."""

    __slots__ = ("end", "footer", "index", "is_sealed", "last_entry", "ledger", "versioned")

    def __init__(self, ledger: int, versioned: VersionedLedger) -> None:
        self.ledger = ledger
        self.versioned = versioned
        self.index = EntryIndex()
        self.last_entry = -1
        """The last entry with readable bytes."""
        self.end = 0
        """The end of the readable bytes."""
        self.is_sealed = False
        self.footer: bytes | None = None

    @property
    def size_bytes(self) -> int:
        """Approximate memory use."""
        return 1_000 + self.index.size_bytes + len(self.footer or b"")

    @property
    def info(self) -> LedgerInfo:
        """Its state, for the LedgerStore interface."""
        return LedgerInfo(LedgerId(self.ledger), self.end, self.is_sealed, self.footer)
