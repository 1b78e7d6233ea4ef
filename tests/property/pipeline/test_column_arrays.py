"""Batches decoded into Arrow columns, against the codec's records, on any batch and on noise."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.errors import BatchCorrupt
from headrace.pipeline.arrow import to_arrow
from headrace.pipeline.column_arrays import batch_of
from headrace.pipeline.columns import RecordColumns as ListedColumns
from headrace.records.batch import HEADER_SIZE, read_header
from headrace.records.codec import (
    Record,
    decode_batch,
    encode_batch,
    header_name_bytes,
    log_append_time,
)
from headrace.records.columnar import BatchCursor, RecordColumns

unhurried = settings(deadline=None)  # a busy machine is no bug
INT64 = (1 << 63) - 1
content = st.none() | st.binary(max_size=40) | st.integers(0, 20_000).map(lambda n: b"v" * n)
header = st.tuples(st.text(st.characters(exclude_categories=["Cs"]), max_size=20), content)
moments = st.integers(-1, 1 << 45) | st.integers(-(1 << 62), 1 << 62)
record = st.builds(Record, st.just(0), moments, content, content, st.lists(header, max_size=4))
batches = st.lists(record, min_size=1, max_size=30)


def columns_of(data, first=0, end=INT64, *, rows_max=10_000, bytes_max=1 << 25, **options):
    """The Arrow batches of one record batch."""
    made = []
    rows = RecordColumns(rows_max, bytes_max, **options)
    cursor = BatchCursor(data, 0, read_header(data), first, end)
    while not cursor.decode_into(rows):
        made.append(rows)
        rows = RecordColumns(rows_max, bytes_max, **options)
    return [batch_of(each, "topic", 3) for each in [*made, rows] if each.row_count]


def shown(name):
    """A header's name as clients show it."""
    return header_name_bytes(name).decode(errors="replace")


def expected(records, kind=1):
    """What the client's way makes of the same records."""
    rows = ListedColumns(
        [each.offset for each in records],
        [kind] * len(records),
        [each.timestamp_ms for each in records],
        [each.key for each in records],
        [each.value for each in records],
        [[(shown(name), data) for name, data in each.headers] or None for each in records],
    )
    return to_arrow(rows, "topic", 3)


@unhurried
@given(batches, st.integers(0, 4), st.integers(0, 1 << 40), st.booleans())
def test_all_columns_equal_those_of_the_records(records, codec, base, is_append_time):
    data = encode_batch(records, base_offset=base, codec=codec)
    if is_append_time:
        data = log_append_time(data, 1_700_000_000_000)
    wanted = expected(decode_batch(data), 2 if is_append_time else 1)
    (found,) = columns_of(data)
    found.validate(full=True)
    assert found.equals(wanted)
    assert found.schema.equals(wanted.schema)


@unhurried
@given(batches, st.integers(0, 40), st.integers(0, 40), st.integers(1, 9), st.integers(1, 50_000))
def test_ranges_and_bounds_lose_no_record(records, first, end, rows_max, bytes_max):
    data = encode_batch(records, codec=4)
    wanted = [each for each in decode_batch(data) if first <= each.offset < end]
    found = columns_of(data, first, end, rows_max=rows_max, bytes_max=bytes_max)
    assert all(each.num_rows <= rows_max for each in found)
    assert all(each.num_rows == 1 or each.nbytes <= bytes_max + 4_096 for each in found)
    if wanted:
        assert pa.Table.from_batches(found).to_pylist() == expected(wanted).to_pylist()
    else:
        assert found == []


@unhurried
@given(batches)
def test_headers_are_left_out_if_not_asked_for(records):
    data = encode_batch(records)
    bare = [Record(r.offset, r.timestamp_ms, r.key, r.value, []) for r in decode_batch(data)]
    assert columns_of(data, has_headers=False) == [expected(bare)]


@unhurried
@given(batches, st.data())
def test_damage_is_refused_as_by_the_codec(records, draw):
    """The payload is changed without a CRC, as a producer with a fault would send it."""
    from crc32c import crc32c

    data = bytearray(encode_batch(records))
    for _ in range(draw.draw(st.integers(1, 3))):
        at = draw.draw(st.integers(HEADER_SIZE, len(data) - 1))
        data[at] = draw.draw(st.integers(0, 255))
    data[17:21] = crc32c(bytes(data[21:])).to_bytes(4, "big")
    octets = bytes(data)
    try:
        wanted = decode_batch(octets)
    except BatchCorrupt:
        with pytest.raises(BatchCorrupt):
            columns_of(octets)
    else:
        try:
            (found,) = columns_of(octets)
        except BatchCorrupt as error:  # a time that no number of 64 bits holds
            assert "timestamp of" in str(error)  # noqa: PT017
            return
        names = [name for name in found.schema.names if name not in ("raw", "headers")]
        assert found.select(names).equals(expected(wanted).select(names))


def test_header_keys_that_are_not_utf_8_are_kept_beside_a_readable_form():
    data = encode_batch([
        Record(0, 1, None, b"a", [("plain", b"0")]),
        Record(0, 1, None, b"b", [("caf\xe9", b"1"), ("ok", None)]),
        Record(0, 1, None, b"c", []),
    ])  # fmt: skip
    broken = bytearray(data.replace("caf\xe9".encode(), b"caf\xe9\xff"))
    from crc32c import crc32c

    broken[17:21] = crc32c(bytes(broken[21:])).to_bytes(4, "big")
    (found,) = columns_of(bytes(broken))
    rows = found.to_pylist()
    assert [row["raw"] and row["raw"]["headerKeys"] for row in rows] == [
        None, [b"caf\xe9\xff", b"ok"], None
    ]  # fmt: skip
    assert rows[1]["headers"][0] == {"key": "caf\ufffd\ufffd", "value": b"1"}
    assert [row["headers"] is None for row in rows] == [False, False, True]
