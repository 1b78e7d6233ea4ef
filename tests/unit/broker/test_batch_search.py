"""The wanted records of a batch: the same as those of the whole batch, within bounds."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.broker.services.batch_search import Wanted, record_bytes, wanted_records
from headrace.errors import BatchCorrupt
from headrace.records.batch import read_header
from headrace.records.codec import Record, decode_batch, encode_batch, retain_records
from headrace.records.compression import GZIP, NONE


def kept(batch, *wanted):
    return asyncio.run(wanted_records(batch, Wanted(*wanted)))


@given(
    st.integers(1, 60),
    st.sets(st.integers(0, 59)),
    st.integers(-5, 70),
    st.integers(-5, 70),
    st.integers(1, 70),
    st.sampled_from([NONE, GZIP]),
)
def test_a_search_of_a_batch_returns_what_decoding_all_of_it_would(
    count, gaps, first, last, count_max, codec
):
    base = 1_000
    records = [Record(0, 5, b"k%d" % (n % 3), b"v%d" % n, []) for n in range(count)]
    batch = encode_batch(records, base_offset=base, codec=codec)
    left = [one for one in decode_batch(batch) if one.offset - base not in gaps]
    batch = retain_records(read_header(batch), left)
    first, last = max(base + first, 0), base + last
    inside = [one for one in left if first <= one.offset <= last]
    assert kept(batch, first, last, count_max, 2**40) == inside[:count_max]
    some = [one for one in inside if one.key == b"k1"]
    is_key = (lambda one: one.key == b"k1"), (b"k1",)
    assert kept(batch, first, last, count_max, 2**40, *is_key) == some[:count_max]
    assert kept(batch, first, last, count_max, 1) == inside[:1]


def test_a_small_batch_that_unfolds_to_much_is_kept_up_to_its_bound():
    records = [Record(0, 5, None, bytes(1_000_000), []) for _ in range(40)]
    batch = encode_batch(records, codec=GZIP)
    assert len(batch) < 100_000
    found = kept(batch, 0, 100, 100, 8_000_000)
    assert [one.offset for one in found] == list(range(8))
    assert sum(map(record_bytes, found[:-1])) < 8_000_000


def test_a_batch_whose_bytes_were_changed_is_refused():
    batch = bytearray(encode_batch([Record(0, 5, None, b"value", [])]))
    batch[-2] ^= 1
    with pytest.raises(BatchCorrupt):
        kept(bytes(batch), 0, 10, 10, 10)
