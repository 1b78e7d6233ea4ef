"""The bytes of record batches. A change of any is a change of format.

`REWRITE_GOLDEN=1 pytest tests/golden/records` rewrites them; read the difference in review.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from aiokafka.record.default_records import DefaultRecordBatch

from headrace.records.batch import check_batch, read_header
from headrace.records.codec import (
    Record,
    decode_batch,
    encode_batch,
    log_append_time,
    retain_records,
)

FOLDER = Path(__file__).parent
T = 1_700_000_000_000

RECORDS = [
    Record(40, T, b"key", b"value", [("traceparent", b"00-01"), ("é", None), ("é", b"")]),
    Record(41, T - 70, None, b"", []),
    Record(42, T + 86_400_000, b"", None, []),
    Record(43, T, b"k" * 64, b"v" * 300, []),
]
PLAIN = encode_batch(
    RECORDS, base_offset=40, producer_id=1 << 40, producer_epoch=7, base_sequence=11, leader_epoch=3
)
NEWEST = [Record(r.offset, T + 5, r.key, r.value, r.headers) for r in RECORDS]
MARKER = Record(9, T, b"\0\0\0\1", b"\0\0\0\0\0\5")

CASES = {
    "plain": (PLAIN, RECORDS),
    "log-append-time": (log_append_time(PLAIN, T + 5), NEWEST),
    "compacted": (retain_records(read_header(PLAIN), RECORDS[1::2]), RECORDS[1::2]),
    "compacted-to-nothing": (retain_records(read_header(PLAIN), []), []),
    "transactional": (
        encode_batch([Record(0, T, None, b"v")], producer_id=1, is_transactional=True),
        [Record(0, T, None, b"v")],
    ),
    "commit-marker": (
        encode_batch(
            [MARKER], base_offset=9, producer_id=1, is_transactional=True, is_control=True
        ),
        [MARKER],
    ),
    "without-time": (encode_batch([Record(0, -1, None, b"v")]), [Record(0, -1, None, b"v")]),
}
# What a library compresses to may change with its version; what we must read may not.
COMPRESSED = {
    name: (encode_batch(RECORDS, base_offset=40, codec=codec), RECORDS)
    for codec, name in enumerate(["gzip", "snappy", "lz4", "zstd"], start=1)
}


def golden(name: str, now: bytes) -> bytes:
    path = FOLDER / f"{name}.hex"
    if os.environ.get("REWRITE_GOLDEN"):
        lines = [now[at : at + 32].hex(" ", 4) for at in range(0, len(now), 32)]
        path.write_text("\n".join(lines) + "\n")
    return bytes.fromhex(path.read_text())


@pytest.mark.parametrize("name", CASES)
def test_batches_are_encoded_to_the_very_bytes(name):
    data, records = CASES[name]
    assert golden(name, data).hex() == data.hex()
    assert decode_batch(data, decompressed_bytes_max=1 << 20) == records
    assert [(r.offset, r.timestamp) for r in DefaultRecordBatch(data)] == [
        (r.offset, r.timestamp_ms) for r in records
    ]


@pytest.mark.parametrize("name", COMPRESSED)
def test_batches_compressed_long_ago_are_read(name):
    data, records = COMPRESSED[name]
    stored = golden(name, data)
    assert check_batch(stored).record_count == len(records)
    assert decode_batch(stored, decompressed_bytes_max=1 << 20) == records
