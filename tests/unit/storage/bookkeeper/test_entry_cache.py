"""Entries in memory, against a plain model."""

from __future__ import annotations

import random
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.storage.bookkeeper.entry_builder import DATA_AT
from headrace.storage.bookkeeper.entry_cache import ENTRY_OVERHEAD_BYTES, EntryCache


@given(st.integers(0, 10_000), st.integers(500, 6_000))
def test_the_cache_returns_what_was_put_and_stays_within_its_limit(seed, bytes_max):
    rng = random.Random(seed)
    cache = EntryCache(bytes_max)
    content = {ledger: rng.randbytes(1_000) for ledger in (1, 2)}
    cuts = {ledger: sorted(rng.sample(range(1, 1_000), 12)) for ledger in content}
    entries = {
        ledger: list(zip([0, *cuts[ledger]], [*cuts[ledger], 1_000], strict=True))
        for ledger in content
    }
    for _ in range(60):
        ledger = rng.choice([1, 2])
        if rng.random() < 0.02:
            cache.forget(ledger)
        begin, end = rng.choice(entries[ledger])
        cache.put(ledger, begin, memoryview(content[ledger])[begin:end])
        assert cache.get(ledger, begin, end - begin) == content[ledger][begin:end]
        assert cache.bytes_held <= max(bytes_max, end - begin + ENTRY_OVERHEAD_BYTES)
        position, size = rng.randrange(1_000), rng.randrange(1, 400)
        found = cache.get(ledger, position, size)
        assert found is None or bytes(found) == content[ledger][position : position + size]
    for ledger in content:
        cache.forget(ledger)
    assert cache.bytes_held == 0


def test_the_newest_entries_stay():
    cache = EntryCache(10 * (100 + ENTRY_OVERHEAD_BYTES))
    for number in range(50):
        cache.put(1, number * 100, memoryview(bytes([number]) * 100))
    assert cache.get(1, 4_000, 1_000) == b"".join(bytes([n]) * 100 for n in range(40, 50))
    assert cache.get(1, 3_900, 10) is None
    assert cache.get(1, 4_950, 100) is None  # the end is not here


@pytest.mark.parametrize("size", [200, 1_300, 20_000])
def test_counted_bytes_match_the_memory_in_use(size):
    count = 4_000
    cache = EntryCache(1 << 40)
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        for number in range(count):
            frame = bytearray().join((bytes(DATA_AT), bytes(size)))
            cache.put(1_000 + number // 500, number * size, memoryview(frame)[DATA_AT:])
        taken = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert taken == pytest.approx(cache.bytes_held, rel=0.12)
