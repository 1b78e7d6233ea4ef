"""The partition of a key is the one that Kafka's clients choose."""

from __future__ import annotations

import pytest

from headrace.records.partitioner import partition_of_key


@pytest.mark.parametrize(
    ("key", "hashed"),
    [
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ],
)
def test_a_key_goes_where_kafkas_clients_send_it(key: bytes, hashed: int) -> None:
    """The hashes are those of Kafka's own UtilsTest."""
    for count in (1, 3, 7, 1_000):
        assert partition_of_key(key, count) == (hashed & 0x7FFFFFFF) % count
