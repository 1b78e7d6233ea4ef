"""The codec against two others (aiokafka's compiled one and kafka-python's), and against noise."""

from __future__ import annotations

import warnings
from contextlib import suppress

import pytest
from aiokafka.record.default_records import DefaultRecordBatch as AiokafkaBatch
from aiokafka.record.default_records import DefaultRecordBatchBuilder as AiokafkaBuilder
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.errors import BatchCorrupt, UnsupportedForMessageFormat
from headrace.records.batch import HEADER_SIZE, check_batch, iterate_headers, read_header
from headrace.records.codec import (
    PayloadCursor,
    Record,
    checked_payload,
    compress_batch,
    decode_batch,
    encode_batch,
    iterate_payload,
    iterate_records,
    log_append_time,
    payload_of,
    retain_records,
)
from headrace.records.compression import CODEC_NAMES, SNAPPY, compress, decompress
from headrace.records.keys import batch_keys
from headrace.records.keys_and_values import decode_keys_and_values

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # importing kafka-python 3.0 reads its schemas in an old way
    from kafka.record.default_records import DefaultRecordBatch as KafkaPythonBatch
    from kafka.record.default_records import DefaultRecordBatchBuilder as KafkaPythonBuilder

BOUND = 1 << 24
unhurried = settings(deadline=None)  # a busy machine is no bug
CODECS = range(5)
INT64 = st.integers(-(1 << 63), (1 << 63) - 1)
content = st.none() | st.binary(max_size=40) | st.integers(0, 70_000).map(lambda n: b"v" * n)
header = st.tuples(st.text(st.characters(exclude_categories=["Cs"]), max_size=20), content)
moments = st.integers(-1, 1 << 45)
record = st.builds(Record, st.just(0), moments, content, content, st.lists(header, max_size=4))
batches = st.lists(record, min_size=1, max_size=30)


def placed(records, base_offset=0):
    """The records with the offsets that encode_batch gives them."""
    return [
        Record(base_offset + index, r.timestamp_ms, r.key, r.value, r.headers)
        for index, r in enumerate(records)
    ]


def seen(record):
    """A foreign record as one of ours."""

    def plain(value):
        return None if value is None else bytes(value)

    headers = [(name, plain(value)) for name, value in record.headers]
    return Record(record.offset, record.timestamp, plain(record.key), plain(record.value), headers)


@unhurried
@given(batches, st.integers(0, 1 << 62), st.sampled_from(CODECS))
def test_encoded_batches_decode_to_the_same_records(records, base_offset, codec):
    data = encode_batch(records, base_offset=base_offset, codec=codec)
    header = check_batch(data)
    assert header.size == len(data)
    assert header.record_count == len(records)
    assert header.max_timestamp_ms == max(record.timestamp_ms for record in records)
    assert decode_batch(data, decompressed_bytes_max=BOUND) == placed(records, base_offset)
    assert decode_keys_and_values(data) == [(record.key, record.value) for record in records]
    keys = [(base_offset + index, record.key) for index, record in enumerate(records)]
    assert batch_keys(data) == keys


alike = st.tuples(
    st.integers(1, 9_000),  # how many records of one layout: deltas get a second and a third byte
    st.binary(max_size=5),
    st.integers(0, 4),
    st.sampled_from([0, 1, 1 << 20]),  # of the timestamps from record to record
)


@settings(max_examples=60, deadline=None)
@given(st.lists(alike, min_size=1, max_size=4), st.randoms(use_true_random=True))
def test_runs_of_records_of_one_layout_are_read_alike(runs, random):
    records: list[Record] = []
    for count, key, value_size, step_ms in runs:
        for _ in range(count):
            value = random.randbytes(value_size)
            at_ms = (records[-1].timestamp_ms if records else 5) + step_ms
            records.append(Record(0, at_ms, key + random.randbytes(2), value))
    data = encode_batch(records)
    pairs = [(record.key, record.value) for record in records]
    assert decode_keys_and_values(data) == pairs
    assert batch_keys(data) == list(enumerate(record.key for record in records))
    changed = bytearray(data)
    changed[random.randrange(HEADER_SIZE, len(data))] ^= 1 << random.randrange(8)
    changed[17:21] = crc32c(bytes(changed[21:])).to_bytes(4, "big")
    try:
        expected = decode_batch(bytes(changed))
    except BatchCorrupt:
        with suppress(BatchCorrupt):  # offsets and timestamps are not looked at
            decode_keys_and_values(bytes(changed))
        with suppress(BatchCorrupt):  # timestamps, values and headers are not looked at
            batch_keys(bytes(changed))
    else:
        pairs = [(record.key, record.value) for record in expected]
        assert decode_keys_and_values(bytes(changed)) == pairs
        assert batch_keys(bytes(changed)) == [(record.offset, record.key) for record in expected]


@unhurried
@given(
    INT64,
    st.integers(-(1 << 15), (1 << 15) - 1),
    st.integers(-(1 << 31), (1 << 31) - 1),
    st.booleans(),
    st.booleans(),
    st.booleans(),
)
def test_the_header_says_what_it_was_given(producer, epoch, number, transactional, control, append):
    data = encode_batch(
        [Record(0, 5, None, None), Record(0, 9, None, None), Record(0, 7, None, None)],
        producer_id=producer,
        producer_epoch=epoch,
        base_sequence=number,
        leader_epoch=number,
        is_transactional=transactional,
        is_control=control,
        log_append=append,
    )
    header = check_batch(data)
    assert (header.producer_id, header.producer_epoch) == (producer, epoch)
    assert (header.base_sequence, header.leader_epoch) == (number, number)
    assert (header.is_transactional, header.is_control) == (transactional, control)
    times = [r.timestamp_ms for r in decode_batch(data, decompressed_bytes_max=BOUND)]
    assert times == ([9, 9, 9] if append else [5, 9, 7])


@pytest.mark.parametrize("codec", CODECS, ids=CODEC_NAMES)
@pytest.mark.parametrize("reader", [AiokafkaBatch, KafkaPythonBatch])
@settings(max_examples=40, deadline=None)
@given(records=batches)
def test_other_clients_read_what_we_encode(reader, codec, records):
    if codec == SNAPPY and reader is KafkaPythonBatch:
        pytest.skip("kafka-python wants the package python-snappy for it")
    batch = reader(encode_batch(records, base_offset=7, codec=codec, producer_id=5))
    assert batch.validate_crc()
    assert batch.producer_id == 5
    assert [seen(record) for record in batch] == placed(records, 7)


@pytest.mark.parametrize("codec", CODECS, ids=CODEC_NAMES)
@pytest.mark.parametrize("builder", [AiokafkaBuilder, KafkaPythonBuilder])
@settings(max_examples=40, deadline=None)
@given(records=batches)
def test_we_read_what_other_clients_encode(builder, codec, records):
    if codec == SNAPPY and builder is KafkaPythonBuilder:
        pytest.skip("kafka-python wants the package python-snappy for it")
    other = builder(
        magic=2,
        compression_type=codec,
        is_transactional=0,
        producer_id=-1,
        producer_epoch=-1,
        base_sequence=-1,
        batch_size=1 << 30,
    )
    for index, r in enumerate(records):
        # aiokafka takes a time of -1 as it is, but sets its header by the first one
        assert other.append(index, max(r.timestamp_ms, 0), r.key, r.value, r.headers) is not None
        r.timestamp_ms = max(r.timestamp_ms, 0)
    data = bytes(other.build())
    check_batch(data)
    assert decode_batch(data, decompressed_bytes_max=BOUND) == placed(records)


@unhurried
@given(st.lists(st.tuples(batches, st.sampled_from(CODECS)), max_size=4), st.integers(0, 60))
def test_many_batches_are_read_in_a_row_and_a_cut_one_is_left_out(runs, cut):
    data, expected, offset = b"", [], 0
    for records, codec in runs:
        data += encode_batch(records, base_offset=offset, codec=codec)
        expected += placed(records, offset)
        offset += len(records)
    tail = encode_batch([Record(0, 0, None, b"x" * 30)], base_offset=offset)[:cut]
    assert list(iterate_records(data + tail, decompressed_bytes_max=BOUND)) == expected
    buffer = memoryview(b"before" + data + tail)
    assert list(iterate_records(buffer, 6, decompressed_bytes_max=BOUND)) == expected


@unhurried
@given(batches, st.sampled_from(CODECS), st.data(), st.booleans())
def test_records_that_are_retained_keep_their_offsets(records, codec, data, append):
    before = encode_batch(
        records, base_offset=100, codec=codec, producer_id=1, base_sequence=3, log_append=append
    )
    kept = [
        record
        for record in decode_batch(before, decompressed_bytes_max=BOUND)
        if data.draw(st.booleans())
    ]
    after = retain_records(read_header(before), kept)
    ((_, header),) = iterate_headers(after)
    assert header.last_offset == 100 + len(records) - 1
    assert (header.producer_id, header.base_sequence) == (1, 3)
    assert header.record_count == len(kept)
    assert decode_batch(after, decompressed_bytes_max=BOUND) == kept


@unhurried
@given(batches, st.sampled_from(CODECS), st.integers(0, 1 << 50))
def test_log_append_time_is_every_records_time(records, codec, now_ms):
    before = encode_batch(records, base_offset=3, codec=codec, producer_id=9, is_transactional=True)
    data = log_append_time(memoryview(before), now_ms)
    header = check_batch(data)
    assert header.max_timestamp_ms == now_ms
    assert header.is_transactional
    assert AiokafkaBatch(data).timestamp_type == 1
    assert all(record.timestamp == now_ms for record in AiokafkaBatch(data))
    for r in records:
        r.timestamp_ms = now_ms
    assert decode_batch(data, decompressed_bytes_max=BOUND) == placed(records, 3)


@unhurried
@given(batches, st.sampled_from(CODECS), st.sampled_from(CODECS))
def test_another_codec_changes_nothing_else(records, before, after):
    data = encode_batch(records, base_offset=3, codec=before, producer_id=4, is_transactional=True)
    header = read_header(data)
    again = compress_batch(header, payload_of(memoryview(data), header), after)
    old, new = read_header(data), check_batch(again)
    codec = old.attributes - before + after
    assert new == old._replace(length=new.length, crc=new.crc, attributes=codec)
    assert decode_batch(again) == decode_batch(data)


@pytest.mark.parametrize("codec", CODECS, ids=CODEC_NAMES)
def test_every_flipped_bit_is_found_where_the_crc_covers_it(codec):
    records = [Record(0, 1_000 + n, b"key", b"value" * n, [("name", b"text")]) for n in range(6)]
    good = encode_batch(records, base_offset=1, leader_epoch=2, codec=codec)
    for bit in range(len(good) * 8):
        bad = bytearray(good)
        bad[bit // 8] ^= 1 << bit % 8
        harmless = bit // 8 in {0, 1, 2, 3, 4, 5, 6, 7, 12, 13, 14, 15}  # offset, leader epoch
        if harmless:
            check_batch(bad)
            continue
        with pytest.raises((BatchCorrupt, UnsupportedForMessageFormat)):
            check_batch(bad)
        with pytest.raises((BatchCorrupt, UnsupportedForMessageFormat)):
            decode_batch(bad, decompressed_bytes_max=BOUND)


@unhurried
@given(batches, st.data())
def test_damage_under_a_valid_crc_is_refused_or_decoded_but_never_more(records, data):
    """A client may send anything: the decoder's errors are BatchCorrupt alone."""
    codec = data.draw(st.sampled_from(CODECS))
    batch = bytearray(encode_batch(records, codec=codec))
    for _ in range(data.draw(st.integers(1, 4))):
        batch[data.draw(st.integers(61, len(batch) - 1))] = data.draw(st.integers(0, 255))
    if data.draw(st.booleans()):
        del batch[data.draw(st.integers(61, len(batch))) :]
        batch[8:12] = (len(batch) - 12).to_bytes(4, "big")
    forged = log_append_time(batch, 0)  # gives it a valid CRC
    try:
        decoded = decode_batch(forged, decompressed_bytes_max=BOUND)
    except BatchCorrupt:
        return
    assert len(decoded) == len(records)


@unhurried
@given(st.sampled_from(CODECS), st.binary(max_size=300), st.integers(0, 1000))
def test_noise_is_refused_or_bounded(codec, noise, bytes_max):
    try:
        plain = decompress(codec, noise, bytes_max)
    except BatchCorrupt:
        return
    assert len(plain) <= bytes_max


@unhurried
@given(st.sampled_from(CODECS[1:]), st.binary(max_size=300), st.data())
def test_a_damaged_stream_is_refused_or_bounded(codec, plain, data):
    stream = bytearray(compress(codec, plain))
    for _ in range(data.draw(st.integers(1, 3))):
        stream[data.draw(st.integers(0, len(stream) - 1))] = data.draw(st.integers(0, 255))
    try:
        assert len(decompress(codec, stream, 400)) <= 400
    except BatchCorrupt:
        pass


@unhurried
@given(st.sampled_from(CODECS), st.binary(max_size=100_000), st.sampled_from([bytes, memoryview]))
def test_compression_is_undone_within_the_bound_and_refused_one_below(codec, plain, kind):
    stream = compress(codec, kind(plain))
    assert decompress(codec, kind(stream), len(plain)) == plain
    if plain:
        with pytest.raises(BatchCorrupt):
            decompress(codec, kind(stream), len(plain) - 1)


@given(st.lists(st.integers(0, 300), min_size=1, max_size=200), st.booleans(), st.data())
def test_records_are_the_same_where_decoding_goes_on_from_an_earlier_place(sizes, is_dense, data):
    records = [Record(n, 1, b"k", bytes(size)) for n, size in enumerate(sizes)]
    batch = encode_batch(records)
    if not is_dense:
        records = records[::2]
        batch = retain_records(read_header(batch), records)
    payload, header = checked_payload(batch, 0)
    place, end = PayloadCursor(), records[-1].offset
    for _ in range(4):
        first = data.draw(st.integers(0, end))
        last = data.draw(st.integers(first, end))
        ranges = iterate_payload(payload, header, first, last, place)
        found = [one for part in ranges for one in part if first <= one.offset <= last]
        assert found == [one for one in records if first <= one.offset <= last]
