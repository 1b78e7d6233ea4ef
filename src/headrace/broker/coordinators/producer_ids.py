"""Producer ids for idempotent producers, allocated from the metadata store in blocks.

Invariants: a producer id is allocated once in the life of the cluster. The rest of a block is
discarded when the broker stops. If an id were allocated twice, records of one producer would look
like another's retries, which are acknowledged and not stored. Therefore the stored counter never
lags behind the clock: a counter that was lost, or restored from an old backup, reuses no ids unless
the broker's clock is set back to before that time as well.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.metadata.facts import allocate_producer_ids
from headrace.runtime.fair_locks import FairLock

if TYPE_CHECKING:
    from headrace.metadata.store import MetadataStore
    from headrace.runtime.clock import Clock

BLOCK_SIZE = 1_000
"""Kafka's block size: one metadata write per thousand producers."""

IDS_PER_MS = 1_000
"""The sustained rate is lower, so that the clock stays ahead of the ids allocated before; ids stay
below 2**53, which JSON parsers represent exactly, for 280 years."""


class ProducerIds:
    """Allocates producer ids."""

    def __init__(self, metadata: MetadataStore, clock: Clock) -> None:
        self._metadata = metadata
        self._clock = clock
        self._block = range(0)
        self._lock = FairLock()

    async def take(self) -> int:
        """A new producer id. Raises MetadataUnavailable."""
        async with self._lock:
            if not self._block:
                least = self._clock.now_ms() * IDS_PER_MS
                self._block = await allocate_producer_ids(self._metadata, BLOCK_SIZE, least)
            producer_id = self._block[0]
            self._block = self._block[1:]
            return producer_id
