"""A metadata store in memory: the contract in its simplest form, for tests and simulations.

Invariants: nothing survives the process. Several stores, like the sessions of several brokers,
may share one MemoryMetadata.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.errors import MetadataUnavailable
from headrace.metadata.store import ABSENT, MetadataEntry, MultiOperation
from headrace.metadata.watches import Watches, next_version
from headrace.runtime.session import endless_session

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence


class MemoryMetadata:
    """The state shared by all sessions."""

    def __init__(self) -> None:
        self.entries: dict[str, MetadataEntry] = {}
        self.owners: dict[str, MemoryMetadataStore] = {}  # of ephemeral keys
        self.watches: dict[MemoryMetadataStore, Watches] = {}

    def notify(self, keys: Sequence[str]) -> None:
        """Report to all sessions that these keys changed."""
        for watches in self.watches.values():
            watches.notify(keys)


class MemoryMetadataStore:
    """One session on a MemoryMetadata. See MetadataStore."""

    def __init__(self, shared: MemoryMetadata | None = None) -> None:
        self._shared = shared or MemoryMetadata()
        self._watches = self._shared.watches[self] = Watches()
        self._is_closed = False
        self.session = endless_session()

    async def get(self, key: str) -> MetadataEntry | None:
        """See MetadataStore."""
        self._check_open()
        return self._shared.entries.get(key)

    async def list(self, prefix: str) -> Sequence[MetadataEntry]:
        """See MetadataStore."""
        self._check_open()
        entries = self._shared.entries
        return [entries[key] for key in sorted(entries) if key.startswith(prefix)]

    async def put(
        self, key: str, value: bytes, expected_version: int, *, ephemeral: bool = False
    ) -> int:
        """See MetadataStore."""
        (version,) = self._write([MultiOperation(key, value, expected_version)], ephemeral)
        return version

    async def delete(self, key: str, expected_version: int) -> None:
        """See MetadataStore."""
        self._write([MultiOperation(key, None, expected_version)], ephemeral=False)

    async def multi(self, operations: Sequence[MultiOperation]) -> Sequence[int]:
        """See MetadataStore."""
        return self._write(operations, ephemeral=False)

    def watch(self, prefix: str) -> AsyncIterator[str]:
        """See MetadataStore."""
        self._check_open()
        return self._watches.add(prefix)

    async def close(self) -> None:
        """See MetadataStore."""
        if not self._is_closed:
            self._is_closed = True
            owners = self._shared.owners
            deleted = [key for key, owner in owners.items() if owner is self]
            for key in deleted:
                del owners[key], self._shared.entries[key]
            del self._shared.watches[self]
            self._shared.notify(deleted)
            self._watches.close()
            self.session.lose(self.session.since_ns)

    def _write(self, operations: Sequence[MultiOperation], ephemeral: bool) -> Sequence[int]:
        self._check_open()
        entries = dict(self._shared.entries)  # a copy, so that all operations apply or none
        versions, changed = [], []
        for key, value, expected in operations:
            found = entries[key].version if key in entries else ABSENT
            version = next_version(key, found, expected)
            if value is not None:
                entries[key] = MetadataEntry(key, bytes(value), version)
            elif entries.pop(key, None) is None:
                versions.append(ABSENT)
                continue
            versions.append(ABSENT if value is None else version)
            changed.append(key)
        self._shared.entries = entries
        for key in changed:
            self._shared.owners.pop(key, None)
            if ephemeral:
                self._shared.owners[key] = self
        self._shared.notify(changed)
        return versions

    def _check_open(self) -> None:
        if self._is_closed:
            raise MetadataUnavailable("the metadata store is closed: open a new one")
