"""Retention by time and size, in whole ledgers.

Invariants: never removes the open ledger, unless everything in it has expired; then it is closed
first. Time is compared with the largest record timestamp, as in Kafka, and with the time of the
last append if records have none; a ledger with neither is removed with the next one whose time is
known.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from headrace.log.producer_state import EXPIRY_GRACE_NS

if TYPE_CHECKING:
    from headrace.log.partition_log import PartitionLog

PRODUCER_EXPIRY_MS = 24 * 3600 * 1000
"""Kafka's default of `producer.id.expiration.ms`; see `EXPIRY_GRACE_NS` for clock jumps."""


def start_after_retention(log: PartitionLog, now_ms: int) -> int:
    """The log start offset according to retention by time and size."""
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


async def enforce(
    log: PartitionLog, now_ms: int, now_ns: int, producer_expiry_ms: int = PRODUCER_EXPIRY_MS
) -> int:
    """Apply the topic's retention; returns the number of records removed.

    `now_ms` determines the age of records, `now_ns` what must not depend on the wall clock.
    """
    if not log.is_loaded or log.failure is not None or log.is_deleted:
        return 0
    grace_ns = min(EXPIRY_GRACE_NS, producer_expiry_ms * 1_000_000)
    for _ in log.producers.expire(now_ms - producer_expiry_ms, now_ns, grace_ns):
        await asyncio.sleep(0)
    log.lifecycle_host.seal_again()
    if not log.config.is_deleted_by_retention:
        return 0
    if log.config.retention_ms >= 0:
        active = log.active
        newest_ms = active.newest_ms if active is not None else -1
        is_old = 0 <= newest_ms < now_ms - log.config.retention_ms
        if is_old:
            await close_open(log)
    return await drop_before(log, start_after_retention(log, now_ms))


async def drop_before(log: PartitionLog, offset: int) -> int:
    """Remove the records before an offset, none above the high watermark; returns how many."""
    before = log.log_start_offset
    start = min(offset, log.high_watermark)
    if start > before:
        await log.lifecycle_host.trim(start)
    return log.log_start_offset - before


async def close_open(log: PartitionLog) -> None:
    """Close the open ledger, so that it can be removed, unless something waits for it."""
    if log.ready is None and not log.has_pending:
        await log.lifecycle_host.roll_now()
