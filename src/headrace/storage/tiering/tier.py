"""The interface to a ledger store with object storage.

Invariants: an interface only. A sealed ledger may have a copy in object storage (it is
*offloaded*); once the chain records this, its local bytes may be deleted, and reads are served
from the copy. Only the ledger chain in the metadata store records which ledgers are offloaded: the
log passes that on (`attach`), the tier never guesses.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from headrace.storage.ledger import LedgerId
    from headrace.storage.tiering.recipe_format import TableFile
    from headrace.storage.tiering.table_files import TableFiles


class StoredObject(NamedTuple):
    """A ledger's object, as listed."""

    ledger: LedgerId
    size_bytes: int
    modified_ms: int
    is_recipe: bool = False


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

    @property
    def prefix(self) -> str:
        """What the names of this cluster's objects begin with."""
        ...

    @property
    def tables(self) -> TableFiles | None:
        """The topics' tables; None if they replace no objects."""
        ...

    def attach(
        self, ledger: LedgerId, size: int, *, is_local: bool, is_tabled: bool = False
    ) -> None:
        """Register an offloaded ledger of `size` bytes: whether its local copy remains, and whether
        its recipe, not its object, is what it is read from."""
        ...

    async def offload(self, ledger: LedgerId) -> int:
        """Copy a sealed ledger and read the copy back; returns the ledger's size in bytes.

        Repeating it writes the same bytes. Raises StorageUnavailable, LedgerUnknown, DataCorrupt
        if the copy differs from what was written.
        """
        ...

    async def is_whole(self, ledger: LedgerId) -> bool:
        """Whether the object of an attached ledger exists with the right size.

        Raises StorageUnavailable, LedgerUnknown if it was deleted.
        """
        ...

    async def drop_local(self, ledger: LedgerId) -> None:
        """Serve an attached ledger from its object from now on, and delete the local copy.

        Does nothing if that was already deleted. Raises StorageUnavailable, LedgerUnknown.
        """
        ...

    async def write_recipe(self, ledger: LedgerId, files: Sequence[TableFile]) -> str | None:
        """Write the recipe of an attached ledger whose object is its only copy, and rebuild the
        whole ledger from it.

        Returns why nothing was written, if the recipe would store most of the ledger. Repeating it
        replaces the recipe, or verifies it if there is no object any more: its files must be among
        these then. Raises LedgerUnknown if it is not attached, StorageUnavailable, DataCorrupt.
        """
        ...

    def has_recipe(self, ledger: LedgerId) -> bool:
        """Whether a ledger is read by its recipe, also where the chain does not record it: as far
        as this process has looked for its object."""
        ...

    async def check_recipe(self, ledger: LedgerId) -> Sequence[str]:
        """Look for the recipe of a ledger, and for the table's files that it names; returns them.

        Raises LedgerUnknown if it is not attached, StorageUnavailable, DataCorrupt.
        """
        ...

    def discard_object(self, ledger: LedgerId) -> None:
        """Like `discard`, for the object of a ledger that the chain records as tabled."""
        ...

    def discard(self, ledger: LedgerId) -> None:
        """Delete the object and the recipe, if there are any, in the background; until that has
        succeeded, `list_objects` includes them."""
        ...

    def list_objects(self) -> AsyncIterator[StoredObject]:
        """All objects of this cluster. Raises StorageUnavailable."""
        ...
