"""Ledgers whose bytes may be in object storage only: what opening, reading and trimming a log need.

Invariants: the chain says where a ledger's bytes are; the tier is told what the chain says.
Which ledgers are offloaded is decided in `tiering`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.errors import HeadraceError, LedgerUnknown, StorageUnavailable
from headrace.log.sealing import release
from headrace.storage.ledger import LedgerId

if TYPE_CHECKING:
    from headrace.log.segment import Segment
    from headrace.metadata.facts import LedgerLink
    from headrace.storage.ledger import LedgerStore
    from headrace.storage.tiering.tier import Tier


def attach(link: LedgerLink, tier: Tier | None) -> None:
    """Register a ledger with the tier if the chain records it as offloaded."""
    if tier is not None and link.offloaded_ms is not None:
        tier.attach(
            LedgerId(link.ledger),
            link.size_bytes or 0,
            is_local=link.local_deleted_ms is None,
            is_tabled=link.tabled_ms is not None,
        )


def unreachable(segment: Segment, error: LedgerUnknown) -> HeadraceError:
    """The error for a ledger that the store does not have: its bytes may be in object storage."""
    if segment.is_local:
        return segment.missing() if segment.is_sealed else error
    return StorageUnavailable(
        f"offsets from {segment.base_offset} on are in object storage only (ledger"
        f" {segment.ledger}), and this broker was started without it: start it with the --objects"
        " that it had before",
        ledger=segment.ledger,
    )


def discard(gone: list[Segment], tier: Tier | None, store: LedgerStore) -> None:
    """Release ledgers that the chain no longer names, and delete their offloaded copies.

    The ledgers themselves remain: a broker that was paused might still use them.
    """
    release(gone, store)
    for segment in gone:
        if tier is not None and segment.is_offloaded:
            tier.discard(segment.ledger)
