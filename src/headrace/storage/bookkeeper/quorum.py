"""The placement of entries: BookKeeper's round-robin distribution and its consequences.

Invariants: arithmetic on E (ensemble size), W (write quorum) and A (ack quorum) only. Entry e is
stored on the slots (e + i) mod E, i < W, of its ensemble.
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
        """The slots of the ensemble that store `entry`."""
        return [(entry + i) % self.ensemble for i in range(self.write)]

    def holds(self, slot: int, entry: int) -> bool:
        """Whether `slot` is among the slots of `entry`."""
        return (slot - entry) % self.ensemble < self.write

    def can_acknowledge_without(self, lost: AbstractSet[int]) -> bool:
        """Whether every entry can reach its ack quorum without the slots `lost`."""
        return len(lost) <= self.write - self.ack or all(
            sum(slot not in lost for slot in self.slots(first)) >= self.ack
            for first in range(self.ensemble)
        )

    def is_covered(self, heard: AbstractSet[int]) -> bool:
        """Whether no entry can be acknowledged by slots outside of `heard` alone.

        So when the slots in `heard` are fenced, nothing more can be acknowledged, and every
        acknowledged entry is known to at least one of them.
        """
        return all(
            sum(slot not in heard for slot in self.slots(first)) < self.ack
            for first in range(self.ensemble)
        )

    @property
    def missing(self) -> int:
        """The number of slots lacking an entry that proves it was never acknowledged."""
        return self.write - self.ack + 1
