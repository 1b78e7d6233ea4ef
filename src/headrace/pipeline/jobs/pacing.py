"""When a continuous archive begins its next round, and how far its table was behind.

Invariants: pure; callers pass `now_ms`. A round costs a snapshot and at least one file per
partition, so rounds have a minimum: enough bytes, or records that have waited long enough.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.pipeline.planning import total

if TYPE_CHECKING:
    from headrace.pipeline.planning import Offsets

UNKNOWN_RECORD_BYTES = 100
"""The assumed record size for a table without records."""


class RoundPacer:
    """Decides whether the backlog of a topic is worth a round."""

    def __init__(
        self,
        *,
        bytes_min: int,
        wait_ms_max: int,
        records_max: int,
        quiet_wait_ms: int | None = None,
        quiet_bytes_max: int = 0,
    ) -> None:
        self._bytes_min = bytes_min
        self._wait_ms_max = wait_ms_max
        self._records_max = records_max
        self._quiet_wait_ms = quiet_wait_ms
        self._quiet_bytes_max = quiet_bytes_max
        self._waiting_since_ms: int | None = None

    def is_due(self, record_count: int, record_bytes: float | None, now_ms: int) -> bool:
        """Return whether to archive a backlog of this many records of this mean size now.

        A backlog is due when it fills a round, when it is expected to fill `bytes_min` of files, or
        when `wait_ms_max` have passed since it was first seen; `quiet_wait_ms`, if it is as small
        as that of a quiet topic still: waiting longer would make no file worth the name.
        """
        if record_count == 0:
            self._waiting_since_ms = None
            return False
        if self._waiting_since_ms is None:
            self._waiting_since_ms = now_ms
        if record_count >= self._records_max:
            return True
        size = record_count * (record_bytes or UNKNOWN_RECORD_BYTES)
        waited_ms = now_ms - self._waiting_since_ms
        is_quiet = self._quiet_wait_ms is not None and size <= self._quiet_bytes_max
        if is_quiet and waited_ms >= (self._quiet_wait_ms or 0):
            return True
        return size >= self._bytes_min or waited_ms >= self._wait_ms_max

    def begun(self) -> None:
        """Note that a round took the backlog: the wait of later records starts over."""
        self._waiting_since_ms = None


class Freshness:
    """Until when a table is complete: at each look, the log's ends belong to a time, and once the
    table has reached them, it holds every record that was in the log then."""

    def __init__(self) -> None:
        self._complete_at_ms: int | None = None
        self._looks: list[tuple[int, Offsets]] = []

    def looked(self, ends: Offsets, now_ms: int) -> None:
        """Note the log's ends."""
        if self._looks and self._looks[-1][1] == ends:
            self._looks.pop()  # the later time says more
        self._looks.append((now_ms, ends))

    def reached(self, offsets: Offsets) -> int | None:
        """The last time until which a table with all before `offsets` is complete; None: it holds
        not yet what was in the log at the first look."""
        while self._looks and not total(offsets, self._looks[0][1]):
            self._complete_at_ms, _ = self._looks.pop(0)
        return self._complete_at_ms
