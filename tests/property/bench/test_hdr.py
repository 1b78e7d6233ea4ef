"""The histogram against the sorted list of all values."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from headrace_bench.hdr import HdrHistogram, bucket_of, highest_in

VALUES = st.lists(st.integers(0, 1 << 45), min_size=1, max_size=200)


@given(VALUES, st.floats(0.0, 1.0))
def test_a_percentile_is_the_exact_one_to_three_digits(values, share):
    exact = sorted(values)[max(1, math.ceil(share * len(values))) - 1]
    found = HdrHistogram(values).at(share)
    assert exact <= found <= exact + exact / 1000


@given(st.integers(0, 1 << 50))
def test_a_bucket_holds_its_values_and_buckets_are_in_order(value):
    top = highest_in(bucket_of(value))
    assert value <= top <= value + value / 1000
    assert bucket_of(top) == bucket_of(value)
    assert bucket_of(top + 1) == bucket_of(value) + 1


@given(VALUES, VALUES)
def test_merging_is_counting_everything_in_one(left, right):
    merged = HdrHistogram(left)
    merged.merge(HdrHistogram.from_json(HdrHistogram(right).as_json()))
    assert merged.as_json() == HdrHistogram(left + right).as_json()
    assert merged.count == len(left) + len(right)
