"""The order of delivery of a window's records: by offset, or by priority and one per key.

Invariants: an index over the window, which decides; stale heap entries are skipped when they are
met, and dropped when they reach the top. `candidates` changes nothing; `note` reports each change
of the window after it was made.

How it works: a heap holds what may be delivered now, another what may be delivered later, by time;
an entry is a range of offsets. Each key (`RowDelivery`) has a head, its first unfinished record;
only heads are in the heaps, so two records of a key are never in flight at once, and a waiting key
does not delay others. A head remains one until it is finished, so an entry does not have to refer
to keys. A record with a key of its own is always a head. Adjacent heads share an entry: a batch of
them costs as much as one, and a record by itself only what learning and finishing its key costs.

Where a receive asks so, a head is delivered together with the records of its key that follow it
(`followers`). None of the key is delivered then until all of these have ended (`_together`).

Memory: only so many records that wait for a head are known (`waiting_max`, and a part of that for
one key). The later ones of such a key are forgotten (`Forgotten`) and read again when its known
ones are finished, so a key with a long backlog delays no other key.
"""

from __future__ import annotations

from collections import deque
from heapq import heapify, heappop, heappush, heapreplace
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

from headrace.coordination.shares.window import ACQUIRED, AVAILABLE, Window

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from headrace.coordination.shares.commands import RecordOrder

STALE_RATIO: Final = 4
"""A heap is rebuilt from the window when it has this many entries per run."""
STALE_MIN: Final = 256
NEVER_MS: Final = -1
KEY_SHARE: Final = 4
"""One key may use a fourth of the memory for waiting records, so that other keys have some too."""

Piece = tuple[int, int, int]
"""(first, last, delivery count so far) of available records."""

Entry = TypeVar("Entry", bound=tuple[int, ...])


class DeliveryOrder(Protocol):
    """The order of delivery over one window."""

    def candidates(self, now_ms: int) -> Iterator[Piece]:
        """Available records in order of delivery, except those never delivered and those expired by
        `now_ms`."""
        ...

    def note(self, first: int, last: int) -> None:
        """The records [first, last] have changed their state."""
        ...

    def pass_time(self, now_ms: int) -> None:
        """Records that waited until `now_ms` may be delivered."""
        ...

    def next_ms(self) -> int | None:
        """When the next waiting record may be delivered, or expires; may be early."""
        ...


def ascending(heap: list[Entry]) -> Iterator[Entry]:
    """The entries of a heap in ascending order, without changing it."""
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

    def candidates(self, now_ms: int) -> Iterator[Piece]:
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


class Forgotten:
    """The records of one key that are not known although the group has read past them."""

    __slots__ = ("count", "first")

    def __init__(self, first: int) -> None:
        self.first = first
        """They are at this offset or after it."""
        self.count = 0
        """How many of them were unfinished when they were forgotten."""


class RowDelivery:
    """The heads of keys, higher priorities first, then by offset."""

    __slots__ = (
        "_expiring", "_forgotten", "_heads", "_later", "_parked", "_ready", "_rows", "_starved",
        "_together", "_waiting", "_waiting_count", "_window", "rows_end", "waiting_max",
    )  # fmt: skip

    def __init__(self, window: Window, parked: Mapping[int, object], waiting_max: int) -> None:
        """`parked`: hashes of parked keys; it may change at any time, and `released` is called for
        each hash removed from it. `waiting_max`: how many records that wait for another one of
        their key are kept."""
        self._window = window
        self.waiting_max = waiting_max
        self._waiting_count = 0
        self._forgotten: dict[int, Forgotten] = {}
        self._starved: dict[int, None] = {}
        """Keys without a head whose next record is among the forgotten ones."""
        self._parked = parked
        self._rows: dict[int, RecordOrder] = {}
        self._heads: dict[int, int] = {}
        """The first unfinished record of each key."""
        self._waiting: dict[int, deque[int]] = {}
        """The records after the head, for keys that have any; may include finished ones."""
        self._together: dict[int, set[int]] = {}
        """Records in flight that were delivered together with earlier ones of their key."""
        self._ready: list[tuple[int, int, int]] = []
        """(-priority, first, last): heads that were available when noted."""
        self._later: list[tuple[int, int, int]] = []
        """(at_ms, first, last) of heads that wait."""
        self._expiring: list[tuple[int, int]] = []
        """(expires_ms, offset) of records that were available when noted."""
        self.rows_end = window.start
        """Keys are known up to this offset."""

    @property
    def rows_count(self) -> int:
        """Known records."""
        return len(self._rows)

    @property
    def heads_count(self) -> int:
        """Known records that wait for no other one of their key."""
        return len(self._rows) - self._waiting_count

    def forgotten_from(self) -> int:
        """The offset from which to read forgotten records again, -1: none of them is next."""
        return min((self._forgotten[one].first for one in self._starved), default=-1)

    def add(self, rows: Iterable[RecordOrder], rows_from: int, rows_end: int) -> None:
        """Learn all rows from `rows_from` to `rows_end`; those before `self.rows_end` were read
        before. The window knows their states."""
        known, known_end = self._rows, self.rows_end
        again = {
            key: one for key, one in self._forgotten.items() if rows_from <= one.first < rows_end
        }
        """Keys whose next forgotten record is among these rows."""
        exposed: list[int] = []
        run_last, is_open, is_held = -1, False, False
        for row in rows:
            offset, key_hash, _priority, expires_ms, _is_wanted = row
            is_new = offset >= known_end
            if not is_new and (key_hash not in again or offset < again[key_hash].first):
                continue
            if offset > run_last:
                run = self._window.run_at(offset)
                is_open = run is not None and run.state in {AVAILABLE, ACQUIRED}
                is_held = run is not None and run.state == ACQUIRED
                run_last = offset if run is None else run.last
            if not is_open or (key_hash >= 0 and not self._is_kept(row, again, is_new=is_new)):
                continue
            known[offset] = row
            if expires_ms >= 0:
                heappush(self._expiring, (expires_ms, offset))
            if key_hash < 0 or self._heads[key_hash] == offset:
                exposed.append(offset)
            elif is_held:  # delivered with its head, before the rows had to be read again
                self._together.setdefault(key_hash, set()).add(offset)
        self.rows_end = max(known_end, rows_end)
        for key_hash, one in again.items():
            one.first = max(one.first, rows_end)
            if one.first >= self.rows_end or one.count <= 0:
                del self._forgotten[key_hash]
        if self._starved:
            self._starved = {
                key: None
                for key in self._starved
                if key in self._forgotten and key not in self._heads
            }
        self._expose(exposed)

    def _is_kept(self, row: RecordOrder, again: dict[int, Forgotten], *, is_new: bool) -> bool:
        """Make a record the head of its key, or one that waits; False: it is forgotten.

        A key of which a record is forgotten is removed from `again`: its later ones must not
        precede it.
        """
        key_hash, offset = row.key_hash, row.offset
        one = self._forgotten.get(key_hash)
        if one is not None and key_hash not in again:
            one.count += 1
            return False
        if key_hash in self._heads:
            queue = self._waiting.get(key_hash)
            size = 0 if queue is None else len(queue)
            if one is not None:  # a fair part, so that reading again is worth it
                has_room = size < max(self.waiting_max // len(self._forgotten), 1)
            else:
                has_room = (
                    self._waiting_count < self.waiting_max and size < self.waiting_max // KEY_SHARE
                )
            if not has_room:
                if one is None:
                    one = self._forgotten[key_hash] = Forgotten(offset)
                one.first = offset
                one.count += is_new
                again.pop(key_hash, None)
                return False
            if queue is None:
                queue = self._waiting[key_hash] = deque()
            queue.append(offset)
            self._waiting_count += 1
        else:
            self._heads[key_hash] = offset
        if one is not None and not is_new:
            one.count -= 1
        return True

    def candidates(self, now_ms: int) -> Iterator[Piece]:
        """See Delivery."""
        rank = reached = 0
        for negative_priority, first, last in ascending(self._ready):
            if negative_priority != rank:
                rank, reached = negative_priority, 0
            if last >= reached:
                yield from self._ready_pieces(max(first, reached), last, now_ms)
                reached = last + 1

    def followers(self, head: int, now_ms: int) -> Iterator[Piece]:
        """The records of a head's key that may be delivered together with it, in order."""
        for offset in self._waiting.get(self._rows[head].key_hash, ()):
            row = self._rows.get(offset)
            if row is None:
                continue  # it is finished
            run = self._window.run_at(offset)
            is_free = run is not None and run.state == AVAILABLE and run.at_ms <= now_ms
            if run is None or not is_free or 0 <= row.expires_ms <= now_ms:
                return
            yield offset, offset, run.count

    def lock_together(self, first: int, last: int) -> None:
        """The records [first, last] were delivered, perhaps together with earlier ones of their
        keys."""
        for offset in range(first, last + 1):
            row = self._rows.get(offset)
            if row is not None and not self._is_head(row):
                self._together.setdefault(row.key_hash, set()).add(offset)

    def _unlock(self, row: RecordOrder) -> int | None:
        """A delivery has ended. The head of its key if this was the last one to wait for."""
        held = self._together.get(row.key_hash)
        if held is None:
            return None
        held.discard(row.offset)
        if held:
            return None
        del self._together[row.key_hash]
        return self._heads.get(row.key_hash)

    def _ready_pieces(self, first: int, last: int, now_ms: int) -> Iterator[Piece]:
        """The parts of the heads [first, last] that may be delivered."""
        parked, together = self._parked, self._together
        is_each = parked or together or (self._expiring and self._expiring[0][0] <= now_ms)
        for low, high, run in self._window.each(first, last):
            if run.state != AVAILABLE or run.at_ms:
                continue
            if not is_each:
                yield low, high, run.count
                continue
            for offset in range(low, high + 1):
                _offset, key_hash, _priority, expires_ms, _is_wanted = self._rows[offset]
                is_locked = key_hash in parked or key_hash in together
                if not is_locked and not 0 <= expires_ms <= now_ms:
                    yield offset, offset, run.count

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

    def note(self, first: int, last: int) -> None:
        """See Delivery."""
        rows = self._rows
        for low, high, run in self._window.between(first, min(last, self.rows_end - 1)):
            if run.state != AVAILABLE:
                continue
            noted = [rows[offset] for offset in range(low, high + 1) if offset in rows]
            if self._together:
                self._expose_unlocked(noted)
            for row in noted:
                if row.expires_ms >= 0:
                    heappush(self._expiring, (row.expires_ms, row.offset))
            self._expose([row.offset for row in noted if self._is_head(row)])
        self._drop_stale()

    def _expose_unlocked(self, ended: Iterable[RecordOrder]) -> None:
        """Add the heads of keys of which no other record is in flight any more."""
        heads = [head for row in ended if (head := self._unlock(row)) is not None]
        self._expose(sorted(heads))

    def _is_head(self, row: RecordOrder) -> bool:
        return row.key_hash < 0 or self._heads[row.key_hash] == row.offset

    def _drop_stale(self) -> None:
        ready = self._ready
        while ready:
            negative_priority, first, last = ready[0]
            piece = next(self._ready_pieces(first, last, NEVER_MS), None)
            if piece is None:
                heappop(ready)
            elif piece[0] > first:
                heapreplace(ready, (negative_priority, piece[0], last))
            else:
                break
        bound = STALE_MIN + STALE_RATIO * len(self._rows)
        if len(self._expiring) > bound:
            rows = self._rows.values()
            self._expiring = [(row.expires_ms, row.offset) for row in rows if row.expires_ms >= 0]
            heapify(self._expiring)
        if len(ready) > bound or len(self._later) > bound:
            ready.clear()
            self._later.clear()
            self._expose(sorted(row.offset for row in self._rows.values() if self._is_head(row)))

    def finished(self, first: int, last: int) -> None:
        """The records [first, last] are finished or given up: the next ones of their keys may
        follow."""
        rows, heads, waiting = self._rows, self._heads, self._waiting
        moved: list[int] = []
        if last - first > len(rows):
            offsets = [offset for offset in rows if first <= offset <= last]
        else:
            offsets = [offset for offset in range(first, last + 1) if offset in rows]
        ended: list[RecordOrder] = []
        for offset in offsets:
            row = rows.pop(offset)
            key_hash = row.key_hash
            ended.append(row)
            if key_hash < 0:
                continue
            if heads[key_hash] != offset:
                self._waiting_count -= 1
            elif key_hash in waiting:
                moved.append(key_hash)
            else:
                self._end_head(key_hash)
        if moved:
            heads_now = map(self._next_head, moved)
            self._expose(sorted(head for head in heads_now if head is not None))
        if self._together:
            self._expose_unlocked(ended)
        self._drop_stale()

    def _next_head(self, key_hash: int) -> int | None:
        """The record of the key after the finished head, which becomes its head."""
        queue = self._waiting[key_hash]
        head = None
        while queue and head is None:
            offset = queue.popleft()
            head = offset if offset in self._rows else None
        if not queue:
            del self._waiting[key_hash]
        if head is None:
            self._end_head(key_hash)
        else:
            self._waiting_count -= 1
            self._heads[key_hash] = head
        return head

    def _end_head(self, key_hash: int) -> None:
        """No known record of the key is left."""
        del self._heads[key_hash]
        if key_hash in self._forgotten:
            self._starved[key_hash] = None

    def _expose(self, offsets: Iterable[int]) -> None:
        """Add these heads, which ascend, to the heaps, unless they are in flight."""
        rows, parked, together = self._rows, self._parked, self._together
        run_last, at_ms = -1, NEVER_MS
        # The heads collected into one entry, and their common properties.
        first = last = first_at_ms = priority = -1
        for offset in offsets:
            if offset > run_last:
                run = self._window.run_at(offset)
                assert run is not None, "what is known lies inside the window"
                run_last = run.last
                at_ms = run.at_ms if run.state == AVAILABLE else NEVER_MS
            row = rows[offset]
            if at_ms == NEVER_MS or (parked and row.key_hash in parked):
                continue
            if together and row.key_hash in together:
                continue
            if offset == last + 1 and row.priority == priority and at_ms == first_at_ms:
                last = offset
                continue
            if last >= 0:
                self._push(first, last, priority, first_at_ms)
            first, last, priority, first_at_ms = offset, offset, row.priority, at_ms
        if last >= 0:
            self._push(first, last, priority, first_at_ms)

    def _push(self, first: int, last: int, priority: int, at_ms: int) -> None:
        if at_ms:
            heappush(self._later, (at_ms, first, last))
        else:
            heappush(self._ready, (-priority, first, last))

    def released(self, key_hash: int) -> None:
        """A key is no longer parked."""
        head = self._heads.get(key_hash)
        if head is not None:
            self._expose([head])

    def known_of(self, key_hash: int) -> int:
        """Approximate number of records of the key that were read; may include finished ones."""
        forgotten = self._forgotten.get(key_hash)
        known = (key_hash in self._heads) + len(self._waiting.get(key_hash, ()))
        return known if forgotten is None else known + forgotten.count

    def pass_time(self, now_ms: int) -> None:
        """See Delivery."""
        while self._later and self._later[0][0] <= now_ms:
            at_ms, first, last = heappop(self._later)
            for low, high, run in self._window.between(first, last):
                if run.state == AVAILABLE and run.at_ms == at_ms:
                    self._window.set(low, high, AVAILABLE, run.count)
                    self.note(low, high)
        # Available ones stay until stored records finish them; the others are noted again.
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
            heappop(expiring)  # only an index entry: no state changes
        if not expiring:
            return next_ms
        return expiring[0][0] if next_ms is None else min(next_ms, expiring[0][0])
