"""Which ledgers compaction may process, how dirty they are, and when a round is due.

Invariants: queries the log and its chain, reads no ledger, and changes nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from headrace.log.partition_log import PartitionLog
    from headrace.log.segment import Segment


class CleanableBytes(NamedTuple):
    """The clean and dirty bytes of a partition."""

    clean_bytes: int
    dirty_bytes: int
    is_overdue: bool
    """Whether a record has waited longer than `max.compaction.lag.ms`."""

    @property
    def ratio(self) -> float:
        """The dirty fraction of all cleanable bytes."""
        return self.dirty_bytes / max(self.clean_bytes + self.dirty_bytes, 1)


def cleanable_segments(log: PartitionLog, now_ms: int) -> list[Segment]:
    """The ledgers that may be compacted, from the start of the log."""
    sealed = {link.ledger for link in log.lifecycle_host.chain.fact.ledgers if link.is_sealed}
    lag_ms = log.config.compaction_lag_min_ms
    found: list[Segment] = []
    for segment in log.segments:
        if (
            segment.ledger not in sealed
            or segment.end_offset > log.visibility.last_stable_offset
            or (lag_ms > 0 and segment.newest_ms > now_ms - lag_ms)
        ):
            break
        found.append(segment)
    return found


def cleanable_bytes(log: PartitionLog, now_ms: int) -> CleanableBytes:
    """The clean and dirty bytes of the cleanable ledgers."""
    cleaned = log.lifecycle_host.chain.fact.cleaned_offset or 0
    segments = cleanable_segments(log, now_ms)
    dirty = [segment for segment in segments if segment.end_offset > cleaned]
    size, dirty_size = (sum(s.end_position for s in some) for some in (segments, dirty))
    oldest_ms = dirty[0].first_append_ms if dirty else now_ms
    is_overdue = bool(dirty_size) and now_ms - oldest_ms > log.config.compaction_lag_max_ms
    return CleanableBytes(size - dirty_size, dirty_size, is_overdue)


def is_due(log: PartitionLog, now_ms: int) -> bool:
    """Whether a round is due according to the topic's configuration."""
    if not (log.config.is_compacted and log.is_loaded and is_served(log)):
        return False
    found = cleanable_bytes(log, now_ms)
    return found.dirty_bytes > 0 and (found.ratio > log.config.dirty_ratio_min or found.is_overdue)


def is_served(log: PartitionLog) -> bool:
    """Whether this broker owns the partition and can serve it."""
    return log.is_loaded and log.failure is None and not log.is_deleted
