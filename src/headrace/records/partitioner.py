"""The partition of a key, chosen as Kafka's clients do, so that all protocols agree. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from mypy_extensions import i64

_SEED: Final = 0x9747B28C
_FACTOR: Final = 0x5BD1E995
_MASK: Final = 0xFFFFFFFF


def partition_of_key(key: bytes, count: int) -> int:
    """The partition of a topic with `count` partitions. Do not change: clients rely on it."""
    return (_murmur2(key) & 0x7FFFFFFF) % count


def _murmur2(data: bytes) -> int:
    """Austin Appleby's MurmurHash2 with Kafka's seed, 4 bytes at a time."""
    size = len(data)
    whole = size & ~3
    factor: i64 = _FACTOR
    mask: i64 = _MASK
    hashed: i64 = _SEED ^ size
    for at in range(0, whole, 4):
        word: i64 = int.from_bytes(data[at : at + 4], "little")
        word = word * factor & mask
        word = (word ^ word >> 24) * factor & mask
        hashed = (hashed * factor & mask) ^ word
    if whole < size:
        rest: i64 = int.from_bytes(data[whole:], "little")
        hashed = (hashed ^ rest) * factor & mask
    hashed = (hashed ^ hashed >> 13) * factor & mask
    return hashed ^ hashed >> 15
