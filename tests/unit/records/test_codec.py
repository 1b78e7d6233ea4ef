"""Batches that lie, one kind of lie at a time."""

from __future__ import annotations

from struct import pack

import pytest

from headrace.errors import BatchCorrupt, UnsupportedForMessageFormat
from headrace.records.batch import CONTROL, HEADER, check_batch, read_header
from headrace.records.bodies import decode_body, encode_body
from headrace.records.codec import (
    Record,
    decode_batch,
    encode_batch,
    header_name_bytes,
    iterate_records,
    log_append_time,
    retain_records,
)
from headrace.records.keys import batch_keys
from headrace.records.varints import write_varint

BOUND = 1 << 20


def forge(payload: bytes, *, count: int = 1, last: int | None = None, attributes: int = 0) -> bytes:
    """A batch around `payload` whose CRC is right."""
    last = count - 1 if last is None else last
    header = HEADER.pack(0, 49 + len(payload), 0, 2, 0, attributes, last, 0, 0, -1, -1, -1, count)
    batch = header + payload
    return log_append_time(batch, 0) if attributes & 8 else _with_crc(batch)


def _with_crc(batch: bytes) -> bytes:
    from crc32c import crc32c

    return batch[:17] + pack(">I", crc32c(batch[21:])) + batch[21:]


def decode(data: bytes) -> list[Record]:
    return decode_batch(data, decompressed_bytes_max=BOUND)


def record(*fields: bytes | int) -> bytes:
    """A record of these fields (numbers become varints) after its correct length."""
    body = b"".join(f if isinstance(f, bytes) else write_varint(f) for f in fields)
    return write_varint(len(body)) + body


PLAIN = record(b"\0", 0, 0, 1, b"k", 1, b"v", 0)


def test_the_forger_makes_good_batches_too():
    assert decode(forge(PLAIN)) == [Record(0, 0, b"k", b"v")]
    assert decode(forge(b"", count=0)) == []


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        PLAIN[:-1],
        PLAIN + b"\0",
        PLAIN + PLAIN,
        record(b"\0", 0, 0, -2, 1, b"v", 0),
        record(b"\0", 0, 0, -1, -2, 0),
        record(b"\0", 0, 0, 1 << 30, b"k", 1, b"v", 0),
        record(b"\0", 0, 0, 1, b"k", 1, b"v", -1),
        record(b"\0", 0, 0, 1, b"k", 1, b"v", (1 << 31) - 1),
        record(b"\0", 0, 0, 1, b"k", 1, b"v", 1, -1, 0),
        record(b"\0", 0, 0, 1, b"k", 1, b"v", 1, 1, b"h", -2),
        record(b"\0", 0, 0, 1, b"k", 1, b"v", 1, 5, b"h"),
        record(b"\0", 0, 0, 1, b"k", 1, b"v", 0, b"x"),
        record(b"\0", 0, 1, 1, b"k", 1, b"v", 0),
        record(b"\0", 0, -1, 1, b"k", 1, b"v", 0),
        b"\x01" + PLAIN[1:],
        b"\xff" * 10 + PLAIN,
        b"\x80" * 12 + PLAIN,
        record(b"\0", b"\xff" * 10 + b"\x01", 0, 1, b"k", 1, b"v", 0),
        record(b"\0", b"\xff" * 9 + b"\x02", 0, 1, b"k", 1, b"v", 0),
        record(b"\0", 0, b"\xff" * 4 + b"\x10", 1, b"k", 1, b"v", 0),
        record(b"\0", 0, b"\x80" * 5 + b"\x00", 1, b"k", 1, b"v", 0),
    ],
    ids=range(22),
)
def test_lies_within_a_record_are_refused(payload):
    with pytest.raises(BatchCorrupt):
        decode(forge(payload))


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        PLAIN[:-1],
        PLAIN + b"\0",
        PLAIN + PLAIN,
        record(b"\0", 0, 0, -2, 1, b"v", 0),
        record(b"\0", 0, 0, 1 << 30, b"k", 1, b"v", 0),
        record(b"\0", 0, 0, 9, b"k"),
        record(b"\0", 0, 1, 1, b"k", 1, b"v", 0),
        record(b"\0", 0, -1, 1, b"k", 1, b"v", 0),
        b"\x01" + PLAIN[1:],
        b"\xff" * 10 + PLAIN,
        record(b"\0", b"\xff" * 100),
    ],
    ids=range(12),
)
def test_keys_are_not_read_past_what_a_record_says(payload):
    with pytest.raises(BatchCorrupt):
        batch_keys(forge(payload))


def test_a_control_batch_has_no_keys():
    assert batch_keys(forge(PLAIN)) == [(0, b"k")]
    assert batch_keys(forge(PLAIN, attributes=CONTROL)) == []


@pytest.mark.parametrize("count", [0, 2, (1 << 31) - 1, -1, -(1 << 31)])
def test_a_lying_record_count_is_refused(count):
    with pytest.raises(BatchCorrupt):
        decode(forge(PLAIN, count=count, last=max(count - 1, 0)))


def test_offsets_only_rise_and_stay_below_the_last_one():
    first = record(b"\0", 0, 0, -1, -1, 0)
    assert [
        r.offset for r in decode(forge(first + record(b"\0", 0, 5, -1, -1, 0), count=2, last=5))
    ]
    with pytest.raises(BatchCorrupt):
        decode(forge(first + first, count=2))
    with pytest.raises(BatchCorrupt):
        decode(forge(first + record(b"\0", 0, 5, -1, -1, 0), count=2, last=4))


@pytest.mark.parametrize("codec", [5, 6, 7])
def test_an_unknown_codec_is_refused(codec):
    with pytest.raises(BatchCorrupt, match=f"codec {codec}"):
        decode(forge(PLAIN, attributes=codec))


@pytest.mark.parametrize("length", [-1, 0, 48, 49 + len(PLAIN) + 1, (1 << 31) - 1, -(1 << 31)])
def test_a_lying_length_is_refused(length):
    batch = bytearray(forge(PLAIN))
    batch[8:12] = pack(">i", length)
    with pytest.raises(BatchCorrupt):
        decode(batch)
    with pytest.raises(BatchCorrupt):
        check_batch(batch)


def test_old_formats_are_distinguished_from_unknown_ones():
    batch = bytearray(forge(PLAIN))
    for magic in (0, 1):
        batch[16] = magic
        with pytest.raises(UnsupportedForMessageFormat):
            decode(batch)
    batch[16] = 3
    with pytest.raises(BatchCorrupt, match="magic 3"):
        decode(batch)


@pytest.mark.parametrize("size", [0, 1, 12, 16, 17, 60])
def test_less_than_a_header_is_refused(size):
    with pytest.raises(BatchCorrupt):
        decode(forge(PLAIN)[:size])


def test_a_header_name_that_is_not_utf_8_keeps_its_bytes_when_it_is_written_again():
    found = decode(forge(record(b"\0", 0, 0, -1, -1, 1, 2, b"\xffh", -1)))
    assert header_name_bytes(found[0].headers[0][0]) == b"\xffh"
    assert decode(encode_batch(found)) == found
    assert decode_body(encode_body(None, None, found[0].headers)).headers == found[0].headers


def test_a_batch_is_decoded_where_it_lies():
    data = b"...." + encode_batch([Record(0, 1, b"k", None)], base_offset=9) + b"...."
    assert decode_batch(data, 4, decompressed_bytes_max=BOUND) == [Record(9, 1, b"k", None)]


def test_a_consumer_is_not_shown_control_records():
    marker = encode_batch([Record(0, 1, b"\0\0\0\1", b"\0" * 6)], base_offset=1, is_control=True)
    data = encode_batch([Record(0, 1, None, b"a")]) + marker
    data += encode_batch([Record(0, 1, None, b"b")], base_offset=2)
    records = list(iterate_records(data, decompressed_bytes_max=BOUND))
    assert [(r.offset, r.value) for r in records] == [(0, b"a"), (2, b"b")]
    assert read_header(marker).attributes & CONTROL
    assert decode(marker)[0].key == b"\0\0\0\1"


def test_a_batch_of_which_nothing_is_retained_stays_as_a_header():
    before = encode_batch([Record(0, 1, b"k", b"v")] * 3, base_offset=5, codec=1, producer_id=8)
    after = retain_records(read_header(before), [])
    header = read_header(after)
    assert (header.base_offset, header.last_offset, header.producer_id) == (5, 7, 8)
    assert decode(after) == []
    assert len(after) == 61


def test_the_bound_counts_what_is_unfolded():
    batch = encode_batch([Record(0, 0, None, bytes(100_000))], codec=1)
    assert len(batch) < 500
    assert len(decode_batch(batch, decompressed_bytes_max=100_100)) == 1
    with pytest.raises(BatchCorrupt, match="exceeds 100000 bytes"):
        decode_batch(batch, decompressed_bytes_max=100_000)
