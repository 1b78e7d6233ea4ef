"""In-memory metadata that records each change in a disk's operation log.

Invariants: a change takes effect at one instant, like SQLite's commit, some loop iterations after
the request and before the response.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from headrace.metadata.memory import MemoryMetadata, MemoryMetadataStore

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headrace.metadata.store import MetadataEntry, MultiOperation
    from headrace_verify.crash.model_disk import ModelDisk

Facts = dict[str, "MetadataEntry"]


class RecordedMetadata(MemoryMetadataStore):
    """A session that records ("facts", all facts) in the operations of `disk`."""

    def __init__(self, disk: ModelDisk, facts: Facts) -> None:
        self._facts = MemoryMetadata()
        self._facts.entries = facts
        super().__init__(self._facts)
        self._disk = disk

    @property
    def facts(self) -> Facts:
        """All current facts."""
        return self._facts.entries

    async def put(
        self, key: str, value: bytes, expected_version: int, *, ephemeral: bool = False
    ) -> int:
        """See MetadataStore."""
        await asyncio.sleep(0)
        version = await super().put(key, value, expected_version, ephemeral=ephemeral)
        await self._note()
        return version

    async def multi(self, operations: Sequence[MultiOperation]) -> Sequence[int]:
        """See MetadataStore."""
        await asyncio.sleep(0)
        versions = await super().multi(operations)
        await self._note()
        return versions

    async def delete(self, key: str, expected_version: int) -> None:
        """See MetadataStore."""
        await asyncio.sleep(0)
        await super().delete(key, expected_version)
        await self._note()

    async def _note(self) -> None:
        # Each change replaces the dict and never mutates it, so this reference stays valid.
        self._disk.note("facts", self._facts.entries)
        await asyncio.sleep(0)
