"""What the store knows of one ledger, and what all ledgers of a store share.

Invariants: values that writing, recovering and reading hand to each other.
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
    from headrace.storage.bookkeeper.metadata_service import LedgerMetadataService, Versioned
    from headrace.storage.bookkeeper.settings import BookKeeperSettings


class InFlightBudget:
    """How many bytes of all ledgers together may be under way; who finds no room waits in line.

    Without it a burst would make every bookie owe more than it may, and so fail them all.
    """

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._taken = 0
        self._waiting: deque[Callable[[], None]] = deque()

    def take(self, size: int) -> bool:
        """Take room for an entry, if there is any; one entry always finds some."""
        if self._taken and self._taken + size > self._bytes_max:
            return False
        self._taken += size
        return True

    def wait(self, go_on: Callable[[], None]) -> None:
        """Call `go_on` when there may be room."""
        self._waiting.append(go_on)

    def release(self, size: int) -> None:
        """Give room back."""
        self._taken -= size
        if self._waiting and self._taken < self._bytes_max:
            asyncio.get_running_loop().call_soon(self._waiting.popleft())


class Cluster(NamedTuple):
    """What all ledgers of one store share."""

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
    looks: asyncio.Semaphore
    """Held while a writer reads its ledger's metadata anew."""

    def choose_spare(
        self, ensemble: Sequence[str], slot: int, excluded: AbstractSet[str]
    ) -> str | None:
        """A bookie for a slot whose own has failed."""
        return self.pool.choose_spare(
            ensemble, slot, excluded, self.clock.now_ns(), self.randomness.below
        )

    def bookie_failed(self, bookie: str, code: int) -> None:
        """No new ensembles for it until it answers again."""
        self.health.failed(bookie, code)


class OpenLedgers:
    """The ledgers of one store that can be read here, by id; of sealed ones no more than fit."""

    def __init__(self, sealed_bytes_max: int) -> None:
        self._opened: dict[int, OpenLedger] = {}
        self._sealed: dict[int, int] = {}
        """The bytes that each sealed one takes, oldest first."""
        self._sealed_bytes_max = sealed_bytes_max
        self.sealed_bytes = 0

    def __contains__(self, ledger: int) -> bool:
        return ledger in self._opened

    def get(self, ledger: int) -> OpenLedger | None:
        """The ledger, if it is open here."""
        return self._opened.get(ledger)

    @property
    def infos(self) -> list[LedgerInfo]:
        """What is known of each, by id."""
        return [opened.info for _, opened in sorted(self._opened.items())]

    def add(self, opened: OpenLedger) -> None:
        """Keep one that is written to until it is sealed or forgotten."""
        self._opened[opened.ledger] = opened

    def add_sealed(self, opened: OpenLedger) -> None:
        """Keep a sealed one, and let the oldest go where they take too much."""
        self.forget(opened.ledger)
        self._opened[opened.ledger] = opened
        self._sealed[opened.ledger] = opened.size_bytes
        self.sealed_bytes += opened.size_bytes
        while self.sealed_bytes > self._sealed_bytes_max and len(self._sealed) > 1:
            self.forget(next(iter(self._sealed)))

    def forget(self, ledger: int) -> None:
        """Keep it no longer; it is opened anew when it is read."""
        self._opened.pop(ledger, None)
        self.sealed_bytes -= self._sealed.pop(ledger, 0)


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
    def size_bytes(self) -> int:
        """Memory that it takes, about."""
        return 1_000 + self.index.size_bytes + len(self.footer or b"")

    @property
    def info(self) -> LedgerInfo:
        """As the seam tells it."""
        return LedgerInfo(LedgerId(self.ledger), self.end, self.is_sealed, self.footer)
