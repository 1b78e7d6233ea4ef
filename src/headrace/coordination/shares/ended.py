"""How recent deliveries of a group ended, so that a repeated settlement is recognized.

Invariants: pure, volatile and bounded. A member's deliveries are known until the latest of their
locks would have ended, or until RANGES_MAX newer ranges are: what is forgotten is reported by the
state of the record alone. Nothing is decided here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from headrace.coordination.shares.volatile_records import Ended

RANGES_MAX: Final = 1_000
"""Of one group on one partition; neighbours that a member settles alike are one. About 100 bytes
each."""
LOCK_EXPIRED: Final = -1
"""In place of a kind of settlement: the lock ended first."""


class _Member:
    """The ended deliveries of one member."""

    __slots__ = ("ranges", "until_ms")

    def __init__(self) -> None:
        self.until_ms = 0
        self.ranges: list[tuple[int, int, int]] = []
        """(first, last, kind), oldest first."""


class EndedDeliveries:
    """See the module."""

    __slots__ = ("_members", "_size")

    def __init__(self) -> None:
        self._members: dict[str, _Member] = {}
        """Least recently settled first."""
        self._size = 0

    def __len__(self) -> int:
        """The number of ranges, which determines memory."""
        return self._size

    def note(self, ended: Ended) -> None:
        """Deliveries have ended."""
        _number, owner, first, last, kind, until_ms, now_ms = ended
        self.pass_time(now_ms)
        member = self._members.pop(owner, None) or _Member()
        self._members[owner] = member
        member.until_ms = max(member.until_ms, until_ms)
        ranges = member.ranges
        if ranges and ranges[-1][1] + 1 == first and ranges[-1][2] == kind:
            ranges[-1] = (ranges[-1][0], last, kind)
            return
        ranges.append((first, last, kind))
        self._size += 1
        while self._size > RANGES_MAX:
            self._drop_oldest()

    def _drop_oldest(self) -> None:
        owner, member = next(iter(self._members.items()))
        if len(self._members) == 1:  # the one that has just been noted
            del member.ranges[0]
            self._size -= 1
            return
        del self._members[owner]
        self._size -= len(member.ranges)

    def pass_time(self, now_ms: int) -> None:
        """Forget deliveries whose locks would have ended."""
        while self._members:
            owner, member = next(iter(self._members.items()))
            if member.until_ms > now_ms:
                return
            del self._members[owner]
            self._size -= len(member.ranges)

    def how(self, owner: str, first: int, last: int, now_ms: int) -> int | None:
        """The kind of settlement with which the member's deliveries of all of [first, last] ended,
        or LOCK_EXPIRED; None if that is not known of all of them."""
        member = self._members.get(owner)
        if member is None or member.until_ms <= now_ms:
            return None
        for low, high, kind in reversed(member.ranges):  # a record may have been received again
            if low <= first and last <= high:
                return kind
        return None
