"""A share group on one partition, record by record: what `coordination.shares` must agree with.

Slow and plain on purpose: one small object for each offset, no index, no ranges.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

LOCK_EXPIRED = -1
AVAILABLE, ACQUIRED, FINISHED, ARCHIVING = "available", "acquired", "finished", "archiving"


@dataclass
class ModelRecord:
    key: int
    state: str = AVAILABLE
    deliveries: int = 0
    owner: str = ""
    at_ms: int = 0
    stored_deliveries: int = 0
    """What a crash leaves of `deliveries`."""


@dataclass
class Attributes:
    """Of one record."""

    priority: int = 0
    expires_ms: int = -1
    wanted_by: tuple[str, ...] = ("", "x", "y")


@dataclass
class ShareModel:
    config: object
    start: int
    keys: dict[int, int]
    attributes: dict[int, Attributes] = field(default_factory=dict)
    parked: set[int] = field(default_factory=set)
    records: dict[int, ModelRecord] = field(default_factory=dict)
    delivered: list[tuple[int, str, int]] = field(default_factory=list)
    claimed: tuple[str, int] = ("", 0)
    """Who has the partition alone, and until when."""
    ended: dict[tuple[str, int], int] = field(default_factory=dict)
    """How the last delivery of each record to each member ended."""
    ended_until: dict[str, int] = field(default_factory=dict)
    """How long that is known of each member."""

    def record(self, offset: int) -> ModelRecord:
        if offset not in self.records:
            self.records[offset] = ModelRecord(self.keys.get(offset, offset))
        return self.records[offset]

    def held(self, member: str, now_ms: int) -> list[int]:
        return [
            offset
            for offset, record in sorted(self.records.items())
            if record.state == ACQUIRED and record.owner == member and record.at_ms > now_ms
        ]

    @property
    def is_full(self) -> bool:
        """Whether as many records are acquired as may be, of a group that needs no rows."""
        count = sum(record.state == ACQUIRED for record in self.records.values())
        return not self.config.needs_rows and count >= self.config.unfinished_max

    def end(self, offset: int, how: int, now_ms: int) -> None:
        """A delivery ends: what is about to happen to the record is the caller's to say."""
        record = self.records[offset]
        member = record.owner
        if self.ended_until.get(member, 0) <= now_ms:
            self.ended_until[member] = 0
            self.ended = {key: one for key, one in self.ended.items() if key[0] != member}
        until_ms = now_ms + self.config.lock_ms if how == LOCK_EXPIRED else record.at_ms
        self.ended[member, offset] = how
        self.ended_until[member] = max(self.ended_until[member], until_ms)

    def how(self, member: str, offset: int, now_ms: int) -> int | None:
        if self.ended_until.get(member, 0) <= now_ms:
            return None
        return self.ended.get((member, offset))

    def claim(self, member: str, now_ms: int) -> bool:
        """Whether the member has the partition: it has it already, or no other member does."""
        owner, until_ms = self.claimed
        is_over = until_ms <= now_ms and not any(
            record.state == ACQUIRED for record in self.records.values()
        )
        if owner not in {"", member} and not is_over:
            return False
        self.claimed = (member, now_ms + self.config.lock_ms)
        return True

    def end_claim(self, member: str) -> None:
        if self.claimed[0] == member:
            self.claimed = ("", 0)

    def acquire(self, first, last, deliveries, member, until_ms, now_ms, together=()):
        """`together`: the offsets that one receive delivers, if records of a key may come so."""
        for offset in range(first, last + 1):
            record = self.record(offset)
            assert record.state == AVAILABLE, f"{offset} is {record.state}"
            assert record.at_ms <= now_ms, f"{offset} came before its time"
            assert deliveries == record.deliveries + 1, f"{offset}: a delivery was not counted"
            if self.config.is_ordered:
                self.check_order(offset, record, together)
                assert record.key not in self.parked, f"{offset} is set aside"
            record.state, record.owner, record.at_ms = ACQUIRED, member, until_ms
            record.deliveries = deliveries

    def check_order(self, offset: int, record: ModelRecord, together=()) -> None:
        for other_offset, other in self.records.items():
            is_held = other.state == ACQUIRED and other_offset not in together
            assert not (is_held and other.key == record.key), (
                f"{offset} came while {other_offset} of the same key is in flight"
            )
        for other_offset in range(self.start, offset):
            other = self.record(other_offset)
            if other.key == record.key and other_offset not in together:
                assert other.state in {FINISHED, ARCHIVING}, (
                    f"{offset} overtook {other_offset} of the same key ({other.state})"
                )

    def release(self, offset: int, now_ms: int, delay_ms: int = -1) -> None:
        record = self.records[offset]
        record.owner = ""
        if record.deliveries >= self.config.delivery_count_max:
            self.give_up(offset)
            return
        wait_ms = delay_ms if delay_ms >= 0 else self.config.retry_after_ms(record.deliveries)
        record.state, record.at_ms = AVAILABLE, now_ms + wait_ms if wait_ms else 0
        record.stored_deliveries = record.deliveries

    def give_up(self, offset: int) -> None:
        record = self.records[offset]
        record.owner, record.at_ms = "", 0
        record.state = ARCHIVING if self.config.has_dead_letters else FINISHED
        record.stored_deliveries = record.deliveries

    def finish(self, offset: int) -> None:
        record = self.records[offset]
        record.state, record.owner, record.at_ms = FINISHED, "", 0

    def expire(self, now_ms: int, known: Iterable[int] = ()) -> None:
        """Locks end, and so do records whose rows are known."""
        for offset, record in self.records.items():
            if record.state == ACQUIRED and record.at_ms <= now_ms:
                self.end(offset, LOCK_EXPIRED, now_ms)
                self.release(offset, now_ms)
        for offset in known:
            record = self.record(offset)
            if record.state == AVAILABLE and self.is_expired(offset, now_ms):
                self.outdate(offset)

    def is_expired(self, offset: int, now_ms: int) -> bool:
        found = self.attributes.get(offset)
        return found is not None and 0 <= found.expires_ms <= now_ms

    def outdate(self, offset: int) -> None:
        if self.config.are_expired_dead:
            self.give_up(offset)
        else:
            self.finish(offset)

    def learn(self, first: int, end: int, now_ms: int) -> None:
        """What the group need not be asked about is finished at once."""
        for offset in range(max(first, self.start), end):
            record, found = self.record(offset), self.attributes.get(offset, Attributes())
            if record.state != AVAILABLE:
                continue
            if self.config.filter_tags not in found.wanted_by:
                self.finish(offset)
            elif self.is_expired(offset, now_ms):
                self.outdate(offset)

    def by_priority(self, offsets: set[int]) -> list[int]:
        def rank(offset: int) -> tuple[int, int]:
            return -self.attributes.get(offset, Attributes()).priority, offset

        return sorted(offsets, key=rank)

    def crash(self) -> None:
        """What was acquired is available again; its delivery was never counted as ended."""
        self.claimed = ("", 0)
        self.ended.clear()
        for record in self.records.values():
            if record.state == ACQUIRED:
                record.state, record.owner, record.at_ms = AVAILABLE, "", 0
                record.deliveries = record.stored_deliveries

    def move_log_start(self, offset: int) -> None:
        for number in range(self.start, offset):
            self.record(number)
            self.finish(number)

    def is_free(self, offset: int, now_ms: int) -> bool:
        record = self.record(offset)
        is_due = record.state == AVAILABLE and record.at_ms <= now_ms
        return is_due and not self.is_expired(offset, now_ms)

    def chain(self, head: int, known: Iterable[int], now_ms: int) -> list[int]:
        """What may be delivered together with a head, among the records that are known."""
        found, key = [head], self.record(head).key
        for offset in sorted(known):
            record = self.record(offset)
            if offset <= head or record.key != key or record.state in {FINISHED, ARCHIVING}:
                continue
            if not self.is_free(offset, now_ms):
                break
            found.append(offset)
        return found

    def held_by(self, member: str, now_ms: int) -> list[tuple[int, int]]:
        """(offset, deliveries) of what a member holds."""
        return [(n, self.records[n].deliveries) for n in self.held(member, now_ms)]

    def deliverable(self, end: int, now_ms: int) -> set[int]:
        """What could be delivered now of the records before `end`."""
        found: set[int] = set()
        busy = {one.key for one in self.records.values() if one.state == ACQUIRED}
        for offset in range(self.start, end):
            record = self.record(offset)
            if record.state in {FINISHED, ARCHIVING}:
                continue
            is_free = record.state == AVAILABLE and record.at_ms <= now_ms
            is_free = is_free and not self.is_expired(offset, now_ms)
            is_free = is_free and record.key not in self.parked
            if is_free and not (self.config.is_ordered and record.key in busy):
                found.add(offset)
            busy.add(record.key)
        return found
