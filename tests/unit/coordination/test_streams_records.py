"""Records of streams groups are Kafka's, byte by byte; what is not is skipped, never misread."""

from __future__ import annotations

import pytest

from headrace.coordination.groups.state_records import decode
from headrace.coordination.kit.stored_bytes import stored_string
from headrace.coordination.member_groups.records import MemberRecordRemoved, TopologyStored
from headrace.coordination.streams.records import (
    STREAMS,
    StreamsCurrentStored,
    StreamsGroupStored,
    StreamsMemberStored,
    StreamsTargetEpochStored,
    StreamsTargetStored,
)
from headrace.coordination.streams.tasks import HeldTasks, StreamTasks
from headrace.coordination.streams.topology import (
    CopartitionGroup,
    InternalTopic,
    Subtopology,
    Topology,
)
from headrace.errors import RecordInvalid

# Written by the generated classes of Kafka 4.3's group coordinator.
GROUP = (
    "000000000007fffffffffffffff702000400000003011902156e756d2e7374616e6462792e7265706c696361730231"
)
WRITTEN_BY_KAFKA = [
    (
        17,
        StreamsGroupStored("g", 7, -9, 3, (("num.standby.replicas", "1"),)),
        GROUP + "00",
    ),
    (17, StreamsGroupStored("g", 7), "000000000007000000000000000000"),
    (
        19,
        StreamsMemberStored(
            "g", "m", "i", None, "c", "/h", 300_000, 2, "p", ("localhost", 40_000), (("k", "v"),)
        ),
        "00000269000263032f68000493e0000000020270010a6c6f63616c686f73749c400002026b02760000",
    ),
    (
        19,
        StreamsMemberStored("g", "m", rack="r", process_id="p"),
        "00000002720101ffffffff000000000270ff0100",
    ),
    (
        20,
        StreamsTargetEpochStored("g", 8, 1_234_567_890_123),
        "0000000000080100080000011f71fb04cb",
    ),
    (
        21,
        StreamsTargetStored("g", "m", StreamTasks({"0": (0, 2), "1": (1,)}, {"1": (3,)}, {})),
        "00000302300300000000000000020002310200000001000202310200000003000100",
    ),
    (
        22,
        StreamsCurrentStored(
            "g",
            "m",
            8,
            7,
            1,
            HeldTasks({"0": {0: 8, 2: 5}}, {"1": (3,)}, {}),
            HeldTasks({"0": {1: 4}}, {}, {}),
        ),
        "00000000000800000007010202300300000000000000020100090300000008000000050202310200000003000102"
        "023002000000010100050200000004010100",
    ),
    (
        23,
        TopologyStored(
            "g",
            Topology(
                3,
                (
                    Subtopology(
                        "0",
                        ("a", "b"),
                        (),
                        (InternalTopic("c", 0, -1),),
                        ("r",),
                        (InternalTopic("r", 4, 1, (("cleanup.policy", "delete"),)),),
                        (CopartitionGroup((0, 1), (), (0,)),),
                    ),
                ),
            ),
        ),
        "00000000000302023003026102620102026300000000ffff0100020272020272000000040001020f636c65616e75"
        "702e706f6c6963790764656c657465000002030000000101020000000000",
    ),
]


@pytest.mark.parametrize(("key_type", "record", "value"), WRITTEN_BY_KAFKA)
def test_values_are_those_that_kafka_writes(key_type, record, value):
    key, encoded = STREAMS.encode(record)
    assert encoded is not None
    assert encoded.hex() == value
    member = stored_string("m") if key_type in STREAMS.member_keys else b""
    assert key == key_type.to_bytes(2, "big") + stored_string("g") + member
    assert decode(key, encoded) == record
    removed = MemberRecordRemoved(key_type, "g", "m" if member else None)
    assert decode(key, None) == removed
    assert STREAMS.encode(removed) == (key, None)


@pytest.mark.parametrize(("key_type", "record", "value"), WRITTEN_BY_KAFKA)
def test_a_value_that_is_cut_or_too_long_is_refused(key_type, record, value):
    key, encoded = STREAMS.encode(record)
    assert encoded is not None
    for size in range(2, len(encoded)):
        with pytest.raises(RecordInvalid):
            decode(key, encoded[:size])
    with pytest.raises(RecordInvalid):
        decode(key, encoded + b"\0")
    assert decode(key, b"\x7f\0" + encoded[2:]) is None, "an unknown version is skipped"


def test_when_the_group_became_empty_is_kept():
    record = StreamsGroupStored("g", 7, emptied_ms=1_234)
    key, value = STREAMS.encode(record)
    assert decode(key, value) == record
