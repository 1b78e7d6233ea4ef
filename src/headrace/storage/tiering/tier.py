"""What the log asks of a ledger store that has object storage beneath it.

Invariants: words only. A sealed ledger may have a copy in object storage (it is
*offloaded*); once the chain says so, its local bytes may go, and reads are served from the copy.
The chain of ledgers in the metadata store alone says which ledgers these are: the log tells the
tier (`attach`), the tier never guesses.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from headrace.storage.ledger import LedgerId


class StoredObject(NamedTuple):
    """One ledger's copy, as a listing shows it."""

    ledger: LedgerId
    size_bytes: int
    modified_ms: int


class TierCounters:
    """What the tier has done since it was opened."""

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
        """Of ledgers that were written, read back and found whole."""
        self.cold_reads = 0
        """Requests for ranges of objects, read-ahead included."""
        self.cold_bytes = 0
        self.corrupt_blocks = 0
        """Blocks, headers, footers and checksums that were damaged even when read again."""
        self.deletes = 0
        self.failures = 0
        """Operations that object storage failed, after all attempts."""


class Tier(Protocol):
    """Object storage beneath a LedgerStore."""

    counters: TierCounters

    @property
    def shown(self) -> str:
        """Where the objects are, for people: no secrets."""
        ...

    def attach(self, ledger: LedgerId, size: int, *, is_local: bool) -> None:
        """Learn that the ledger of `size` bytes is offloaded, and whether its own bytes remain."""
        ...

    async def offload(self, ledger: LedgerId) -> int:
        """Copy a sealed ledger, read the copy back, and say how many bytes the ledger has.

        Offloading again writes the same bytes. Raises StorageUnavailable, LedgerUnknown,
        DataCorrupt where the copy is not what was written.
        """
        ...

    async def is_whole(self, ledger: LedgerId) -> bool:
        """Whether the copy of an attached ledger is still there and of the right size.

        Raises StorageUnavailable.
        """
        ...

    async def drop_local(self, ledger: LedgerId) -> None:
        """Serve an attached ledger from its copy from now on, and delete its own bytes.

        Does nothing where they are gone. Raises StorageUnavailable.
        """
        ...

    def discard(self, ledger: LedgerId) -> None:
        """Delete the copy, if there is one, behind the caller's back; `list_objects` shows it
        until that has worked."""
        ...

    def list_objects(self) -> AsyncIterator[StoredObject]:
        """All copies of this cluster. Raises StorageUnavailable."""
        ...
