"""The interface to a ledger store with object storage.

Invariants: an interface only. A sealed ledger may have a copy in object storage (it is
*offloaded*); once the chain records this, its local bytes may be deleted, and reads are served
from the copy. Only the ledger chain in the metadata store records which ledgers are offloaded: the
log passes that on (`attach`), the tier never guesses.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from headrace.storage.ledger import LedgerId


class StoredObject(NamedTuple):
    """A ledger's object, as listed."""

    ledger: LedgerId
    size_bytes: int
    modified_ms: int


class TierCounters:
    """Activity since the tier was opened."""

    __slots__ = (
        "cold_bytes",
        "cold_reads",
        "corrupt_blocks",
        "deletes",
        "failures",
        "offload_bytes",
        "offloads",
    )

    def __init__(self) -> None:
        self.offloads = 0
        self.offload_bytes = 0
        """Bytes of ledgers that were written, read back and verified."""
        self.cold_reads = 0
        """Range requests, including read-ahead."""
        self.cold_bytes = 0
        self.corrupt_blocks = 0
        """Blocks, headers, footers and checksums that were corrupt even on rereading."""
        self.deletes = 0
        self.failures = 0
        """Failed operations, after all retries."""


class Tier(Protocol):
    """Object storage beneath a LedgerStore."""

    counters: TierCounters

    @property
    def shown(self) -> str:
        """The location of the objects, for display: contains no secrets."""
        ...

    def attach(self, ledger: LedgerId, size: int, *, is_local: bool) -> None:
        """Register an offloaded ledger of `size` bytes, and whether its local copy remains."""
        ...

    async def offload(self, ledger: LedgerId) -> int:
        """Copy a sealed ledger and read the copy back; returns the ledger's size in bytes.

        Repeating it writes the same bytes. Raises StorageUnavailable, LedgerUnknown, DataCorrupt
        if the copy differs from what was written.
        """
        ...

    async def is_whole(self, ledger: LedgerId) -> bool:
        """Whether the object of an attached ledger exists with the right size.

        Raises StorageUnavailable.
        """
        ...

    async def drop_local(self, ledger: LedgerId) -> None:
        """Serve an attached ledger from its object from now on, and delete the local copy.

        Does nothing if that was already deleted. Raises StorageUnavailable.
        """
        ...

    def discard(self, ledger: LedgerId) -> None:
        """Delete the object, if there is one, in the background; until that has succeeded,
        `list_objects` includes it."""
        ...

    def list_objects(self) -> AsyncIterator[StoredObject]:
        """All objects of this cluster. Raises StorageUnavailable."""
        ...
