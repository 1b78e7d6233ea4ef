"""Rebuilds a shard's machine from the log.

Invariants: records are applied in log order. The loop runs other work after a bounded number of
records.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from headrace.broker.coordinators.shard_log import (
    RECORD_OVERHEAD_BYTES,
    LogRecord,
    PendingRecord,
    ShardLog,
    size_of,
)

if TYPE_CHECKING:
    from headrace.coordination.machine import Machine

TURN_RECORDS = 2_000
"""Records applied per turn of the loop (about 5 ms)."""

SAMPLE, SAMPLED_MIN = 16, 256


async def read_back(machine: Machine[Any, Any, Any], shard_log: ShardLog) -> int:
    """Apply all records of the log to a new machine; returns their approximate size in bytes.

    Raises what reading the log raises.
    """
    log_bytes = count = 0
    replay = machine.replayer()
    async for replayed in shard_log.replay():
        if isinstance(replayed, list):
            log_bytes += _about(replayed)
            for first in range(0, len(replayed), TURN_RECORDS):
                if count >= TURN_RECORDS:
                    count = 0
                    await asyncio.sleep(0)
                part = replayed[first : first + TURN_RECORDS]
                replay(part)
                count += len(part)
            continue
        if isinstance(replayed, PendingRecord):
            transaction, key, value = replayed
            record = machine.decode_pending(transaction, key, value)
            log_bytes += size_of([(key, value)])
        else:
            record = machine.ended(replayed)
            log_bytes += RECORD_OVERHEAD_BYTES
        if record is not None:
            machine.apply(record)
            replay = machine.replayer()
        count += 1
    return log_bytes


def _about(records: list[LogRecord]) -> int:
    """Approximate size of the records: every sixteenth is measured, since there may be a
    million."""
    if len(records) < SAMPLED_MIN:
        return size_of(records)
    return size_of(records[::SAMPLE]) * SAMPLE
