"""Seals ledgers, if necessary by recovering them, and releases their state in the store.

Invariants: knows ledgers and their store; the lifecycle host decides when to seal and retries.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from headrace.errors import Fenced, LedgerLost
from headrace.log.footer import encode_footer, encode_in_steps, take_step
from headrace.log.producer_encoding import SLICE
from headrace.storage.ledger import ReleasesLedgers

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headrace.log.footer import Footer
    from headrace.log.segment import Segment
    from headrace.storage.ledger import LedgerStore


async def encoded(footer: Footer) -> bytes:
    """The bytes of a footer; with many producers, the event loop has other turns meanwhile."""
    if len(footer.producers) <= SLICE:
        return encode_footer(footer)
    steps = encode_in_steps(footer)
    while (data := take_step(steps)) is None:  # noqa: ASYNC110 - waits for no event
        await asyncio.sleep(0)
    return data


async def seal(segment: Segment, footer: Footer, store: LedgerStore) -> None:
    """Seal `segment`, whose appends are all durable. Raises what the store raises; DataCorrupt."""
    try:
        await store.seal(segment.ledger, await encoded(footer))
    except (Fenced, LedgerLost):
        # Sealing it as its writer would fail forever. A recovery finds everything acknowledged and
        # seals the ledger without a footer: it is then scanned instead.
        info = await store.recover(segment.ledger)
        if info.end != segment.end_position:
            problem = "it does not end with the last acknowledged append"
            raise segment.corrupt(info.end, problem) from None
        if not info.is_sealed:
            raise
    segment.is_sealed, segment.footer = True, None


def release_open(segments: Sequence[Segment], store: LedgerStore) -> None:
    """Release the store's state for those segments that are open."""
    release([segment for segment in segments if not segment.is_sealed], store)


def release(segments: Sequence[Segment], store: LedgerStore) -> None:
    """Release the store's state and caches for segments that are no longer read here."""
    if isinstance(store, ReleasesLedgers):
        for segment in segments:
            store.release(segment.ledger)
