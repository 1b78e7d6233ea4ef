"""What a compacted topic must hold, as far as its only writer knows.

Invariants: knows records and times, not how they are sent or read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from headrace.records.codec import Record

RETENTION_S: Final = 15.0


class Written(NamedTuple):
    """An acknowledged record."""

    key: bytes
    value: bytes | None
    at_s: float


class Table:
    """What the topic's only client knows of it."""

    def __init__(self, topic: str, *, is_calendar_set: bool = False) -> None:
        """`is_calendar_set`: brokers whose wall clocks differ may remove tombstones at any time."""
        self.topic = topic
        self._tombstones_stay_s = 0.0 if is_calendar_set else RETENTION_S
        self.written: dict[int, Written] = {}
        """By offset."""
        self.latest: dict[bytes, int] = {}
        """The offset of each key's newest record."""
        self.doubtful: set[tuple[bytes, bytes | None]] = set()
        """Of the last batch, if it was not acknowledged."""

    @property
    def end(self) -> int:
        """The end offset of the last acknowledged record."""
        return max(self.written, default=-1) + 1

    def acknowledged(self, offset: int, records: list[Record], now_s: float) -> None:
        """Record a stored batch."""
        for at, record in enumerate(records, offset):
            assert record.key is not None
            self.written[at] = Written(record.key, record.value, now_s)
            self.latest[record.key] = at

    def problems(self, found: list[Record], now_s: float) -> list[str]:
        """Return the problems of a full read that began at this time."""
        problems: list[str] = []
        seen: dict[bytes, int] = {}
        before = -1
        for record in found:
            known = self.written.get(record.offset)
            is_known = known is not None and (known.key, known.value) == (record.key, record.value)
            if not is_known and (record.key, record.value) not in self.doubtful:
                problems.append(f"another record: {record.offset} holds {record}, expected {known}")
            if record.offset <= before:
                problems.append(f"out of order: {record.offset} after {before}")
            before = record.offset
            assert record.key is not None
            seen[record.key] = record.offset
        doubtful = {key for key, _ in self.doubtful}
        for key, offset in self.latest.items():
            if seen.get(key) == offset or key in doubtful:
                continue
            newest = self.written[offset]
            is_removable = newest.value is None and now_s - newest.at_s >= self._tombstones_stay_s
            if key in seen:
                problems.append(f"an older value: of {key!r} {seen[key]} is read, not {offset}")
            elif not is_removable:
                problems.append(f"a lost key: {key!r} at {offset}, {newest}, is missing")
        return problems
