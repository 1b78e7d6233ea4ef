"""What compaction reads of batches is what the codec reads."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.errors import BatchCorrupt
from headrace.records.batch import read_header
from headrace.records.codec import Record, decode_batch, encode_batch
from headrace.records.rewriting import payload_of, read_all_columns, rewrite_batch

TEXT = st.binary(max_size=40) | st.integers(60, 20_000).map(bytes)
RECORDS = st.lists(
    st.builds(
        Record,
        offset=st.just(0),
        timestamp_ms=st.integers(0, 2**40),
        key=st.none() | TEXT,
        value=st.none() | TEXT,
        headers=st.lists(st.tuples(st.text(max_size=3), st.none() | TEXT), max_size=2),
    ),
    min_size=1,
    max_size=20,
).map(lambda found: [replace(one, offset=at) for at, one in enumerate(found)])


@settings(max_examples=200, deadline=None)
@given(RECORDS, st.integers(0, 4), st.data())
def test_columns_are_what_the_codec_reads_and_the_kept_records_keep_it(records, codec, data):
    batch = bytes(encode_batch(records, codec=codec))
    header = read_header(batch)
    columns = read_all_columns(payload_of(batch, 0, header), header.record_count)
    assert columns.keys == [one.key for one in records]
    assert columns.deltas == [one.offset for one in records]
    assert columns.tombstones == [at for at, one in enumerate(records) if one.value is None]
    kept = sorted(data.draw(st.sets(st.integers(0, len(records) - 1), min_size=1)))
    for horizon_ms in (None, records[0].timestamp_ms + 5):
        batch = bytes(rewrite_batch(header, columns, kept, horizon_ms))
        assert decode_batch(batch) == [records[at] for at in kept]
        after = read_header(batch)
        left = read_all_columns(payload_of(batch, 0, after), after.record_count)
        assert left.deltas == kept
        assert left.keys == [records[at].key for at in kept]
        assert after.max_timestamp_ms == max(records[at].timestamp_ms for at in kept)


@settings(max_examples=300, deadline=None)
@given(RECORDS, st.data())
def test_damage_is_a_corrupt_batch_or_other_records_never_another_error(records, data):
    batch = bytearray(encode_batch(records))
    header = read_header(bytes(batch))
    at = data.draw(st.integers(61, len(batch) - 1))
    batch[at] ^= data.draw(st.integers(1, 255))
    try:
        columns = read_all_columns(payload_of(bytes(batch), 0, header), header.record_count)
    except BatchCorrupt:
        return
    assert len(columns) == header.record_count
    assert columns.starts[-1] == len(batch)
