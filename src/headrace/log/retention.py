"""Which ledgers a topic no longer keeps: by time and by size, whole ledgers at a time.

Invariants: never the ledger that is written to, unless all it holds has expired; then it is
closed first. Time is compared with the records' own largest timestamp, as Kafka does, and with
the time of the first append where records carry none; where nobody knows that one, a ledger goes
with the next one whose time is known.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headrace.log.partition_log import PartitionLog

PRODUCER_EXPIRY_MS = 24 * 3600 * 1000
"""`producer.id.expiration.ms` of Kafka; see `EXPIRY_GRACE_NS` for a calendar that jumps."""


def start_after_retention(log: PartitionLog, now_ms: int) -> int:
    """The log start offset that retention by time and by size would leave."""
    config = log.config
    start = log.log_start_offset
    excess = log.size_bytes - config.retention_bytes
    for segment in log.closed:
        newest_ms = segment.newest_ms
        is_old = config.retention_ms >= 0 and newest_ms < now_ms - config.retention_ms
        is_excess = config.retention_bytes >= 0 and excess >= segment.end_position
        if not (is_old or is_excess):
            break
        excess -= segment.end_position
        if is_excess or newest_ms >= 0:
            start = max(start, segment.end_offset)
    return min(start, log.high_watermark)


async def enforce(log: PartitionLog, now_ms: int, now_ns: int) -> int:
    """Drop what the topic's configuration no longer keeps; the number of records dropped.

    The calendar's time is for the records' age, the other for what must not hang on it.
    """
    if not log.is_loaded or log.failure is not None or log.is_deleted:
        return 0
    log.producers.expire(now_ms - PRODUCER_EXPIRY_MS, now_ns)
    log.upkeep.seal_again()
    if not log.config.is_deleted_by_retention:
        return 0
    if log.config.retention_ms >= 0:
        active = log.active
        newest_ms = active.newest_ms if active is not None else -1
        is_old = 0 <= newest_ms < now_ms - log.config.retention_ms
        if is_old and log.ready is None and not log.has_pending:
            await log.upkeep.roll_now()
    before = log.log_start_offset
    start = start_after_retention(log, now_ms)
    if start > before:
        await log.upkeep.trim(start)
    return log.log_start_offset - before
