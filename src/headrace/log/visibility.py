"""What readers of one partition see: up to which offset, and up to which byte.

Invariants: knows offsets, positions and transactions, not batches or files. A read is bounded by
one of two bounds. *Acknowledged* ends at the high watermark: what comes before it is as durable as
the topic asks. *Committed* ends at the last stable offset: the first offset of the first
transaction that is open, or whose marker is not acknowledged yet, and never beyond the high
watermark. While there is no such transaction both bounds are one object, so a log without
transactions pays nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

READ_UNCOMMITTED: Final = 0
READ_COMMITTED: Final = 1
"""The isolation levels, as Kafka numbers them."""
NOT_LOCATED: Final = -1
"""A position that is found out when a read first needs it."""


class Bound:
    """Where a read ends: an offset, and its byte position in the ledger that holds it."""

    __slots__ = ("offset", "position")

    def __init__(self, offset: int, position: int) -> None:
        self.offset = offset
        self.position = position


class Visibility:
    """The bounds of one partition's readers."""

    __slots__ = ("_ending", "_log_start_offset", "_unstable", "acknowledged", "committed")

    def __init__(self) -> None:
        self.acknowledged = Bound(0, 0)
        self.committed = self.acknowledged
        self._log_start_offset = 0
        self._unstable: dict[int, int] = {}
        """First offset -> its position, of the transactions that hold back the last stable offset;
        in the order of their offsets."""
        self._ending: list[tuple[int, int]] = []
        """(offset of the marker, first offset), of markers that are not acknowledged yet."""

    def bound(self, isolation: int) -> Bound:
        """Where readers of an isolation level end."""
        return self.acknowledged if isolation == READ_UNCOMMITTED else self.committed

    @property
    def high_watermark(self) -> int:
        """The offset after the last acknowledged record."""
        return self.acknowledged.offset

    @property
    def last_stable_offset(self) -> int:
        """The offset at which `read_committed` ends."""
        return self.committed.offset

    def reset(
        self, offset: int, position: int, log_start_offset: int, open_offsets: Iterable[int]
    ) -> None:
        """What a log that has just been read shows; `open_offsets`: of its open transactions."""
        self.acknowledged = self.committed = Bound(offset, position)
        self._log_start_offset = log_start_offset
        self._unstable = dict.fromkeys(sorted(open_offsets), NOT_LOCATED)
        self._ending = []
        self._settle()

    def advance(self, offset: int, position: int) -> None:
        """All before `offset`, which lies at `position`, is acknowledged now."""
        self.acknowledged.offset = offset
        self.acknowledged.position = position
        if self._unstable:
            self._settle()

    def switch(self) -> None:
        """The log goes on in an empty ledger: all before it is acknowledged."""
        self.acknowledged.position = 0

    def begin(self, first_offset: int, position: int) -> None:
        """A transaction has begun with the batch that was appended at `first_offset`."""
        self._unstable[first_offset] = position

    def end(self, first_offset: int, marker_offset: int) -> None:
        """The transaction's marker was appended: it counts when it is acknowledged."""
        self._ending.append((marker_offset, first_offset))

    def truncate(self, end_offset: int) -> None:
        """Forget what was appended at and after `end_offset`: it failed.

        No more than what is acknowledged may be left after it.
        """
        self._ending = [ending for ending in self._ending if ending[0] < end_offset]
        self._unstable = {
            first: position for first, position in self._unstable.items() if first < end_offset
        }
        self._settle()

    def trim(self, log_start_offset: int) -> None:
        """Records before `log_start_offset` are deleted: a transaction may have begun there."""
        self._log_start_offset = log_start_offset
        self._settle()

    def _settle(self) -> None:
        high_watermark = self.acknowledged.offset
        ending, count = self._ending, 0
        while count < len(ending) and ending[count][0] < high_watermark:
            del self._unstable[ending[count][1]]
            count += 1
        if count:
            del ending[:count]
        first = next(iter(self._unstable), high_watermark)
        stable = max(first, self._log_start_offset)
        if stable >= high_watermark:
            self.committed = self.acknowledged
        elif self.committed is self.acknowledged or self.committed.offset != stable:
            position = self._unstable[first] if stable == first else NOT_LOCATED
            self.committed = Bound(stable, position)
