"""Producer ids for idempotent producers: taken from the metadata store in blocks.

Invariants: an id is given to one producer only, in the whole life of the cluster. What is
left of a block when the broker stops is never used. An id that is given twice makes records of one
producer look like another's retries, which are acknowledged and not stored. So the stored counter
never lags behind the clock: one that was lost, or restored from an old back-up, gives no id again,
unless the broker's clock is set to before that time as well.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from headrace.metadata.facts import allocate_producer_ids

if TYPE_CHECKING:
    from headrace.metadata.store import MetadataStore
    from headrace.runtime.clock import Clock

BLOCK_SIZE = 1_000
"""Kafka's block size: one write of metadata for a thousand producers."""

IDS_PER_MS = 1_000
"""More are not given for long, so that the clock stays ahead of what was given before; ids stay
below 2**53 for 280 years, which JSON's readers take for whole numbers."""


class ProducerIds:
    """Gives out producer ids."""

    def __init__(self, metadata: MetadataStore, clock: Clock) -> None:
        self._metadata = metadata
        self._clock = clock
        self._block = range(0)
        self._lock = asyncio.Lock()

    async def take(self) -> int:
        """A new producer id. Raises MetadataUnavailable."""
        async with self._lock:
            if not self._block:
                least = self._clock.now_ms() * IDS_PER_MS
                self._block = await allocate_producer_ids(self._metadata, BLOCK_SIZE, least)
            producer_id = self._block[0]
            self._block = self._block[1:]
            return producer_id
