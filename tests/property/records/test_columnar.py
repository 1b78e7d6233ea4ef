"""Batches as columns of positions, against the codec; compiled and plain, as the core is tested.

What Arrow makes of the columns is tested in tests/property/pipeline/test_column_arrays.py.
"""

from __future__ import annotations

from array import array

from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.records.batch import read_header
from headrace.records.codec import Record, decode_batch, encode_batch
from headrace.records.columnar import NO_KEY, NO_TIME, NO_VALUE, BatchCursor, RecordColumns

content = st.none() | st.binary(max_size=20) | st.integers(0, 20_000).map(lambda n: b"v" * n)
names = st.text(st.characters(exclude_categories=["Cs"]), max_size=9)
times = st.integers(-1, 1 << 45) | st.integers(-(1 << 62), 1 << 62)
record = st.builds(
    Record, st.just(0), times, content, content, st.lists(st.tuples(names, content), max_size=3)
)


def rows_of(columns: RecordColumns) -> list[Record]:
    """The rows as records."""
    body = columns.body()
    bounds, headers = array("q", columns.positions.getvalue()), array("q")
    headers.frombytes(columns.headers.getvalue())
    counts = array("q", columns.header_counts.getvalue())
    flags, header_flags = columns.flags.getvalue(), columns.header_flags.getvalue()
    strange = dict(columns.strange_ms)
    found = []
    for row, (offset, time_us) in enumerate(
        zip(
            array("q", columns.offsets.getvalue()),
            array("q", columns.times.getvalue()),
            strict=True,
        )
    ):
        k, kk, v, vv = bounds[4 * row + 1 : 4 * row + 5]
        own = []
        for each in range(counts[row], counts[row + 1]):
            n, nn, h, hh = headers[4 * each + 1 : 4 * each + 5]
            value = None if header_flags[each] & NO_VALUE else body[h:hh]
            own.append((body[n:nn].decode(), value))
        time_ms = strange.get(row, -1) if flags[row] & NO_TIME else time_us // 1000
        key = None if flags[row] & NO_KEY else body[k:kk]
        value = None if flags[row] & NO_VALUE else body[v:vv]
        found.append(Record(offset, time_ms, key, value, own))
    return found


@settings(deadline=None)
@given(
    st.lists(record, min_size=1, max_size=20), st.integers(0, 4), st.integers(0, 1 << 40),
    st.integers(0, 25), st.integers(0, 25), st.integers(1, 7),
)  # fmt: skip
def test_columns_hold_the_records_that_were_asked_for(records, codec, base, first, end, rows_max):
    data = encode_batch(records, base_offset=base, codec=codec)
    first, end = base + first, base + end
    cursor = BatchCursor(data, 0, read_header(data), first, end)
    columns, found = RecordColumns(rows_max, 1 << 25), []
    while not cursor.decode_into(columns):
        assert columns.row_count == rows_max
        found += rows_of(columns)
        columns = RecordColumns(rows_max, 1 << 25)
    found += rows_of(columns)
    assert found == [each for each in decode_batch(data) if first <= each.offset < end]
