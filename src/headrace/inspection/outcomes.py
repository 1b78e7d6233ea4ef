"""Whether the transactions of a damaged log were committed, as far as what is left tells.

Invariants: pure; knows offsets and producer ids, no bytes. An answer is what the whole log would
have given, or None: offsets that are lost may have held the marker that ended a transaction, so the
producer's next marker after them may belong to a later one. The aborted index of a sound footer
lists every abort marker in its ledger, lost or not.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headrace.log.aborted_index import AbortedIndex


class Outcomes:
    """The markers of one partition: 8 bytes for each, since a log may have millions."""

    def __init__(self) -> None:
        self._markers: dict[int, array[int]] = {}
        """By producer id, in order: twice the offset of a marker, plus 1 if it commits."""
        self._aborted: dict[int, tuple[array[int], array[int]]] = {}
        """By producer id, in order: markers and first offsets of transactions in footers."""
        self._indexed: tuple[array[int], array[int]] = array("q"), array("q")
        """First and end offsets of ledgers whose footer is sound."""
        self._lost = array("q")
        """First offsets of what is lost, where a marker of any kind may have been."""
        self._lost_indexed = array("q")
        """The same, where only markers that commit are not known."""

    def add_index(self, first: int, end: int, aborted: AbortedIndex | None) -> None:
        """Take the footer of the ledger with the offsets [first, end). In order, and before what is
        lost there."""
        self._indexed[0].append(first)
        self._indexed[1].append(end)
        if aborted is None:
            return
        columns = aborted.producer_ids, aborted.marker_offsets, aborted.first_offsets
        for producer_id, marker, begin in zip(*columns, strict=True):
            own = self._aborted.setdefault(producer_id, (array("q"), array("q")))
            own[0].append(marker)
            own[1].append(begin)

    def add_marker(self, producer_id: int, offset: int, *, is_commit: bool) -> None:
        """Take a marker, after those before it."""
        own = self._markers.setdefault(producer_id, array("q"))
        own.append(2 * offset + is_commit)

    def add_lost(self, first: int, last: int | None) -> None:
        """Take offsets that cannot be read, to the end of the log with None. In order."""
        at = bisect_right(self._indexed[0], first) - 1
        is_indexed = at >= 0 and last is not None and last < self._indexed[1][at]
        (self._lost_indexed if is_indexed else self._lost).append(first)

    def is_committed(self, producer_id: int, offset: int) -> bool | None:
        """Whether a producer's transaction with a record at `offset` was committed; None if that is
        not known, or it is open."""
        if self._is_aborted(producer_id, offset):
            return False
        own = self._markers.get(producer_id, array("q"))
        at = bisect_left(own, 2 * offset)
        if at == len(own) or _is_any(self._lost, offset, own[at] // 2):
            return None
        if own[at] % 2:
            return True
        if not _is_any(self._lost_indexed, offset, own[at] // 2):
            return False
        # An abort that the index does not have for this record ended a later transaction.
        return True if self._is_indexed(own[at] // 2) else None

    def _is_aborted(self, producer_id: int, offset: int) -> bool:
        """Whether a footer says so."""
        if producer_id not in self._aborted:
            return False
        markers, firsts = self._aborted[producer_id]
        at = bisect_left(markers, offset)
        return at < len(markers) and firsts[at] <= offset

    def _is_indexed(self, offset: int) -> bool:
        at = bisect_right(self._indexed[0], offset) - 1
        return at >= 0 and offset < self._indexed[1][at]


def _is_any(firsts: array[int], start: int, end: int) -> bool:
    """Whether one of the ascending offsets is in [start, end)."""
    at = bisect_left(firsts, start)
    return at < len(firsts) and firsts[at] < end
