"""The place of a record is the one that reading all before it gives, however long each is."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import BatchCorrupt
from headrace.records.skipping import ALONE, RUNS, record_position
from headrace.records.varints import read_varint, write_varint

LENGTHS = st.sampled_from([6, 7, 63, 64, 70, 200, 8_191, 8_192, 9_000])
COUNTS = st.sampled_from([1, 2, 15, 16, 17, ALONE, 127, 130, RUNS[0], RUNS[0] + 5])


def plain(payload: bytes, count: int) -> int:
    at = 0
    for _ in range(count):
        length, at = read_varint(payload, at)
        at += length
    return at


def payload_of(lengths: list[int], filler: bytes) -> bytes:
    parts = []
    for length in lengths:
        parts += (write_varint(length), (filler * (length // len(filler) + 1))[:length])
    return b"".join(parts)


@given(
    st.lists(st.tuples(LENGTHS, COUNTS), min_size=1, max_size=4),
    # What looks like the length of a record inside of others, too.
    st.sampled_from([b"\x00", b"\x0c", b"\x80\x01", b"\x8c\x01\x0c", bytes(range(1, 90))]),
    st.data(),
)
def test_a_record_is_where_reading_all_before_it_leads(runs, filler, data) -> None:
    lengths = [length for length, count in runs for _ in range(min(count, 2_000_000 // length))]
    payload = payload_of(lengths, filler)
    count = data.draw(st.integers(0, len(lengths)))
    assert record_position(payload, count) == plain(payload, count)


@given(st.binary(min_size=1, max_size=400), st.integers(0, 300))
def test_whatever_bytes_there_are_lead_where_reading_them_leads(payload, count) -> None:
    try:
        expected = plain_checked(payload, count)
    except (IndexError, BatchCorrupt) as error:
        with pytest.raises(type(error)):
            record_position(payload, count)
    else:
        assert record_position(payload, count) == expected


def plain_checked(payload: bytes, count: int) -> int:
    at = 0
    for _ in range(count):
        length, at = read_varint(payload, at)
        if length < 0:
            raise BatchCorrupt("a length below 0")
        at += length
    return at
