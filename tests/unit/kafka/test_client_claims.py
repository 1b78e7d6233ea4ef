"""Nothing that a client says about its own batch is believed where a decision hangs on it.

One test per field of a batch's header; `docs/ARCHITECTURE.md`, "Client claims", lists them.
"""

from __future__ import annotations

import asyncio
import struct
from typing import TYPE_CHECKING, Any

import pytest
from crc32c import crc32c
from tests.kit.broker import BrokerHarness, broker

from headrace.kafka import apis
from headrace.kafka.error_codes import (
    CORRUPT_MESSAGE,
    INVALID_RECORD,
    INVALID_TIMESTAMP,
    NONE,
    UNSUPPORTED_FOR_MESSAGE_FORMAT,
)
from headrace.log.largest_timestamp import offset_of_max_timestamp
from headrace.log.reading import TimedOffset
from headrace.records.batch import read_header
from headrace.records.codec import Record, compress_batch, decode_batch, encode_batch

if TYPE_CHECKING:
    from headrace.log.partition_log import PartitionLog

T = 1_700_000_000_000
FORMATS = {
    "base_offset": (0, ">q"),
    "leader_epoch": (12, ">i"),
    "magic": (16, ">b"),
    "attributes": (21, ">h"),
    "last_offset_delta": (23, ">i"),
    "first_timestamp_ms": (27, ">q"),
    "max_timestamp_ms": (35, ">q"),
    "producer_id": (43, ">q"),
    "producer_epoch": (51, ">h"),
    "base_sequence": (53, ">i"),
    "record_count": (57, ">i"),
}
CODECS = pytest.mark.parametrize("codec", range(5))


def claiming(batch: bytes, **claims: int) -> bytes:
    """The batch with these header fields, and a correct CRC."""
    data = bytearray(batch)
    for name, value in claims.items():
        at, form = FORMATS[name]
        struct.pack_into(form, data, at, value)
    struct.pack_into(">I", data, 17, crc32c(bytes(data[21:])))
    return bytes(data)


def two(codec: int = 0, now_ms: int = T) -> bytes:
    return encode_batch(
        [Record(0, now_ms, b"k", b"a"), Record(0, now_ms + 9, b"k", b"b")], codec=codec
    )


def undecodable(codec: int) -> bytes:
    header = read_header(two())
    if codec:  # the codec's own format is broken
        broken = compress_batch(header, b"", 0) + b"\x99" * 60
        broken = broken[:8] + struct.pack(">i", len(broken) - 12) + broken[12:]
        return claiming(broken, attributes=codec)
    return compress_batch(header, b"\x99" * 60, 0)


async def ask(rig: BrokerHarness, batch: bytes) -> int:
    data = {"name": "t", "partition_data": [{"index": 0, "records": batch}]}
    body: dict[str, Any] = {"acks": -1, "timeout": 1_000, "transactional_id": None}
    answer = await rig.client().ask(apis.PRODUCE, 9, {**body, "topic_data": [data]})
    return int(answer.responses[0].partition_responses[0].error_code)


def scenario(check: Any, **configs: str) -> None:
    async def run() -> None:
        async with broker() as rig:
            named = {name.replace("_", "."): value for name, value in configs.items()}
            await rig.node.topics.create("t", 1, configs=named)
            await check(rig, rig.node.topics.get("t").partitions[0])

    asyncio.run(run())


def refused(batch: bytes, code: int) -> None:
    async def check(rig: BrokerHarness, log: PartitionLog) -> None:
        assert await ask(rig, batch) == code
        assert log.end_offset == 0

    scenario(check)


@CODECS
@pytest.mark.parametrize("claim", [-1, 0, T, T + 5_000])
def test_the_max_timestamp_is_computed(codec: int, claim: int) -> None:
    async def check(rig: BrokerHarness, log: PartitionLog) -> None:
        now_ms = rig.node.clock.now_ms()
        batch = claiming(two(codec, now_ms), max_timestamp_ms=claim)
        assert await ask(rig, batch) == NONE
        stored = read_header(bytes(await log.reader.read(0, 1)))
        assert stored.max_timestamp_ms == now_ms + 9
        assert log.segments[-1].max_timestamp_ms == now_ms + 9
        assert await log.reader.offset_of_time(now_ms + 1) == TimedOffset(now_ms + 9, 1)
        assert await offset_of_max_timestamp(log) == TimedOffset(now_ms + 9, 1)

    scenario(check)


@CODECS
def test_the_limits_of_timestamps_go_by_the_records(codec: int) -> None:
    async def check(rig: BrokerHarness, log: PartitionLog) -> None:
        now_ms = rig.node.clock.now_ms()
        late = [Record(0, now_ms, b"k", b"a"), Record(0, now_ms + 10**10, b"k", b"b")]
        batch = claiming(encode_batch(late, codec=codec), max_timestamp_ms=now_ms)
        assert await ask(rig, batch) == INVALID_TIMESTAMP
        early = [Record(0, now_ms, b"k", b"a"), Record(0, now_ms - 10_000, b"k", b"b")]
        assert await ask(rig, encode_batch(early, codec=codec)) == INVALID_TIMESTAMP
        assert await ask(rig, two(codec, now_ms)) == NONE

    scenario(check, message_timestamp_before_max_ms="5000")


@CODECS
def test_records_that_cannot_be_decoded_are_refused(codec: int) -> None:
    refused(undecodable(codec), INVALID_RECORD)


@CODECS
@pytest.mark.parametrize("claim", [1, 3, 1_000])
def test_the_record_count_is_checked(codec: int, claim: int) -> None:
    async def check(rig: BrokerHarness, log: PartitionLog) -> None:
        batch = claiming(two(codec), record_count=claim, last_offset_delta=claim - 1)
        assert await ask(rig, batch) in {INVALID_RECORD, CORRUPT_MESSAGE}
        assert log.end_offset == 0

    scenario(check)


def test_the_last_offset_delta_is_checked() -> None:
    refused(claiming(two(), last_offset_delta=5), CORRUPT_MESSAGE)


@pytest.mark.parametrize(
    ("attributes", "code"),
    [
        (0x20, INVALID_RECORD),  # control
        (0x30, INVALID_RECORD),  # a transaction marker
        (0x08, INVALID_TIMESTAMP),  # LogAppendTime
        (0x40, INVALID_RECORD),  # a delete horizon
        (0x4000, INVALID_RECORD),  # named sequences
        (0x0080, INVALID_RECORD),
        (-0x8000, INVALID_RECORD),
        (5, INVALID_RECORD),  # codecs that do not exist
        (7, INVALID_RECORD),
        (4, INVALID_RECORD),  # a codec that was not used
    ],
)
def test_only_attributes_of_producers_are_accepted(attributes: int, code: int) -> None:
    async def check(rig: BrokerHarness, log: PartitionLog) -> None:
        data = {"index": 0, "records": claiming(two(), attributes=attributes)}
        body: dict[str, Any] = {"acks": -1, "timeout": 1_000, "transactional_id": "tx"}
        body["topic_data"] = [{"name": "t", "partition_data": [data]}]
        answer = await rig.client().ask(apis.PRODUCE, 9, body)
        found = answer.responses[0].partition_responses[0].error_code
        # A transaction is verified first, and none is known.
        assert found == code or (attributes & 0x10 and found != NONE)
        assert log.end_offset == 0

    scenario(check)


@pytest.mark.parametrize("claims", [(7, -1, 0), (7, 0, -1), (7, -5, 0), (-2, 0, 0), (7, 0, -9)])
def test_negative_producer_fields_are_refused(claims: tuple[int, int, int]) -> None:
    names = ("producer_id", "producer_epoch", "base_sequence")
    refused(claiming(two(), **dict(zip(names, claims, strict=True))), INVALID_RECORD)


def test_base_offset_and_leader_epoch_are_assigned() -> None:
    async def check(rig: BrokerHarness, log: PartitionLog) -> None:
        batch = claiming(two(), base_offset=77, leader_epoch=99)
        assert await ask(rig, batch) == NONE
        stored = read_header(bytes(await log.reader.read(0, 1)))
        assert (stored.base_offset, stored.leader_epoch) == (0, log.leader_epoch)

    scenario(check)


@pytest.mark.parametrize(
    ("magic", "code"), [(1, UNSUPPORTED_FOR_MESSAGE_FORMAT), (3, CORRUPT_MESSAGE)]
)
def test_the_magic_is_checked(magic: int, code: int) -> None:
    refused(claiming(two(), magic=magic), code)


@pytest.mark.parametrize("codec", range(1, 5))
@pytest.mark.parametrize("size", [10, 300_000, 2_000_000])
def test_a_valid_batch_of_any_size_keeps_its_bytes(codec: int, size: int) -> None:
    async def check(rig: BrokerHarness, log: PartitionLog) -> None:
        batch = encode_batch([Record(0, T, b"k", bytes(size)) for _ in range(3)], codec=codec)
        assert await ask(rig, batch) == NONE
        assert bytes(await log.reader.read(0, 1))[61:] == batch[61:]

    scenario(check)


@CODECS
def test_a_topic_may_store_batches_on_their_headers_word(codec: int) -> None:
    """Such batches, and those of earlier versions, do not stop a search by time."""

    async def check(rig: BrokerHarness, log: PartitionLog) -> None:
        now_ms = rig.node.clock.now_ms()
        first = encode_batch([Record(0, now_ms - 5_000, b"k", b"1")])
        last = encode_batch([Record(0, now_ms + 20, b"k", b"2")])
        bad = claiming(undecodable(codec), max_timestamp_ms=now_ms + 10)
        for batch in (first, bad, last):
            assert await ask(rig, batch) == NONE
        assert await log.reader.offset_of_time(now_ms - 1) == TimedOffset(now_ms + 20, 3)
        assert await offset_of_max_timestamp(log) == TimedOffset(now_ms + 20, 3)
        assert decode_batch(await log.reader.read(3, 1))[0].value == b"2"

    scenario(check, headrace_record_validation="header")
