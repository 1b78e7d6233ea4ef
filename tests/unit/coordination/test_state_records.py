"""The bytes of `__consumer_offsets`: as Kafka writes them, and nothing else is believed."""

from __future__ import annotations

from uuid import UUID

import pytest
from tests.unit.coordination.group_rig import subscription

from headrace.coordination.groups.config import GroupConfig
from headrace.coordination.groups.group_machine import GroupMachine
from headrace.coordination.groups.state_records import (
    GroupRemoved,
    GroupStored,
    OffsetRemoved,
    OffsetStored,
    StoredMember,
    decode,
    encode,
    read_subscribed_topics,
)
from headrace.errors import RecordInvalid

MEMBER = StoredMember("m", "i", "c", "/h", 60_000, 10_000, b"sub", b"asg")
RECORDS = [
    OffsetStored("g", "t", 2, 42, 7, "meta", 1_700_000_000_000),
    OffsetStored("", "t", 0, 0, -1, "", 0),
    OffsetStored("g", "t", 2, 42, 7, "x" * 200, 5, UUID(int=3)),
    OffsetStored("g", "t", 2, 42, 7, "", 5, UUID(int=3)),
    OffsetStored("ключ", "t" * 249, 2**31 - 1, 2**62, 7, "я" * 63, 5, UUID(int=3)),
    OffsetStored("g" * 300, "t", 0, 0, -1, "x" * 127, 5, UUID(int=3)),
    OffsetStored("g", "t", 2, 42, 7, "m", 5, UUID(int=3), is_repeated=True),
    OffsetRemoved("g", "t", 2),
    GroupStored(
        "g", "consumer", 3, "range", "m", 5, (MEMBER, MEMBER._replace(group_instance_id=None))
    ),
    GroupStored("g", "consumer", 4, None, None, 6, ()),
    GroupRemoved("g"),
]


@pytest.mark.parametrize("record", RECORDS)
def test_a_record_comes_back_from_its_bytes(record):
    assert decode(*encode(record)) == record


def test_the_bytes_are_kafkas():
    """Written by hand from OffsetCommitKey/Value.json and GroupMetadataKey/Value.json."""
    key, value = encode(RECORDS[0])
    assert key == b"\0\x01\0\x01g\0\x01t\0\0\0\x02"
    assert value == (b"\0\x03\0\0\0\0\0\0\0\x2a\0\0\0\x07\0\x04meta\0\0\x01\x8b\xcf\xe5\x68\0")
    key, value = encode(GroupStored("g", "consumer", 3, "range", "m", 5, (MEMBER,)))
    assert key == b"\0\x02\0\x01g"
    assert value == (
        b"\0\x03"
        b"\0\x08consumer"
        b"\0\0\0\x03"
        b"\0\x05range"
        b"\0\x01m"
        b"\0\0\0\0\0\0\0\x05"
        b"\0\0\0\x01"
        b"\0\x01m"
        b"\0\x01i"
        b"\0\x01c"
        b"\0\x02/h"
        b"\0\0\xea\x60"
        b"\0\0\x27\x10"
        b"\0\0\0\x03sub"
        b"\0\0\0\x03asg"
    )


def test_a_value_with_a_topics_id_is_that_of_kafka_4_1():
    """Written by hand from OffsetCommitValue.json, version 4: flexible, the id is tag 0."""
    key, value = encode(RECORDS[0]._replace(topic_id=UUID(int=0x0102)))
    assert value == (
        b"\0\x04\0\0\0\0\0\0\0\x2a\0\0\0\x07\x05meta\0\0\x01\x8b\xcf\xe5\x68\0"
        b"\x01\0\x10" + bytes(14) + b"\x01\x02"
    )
    # What a later version may put there besides is passed by; no id at all is no error.
    at = len(value) - 19
    more = value[:at] + b"\x02\0\x10" + bytes(15) + b"\x09" + b"\x07\x02ab"
    assert decode(key, more) == RECORDS[0]._replace(topic_id=UUID(int=9))
    assert decode(key, value[:at] + b"\0") == RECORDS[0]
    assert decode(key, value[:at] + b"\x01\0\x10" + bytes(16)) == RECORDS[0]
    with pytest.raises(RecordInvalid):
        decode(key, value[:at] + b"\x01\0\x04abcd")
    with pytest.raises(RecordInvalid):
        decode(key, value[:at] + b"\xff\xff\xff\xff\xff\xff")


def test_older_values_are_read():
    key = encode(RECORDS[0])[0]
    v0 = b"\0\0" + (9).to_bytes(8, "big") + b"\0\x01m" + (5).to_bytes(8, "big")
    assert decode(key, v0) == OffsetStored("g", "t", 2, 9, -1, "m", 5)
    v1 = b"\0\x01" + v0[2:] + (6).to_bytes(8, "big")
    assert decode(key, v1) == OffsetStored("g", "t", 2, 9, -1, "m", 5)
    group_key = encode(RECORDS[-1])[0]
    v0 = (
        b"\0\0"
        b"\0\x08consumer"
        b"\0\0\0\x03"
        b"\0\x05range"
        b"\0\x01m"
        b"\0\0\0\x01"
        b"\0\x01m"
        b"\0\x01c"
        b"\0\x02/h"
        b"\0\0\x27\x10"
        b"\0\0\0\0"
        b"\0\0\0\0"
    )
    member = StoredMember("m", None, "c", "/h", 10_000, 10_000, b"", b"")
    assert decode(group_key, v0) == GroupStored("g", "consumer", 3, "range", "m", -1, (member,))


@pytest.mark.parametrize(
    ("key", "value"),
    [(b"\0\x0b\0\x01g", b"x"), (b"\xff\xff", None), (encode(RECORDS[0])[0], b"\0\x05abc")],
)
def test_versions_of_the_future_are_skipped(key, value):
    assert decode(key, value) is None


@pytest.mark.parametrize("record", [RECORDS[0], RECORDS[2], RECORDS[4]])
def test_cut_and_lengthened_records_are_refused(record):
    key, value = encode(record)
    for end in range(len(value)):
        with pytest.raises(RecordInvalid):
            decode(key, value[:end])
    for end in range(len(key)):
        with pytest.raises(RecordInvalid):
            decode(key[:end], value)
    with pytest.raises(RecordInvalid):
        decode(key, value + b"\0")


def test_a_count_that_lies_is_refused_before_anything_is_made():
    key, value = encode(GroupStored("g", "", 1, None, None, 0, ()))
    with pytest.raises(RecordInvalid):
        decode(key, value[:-4] + b"\x7f\xff\xff\xff")


def test_the_machine_counts_what_it_does_not_understand_and_goes_on():
    machine = GroupMachine(GroupConfig())
    for key, value in [
        (None, b"x"),
        (b"", b""),
        (b"\0\x09", b""),
        (encode(RECORDS[0])[0], b"\0\x03"),
    ]:
        assert machine.decode(key, value) is None
    assert machine.skipped_count == 4


def test_subscriptions_of_all_versions_are_read():
    for version in range(4):
        assert read_subscribed_topics(subscription("a", "b", version=version)) == ["a", "b"]
    assert read_subscribed_topics(b"") is None
    assert read_subscribed_topics(b"\0\x01\x7f\xff\xff\xff") is None
    assert read_subscribed_topics(b"\xff\xff\0\0\0\0") is None
