"""Which copies of a ledger's entries are missing, by what its metadata say.

Invariants: pure. Counts copies on bookies that are not there; what a bookie that is there has
missed is known to the ledger's writer alone (`ledger_handle`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.storage.bookkeeper.ledger_metadata import LedgerState
from headrace.storage.ledger import Missing

if TYPE_CHECKING:
    from collections.abc import Set as AbstractSet

    from headrace.storage.bookkeeper.ledger_metadata import LedgerMetadata
    from headrace.storage.bookkeeper.quorum import Quorum


def missing_copies(metadata: LedgerMetadata, present: AbstractSet[str]) -> Missing:
    """The copies that lie on bookies which are not `present`."""
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
                continue  # it holds nothing
        for slot, bookie in enumerate(ensemble.bookies):
            if bookie not in present:
                bookies.add(bookie)
                copies += _held(metadata.quorum, slot, ensemble.first_entry, end)
    return Missing(copies, tuple(sorted(bookies)))


def _held(quorum: Quorum, slot: int, first: int, end: int) -> int:
    """How many of the entries in [first, end) lie on `slot`."""
    rounds, rest = divmod(max(end - first, 0), quorum.ensemble)
    return rounds * quorum.write + sum(
        quorum.holds(slot, entry) for entry in range(end - rest, end)
    )
