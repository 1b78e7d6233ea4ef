"""The bytes of `__transaction_state`, against bytes put together by Kafka's published layout."""

from __future__ import annotations

import pytest

from headrace.coordination.transactions.state_records import (
    COMPLETE_ABORT,
    EMPTY,
    ONGOING,
    TransactionRemoved,
    TransactionStored,
    decode,
    encode,
)
from headrace.errors import RecordInvalid

KEY = bytes.fromhex("0000 0003 747831")  # version 0, "tx1"
EMPTY_VALUE = bytes.fromhex(
    "0001"  # version 1
    "00000000000003e8 0002"  # producer id 1000, epoch 2
    "0000ea60 00"  # timeout 60 s, Empty
    "00"  # partitions: null
    "0000018bcfe56800 ffffffffffffffff"  # updated, never started
    "00"  # no tagged fields
)
ONGOING_VALUE = bytes.fromhex(
    "0001"
    "00000000000003e8 0002"
    "0000ea60 01"
    "03"  # two topics
    "02 61 03 00000000 00000007 00"  # a: 0, 7
    "02 62 02 00000001 00"  # b: 1
    "0000018bcfe56800 0000018bcfe56400"
    "04"  # tags: previous id 0, next id 1, client version 2, and ours, 1000
    "00 08 00000000000003e7"
    "01 08 00000000000003e9"
    "02 02 0002"
    "e807 02 0001"
)
OLD_VALUE = bytes.fromhex(
    "0000"  # version 0
    "00000000000003e8 0002"
    "0000ea60 05"
    "00000001 0001 61 00000002 00000000 00000007"
    "0000018bcfe56800 0000018bcfe56400"
)
UPDATED_MS, STARTED_MS = 0x018BCFE56800, 0x018BCFE56400

EMPTY_RECORD = TransactionStored("tx1", 1000, 2, 60_000, EMPTY, frozenset(), UPDATED_MS)
ONGOING_RECORD = TransactionStored(
    "tx1",
    1000,
    2,
    60_000,
    ONGOING,
    frozenset({("a", 0), ("a", 7), ("b", 1)}),
    UPDATED_MS,
    STARTED_MS,
    previous_producer_id=999,
    next_producer_id=1001,
    last_producer_epoch=1,
    client_version=2,
)


@pytest.mark.parametrize(
    ("record", "value"), [(EMPTY_RECORD, EMPTY_VALUE), (ONGOING_RECORD, ONGOING_VALUE)]
)
def test_the_bytes_are_kafkas(record, value):
    assert encode(record) == (KEY, value)
    assert decode(KEY, value) == record


def test_a_tombstone_removes_the_id():
    assert encode(TransactionRemoved("tx1")) == (KEY, None)
    assert decode(KEY, None) == TransactionRemoved("tx1")


def test_version_0_is_read():
    partitions = frozenset({("a", 0), ("a", 7)})
    expected = EMPTY_RECORD._replace(
        state=COMPLETE_ABORT, partitions=partitions, started_ms=STARTED_MS
    )
    assert decode(KEY, OLD_VALUE) == expected


def test_null_partitions_of_version_0_are_read():
    value = OLD_VALUE[:17].replace(b"\x05", b"\x00") + b"\xff" * 4 + OLD_VALUE[-16:]
    record = decode(KEY, value)
    assert isinstance(record, TransactionStored)
    assert record.partitions == frozenset()


def test_unknown_versions_and_tags_are_passed_by():
    assert decode(b"\0\x05\0\0", None) is None
    assert decode(KEY, b"\0\x09") is None
    newer = EMPTY_VALUE[:-1] + bytes.fromhex("01 03 02 0007")
    assert decode(KEY, newer) == EMPTY_RECORD


@pytest.mark.parametrize("value", [EMPTY_VALUE, ONGOING_VALUE, OLD_VALUE])
def test_cut_or_lengthened_values_are_refused(value):
    for size in range(2, len(value)):
        with pytest.raises(RecordInvalid):
            decode(KEY, value[:size])
    with pytest.raises(RecordInvalid):
        decode(KEY, value + b"\0")


def test_counts_and_states_that_lie_are_refused():
    with pytest.raises(RecordInvalid):
        decode(KEY, ONGOING_VALUE[:17] + b"\xff\xff\xff\xff\x0f" + ONGOING_VALUE[18:])
    with pytest.raises(RecordInvalid):
        decode(KEY, EMPTY_VALUE[:16] + b"\x09" + EMPTY_VALUE[17:])
