"""Finds the position of a record in a payload without decoding the records before it.

Invariants: pure; lengths are checked against the bytes present.
Most batches contain long runs of records of equal size. If the bytes of their lengths repeat at
that distance, each record ends where the next one begins, and the run is skipped in one step.
"""

from __future__ import annotations

from typing import Final

from headrace.errors import BatchCorrupt
from headrace.records.varints import read_varint

RUNS: Final = (1_024, 128, 16)
"""Run lengths to try: long ones first."""
ALONE: Final = 64
"""Records to skip one by one, after a record without equals, before trying runs again."""


def record_position(payload: bytes, count: int, at: int = 0) -> int:
    """The position of the record after the next `count`; may be past the end of the payload.

    `at`: where the first of them begins.

    Raises BatchCorrupt; IndexError if the payload ends too early.
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
    """How many of the `left` records after the one at `begin` have its size; 0 if unknown.

    `head`: size of its length field.
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
