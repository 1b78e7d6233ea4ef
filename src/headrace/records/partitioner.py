"""The partition of a key, chosen as Kafka's clients do, so that all protocols agree. Pure."""

from __future__ import annotations

from typing import Final

_SEED: Final = 0x9747B28C
_FACTOR: Final = 0x5BD1E995
_MASK: Final = 0xFFFFFFFF


def partition_of_key(key: bytes, count: int) -> int:
    """The partition of a topic with `count` partitions. Do not change: clients rely on it."""
    return (_murmur2(key) & 0x7FFFFFFF) % count


def _murmur2(data: bytes) -> int:
    """Austin Appleby's MurmurHash2 with Kafka's seed, 4 bytes at a time."""
    size = len(data)
    hashed = _SEED ^ size
    whole = size & ~3
    for at in range(0, whole, 4):
        word = int.from_bytes(data[at : at + 4], "little") * _FACTOR & _MASK
        word = (word ^ word >> 24) * _FACTOR & _MASK
        hashed = (hashed * _FACTOR & _MASK) ^ word
    if whole < size:
        hashed = (hashed ^ int.from_bytes(data[whole:], "little")) * _FACTOR & _MASK
    hashed = (hashed ^ hashed >> 13) * _FACTOR & _MASK
    return hashed ^ hashed >> 15
