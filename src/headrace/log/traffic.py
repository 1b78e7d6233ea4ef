"""What went in and out of one partition on this broker, since the broker started.

Invariants: plain counters that only grow. A partition that moves away and back continues to count.
"""

from __future__ import annotations


class Traffic:
    """The counters of one partition."""

    __slots__ = ("in_bytes", "in_records", "out_bytes", "out_records")

    def __init__(self) -> None:
        self.in_records = 0
        self.in_bytes = 0
        self.out_records = 0
        """Offsets that were passed, so removed records count as well."""
        self.out_bytes = 0

    def came(self, records: int, size: int) -> None:
        """These were appended."""
        self.in_records += records
        self.in_bytes += size

    def went(self, records: int, size: int) -> None:
        """These were sent to a client."""
        self.out_records += records
        self.out_bytes += size
