"""The bounds of what readers of a partition see, as offset and byte position.

Invariants: knows offsets, positions and transactions, not batches or files. A read ends at one of
two bounds. *Acknowledged* is the high watermark: everything before it is as durable as the topic
requires. *Committed* is the last stable offset: the first offset of the earliest transaction that
is open, or whose marker is not acknowledged yet, and never above the high watermark. While there is
no such transaction both bounds are the same object, so a log without transactions has no overhead.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

READ_UNCOMMITTED: Final = 0
READ_COMMITTED: Final = 1
"""Kafka's isolation levels."""
NOT_LOCATED: Final = -1
"""A position to be determined when a read first needs it."""


class Bound:
    """The end of a read: an offset, and its byte position in its ledger."""

    __slots__ = ("offset", "position")

    def __init__(self, offset: int, position: int) -> None:
        self.offset = offset
        self.position = position


class Visibility:
    """The read bounds of one partition."""

    __slots__ = ("_ending", "_log_start_offset", "_unstable", "acknowledged", "committed")

    def __init__(self) -> None:
        self.acknowledged = Bound(0, 0)
        self.committed = self.acknowledged
        self._log_start_offset = 0
        self._unstable: dict[int, int] = {}
        """First offset -> position of each transaction that holds back the last stable offset, in
        offset order."""
        self._ending: list[tuple[int, int]] = []
        """(marker offset, first offset) of each marker that is not acknowledged yet."""

    def bound(self, isolation: int) -> Bound:
        """The read bound of an isolation level."""
        return self.acknowledged if isolation == READ_UNCOMMITTED else self.committed

    @property
    def high_watermark(self) -> int:
        """The offset after the last acknowledged record."""
        return self.acknowledged.offset

    @property
    def last_stable_offset(self) -> int:
        """The end of `read_committed` reads."""
        return self.committed.offset

    def reset(
        self, offset: int, position: int, log_start_offset: int, open_offsets: Iterable[int]
    ) -> None:
        """Initialize from a loaded log; `open_offsets`: of its open transactions."""
        self.acknowledged = self.committed = Bound(offset, position)
        self._log_start_offset = log_start_offset
        self._unstable = dict.fromkeys(sorted(open_offsets), NOT_LOCATED)
        self._ending = []
        self._settle()

    def advance(self, offset: int, position: int) -> None:
        """Everything before `offset`, which is at `position`, is now acknowledged."""
        self.acknowledged.offset = offset
        self.acknowledged.position = position
        if self._unstable:
            self._settle()

    def switch(self) -> None:
        """The log continues in an empty ledger: everything before is acknowledged."""
        self.acknowledged.position = 0

    def begin(self, first_offset: int, position: int) -> None:
        """A transaction began with the batch appended at `first_offset`."""
        self._unstable[first_offset] = position

    def end(self, first_offset: int, marker_offset: int) -> None:
        """The transaction's marker was appended; it takes effect once it is acknowledged."""
        assert first_offset in self._unstable, "the transaction is open"
        self._ending.append((marker_offset, first_offset))

    def truncate(self, end_offset: int) -> None:
        """Discard appends at and after `end_offset`, which failed.

        What is left after the call must be acknowledged.
        """
        self._ending = [ending for ending in self._ending if ending[0] < end_offset]
        self._unstable = {
            first: position for first, position in self._unstable.items() if first < end_offset
        }
        self._settle()

    def trim(self, log_start_offset: int) -> None:
        """Records before `log_start_offset`, where a transaction may have begun, are deleted."""
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
