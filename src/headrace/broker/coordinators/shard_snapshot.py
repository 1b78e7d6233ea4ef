"""Sizes and record batches of a snapshot of a machine's state.

Invariants: no part of a state of any size holds the loop for longer than a few milliseconds. A
batch is no larger than the log accepts, unless it is a single record.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from headrace.broker.coordinators.shard_log import LogRecord, size_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headrace.coordination.kit.machine import Machine

SAMPLE, SAMPLED_MIN = 16, 256


async def state_size(machine: Machine[Any, Any, Any]) -> int:
    """Approximate size of the state in the log: if a part has many records, which are alike, every
    sixteenth is encoded."""
    size_bytes = 0
    for part in machine.state_parts():
        sample = part if len(part) < SAMPLED_MIN else part[::SAMPLE]
        if sample:
            size_bytes += size_of(_encoded(machine, sample)) * len(part) // len(sample)
        await asyncio.sleep(0)
    return size_bytes


def batches_of(
    machine: Machine[Any, Any, Any], part: list[Any], bytes_max: int
) -> Iterator[list[LogRecord]]:
    """A part of the state as record batches of at most `bytes_max`, or of one record."""
    pairs = _encoded(machine, part)
    if size_of(pairs) <= bytes_max:  # almost always
        if pairs:
            yield pairs
        return
    batch: list[LogRecord] = []
    batch_bytes = 0
    for pair in pairs:
        pair_bytes = size_of([pair])
        if batch and batch_bytes + pair_bytes > bytes_max:
            yield batch
            batch, batch_bytes = [], 0
        batch.append(pair)
        batch_bytes += pair_bytes
    if batch:
        yield batch


def _encoded(machine: Machine[Any, Any, Any], records: list[Any]) -> list[LogRecord]:
    pairs = [machine.encode(record) for record in records]
    return [pair for pair in pairs if pair is not None]
