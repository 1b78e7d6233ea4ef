"""The interface to the tables that keep records of topics.

Invariants: an interface only. A table has its own life: it is compacted, its snapshots expire, its
files are deleted. Only files that are *protected* may become the only copy of a record.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from headrace.storage.ledger import LedgerId
    from headrace.storage.tiering.recipe_format import TableFile


class TablePlace(NamedTuple):
    """A ledger, by the rows that its topic's table has of it."""

    topic: str
    partition: int
    ledger: LedgerId


class ProtectedFiles(NamedTuple):
    """Files that stay until the protection of this snapshot ends."""

    snapshot: int
    files: Sequence[TableFile]


class Protection(NamedTuple):
    """What the tables say about ledgers with protection."""

    ledgers: frozenset[tuple[str, LedgerId]]
    """With the topic of the table."""
    unread: Mapping[str, str] = {}
    """Topics whose tables cannot be read, and why: they may protect ledgers, too."""


class TableFiles(Protocol):
    """The data files of the topics' tables."""

    async def settled(self, topic: str) -> Mapping[int, int]:
        """By partition, the offset before which maintenance has compacted the topic's rows.

        Raises StorageUnavailable.
        """
        ...

    async def protect(
        self, place: TablePlace, base_offset: int, end_offset: int
    ) -> ProtectedFiles | None:
        """The files with the partition's records of an offset range, protected for the ledger.

        The range is settled. Until `release`, no maintenance of the table deletes the files, and
        they survive a loss of power. None if there are none, or if rows of them were deleted.
        Raises StorageUnavailable.
        """
        ...

    async def is_protected(self, topic: str, ledger: LedgerId, snapshot: int) -> bool:
        """Whether the protection of this snapshot is still there. A REST catalog compares nothing
        when it removes snapshots: an expiry that began before `protect` ends it.

        Raises StorageUnavailable.
        """
        ...

    async def protected(self, topics: Collection[str]) -> Protection:
        """The ledgers with protection, by tables in the namespaces of these topics' tables, and in
        others of tenants that the catalog lists.

        Raises StorageUnavailable if no table can be read.
        """
        ...

    async def release(self, topic: str, ledger: LedgerId, snapshot: int | None = None) -> None:
        """End the protection for a ledger that has no recipe, or that of one snapshot alone:
        another broker may have protected, and used, a later one since. Raises StorageUnavailable.
        """
        ...

    def close(self) -> None:
        """End what still runs soon; nothing is asked any more."""
        ...
