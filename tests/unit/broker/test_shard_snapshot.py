"""What a snapshot takes: how large a state is, and its batches."""

from __future__ import annotations

import asyncio

from headrace.broker.coordinators.shard_log import size_of
from headrace.broker.coordinators.shard_snapshot import batches_of, state_size
from headrace.coordination.shares.share_machine import ShareMachine
from headrace.coordination.shares.state_records import (
    ShareGroupChanged,
    ShareGroupOpened,
    StoredRun,
)


def machine_of(groups: int) -> ShareMachine:
    machine = ShareMachine()
    for number in range(groups):
        machine.apply(ShareGroupOpened(number, f"group-{number}", 0))
        runs = tuple(StoredRun(2 * n + 1, 2 * n + 1, 2, 1) for n in range(200))
        machine.apply(ShareGroupChanged(number, runs, 0))
    return machine


def test_a_state_of_few_large_records_is_estimated_right():
    machine = machine_of(20)
    true_bytes = size_of([machine.encode(record) for record in machine.state_records()])
    assert asyncio.run(state_size(machine)) == true_bytes


def test_batches_hold_every_record_and_stay_within_bounds():
    machine = machine_of(20)
    part = machine.state_records()
    pairs = [machine.encode(record) for record in part]
    for bytes_max in (1, 1_000, 3_000, 10**9):
        batches = list(batches_of(machine, part, bytes_max))
        assert [pair for batch in batches for pair in batch] == pairs
        assert all(len(batch) == 1 or size_of(batch) <= bytes_max for batch in batches)
    assert list(batches_of(machine, [], 1_000)) == []
