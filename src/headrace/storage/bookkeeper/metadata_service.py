"""Ledger metadata in ZooKeeper: create, read, update by compare-and-set, watch, delete, list.

Invariants: knows BookKeeper's layout in ZooKeeper (`HierarchicalLedgerManagerFactory`), not
bookies. If the outcome of an update is unknown because the connection broke, the metadata is read
back: the update succeeded if it equals what was written.
"""

from __future__ import annotations

import asyncio
import re
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple, Protocol

from headrace.errors import LedgerUnknown, MetadataUnavailable, StorageUnavailable, VersionConflict
from headrace.storage.bookkeeper.ledger_metadata import (
    LedgerMetadata,
    LedgerState,
    decode_metadata,
    encode_metadata,
    ledger_in,
    ledger_path,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

RETRY_S = 0.1
_SHORT_IDS_END = 2**31 - 1
_LISTED_AT_ONCE = 64


class ZooKeeperCalls(Protocol):
    """The required ZooKeeper operations. All raise MetadataUnavailable if it does not answer."""

    async def get(
        self, path: str, changed: Callable[[], None] | None = None
    ) -> tuple[bytes, int] | None:
        """(value, version), None if there is no node; `changed` is called once, later."""
        ...

    async def children(
        self, path: str, changed: Callable[[], None] | None = None
    ) -> Sequence[str] | None:
        """The names of the children of `path`; None if there is no node."""
        ...

    async def next_sequence(self, path: str) -> int:
        """The number of the next sequential node below `path`."""
        ...

    async def create(self, path: str, value: bytes, *, ephemeral: bool, sequence: bool) -> str:
        """Create a node and its parents; returns its path. Raises VersionConflict if it exists."""
        ...

    async def put(self, path: str, value: bytes, version: int) -> int:
        """Set a node's value; returns its new version. Raises VersionConflict."""
        ...

    async def delete(self, path: str, version: int = -1) -> bool:
        """Delete a node; returns whether it existed. Raises VersionConflict."""
        ...


class VersionedLedger(NamedTuple):
    """A ledger's metadata with the version of its node."""

    metadata: LedgerMetadata
    version: int


class LedgerMetadataService:
    """See the module; `root` is BookKeeper's root node in ZooKeeper."""

    def __init__(self, zookeeper: ZooKeeperCalls, root: str, *, timeout_ms: int) -> None:
        self._zookeeper = zookeeper
        self._root = root
        self._timeout_s = timeout_ms / 1000
        self._has_long_ids = False

    async def create(
        self, metadata: LedgerMetadata, check: Callable[[int], Awaitable[None]]
    ) -> tuple[int, VersionedLedger]:
        """Allocate a ledger id and write its metadata.

        `check` is called with the id, and raises if it must not be used. Raises StorageUnavailable.
        """
        try:
            ledger, node = await self._allocate()
            await asyncio.gather(self._discard(node), check(ledger))
            return ledger, await self.create_as(ledger, metadata)
        except (MetadataUnavailable, VersionConflict) as error:
            raise StorageUnavailable(f"cannot create a ledger now: {error}") from error

    async def create_as(self, ledger: int, metadata: LedgerMetadata) -> VersionedLedger:
        """Write the metadata of a ledger whose id is not allocated. Raises MetadataUnavailable,
        VersionConflict if it exists."""
        path = ledger_path(self._root, ledger)
        await self._zookeeper.create(
            path, encode_metadata(metadata), ephemeral=False, sequence=False
        )
        return VersionedLedger(metadata, 0)

    async def peek_id(self) -> int:
        """The next id, as long as ids have 31 bits. Raises MetadataUnavailable."""
        return await self._zookeeper.next_sequence(f"{self._root}/idgen")

    async def next_id(self) -> int:
        """A new id. Raises MetadataUnavailable."""
        number, node = await self._allocate()
        await self._discard(node)
        return number

    async def _allocate(self) -> tuple[int, str]:
        """A new id, and the sequential node whose number it is, to be discarded."""
        if not self._has_long_ids:
            number, node = await self._sequence(f"{self._root}/idgen")
            if number is not None:
                return number, node
            await self._discard(node)
            self._has_long_ids = True
        return await self._allocate_long()

    async def _sequence(self, folder: str) -> tuple[int | None, str]:
        """The next number in `folder`, None if its 31 bits are exhausted; and its node."""
        node = await self._zookeeper.create(f"{folder}/ID-", b"", ephemeral=True, sequence=True)
        number = int(node.rpartition("-")[2]) if re.search(r"ID-\d{10}$", node) else -1
        return (number if 0 <= number < _SHORT_IDS_END else None), node

    async def _discard(self, node: str) -> None:
        with suppress(MetadataUnavailable):  # it is deleted with the session
            await self._zookeeper.delete(node)

    async def _allocate_long(self) -> tuple[int, str]:
        """Ids of 63 bits: the high half is a node, the low half a sequence number below it."""
        folder = f"{self._root}/idgen-long"
        while True:
            names = await self._zookeeper.children(folder) or ()
            halves = [int(name[4:]) for name in names if re.fullmatch(r"HOB-\d{10}", name)]
            high = max(halves, default=0)
            if high:
                low, node = await self._sequence(f"{folder}/HOB-{high:010}")
                if low is not None:
                    return high << 32 | low, node
                await self._discard(node)
            try:
                await self._zookeeper.create(
                    f"{folder}/HOB-{high + 1:010}", b"", ephemeral=False, sequence=False
                )
            except VersionConflict:
                pass  # another broker was faster

    async def read(self, ledger: int, changed: Callable[[], None] | None = None) -> VersionedLedger:
        """The metadata of a ledger; `changed` is called once when it was changed or deleted.

        Raises LedgerUnknown, MetadataUnavailable, DataCorrupt, FormatUnsupported.
        """
        found = await self._zookeeper.get(ledger_path(self._root, ledger), changed)
        if found is None:
            raise unknown(ledger)
        return VersionedLedger(decode_metadata(found[0]), found[1])

    async def wait_closed(self, ledger: int) -> VersionedLedger:
        """Wait until the ledger is closed; returns its metadata.

        Raises LedgerUnknown, StorageUnavailable, DataCorrupt, FormatUnsupported.
        """
        while True:
            changed = asyncio.Event()
            try:
                found = await self.read(ledger, changed.set)
            except MetadataUnavailable as error:
                raise StorageUnavailable(f"cannot watch ledger {ledger}: {error}") from error
            if found.metadata.state is LedgerState.CLOSED:
                return found
            await changed.wait()

    async def update(
        self,
        ledger: int,
        known: VersionedLedger,
        change: Callable[[LedgerMetadata], LedgerMetadata | None],
    ) -> VersionedLedger:
        """Update the metadata by compare-and-set, starting from `known` or the current state.

        `change` returns the new metadata, None to leave it unchanged. Returns the resulting
        metadata. Raises LedgerUnknown, MetadataUnavailable on a time-out.
        """
        try:
            async with asyncio.timeout(self._timeout_s):
                return await self._update(ledger, known, change)
        except TimeoutError:
            raise MetadataUnavailable(
                f"the metadata of ledger {ledger} could not be updated within {self._timeout_s} s"
            ) from None

    async def _update(
        self,
        ledger: int,
        known: VersionedLedger,
        change: Callable[[LedgerMetadata], LedgerMetadata | None],
    ) -> VersionedLedger:
        path = ledger_path(self._root, ledger)
        while True:
            wanted = change(known.metadata)
            if wanted is None:
                return known
            try:
                version = await self._zookeeper.put(path, encode_metadata(wanted), known.version)
                return VersionedLedger(wanted, version)
            except VersionConflict:
                known = await self._read_patiently(ledger)
            except MetadataUnavailable:
                await asyncio.sleep(RETRY_S)
                known = await self._read_patiently(ledger)
            if known.metadata == wanted:
                return known  # the update succeeded, but its response was lost

    async def _read_patiently(self, ledger: int) -> VersionedLedger:
        while True:
            try:
                return await self.read(ledger)
            except MetadataUnavailable:
                await asyncio.sleep(RETRY_S)

    async def delete(self, ledger: int, version: int) -> None:
        """Delete the metadata if it is still at `version`.

        Raises LedgerUnknown, VersionConflict, MetadataUnavailable.
        """
        if not await self._zookeeper.delete(ledger_path(self._root, ledger), version):
            raise unknown(ledger)

    async def ledgers(self) -> list[int]:
        """The ids of all ledgers, of every creator, sorted."""
        found: list[int] = []
        folders = [self._root]
        while folders:
            batch, folders = folders[:_LISTED_AT_ONCE], folders[_LISTED_AT_ONCE:]
            listed = await asyncio.gather(*map(self._zookeeper.children, batch))
            for folder, names in zip(batch, listed, strict=True):
                for name in names or ():
                    if re.fullmatch(r"\d{2,4}", name):
                        folders.append(f"{folder}/{name}")
                        continue
                    ledger = ledger_in(f"{folder}/{name}")
                    if ledger is not None:
                        found.append(ledger)
        return sorted(found)


def unknown(ledger: int) -> LedgerUnknown:
    """The error for a ledger that does not exist."""
    return LedgerUnknown(
        f"ledger {ledger} does not exist: it was deleted or never created", ledger=ledger
    )
