"""How a ledger that takes no more appends is left: sealed, even by a recovery, or let go.

Invariants: knows ledgers and their store; when ledgers are sealed is for `upkeep`, and so
is trying again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.errors import Fenced, LedgerLost
from headrace.storage.ledger import ReleasesLedgers

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headrace.log.segment import Segment
    from headrace.storage.ledger import LedgerStore


async def seal(segment: Segment, footer: bytes, store: LedgerStore) -> None:
    """Seal `segment`, of which every append is safe. Raises what the store raises; DataCorrupt."""
    try:
        await store.seal(segment.ledger, footer)
    except (Fenced, LedgerLost):
        # Its writer would say so for ever. A recovery finds all that was acknowledged, and seals
        # the ledger without a footer: then it is scanned where one would have been read.
        info = await store.recover(segment.ledger)
        if info.end != segment.end_position:
            problem = "it does not end where the acknowledged appends do"
            raise segment.corrupt(info.end, problem) from None
        if not info.is_sealed:
            raise
    segment.is_sealed, segment.footer = True, None


def release(segments: Sequence[Segment], store: LedgerStore) -> None:
    """Have the store keep nothing more of those that are open, if it keeps anything of them."""
    let_go([segment for segment in segments if not segment.is_sealed], store)


def let_go(segments: Sequence[Segment], store: LedgerStore) -> None:
    """Have the store drop its caches of them: they are no longer read here."""
    if isinstance(store, ReleasesLedgers):
        for segment in segments:
            store.release(segment.ledger)
