"""One share group on one data partition: what may be acquired, settled, released.

Invariants: the functions that decide only read `ShareGroup`; `apply_*` change it, live and on
replay alike. Only state that must survive a crash becomes a stored record: acquired records and
locks do not (as in KIP-932), delivery counts do once a delivery has ended.
"""

from __future__ import annotations

from bisect import bisect_right
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING, Final

from headrace.coordination.shares import state_records
from headrace.coordination.shares.attempts import Attempts
from headrace.coordination.shares.commands import (
    FAILED_BY_COUNT,
    AcquireCommand,
    DeadLetter,
    PeekCommand,
    PeekReply,
    RecordOrder,
)
from headrace.coordination.shares.config import LOCK_MS_MAX, ShareConfig
from headrace.coordination.shares.delivery import (
    STALE_MIN,
    STALE_RATIO,
    DeliveryOrder,
    OffsetDelivery,
    RowDelivery,
)
from headrace.coordination.shares.ended import LOCK_EXPIRED, EndedDeliveries
from headrace.coordination.shares.state_records import KeyParked, ShareGroupChanged, StoredRun
from headrace.coordination.shares.volatile_records import Claimed, Ended, Locked
from headrace.coordination.shares.window import (
    ACKNOWLEDGED,
    ACQUIRED,
    ARCHIVED,
    ARCHIVING,
    AVAILABLE,
    STATE_NAMES,
    Window,
)
from headrace.errors import RecordStateInvalid

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from headrace.coordination.shares.delivery import Piece

RUNS_PER_UNFINISHED: Final = 4
"""Bounds memory: runs between start and end for each record that may be unfinished."""
KEYED_RUNS_MAX: Final = 100_000
"""The same, at least, for groups by key, in which finished records of other keys may surround each
waiting record of one key; a run takes 170 bytes."""
UNLIMITED: Final = 2**62


class ShareGroup:
    """The state of one group on one partition."""

    __slots__ = (
        "_locks", "attempts", "claim", "config", "delivery", "ended", "group_id", "number",
        "parked", "parked_hashes", "window",
    )  # fmt: skip

    def __init__(self, number: int, group_id: str, start: int) -> None:
        self.number = number
        self.group_id = group_id
        self.config = ShareConfig()
        self.claim = Claimed(number, "", 0)
        self.window = Window(start)
        self.ended = EndedDeliveries()
        self.attempts = Attempts()
        self.delivery: DeliveryOrder = OffsetDelivery(self.window)
        self.parked: dict[bytes, KeyParked] = {}
        """Keys whose records are parked."""
        self.parked_hashes: dict[int, int] = {}
        """The number of parked keys with the same hash."""
        self._locks: list[tuple[int, int, int]] = []  # (until_ms, first, last)

    @property
    def keyed(self) -> RowDelivery | None:
        """The delivery by rows; None if the group takes records by offset."""
        return self.delivery if isinstance(self.delivery, RowDelivery) else None

    def room(self) -> int:
        """How many more records may become unfinished."""
        window, bound = self.window, self.config.unfinished_max
        if len(window) >= RUNS_PER_UNFINISHED * bound:
            return 0
        unfinished = window.span - window.finished_records
        return max(bound - unfinished, 0)

    def lock_room(self) -> int:
        """How many more records may be acquired. By offset, others may be available than `room` has
        let in: those before a record that was taken back, and those of before the limit was
        lowered. Rows are bounded where they are learned."""
        if self.keyed is not None:
            return UNLIMITED
        return max(self.config.unfinished_max - self.window.acquired_records, 0)

    # --- state changes -----------------------------------------------------------------------

    def configure(self, config: ShareConfig) -> None:
        """Apply new settings; a change of the delivery order rebuilds its index."""
        is_new_order = not config.reads_as(self.config)
        self.config = config
        if is_new_order:
            self._index_delivery()
        elif self.keyed is not None:
            self.keyed.waiting_max = self._waiting_max()

    def _index_delivery(self) -> None:
        if self.config.needs_rows:
            # In partition order all records have one hash, which may be that of a parked key.
            parked = {} if self.config.is_serial else self.parked_hashes
            self.delivery = RowDelivery(self.window, parked, self._waiting_max())
        else:
            self.delivery = OffsetDelivery(self.window)

    def _waiting_max(self) -> int:
        # In partition order no other key is delayed: no more are read than may be unfinished.
        return UNLIMITED if self.config.is_serial else self.config.unfinished_max

    def park(self, record: KeyParked) -> None:
        """Park the records of a key, or release them."""
        former = self.parked.pop(record.key, None)
        if former is not None:
            left = self.parked_hashes.pop(former.key_hash) - 1
            if left:
                self.parked_hashes[former.key_hash] = left
            elif self.keyed is not None:
                self.keyed.released(former.key_hash)
        if record.at_ms is not None:
            self.parked[record.key] = record
            self.parked_hashes[record.key_hash] = self.parked_hashes.get(record.key_hash, 0) + 1

    def lock(self, locked: Locked) -> None:
        """Record a delivery or a renewal."""
        _, first, last, count, owner, until_ms, is_together, is_attempt = locked
        end = self.window.end
        self.window.lock(first, last, count, owner, until_ms)
        heappush(self._locks, (until_ms, first, last))
        if len(self._locks) > STALE_MIN + STALE_RATIO * len(self.window):
            # One long lock would keep all entries after it.
            held = (run for run in self.window if run.state == ACQUIRED)
            self._locks = [(run.at_ms, run.first, run.last) for run in held]
            heapify(self._locks)
        self.delivery.note(min(first, end), last)  # a hole that it leaves is available
        if is_together and self.keyed is not None:
            self.keyed.lock_together(first, last)
        if is_attempt or len(self.attempts):
            self.attempts.note(locked)

    def change(self, changed: ShareGroupChanged) -> None:
        """Apply a stored change."""
        window, keyed = self.window, self.keyed
        if changed.is_reset:
            self.window = Window(changed.start)
            self.ended = EndedDeliveries()
            self._locks.clear()
            self._index_delivery()
            return
        if changed.start >= 0:
            start = window.start
            window.skip_to(changed.start)
            if keyed is not None and changed.start > start:
                keyed.finished(start, changed.start - 1)
                keyed.rows_end = max(keyed.rows_end, changed.start)
        runs, end = changed.runs, window.end
        if keyed is None and runs and runs[0].first >= end:  # a snapshot, say: noted at once
            for first, last, state, count, at_ms in runs:
                window.set(first, last, state, count, at_ms=at_ms)
            self.delivery.note(end, runs[-1].last)
            return
        for first, last, state, count, at_ms in runs:
            end = window.end
            window.set(first, last, state, count, at_ms=at_ms)
            if keyed is not None and state != AVAILABLE:
                keyed.finished(first, last)
            else:
                self.delivery.note(min(first, end), last)  # a hole that it leaves is available

    def learn(self, rows: tuple[RecordOrder, ...], rows_from: int, rows_end: int) -> None:
        """Record the rows of records, which may be delivered from now on."""
        keyed = self.keyed
        if keyed is None:
            return
        window = self.window
        if rows_end > window.end:
            window.set(window.end, rows_end - 1, AVAILABLE, 0)
        keyed.add(rows, rows_from, rows_end)

    def pass_time(self, now_ms: int) -> None:
        """Waiting records may be delivered; stored records have released expired locks."""
        self.delivery.pass_time(now_ms)
        self.ended.pass_time(now_ms)
        self.attempts.pass_time(now_ms)
        locks = self._locks
        while locks and (locks[0][0] <= now_ms or not self._holds(locks[0])):
            heappop(locks)

    def _holds(self, lock: tuple[int, int, int]) -> bool:
        until_ms, first, last = lock
        return any(
            run.state == ACQUIRED and run.at_ms == until_ms
            for _low, _high, run in self.window.between(first, last)
        )

    def next_deadline_ms(self) -> int | None:
        """When a lock ends or a waiting record may be delivered; may be early."""
        locks = self._locks
        while locks and not self._holds(locks[0]):
            heappop(locks)  # only an index entry: no state changes
        next_ms = self.delivery.next_ms()
        if not locks:
            return next_ms
        return locks[0][0] if next_ms is None else min(locks[0][0], next_ms)

    # --- deciding ----------------------------------------------------------------------------

    def peek(self, command: PeekCommand, now_ms: int) -> PeekReply:
        """Records that could be acquired now, in order of delivery."""
        reply, keyed = PeekReply(), self.keyed
        readable_end, left = command.readable_end, min(command.records_max, self.lock_room())
        if keyed is not None:
            reply.again_from = keyed.forgotten_from()
            # Records of higher priority may follow: know as many as may be unfinished.
            is_ahead = keyed.rows_end < readable_end and self._reads_ahead(keyed)
            if is_ahead:
                reply.reads_ahead, reply.rows_from = True, keyed.rows_end
        offered = self.delivery.candidates(now_ms)
        if command.takes_followers and keyed is not None:
            offered = _chains(keyed, now_ms)
        for first, last, _count in offered:
            if left <= 0:
                break
            if first >= readable_end:
                if keyed is None:
                    break
                continue
            size = min(last - first + 1, readable_end - first, left)
            reply.ranges.append((first, first + size - 1))
            left -= size
        next_ms = self.next_deadline_ms()
        reply.wait_ms = -1 if next_ms is None else max(next_ms - now_ms, 0)
        if keyed is not None:
            if left > 0 and keyed.rows_end < readable_end and self._rows_room(keyed) > 0:
                reply.rows_from = keyed.rows_end
            return reply
        end = self.window.end
        fresh = min(left, self.room(), readable_end - end)
        if fresh > 0:
            reply.ranges.append((end, end + fresh - 1))
        return reply

    def _reads_ahead(self, keyed: RowDelivery) -> bool:
        if not self.config.has_attributes:
            return False
        return keyed.rows_end < self.window.end or self.room() > 0

    def _rows_room(self, keyed: RowDelivery) -> int:
        """How many more rows to learn although all that were learned are in use."""
        # After a restart the window is restored before the rows: they take no room.
        is_restored, bound = keyed.rows_end < self.window.end, self.config.unfinished_max
        if self.config.is_serial:
            return max(bound - keyed.rows_count, 0) if is_restored else self.room()
        runs_max = max(KEYED_RUNS_MAX, RUNS_PER_UNFINISHED * bound)
        if not is_restored and len(self.window) >= runs_max:
            return 0
        # Records that wait for another one of their key, and the heads of parked keys, do not
        # count: they would stop all other keys.
        return bound + len(self.parked_hashes) - keyed.heads_count

    def decide_acquire(self, command: AcquireCommand, now_ms: int) -> list[Locked]:
        """The deliveries to `command.member_id`, in order of offset."""
        until_ms = self.lock_until_ms(command.lock_ms, now_ms)
        ways = command.takes_followers, command.is_attempt
        locked: list[Locked] = []
        for first, last, count in sorted(self._taken(command, now_ms)):
            if locked and locked[-1].last + 1 == first and locked[-1].deliveries == count + 1:
                locked[-1] = locked[-1]._replace(last=last)  # heads that are adjacent
            else:
                member = command.member_id
                locked.append(Locked(self.number, first, last, count + 1, member, until_ms, *ways))
        return locked

    def lock_until_ms(self, lock_ms: int, now_ms: int) -> int:
        """The end of a lock that begins now; -1: the group's lock time."""
        return now_ms + min(max(lock_ms if lock_ms >= 0 else self.config.lock_ms, 1), LOCK_MS_MAX)

    def _taken(self, command: AcquireCommand, now_ms: int) -> Iterator[Piece]:
        """The delivered parts, inside the ranges that the caller has read."""
        # Whole ranges: there may be more heads than one member should hold.
        most = min(max(command.records_max, self.config.unfinished_max), self.lock_room())
        left = min(command.records_max, most)
        if left <= 0:
            return
        limit = self.config.delivery_count_max
        suspect = max(2, -(-limit // 2))
        """Deliveries after which a record may be what crashes its consumers (KAFKA-17541)."""
        taken_any = False
        for first, last, count in self._offered(command, now_ms):
            size = last - first + 1
            if count >= suspect:
                if count == limit - 1 and limit > 2 and taken_any:
                    return  # the last attempt is made alone
                # Half of these records, then a quarter, as in Kafka: few share the bad one's fate.
                size = max(size >> (count - suspect + 1), 1)
                if count == limit - 1 and limit > 2:
                    size = 1
                yield first, first + min(size, left) - 1, count
                return
            size = min(size, left if command.is_strict else most)
            yield first, first + size - 1, count
            taken_any = True
            left -= size
            most -= size
            if left <= 0:  # stop at once: finding the next offer may take a search
                return

    def _offered(self, command: AcquireCommand, now_ms: int) -> Iterator[Piece]:
        """Available parts inside `within`, then records never delivered. Expired ones are omitted:
        the next tick finishes them."""
        within = list(command.within)
        lows = [low for low, _high in within]
        if command.takes_followers and self.keyed is not None:

            def is_read(offset: int) -> bool:
                at = bisect_right(lows, offset) - 1
                return at >= 0 and offset <= within[at][1]

            yield from _chains(self.keyed, now_ms, is_read)
            return
        for first, last, count in self.delivery.candidates(now_ms):
            at = max(bisect_right(lows, first) - 1, 0)
            while at < len(within) and lows[at] <= last:
                low, high = within[at]
                if first <= high:
                    yield max(first, low), min(last, high), count
                at += 1
        if self.keyed is None:
            room = self.room()
            end = self.window.end
            for low, high in within:
                first = max(low, end)
                if high < first or room <= 0:
                    continue
                last = min(high, first + room - 1)
                room -= last - first + 1
                yield first, last, 0
                end = last + 1

    def given_up(
        self, first: int, last: int, count: int, now_ms: int, reason: str, letters: list[DeadLetter]
    ) -> StoredRun:
        """Finish or archive the records, and add them to `letters`."""
        has_copy = self.config.has_dead_letters
        letters.append(DeadLetter(self.group_id, first, last, count, reason, now_ms, has_copy))
        if not has_copy:
            return StoredRun(first, last, ARCHIVED, count)
        return StoredRun(first, last, ARCHIVING, count, now_ms)

    def released(
        self,
        first: int,
        last: int,
        count: int,
        now_ms: int,
        letters: list[DeadLetter],
        delay_ms: int = -1,
        why: str = "",
    ) -> StoredRun:
        """A delivery has ended without success: deliver again, later, or never."""
        if count >= self.config.delivery_count_max:
            reason = f"{FAILED_BY_COUNT}: {why}" if why else FAILED_BY_COUNT
            return self.given_up(first, last, count, now_ms, reason, letters)
        wait_ms = delay_ms if delay_ms >= 0 else self.config.retry_after_ms(count)
        return StoredRun(first, last, AVAILABLE, count, now_ms + wait_ms if wait_ms else 0)

    def decide_expired(self, now_ms: int) -> tuple[list[StoredRun], list[Ended], list[DeadLetter]]:
        """(runs whose lock has expired, the deliveries that have ended so, dead letters)."""
        letters: list[DeadLetter] = []
        runs: list[StoredRun] = []
        ended: list[Ended] = []
        until_ms = now_ms + self.config.lock_ms
        reached = self.window.start
        # Entries may overlap: part of a locked range was renewed until the same time.
        for first, last in sorted(entry[1:] for entry in _ended(self._locks, now_ms)):
            for low, high, run in self.window.between(max(first, reached), last):
                if run.state == ACQUIRED and run.at_ms <= now_ms:
                    runs.append(self.released(low, high, run.count, now_ms, letters))
                    how = run.owner, low, high, LOCK_EXPIRED, until_ms, now_ms
                    ended.append(Ended(self.number, *how))
            reached = max(reached, last + 1)
        return runs, ended, letters

    def decide_member_left(
        self, member_id: str, now_ms: int
    ) -> tuple[list[StoredRun], list[DeadLetter]]:
        """(runs that the member held, dead letters)."""
        letters: list[DeadLetter] = []
        runs = [
            self.released(run.first, run.last, run.count, now_ms, letters)
            for run in self.window
            if run.state == ACQUIRED and run.owner == member_id
        ]
        return runs, letters

    def decide_skip(
        self, ranges: Sequence[tuple[int, int]], *, are_filtered: bool
    ) -> list[StoredRun]:
        """The runs of records that are finished without a delivery; `ranges` ascend."""
        window = self.window
        state = ACKNOWLEDGED if are_filtered else ARCHIVED
        runs: list[StoredRun] = []
        for first, last in ranges:
            runs += [
                StoredRun(low, high, state, 0 if are_filtered else run.count)
                for low, high, run in window.between(first, last)
                if run.state == AVAILABLE
            ]
            if last >= window.end:
                runs.append(StoredRun(max(first, window.end), last, state, 0))
        return runs

    def decide_take_back(self, offset: int, now_ms: int) -> list[StoredRun] | RecordStateInvalid:
        """The run that finishes a record without a delivery; none if that was taken back before."""
        if offset < self.window.start:
            return _left_behind(self.group_id)
        run = self.window.run_at(offset)
        if run is not None and run.is_taken_back:
            return []
        if run is not None and (run.state != AVAILABLE or run.count):
            what = f"it was delivered to group {self.group_id}"
            # Finished runs are merged, whatever finished them.
            how = ", or left out (finished)" if run.is_terminal else f" ({STATE_NAMES[run.state]})"
            return RecordStateInvalid(what + how, group=self.group_id)
        return [StoredRun(offset, offset, ARCHIVED, 0, now_ms)]

    def lacks_rows(self, rows_from: int, rows_end: int) -> bool:
        """Whether rows from `rows_from` to `rows_end` continue and extend the known ones, or
        contain forgotten ones.

        Other rows were read for an outdated state: omitted offsets may not be empty.
        """
        keyed = self.keyed
        if keyed is None or rows_from > keyed.rows_end:
            return False
        return rows_end > keyed.rows_end or rows_from <= keyed.forgotten_from() < rows_end

    def stored_state(self) -> ShareGroupChanged:
        """The whole durable state as one record."""
        return ShareGroupChanged(
            self.number, state_records.stored_runs(self.window), self.window.start
        )


def _chains(
    keyed: RowDelivery, now_ms: int, is_wanted: Callable[[int], bool] = lambda _: True
) -> Iterator[Piece]:
    """Each head that may be delivered, followed by the records of its key that may be delivered
    together with it, up to the first one that is not wanted."""
    for first, last, count in keyed.candidates(now_ms):
        for head in range(first, last + 1):
            if not is_wanted(head):
                continue
            yield head, head, count
            for piece in keyed.followers(head, now_ms):
                if not is_wanted(piece[0]):
                    break
                yield piece


def _ended(locks: Sequence[tuple[int, int, int]], now_ms: int) -> list[tuple[int, int, int]]:
    """The locks of a heap whose time is over."""
    ended, places = [], [0]
    while places:
        place = places.pop()
        if place < len(locks) and locks[place][0] <= now_ms:
            ended.append(locks[place])
            places += (2 * place + 1, 2 * place + 2)
    return ended


def _left_behind(group: str) -> RecordStateInvalid:
    return RecordStateInvalid(
        f"group {group} has finished it and all before it: it was delivered to it, or taken back"
        " before, and is a dead letter again then: list the dead letters",
        group=group,
    )
