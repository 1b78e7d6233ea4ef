"""Which records of a window may be delivered next: by offset, or by priority and one per key.

Invariants: only an index over the window, which decides; what is stale in a heap is passed over
when it is met, and dropped when it comes to the top. `candidates` changes nothing; `note` is told
of each change of the window after it was made.
How it works: a heap of what may be delivered now and one of what may be later, by time. Keys
(`RowDelivery`) have a queue each; the head of a queue is in a heap unless it is in flight, so no
two records of a key are ever delivered at once, and a key that waits holds up no other. A record
that is a key of its own has no queue: it is always a head.
"""

from __future__ import annotations

from collections import deque
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

from headrace.coordination.shares.window import ACQUIRED, ARCHIVING, AVAILABLE, Window

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from headrace.coordination.shares.commands import Row

STALE_RATIO: Final = 4
"""A heap is made again from the window when it has this many entries for each run."""
STALE_MIN: Final = 256

Piece = tuple[int, int, int]
"""(first, last, delivery count so far) of available records."""

Entry = TypeVar("Entry", bound=tuple[int, ...])


class Delivery(Protocol):
    """The order of delivery over one window."""

    def candidates(self) -> Iterator[Piece]:
        """Available records in the order of delivery; those never handed out are not among them."""
        ...

    def note(self, first: int, last: int) -> None:
        """The records [first, last] have changed their state."""
        ...

    def pass_time(self, now_ms: int) -> None:
        """What waited until `now_ms` may be delivered."""
        ...

    def next_ms(self) -> int | None:
        """When the next waiting record may be delivered, or expires; may be early."""
        ...


def ascending(heap: list[Entry]) -> Iterator[Entry]:
    """The entries of a heap from small to large, without changing it."""
    if not heap:
        return
    places = [(heap[0], 0)]
    while places:
        entry, place = heappop(places)
        yield entry
        for child in (2 * place + 1, 2 * place + 2):
            if child < len(heap):
                heappush(places, (heap[child], child))


class OffsetDelivery:
    """By offset: whole runs, so that a batch costs as much as a record."""

    __slots__ = ("_later", "_ready", "_window")

    def __init__(self, window: Window) -> None:
        self._window = window
        self._ready: list[tuple[int, int]] = []
        self._later: list[tuple[int, int, int]] = []
        for run in window:
            self.note(run.first, run.last)

    def candidates(self) -> Iterator[Piece]:
        """See Delivery."""
        reached = self._window.start
        for first, last in ascending(self._ready):
            if last < reached:
                continue
            for low, high, run in self._window.between(max(first, reached), last):
                if run.state == AVAILABLE and run.at_ms == 0:
                    yield low, high, run.count
            reached = last + 1

    def note(self, first: int, last: int) -> None:
        """See Delivery."""
        for low, high, run in self._window.between(first, last):
            if run.state == AVAILABLE:
                if run.at_ms == 0:
                    heappush(self._ready, (low, high))
                else:
                    heappush(self._later, (run.at_ms, low, high))
        self._drop_stale()

    def _is_ready(self, first: int, last: int) -> bool:
        return any(
            run.state == AVAILABLE and run.at_ms == 0
            for _low, _high, run in self._window.between(first, last)
        )

    def _drop_stale(self) -> None:
        ready = self._ready
        while ready and not self._is_ready(*ready[0]):
            heappop(ready)
        if len(ready) > STALE_MIN + STALE_RATIO * len(self._window):
            ready[:] = [
                (run.first, run.last)
                for run in self._window
                if run.state == AVAILABLE and run.at_ms == 0
            ]
            heapify(ready)

    def pass_time(self, now_ms: int) -> None:
        """See Delivery."""
        later = self._later
        while later and later[0][0] <= now_ms:
            at_ms, first, last = heappop(later)
            for low, high, run in self._window.between(first, last):
                if run.state == AVAILABLE and run.at_ms == at_ms:
                    self._window.set(low, high, AVAILABLE, run.count)
                    heappush(self._ready, (low, high))

    def next_ms(self) -> int | None:
        """See Delivery."""
        return self._later[0][0] if self._later else None


class RowDelivery:
    """The heads of keys, higher priorities first, then by offset."""

    __slots__ = (
        "_expiring", "_later", "_parked", "_queues", "_ready", "_rows", "_window", "rows_end",
    )  # fmt: skip

    def __init__(self, window: Window, parked: Mapping[int, object]) -> None:
        """`parked`: hashes of keys whose records are set aside; it may change at any time, and
        `released` is called for each that leaves it."""
        self._window = window
        self._parked = parked
        self._rows: dict[int, Row] = {}
        self._queues: dict[int, deque[int]] = {}
        self._ready: list[tuple[int, int]] = []
        """(-priority, offset) of heads that are available."""
        self._later: list[tuple[int, int]] = []
        """(at_ms, offset) of heads that wait."""
        self._expiring: list[tuple[int, int]] = []
        """(expires_ms, offset) of records that were available when it was noted."""
        self.rows_end = window.start
        """Up to here it is known what the records' keys are."""

    def add(self, rows: Iterable[Row], rows_end: int) -> None:
        """Learn the rows from `self.rows_end` to `rows_end`. What they are the window knows."""
        touched: dict[int, None] = {}
        for row in rows:
            if row.offset < self.rows_end:
                continue
            run = self._window.run_at(row.offset)
            if run is None or run.is_terminal or run.state == ARCHIVING:
                continue
            self._rows[row.offset] = row
            if row.expires_ms >= 0:
                heappush(self._expiring, (row.expires_ms, row.offset))
            if row.key_hash < 0:
                self._expose_head(row.offset)
                continue
            queue = self._queues.get(row.key_hash)
            if queue is None:
                queue = self._queues[row.key_hash] = deque()
                touched[row.key_hash] = None
            queue.append(row.offset)
        self.rows_end = max(self.rows_end, rows_end)
        for key_hash in touched:
            self._expose_key(key_hash)

    def row_at(self, offset: int) -> Row | None:
        """What is known of the record at `offset`, unless it is finished."""
        return self._rows.get(offset)

    def candidates(self) -> Iterator[Piece]:
        """See Delivery."""
        seen: set[int] = set()
        for _priority, offset in ascending(self._ready):
            if offset in seen:
                continue
            seen.add(offset)
            count = self._ready_count(offset)
            if count is not None:
                yield offset, offset, count

    def _ready_count(self, offset: int) -> int | None:
        """The delivery count of a head that may be delivered now, else None."""
        row = self._rows.get(offset)
        run = self._window.run_at(offset)
        if row is None or run is None or run.state != AVAILABLE or run.at_ms != 0:
            return None
        if row.key_hash in self._parked:
            return None
        is_head = row.key_hash < 0 or self._queues[row.key_hash][0] == offset
        return run.count if is_head else None

    def expired(self, now_ms: int) -> list[tuple[int, int]]:
        """(offset, delivery count) of available records that have expired."""
        heap, found, places = self._expiring, dict[int, int](), [0]
        while places:
            place = places.pop()
            if place < len(heap) and heap[place][0] <= now_ms:
                offset = heap[place][1]
                run = self._window.run_at(offset) if offset in self._rows else None
                if run is not None and run.state == AVAILABLE:
                    found[offset] = run.count
                places += (2 * place + 1, 2 * place + 2)
        return sorted(found.items())

    def has_expired(self, offset: int, now_ms: int) -> bool:
        """Whether the record is known, and has expired."""
        row = self._rows.get(offset)
        return row is not None and 0 <= row.expires_ms <= now_ms

    def note(self, first: int, last: int) -> None:
        """See Delivery."""
        for offset in range(max(first, self._window.start), last + 1):
            row = self._rows.get(offset)
            if row is None:
                continue
            if row.expires_ms >= 0:
                heappush(self._expiring, (row.expires_ms, offset))
            self._expose(row)
        self._drop_stale()

    def _drop_stale(self) -> None:
        while self._ready and self._ready_count(self._ready[0][1]) is None:
            heappop(self._ready)
        bound = STALE_MIN + STALE_RATIO * len(self._rows)
        if len(self._expiring) > bound:
            rows = self._rows.values()
            self._expiring = [(row.expires_ms, row.offset) for row in rows if row.expires_ms >= 0]
            heapify(self._expiring)
        if len(self._ready) > bound:
            self._ready = sorted({entry for entry in self._ready if self._is_known(entry[1])})
        if len(self._later) > bound:
            self._later = sorted({entry for entry in self._later if self._is_known(entry[1])})

    def _is_known(self, offset: int) -> bool:
        return offset in self._rows

    def finished(self, first: int, last: int) -> None:
        """The records [first, last] are finished or given up: the next of their keys may come."""
        keys: dict[int, None] = {}
        if last - first > len(self._rows):
            offsets = [offset for offset in self._rows if first <= offset <= last]
        else:
            offsets = [offset for offset in range(first, last + 1) if offset in self._rows]
        for offset in offsets:
            key_hash = self._rows.pop(offset).key_hash
            if key_hash >= 0:
                keys[key_hash] = None
        for key_hash in keys:
            self._expose_key(key_hash)
        self._drop_stale()

    def _expose(self, row: Row) -> None:
        if row.key_hash < 0:
            self._expose_head(row.offset)
        else:
            self._expose_key(row.key_hash)

    def _expose_key(self, key_hash: int) -> None:
        """Let the key's head be found, unless it is in flight."""
        queue = self._queues.get(key_hash)
        if queue is None:
            return
        while queue and queue[0] not in self._rows:
            queue.popleft()
        if not queue:
            del self._queues[key_hash]
            return
        self._expose_head(queue[0])

    def released(self, key_hash: int) -> None:
        """A key is not parked any more."""
        self._expose_key(key_hash)

    def known_of(self, key_hash: int) -> int:
        """How many records of the key are known, about: finished ones among them may count."""
        return len(self._queues.get(key_hash, ()))

    def _expose_head(self, offset: int) -> None:
        run = self._window.run_at(offset)
        if run is None or run.state == ACQUIRED or self._rows[offset].key_hash in self._parked:
            return
        if run.state == AVAILABLE and run.at_ms == 0:
            heappush(self._ready, (-self._rows[offset].priority, offset))
        elif run.state == AVAILABLE:
            heappush(self._later, (run.at_ms, offset))

    def pass_time(self, now_ms: int) -> None:
        """See Delivery."""
        while self._later and self._later[0][0] <= now_ms:
            at_ms, offset = heappop(self._later)
            run = self._window.run_at(offset)
            if run is not None and run.state == AVAILABLE and run.at_ms == at_ms:
                self._window.set(offset, offset, AVAILABLE, run.count)
                self.note(offset, offset)
        # Available ones stay until they are finished by stored records; the others are noted again.
        while self._expiring and self._expiring[0][0] <= now_ms:
            if self._is_available(self._expiring[0][1]):
                break
            heappop(self._expiring)

    def _is_available(self, offset: int) -> bool:
        run = self._window.run_at(offset) if offset in self._rows else None
        return run is not None and run.state == AVAILABLE

    def next_ms(self) -> int | None:
        """See Delivery."""
        expiring, next_ms = self._expiring, self._later[0][0] if self._later else None
        while expiring and expiring[0][1] not in self._rows:
            heappop(expiring)  # an index entry alone: no state changes
        if not expiring:
            return next_ms
        return expiring[0][0] if next_ms is None else min(next_ms, expiring[0][0])
