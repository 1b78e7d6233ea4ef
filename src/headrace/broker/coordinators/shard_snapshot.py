"""What a snapshot of a machine's state takes: how large it is, and its record batches.

Invariants: no part of a state of any size holds the loop for longer than some milliseconds, but for
machines that have one part alone.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from headrace.broker.coordinators.shard_log import LogRecord, size_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headrace.coordination.machine import Machine

BATCH_RECORDS = 1_000
SAMPLE = 16


async def state_size(machine: Machine[Any, Any, Any]) -> int:
    """About how many bytes the state takes in the log: every sixteenth record is encoded."""
    size_bytes = 0
    for part in machine.state_parts():
        sample = part[::SAMPLE]
        if sample:
            size_bytes += size_of(_encoded(machine, sample)) * len(part) // len(sample)
        await asyncio.sleep(0)
    return size_bytes


def batches_of(machine: Machine[Any, Any, Any], part: list[Any]) -> Iterator[list[LogRecord]]:
    """A part of the state as record batches."""
    for first in range(0, len(part), BATCH_RECORDS):
        yield _encoded(machine, part[first : first + BATCH_RECORDS])


def _encoded(machine: Machine[Any, Any, Any], records: list[Any]) -> list[LogRecord]:
    pairs = [machine.encode(record) for record in records]
    return [pair for pair in pairs if pair is not None]
