"""When a continuous archive begins its next round.

Invariants: pure; time comes in as `now_ms`. A round is a snapshot and at least one file for each
partition, so rounds have a least size: enough bytes, or records that have waited long enough.
"""

from __future__ import annotations

UNKNOWN_RECORD_BYTES = 100
"""What a record is taken to need in a table that has none yet."""


class RoundPacer:
    """Decides whether the backlog of a topic is worth a round."""

    def __init__(self, *, bytes_min: int, wait_ms_max: int, records_max: int) -> None:
        self._bytes_min = bytes_min
        self._wait_ms_max = wait_ms_max
        self._records_max = records_max
        self._waiting_since_ms: int | None = None

    def is_due(self, record_count: int, record_bytes: float | None, now_ms: int) -> bool:
        """Whether a backlog of that many records, of that mean size, is archived now.

        A backlog is due when it fills a round, when it is expected to fill `bytes_min` of files,
        or when `wait_ms_max` have passed since it was first seen.
        """
        if record_count == 0:
            self._waiting_since_ms = None
            return False
        if self._waiting_since_ms is None:
            self._waiting_since_ms = now_ms
        if record_count >= self._records_max:
            return True
        size = record_count * (record_bytes or UNKNOWN_RECORD_BYTES)
        return size >= self._bytes_min or now_ms - self._waiting_since_ms >= self._wait_ms_max

    def begun(self) -> None:
        """A round takes the backlog: what arrives from now on waits anew."""
        self._waiting_since_ms = None
