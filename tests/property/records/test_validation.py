"""What the validator accepts, every decoder decodes, with the same facts; and nothing else."""

from __future__ import annotations

import struct

from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st
from kafka.record.default_records import DefaultRecordBatch

from headrace.errors import BatchCorrupt
from headrace.records.batch import HEADER_SIZE, read_header
from headrace.records.codec import Record, compress_batch, decode_batch, encode_batch, payload_of
from headrace.records.validation import RecordFacts, validate_batch, validate_records
from headrace.records.varints import read_varint

LIMIT = 1 << 20
TIMES = st.sampled_from([-1, 0, 1_700_000_000_000, 1_700_000_000_063, 1_700_000_009_000])
DATA = st.one_of(st.none(), st.binary(max_size=3), st.just(bytes(70)), st.just(bytes(9_000)))
HEADERS = st.lists(
    st.tuples(
        st.sampled_from(["", "a", "traceparent", "headrace", "headrace-tag", "hedge-row-id"]), DATA
    ),
    max_size=3,
)
RECORDS = st.builds(Record, st.just(0), TIMES, DATA, DATA, HEADERS)
BATCHES = st.lists(RECORDS, min_size=1, max_size=80)


def facts_of(records: list[Record]) -> RecordFacts:
    times = [record.timestamp_ms for record in records if record.timestamp_ms != -1] or [-1]
    keyless = sum(record.key is None for record in records)
    names = [name for record in records for name, _ in record.headers]
    has_reserved = "headrace-tag" in names
    return RecordFacts(min(times), max(times), keyless, len(names), has_reserved)


@given(BATCHES, st.integers(0, 4))
def test_a_valid_batch_passes_with_the_facts_of_its_records(records, codec) -> None:
    batch = encode_batch(records, codec=codec)
    assert validate_batch(batch, read_header(batch), LIMIT) == facts_of(records)


def mutated(data: st.DataObject, batch: bytes) -> bytes:
    """Some bytes of the records, the count and the last delta changed; the CRC is right."""
    changed = bytearray(batch)
    kind = data.draw(st.sampled_from(["bytes", "cut", "more", "count", "none"]))
    if kind == "bytes":
        for _ in range(data.draw(st.integers(1, 3))):
            at = data.draw(st.integers(HEADER_SIZE, len(batch) - 1))
            changed[at] = data.draw(st.one_of(st.integers(0, 255), st.sampled_from([0, 1, 2, 128])))
    elif kind == "cut":
        del changed[data.draw(st.integers(HEADER_SIZE, len(batch) - 1)) :]
    elif kind == "more":
        changed += data.draw(st.binary(min_size=1, max_size=9))
    elif kind == "count":
        count = max(1, read_header(batch).record_count + data.draw(st.integers(-2, 2)))
        struct.pack_into(">i", changed, 23, count - 1)
        struct.pack_into(">i", changed, 57, count)
    struct.pack_into(">i", changed, 8, len(changed) - 12)
    struct.pack_into(">I", changed, 17, crc32c(bytes(changed[21:])))
    return bytes(changed)


def accepted(batch: bytes) -> RecordFacts | None:
    try:
        return validate_batch(batch, read_header(batch), LIMIT)
    except BatchCorrupt:
        return None


@settings(max_examples=600)
@given(BATCHES, st.data())
def test_it_accepts_exactly_what_a_full_decoder_decodes_without_gaps(records, data) -> None:
    batch = mutated(data, encode_batch(records))
    try:
        found = decode_batch(batch)
    except BatchCorrupt:
        found = []
    has_all = [record.offset for record in found] == list(range(read_header(batch).record_count))
    facts = accepted(batch)
    assert (facts is not None) == (bool(found) and has_all)
    if facts is not None:
        assert facts == facts_of(found)


def has_wide_attributes(batch: bytes) -> bool:
    """Whether a record's attributes, a byte that Kafka ignores, exceed 127: kafka-python reads them
    as a number of variable length."""
    at = HEADER_SIZE
    while at < len(batch):
        size, at = read_varint(batch, at)
        if batch[at] > 127:
            return True
        at += size
    return False


@settings(max_examples=400)
@given(BATCHES, st.sampled_from([0, 1, 4]), st.data())
def test_another_project_decodes_what_it_accepts(records, codec, data) -> None:
    plain = mutated(data, encode_batch(records))
    facts = accepted(plain)
    if facts is None or has_wide_attributes(plain):
        return
    batch = compress_batch(read_header(plain), plain[HEADER_SIZE:], codec)
    try:
        found = list(DefaultRecordBatch(batch))
    except UnicodeDecodeError:
        return  # Kafka accepts header names that are not UTF-8; most clients replace the bytes
    assert [record.offset for record in found] == list(range(len(found)))
    assert len(found) == read_header(batch).record_count
    times = [record.timestamp for record in found if record.timestamp not in {-1, None}] or [-1]
    assert (min(times), max(times)) == facts[:2]


@given(st.binary(max_size=60), st.integers(1, 5))
def test_arbitrary_bytes_raise_nothing_but_corruption(payload, count) -> None:
    try:
        validate_records(payload, count, 0)
    except BatchCorrupt:
        pass


def test_more_records_than_one_step_takes_are_walked() -> None:
    records = [Record(0, 5, b"k", None) for _ in range(9_000)]
    batch = encode_batch(records)
    header = read_header(batch)
    assert validate_records(payload_of(batch, header), 9_000, 5) == RecordFacts(5, 5, 0, 0, False)
