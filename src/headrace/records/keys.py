"""The keys of a batch's records, for callers that need nothing else.

Invariants: as in `codec`, numbers in the batch are untrusted; values and headers are skipped by
the record's length, so errors inside them are left to their decoders.
Numbers of one and two bytes are decoded inline (`scripts/inline_varints.py`). A record costs a
third of a full decode, which is most of the cost of a receive in key order.
"""

from __future__ import annotations

from headrace.errors import BatchCorrupt
from headrace.records.batch import CONTROL, Buffer
from headrace.records.codec import DECOMPRESSED_BYTES_MAX, checked_payload
from headrace.records.varints import read_varint


def batch_keys(
    data: Buffer, decompressed_bytes_max: int = DECOMPRESSED_BYTES_MAX
) -> list[tuple[int, bytes | None]]:
    """(offset, key) of each record in a batch; empty for a control batch.

    Raises BatchCorrupt (including on a CRC mismatch) and UnsupportedForMessageFormat, as
    `decode_batch` does.
    """
    payload, header = checked_payload(data, 0, decompressed_bytes_max)
    if header.attributes & CONTROL:
        return []
    found: list[tuple[int, bytes | None]] = []
    at, base, delta_before, size = 0, header.base_offset, -1, len(payload)
    try:
        for _ in range(header.record_count):
            # inline: length, at = read_varint(payload, at)
            byte = payload[at]
            if byte < 128:
                length, at = (byte >> 1) ^ -(byte & 1), at + 1
            elif (high := payload[at + 1]) < 128:
                length, at = (byte & 127 | high << 7) >> 1 ^ -(byte & 1), at + 2
            else:
                length, at = read_varint(payload, at)
            end = at + length
            at += 1  # attributes: unused
            while payload[at] > 0x7F:  # the timestamp
                at += 1
            at += 1
            # inline: delta, at = read_varint(payload, at)
            byte = payload[at]
            if byte < 128:
                delta, at = (byte >> 1) ^ -(byte & 1), at + 1
            elif (high := payload[at + 1]) < 128:
                delta, at = (byte & 127 | high << 7) >> 1 ^ -(byte & 1), at + 2
            else:
                delta, at = read_varint(payload, at)
            # inline: key_size, at = read_varint(payload, at)
            byte = payload[at]
            if byte < 128:
                key_size, at = (byte >> 1) ^ -(byte & 1), at + 1
            elif (high := payload[at + 1]) < 128:
                key_size, at = (byte & 127 | high << 7) >> 1 ^ -(byte & 1), at + 2
            else:
                key_size, at = read_varint(payload, at)
            key_end = at + key_size if key_size > 0 else at
            if not key_end < end <= size or key_size < -1:
                raise BatchCorrupt(f"a record's length ends at {end}, before its key")
            if not delta_before < delta <= header.last_offset_delta:
                raise BatchCorrupt(f"offset delta {delta} follows {delta_before}")
            found.append((base + delta, None if key_size < 0 else payload[at:key_end]))
            delta_before, at = delta, end
    except IndexError:
        raise BatchCorrupt("the batch ends inside a record", offset=base) from None
    if at != size:
        raise BatchCorrupt(f"{size - at} bytes follow the batch's last record")
    return found
