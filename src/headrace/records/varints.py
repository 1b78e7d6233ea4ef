"""Zigzag varints, as records use them: seven bits per byte, least significant first.

Invariants: decoding never reads a number past its maximum size, whatever the input.
"""

from __future__ import annotations

from typing import Final

from headrace.errors import BatchCorrupt

VARINT_BITS_MAX: Final = 32
"""For sizes, counts and offset deltas."""
VARLONG_BITS_MAX: Final = 64
"""For timestamp deltas."""


def read_varint(data: bytes, at: int, bits_max: int = VARINT_BITS_MAX) -> tuple[int, int]:
    """The zigzag varint at `at`, and its end."""
    byte = data[at]
    at += 1
    if byte < 128:
        return (byte >> 1) ^ -(byte & 1), at
    high = data[at]
    if high < 128:  # a short path: the sizes of most records and values take two bytes
        return (byte & 0x7F | high << 7) >> 1 ^ -(byte & 1), at + 1
    number, shift = byte & 0x7F, 7
    while True:
        byte = data[at]
        at += 1
        number |= (byte & 0x7F) << shift
        if byte < 128:
            break
        shift += 7
        if shift >= bits_max:
            raise BatchCorrupt(f"a varint has more than {bits_max} bits")
    if number >> bits_max:
        raise BatchCorrupt(f"a varint has more than {bits_max} bits")
    return (number >> 1) ^ -(number & 1), at


def write_varint(number: int) -> bytes:
    """Encode `number` as a zigzag varint."""
    return _SMALL_NUMBERS[number] if 0 <= number < 512 else _encode_varint(number)


def _encode_varint(number: int) -> bytes:
    zigzag = number << 1 if number >= 0 else ~(number << 1)
    assert zigzag < 1 << 64, number
    encoded = bytearray()
    while zigzag >= 128:
        encoded.append(zigzag & 0x7F | 0x80)
        zigzag >>= 7
    encoded.append(zigzag)
    return bytes(encoded)


_SMALL_NUMBERS = tuple(_encode_varint(number) for number in range(512))
