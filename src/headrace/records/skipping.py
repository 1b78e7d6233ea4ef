"""Where a record of a payload begins, without taking apart those before it.

Invariants: pure; a length is believed only as far as there are bytes.
How it works: in most batches long runs of records have the same size. If the bytes of their length
lie at the same distance from each other, each record ends where the next one begins, and the run is
passed in one step.
"""

from __future__ import annotations

from typing import Final

from headrace.errors import BatchCorrupt
from headrace.records.varints import read_varint

RUNS: Final = (1_024, 128, 16)
"""Records that are compared at once: many first, then fewer."""
ALONE: Final = 64
"""Records that are passed one by one after one that has no like, before others are compared."""


def record_position(payload: bytes, count: int, at: int = 0) -> int:
    """Where the record after the first `count` begins; may lie past the end of the payload.

    `at`: where the first of them begins.

    Raises BatchCorrupt; IndexError where the payload ends too early.
    """
    left, alone = count, 0
    while left > 0:
        begin = at
        length, at = read_varint(payload, at)
        if length < 0:
            raise BatchCorrupt(f"a record of {length} bytes")
        head = at - begin
        at += length
        left -= 1
        if alone:
            alone -= 1
            continue
        alike = _alike(payload, begin, head, at - begin, left)
        at += alike * (at - begin)
        left -= alike
        if not alike:
            alone = ALONE
    return at


def _alike(payload: bytes, begin: int, head: int, size: int, left: int) -> int:
    """How many of the `left` records after the one at `begin` surely have its size, 0 if unknown.

    `head`: bytes of its length.
    """
    for run in RUNS:
        end = begin + size * (run + 1)
        if run > left or end > len(payload):
            continue
        if all(
            payload[begin + place : end : size].count(payload[begin + place]) == run + 1
            for place in range(head)
        ):
            return run
    return 0
