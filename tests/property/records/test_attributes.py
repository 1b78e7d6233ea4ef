"""The scan of a batch's attributes against its decoded records, and over damaged bytes."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.errors import BatchCorrupt, RecordInvalid
from headrace.records import attributes
from headrace.records.attributes import (
    DELAY,
    DELIVER_AT,
    PRODUCER,
    RESERVED,
    SEQUENCE,
    NamedSequence,
    RecordAttributes,
    find_header,
    named_sequences_of,
    scan_records,
)
from headrace.records.batch import read_header
from headrace.records.codec import Record, encode_batch, payload_of

unhurried = settings(deadline=None, max_examples=300)
VALUES = {
    attributes.PRIORITY: [b"0", b"9"],
    attributes.EXPIRE_AT: [b"0", b"9007199254740991"],
    attributes.TAG: [b"order", "é".encode()],
    attributes.KEYS: [b"a b", b"k"],
    attributes.MESSAGE_GROUP: [b"g", b"two words"],
    attributes.MESSAGE_ID: [b"id-1"],
    DELIVER_AT: [b"0", b"5", b"99999"],
    DELAY: [b"0", b"1000"],
}
good = st.sampled_from(sorted(VALUES)).flatmap(
    lambda name: st.tuples(st.just(name), st.sampled_from(VALUES[name]) | st.none())
)
foreign = st.tuples(
    st.sampled_from(["", "other", "headrace-", "headrace-delay2", "traceparent", "x" * 200]),
    st.none() | st.binary(max_size=200),
)
both = st.sampled_from([b"p", b"q"]).flatmap(
    lambda name: st.integers(0, 2**53 - 1).map(
        lambda sequence: [(PRODUCER, name), (SEQUENCE, b"%d" % sequence)]
    )
)
headers = st.tuples(st.lists(good | foreign, max_size=5), st.just([]) | both).map(
    lambda parts: [*parts[0], *parts[1]]
)
records = st.builds(
    Record,
    st.just(0),
    st.integers(0, 2**40),
    st.none() | st.binary(max_size=200) | st.just(b"headrace-delay"),
    st.none() | st.binary(max_size=200) | st.just(b"\x1aheadrace-delay\x04no"),
    headers,
)


def expected(record: Record, index: int) -> RecordAttributes | None:
    due, delay = find_header(record.headers, DELIVER_AT), find_header(record.headers, DELAY)
    due_ms = int(due) if due is not None else None if delay is None else 1_000 + int(delay)
    name, sequence = find_header(record.headers, PRODUCER), find_header(record.headers, SEQUENCE)
    named = (
        None if name is None or sequence is None else NamedSequence(name.decode(), int(sequence))
    )
    if due_ms is None and named is None:
        return None
    return RecordAttributes(index, due_ms, named)


@unhurried
@given(st.lists(records, min_size=1, max_size=8))
def test_a_scan_finds_what_the_decoded_records_say(given_records):
    batch = encode_batch(given_records)
    header = read_header(batch)
    payload = payload_of(batch, header)
    wanted = [expected(record, index) for index, record in enumerate(given_records)]
    found = scan_records(payload, header, 1_000)
    assert found == [item for item in wanted if item is not None]
    assert named_sequences_of(payload, header) == [item.named for item in found if item.named]


@unhurried
@given(st.lists(records, min_size=1, max_size=4), st.data())
def test_damaged_bytes_raise_nothing_else(given_records, data):
    batch = encode_batch(given_records)
    header = read_header(batch)
    payload = bytearray(payload_of(batch, header))
    for _ in range(data.draw(st.integers(1, 5))):
        payload[data.draw(st.integers(0, len(payload) - 1))] = data.draw(st.integers(0, 255))
    payload = bytes(payload[: data.draw(st.integers(0, len(payload)))])
    for scan in (
        lambda: scan_records(payload, header, 0),
        lambda: named_sequences_of(payload, header),
    ):
        try:
            scan()
        except (BatchCorrupt, RecordInvalid):
            pass


def test_the_names_are_those_that_are_tested_here():
    assert {*VALUES, PRODUCER, SEQUENCE, attributes.HALF} == RESERVED
