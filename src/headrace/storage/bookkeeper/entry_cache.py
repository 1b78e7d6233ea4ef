"""Entries in memory: what was written or read lately, found by position.

Invariants: bytes of ledgers by position, counted; the oldest go first. What is not
acknowledged is here as well (it was just written): the caller knows how far it may be read.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from headrace.storage.ledger import Buffer

ENTRY_OVERHEAD_BYTES: Final = 600
"""Of dictionaries, lists, views and the frame's own head, for each entry: measured."""


class EntryCache:
    """The bytes of entries, at most `bytes_max` of them with what it takes to keep them."""

    def __init__(self, bytes_max: int) -> None:
        self.bytes_held = 0
        self._bytes_max = bytes_max
        self._entries: dict[tuple[int, int], memoryview] = {}
        """(ledger, position) -> bytes, oldest first."""
        self._positions: dict[int, list[int]] = {}

    def put(self, ledger: int, position: int, data: memoryview) -> None:
        """Keep the bytes at `position`, and let the oldest go where there is no room."""
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
        """Let all of a ledger go."""
        for position in list(self._positions.get(ledger, ())):
            self._drop((ledger, position))

    def get(self, ledger: int, position: int, size: int) -> Buffer | None:
        """The `size` bytes at `position` if all of them are here."""
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
