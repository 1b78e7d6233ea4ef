"""Producer ids for idempotent producers: taken from the metadata store in blocks.

Rules of the room: an id is given to one producer only, in the whole life of the cluster. What is
left of a block when the broker stops is never used.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from headrace.metadata.facts import allocate_producer_ids

if TYPE_CHECKING:
    from headrace.metadata.store import MetadataStore

BLOCK_SIZE = 1_000
"""Kafka's block size: one write of metadata for a thousand producers."""


class ProducerIds:
    """Gives out producer ids."""

    def __init__(self, metadata: MetadataStore) -> None:
        self._metadata = metadata
        self._block = range(0)
        self._lock = asyncio.Lock()

    async def take(self) -> int:
        """A new producer id. Raises MetadataUnavailable."""
        async with self._lock:
            if not self._block:
                self._block = await allocate_producer_ids(self._metadata, BLOCK_SIZE)
            producer_id = self._block[0]
            self._block = self._block[1:]
            return producer_id
