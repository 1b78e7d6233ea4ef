"""A cache of recently written or read entries, by position.

Invariants: bytes of ledgers by position, with a size limit; the oldest are evicted first. It also
contains unacknowledged entries (just written): the caller knows what is readable.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from headrace.storage.ledger import Buffer

ENTRY_OVERHEAD_BYTES: Final = 600
"""Memory per entry for dictionaries, lists, views and the frame's head: measured."""


class EntryCache:
    """Cached entries, at most `bytes_max` including overhead."""

    def __init__(self, bytes_max: int) -> None:
        self.bytes_held = 0
        self._bytes_max = bytes_max
        self._entries: dict[tuple[int, int], memoryview] = {}
        """(ledger, position) -> bytes, oldest first."""
        self._positions: dict[int, list[int]] = {}

    def put(self, ledger: int, position: int, data: memoryview) -> None:
        """Cache the bytes at `position`, evicting the oldest ones above the limit."""
        if not len(data):
            return
        key = (ledger, position)
        if self._entries.pop(key, None) is None:
            positions = self._positions.setdefault(ledger, [])
            if not positions or positions[-1] < position:
                positions.append(position)
            else:
                insort(positions, position)
            self.bytes_held += len(data) + ENTRY_OVERHEAD_BYTES
        self._entries[key] = data
        while self.bytes_held > self._bytes_max and len(self._entries) > 1:
            oldest = next(iter(self._entries))
            self._drop(oldest)

    def _drop(self, key: tuple[int, int]) -> None:
        ledger, position = key
        self.bytes_held -= len(self._entries.pop(key)) + ENTRY_OVERHEAD_BYTES
        positions = self._positions[ledger]
        del positions[bisect_right(positions, position) - 1]
        if not positions:
            del self._positions[ledger]

    def forget(self, ledger: int) -> None:
        """Drop all entries of a ledger."""
        for position in list(self._positions.get(ledger, ())):
            self._drop((ledger, position))

    def get(self, ledger: int, position: int, size: int) -> Buffer | None:
        """The `size` bytes at `position`, if all are cached."""
        positions = self._positions.get(ledger)
        if positions is None:
            return None
        at = bisect_right(positions, position) - 1
        if at < 0:
            return None
        data = self._entries[ledger, positions[at]]
        skip = position - positions[at]
        if skip + size <= len(data):
            return data[skip : skip + size]
        parts = [data[skip:]]
        have = max(len(data) - skip, 0)
        while have < size:
            at += 1
            if at == len(positions) or positions[at] != position + have:
                return None
            data = self._entries[ledger, positions[at]]
            parts.append(data)
            have += len(data)
        if have > size:
            parts[-1] = parts[-1][: len(parts[-1]) - (have - size)]
        return b"".join(parts)
