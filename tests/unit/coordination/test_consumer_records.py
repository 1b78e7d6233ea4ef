"""Records of consumer groups are Kafka's; the bytes were written before any change of this code."""

from __future__ import annotations

from uuid import UUID

import pytest

from headrace.coordination.groups.consumer_records import (
    CONSUMER,
    ClassicSide,
    ConsumerCurrentStored,
    ConsumerGroupStored,
    ConsumerMemberStored,
    ConsumerTargetEpochStored,
    ConsumerTargetStored,
)
from headrace.coordination.groups.state_records import decode
from headrace.coordination.kit.stored_bytes import stored_string
from headrace.coordination.member_groups.encodings import STABLE, UNREVOKED
from headrace.coordination.member_groups.records import MemberRecordRemoved
from headrace.errors import RecordInvalid

A, B = UUID(int=0x11), UUID(int=0x2200)
RANGE = ClassicSide(9, (("range", b"1"),))
WRITTEN = [
    (3, ConsumerGroupStored("g", 7), "00000000000700"),
    (
        3,
        ConsumerGroupStored("g", 7, -9, emptied_ms=1_234),
        "000000000007020008fffffffffffffff7e8070800000000000004d2",
    ),
    (
        5,
        ConsumerMemberStored("g", "m", None, None, "c", "/h", (), None, 300_000, None),
        "000000000263032f680100000493e00000",
    ),
    (
        5,
        ConsumerMemberStored("g", "m", "i", "r", "c", "/h", ("a", "b"), "x.*", 5, "range", RANGE),
        "0000026902720263032f68030261026204782e2a000000050672616e6765010010010000000902"
        "0672616e676502310000",
    ),
    (6, ConsumerTargetEpochStored("g", 8), "00000000000800"),
    (
        7,
        ConsumerTargetStored("g", "m", {B: (0, 2), A: (1,)}),
        "0000030000000000000000000000000000001102000000010000000000000000000000000000002200"
        "0300000000000000020000",
    ),
    (7, ConsumerTargetStored("g", "m", {}), "00000100"),
    (
        8,
        ConsumerCurrentStored("g", "m", 5, 4, UNREVOKED, {B: {0: 5, 2: 3}}, {A: {7: 1}}),
        "0000000000050000000401020000000000000000000000000000220003000000000000000201000903"
        "000000050000000302000000000000000000000000000000110200000007010005020000000100",
    ),
    (8, ConsumerCurrentStored("g", "m", 0, 0, STABLE, {}, {}), "0000000000000000000000010100"),
]


@pytest.mark.parametrize(("key_type", "record", "value"), WRITTEN)
def test_records_keep_their_bytes(key_type, record, value):
    key, encoded = CONSUMER.encode(record)
    assert encoded is not None
    assert encoded.hex() == value
    member = stored_string("m") if key_type in CONSUMER.member_keys else b""
    assert key == key_type.to_bytes(2, "big") + stored_string("g") + member
    read = decode(key, encoded)
    assert read == record
    assert type(read) is type(record)
    removed = MemberRecordRemoved(key_type, "g", "m" if member else None)
    assert decode(key, None) == removed
    assert CONSUMER.encode(removed) == (key, None)


@pytest.mark.parametrize(("key_type", "record", "value"), WRITTEN)
def test_a_value_that_is_cut_or_too_long_is_refused(key_type, record, value):
    key, encoded = CONSUMER.encode(record)
    assert encoded is not None
    for size in range(2, len(encoded)):
        with pytest.raises(RecordInvalid):
            decode(key, encoded[:size])
    with pytest.raises(RecordInvalid):
        decode(key, encoded + b"\0")
    assert decode(key, b"\x7f\0" + encoded[2:]) is None, "an unknown version is skipped"
