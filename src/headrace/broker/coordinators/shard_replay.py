"""Rebuilds a shard's machine from the log.

Invariants: records are applied in log order. The loop runs other work after a bounded number of
records.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, NamedTuple

from headrace.broker.coordinators.shard_log import (
    BATCH_OVERHEAD_BYTES,
    RECORD_OVERHEAD_BYTES,
    LogRecord,
    PendingRecord,
    Replayed,
    ShardLog,
    size_of,
)
from headrace.errors import OffsetOutOfRange

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from headrace.coordination.kit.machine import Machine

log = logging.getLogger(__name__)

TURN_RECORDS = 2_000
"""Records applied per turn of the loop (about 5 ms)."""
BATCH_COST = 3
"""What reading a record batch costs, in records."""

SAMPLE, SAMPLED_MIN = 16, 256


class StateAhead(NamedTuple):
    """A machine built from the sealed part of a log before this broker owned it."""

    machine: Machine[Any, Any, Any]
    end_offset: int
    """Of the part that was read."""
    log_bytes: int
    leader_epoch: int
    """Of the tenure for which it was built."""


async def restore(
    make_machine: Callable[[], Machine[Any, Any, Any]],
    shard_log: ShardLog,
    ahead: StateAhead | None,
) -> tuple[Machine[Any, Any, Any], int]:
    """The machine at the end of the log, and the log's approximate size in bytes.

    `ahead` is used if possible: records after it that were trimmed may have undone earlier ones.
    Raises what reading the log raises.
    """
    if ahead is not None and ahead.leader_epoch == shard_log.leader_epoch:
        try:
            rest = await read_back(ahead.machine, shard_log.replay(ahead.end_offset))
        except OffsetOutOfRange as error:
            log.debug("the state read ahead is of no use: %s", error)
        else:
            return ahead.machine, ahead.log_bytes + rest
    machine = make_machine()
    return machine, await read_back(machine, shard_log.replay())


async def read_back(machine: Machine[Any, Any, Any], records: AsyncIterator[Replayed]) -> int:
    """Apply these records to a machine; returns their approximate size in bytes.

    Raises what reading the log raises.
    """
    log_bytes = count = 0
    replay = machine.replayer()
    async for replayed in records:
        if isinstance(replayed, list):
            log_bytes += _about(replayed) + BATCH_OVERHEAD_BYTES
            count += BATCH_COST
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
