"""Who holds which entry: BookKeeper's round-robin distribution and what follows from it.

Invariants: arithmetic over E (ensemble size), W (write quorum) and A (ack quorum), nothing
else. Entry e lies on the slots (e + i) mod E, i < W, of the ensemble of its segment.
Source: `RoundRobinDistributionSchedule` of BookKeeper 4.17.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Set as AbstractSet


class Quorum(NamedTuple):
    """E >= W >= A >= 1."""

    ensemble: int
    write: int
    ack: int

    def slots(self, entry: int) -> list[int]:
        """The slots of the ensemble that hold `entry`."""
        return [(entry + i) % self.ensemble for i in range(self.write)]

    def holds(self, slot: int, entry: int) -> bool:
        """Whether `slot` is among the slots of `entry`."""
        return (slot - entry) % self.ensemble < self.write

    def can_acknowledge_without(self, lost: AbstractSet[int]) -> bool:
        """Whether every entry still reaches its ack quorum when the slots `lost` never answer."""
        return len(lost) <= self.write - self.ack or all(
            sum(slot not in lost for slot in self.slots(first)) >= self.ack
            for first in range(self.ensemble)
        )

    def is_covered(self, heard: AbstractSet[int]) -> bool:
        """Whether no entry can be acknowledged by slots outside of `heard` alone.

        So when the slots in `heard` are fenced, nothing more is ever acknowledged, and of
        whatever was, one of them knows.
        """
        return all(
            sum(slot not in heard for slot in self.slots(first)) < self.ack
            for first in range(self.ensemble)
        )

    @property
    def missing(self) -> int:
        """So many slots of an entry that lack it prove that it was never acknowledged."""
        return self.write - self.ack + 1
