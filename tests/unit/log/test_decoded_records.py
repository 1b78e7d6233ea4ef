"""Records of large batches are found and decoded in turns of the event loop."""

from __future__ import annotations

import asyncio

import pytest

from headrace.errors import BatchCorrupt
from headrace.log.decoded_records import PASSED_AT_ONCE, decoded_parts
from headrace.records.codec import Record, encode_batch

COUNT = 24_000
"""So few that the batch is opened without a thread."""
BASE = 1_000


def large() -> bytes:
    """Of records of different sizes, which are passed over one by one."""
    records = [Record(at, 1, None, b"xxx"[: at * 7 % 4]) for at in range(COUNT)]
    return encode_batch(records, base_offset=BASE)


@pytest.mark.parametrize("first", [0, BASE, BASE + PASSED_AT_ONCE, BASE + 23_000, BASE + COUNT])
async def test_records_from_an_offset_on_are_all_found(first):
    found = [one async for some in decoded_parts(large(), first) for one in some]
    offsets = [one.offset for one in found]
    assert offsets == [*range(max(first, BASE), BASE + COUNT)]
    assert all(one.value == b"xxx"[: (one.offset - BASE) * 7 % 4] for one in found)


async def test_others_have_the_loop_while_records_are_passed_over():
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    task = asyncio.create_task(others())
    async for records in decoded_parts(large(), BASE + 23_000):
        assert records[0].offset == BASE + 23_000
        break
    task.cancel()
    assert turns >= 23_000 // PASSED_AT_ONCE - 1


async def test_a_batch_that_ends_too_early_is_corrupt():
    batch = bytearray(large())
    batch[57 + 20_000] = 0xFF  # a length, or in a record
    with pytest.raises(BatchCorrupt):
        _ = [one async for some in decoded_parts(bytes(batch), BASE + 23_000) for one in some]
