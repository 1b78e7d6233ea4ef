"""Which partitions of a cluster lack copies, by the metadata of their ledgers.

Invariants: compares facts that were read; reads nothing itself. Counts copies on bookies that are
not registered. What a bookie that is registered has missed is known to the ledger's owner alone,
and is in that broker's metrics.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from headrace.metadata.facts import PartitionFact, PartitionKey
    from headrace.server.cluster_admin import Picture
    from headrace.storage.ledger import LedgerRecord


class UnderReplicated(NamedTuple):
    """A partition that lacks copies."""

    partition: str
    """`topic-number`."""
    ledgers: int
    """So many of its ledgers name bookies that are not there."""
    copies_missing: int
    """Of their entries; those of ledgers that are being written are not counted."""
    bookies: tuple[str, ...]

    @property
    def text(self) -> str:
        """As a line for people."""
        return (
            f"{self.partition} is under-replicated: {self.ledgers} of its ledgers lie on bookies"
            f" that are not registered ({', '.join(self.bookies)}); {self.copies_missing} copies"
            " of entries are missing there"
        )


def under_replicated(
    picture: Picture,
    chains: Mapping[PartitionKey, PartitionFact],
    records: Mapping[int, LedgerRecord],
) -> Sequence[UnderReplicated]:
    """Every partition that lacks copies, in the picture's order."""
    found = []
    for key in picture.partitions:
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
                    picture.name_of(key),
                    len(lacking),
                    sum(missing.copies for missing in lacking),
                    tuple(sorted(bookies)),
                )
            )
    return found
