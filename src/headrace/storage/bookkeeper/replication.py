"""The missing copies of a ledger's entries, according to its metadata.

Invariants: pure. Counts copies on unavailable bookies; what an available bookie missed is known
only to the ledger's writer (`ledger_handle`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.storage.bookkeeper.ledger_metadata import LedgerState
from headrace.storage.ledger import MissingCopies

if TYPE_CHECKING:
    from collections.abc import Set as AbstractSet

    from headrace.storage.bookkeeper.ledger_metadata import LedgerMetadata
    from headrace.storage.bookkeeper.quorum import Quorum


def missing_copies(metadata: LedgerMetadata, present: AbstractSet[str]) -> MissingCopies:
    """The copies on bookies that are not `present`."""
    copies = 0
    bookies: set[str] = set()
    ensembles = metadata.ensembles
    is_closed = metadata.state is LedgerState.CLOSED
    for at, ensemble in enumerate(ensembles):
        if at + 1 < len(ensembles):
            end = ensembles[at + 1].first_entry
        else:
            end = metadata.last_entry + 1 if is_closed else ensemble.first_entry
            if is_closed and end <= ensemble.first_entry:
                continue  # it has no entries
        for slot, bookie in enumerate(ensemble.bookies):
            if bookie not in present:
                bookies.add(bookie)
                copies += _held(metadata.quorum, slot, ensemble.first_entry, end)
    return MissingCopies(copies, tuple(sorted(bookies)))


def _held(quorum: Quorum, slot: int, first: int, end: int) -> int:
    """The number of entries in [first, end) stored on `slot`."""
    rounds, rest = divmod(max(end - first, 0), quorum.ensemble)
    return rounds * quorum.write + sum(
        quorum.holds(slot, entry) for entry in range(end - rest, end)
    )
