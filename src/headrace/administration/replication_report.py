"""Determines which partitions of a cluster are under-replicated, from ledger metadata.

Invariants: compares facts passed to it; reads nothing itself. Counts copies on unregistered
bookies. Entries that a registered bookie has missed are known to the ledger's owner only, and are
in that broker's metrics.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from headrace.administration.snapshot import ClusterSnapshot
    from headrace.metadata.facts import PartitionFact, PartitionKey
    from headrace.storage.ledger import LedgerRecord


class UnderReplicated(NamedTuple):
    """A partition that lacks copies."""

    partition: str
    """`topic-number`."""
    ledgers: int
    """Ledgers with unregistered bookies."""
    copies_missing: int
    """Missing copies of entries; those of ledgers being written are not counted."""
    bookies: tuple[str, ...]

    @property
    def text(self) -> str:
        """As one line of text."""
        return (
            f"{self.partition} is under-replicated: {self.ledgers} of its ledgers are on "
            f"unregistered bookies ({', '.join(self.bookies)}); {self.copies_missing} "
            "copies of entries are missing"
        )


def under_replicated(
    snapshot: ClusterSnapshot,
    chains: Mapping[PartitionKey, PartitionFact],
    records: Mapping[int, LedgerRecord],
) -> Sequence[UnderReplicated]:
    """Every partition that lacks copies, in the snapshot's order."""
    found = []
    for key in snapshot.partitions:
        chain = chains.get(key)
        links = [] if chain is None else [x for x in chain.ledgers if x.local_deleted_ms is None]
        lacking = [
            record.missing
            for record in (records.get(link.ledger) for link in links)
            if record is not None and record.missing.machines
        ]
        if lacking:
            bookies = {bookie for missing in lacking for bookie in missing.machines}
            found.append(
                UnderReplicated(
                    snapshot.name_of(key),
                    len(lacking),
                    sum(missing.copies for missing in lacking),
                    tuple(sorted(bookies)),
                )
            )
    return found
