"""Batches that claim more than they hold, and those that must be opened; requests of too much."""

from __future__ import annotations

import asyncio
import struct
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest
from crc32c import crc32c
from tests.kit.broker import BrokerHarness, broker
from tests.waiting import until

from headrace.broker.security.principal import Principal
from headrace.broker.services import admission
from headrace.errors import BatchCorrupt, BatchTooLarge
from headrace.kafka import apis
from headrace.kafka.error_codes import (
    CORRUPT_MESSAGE,
    INVALID_RECORD,
    KAFKA_STORAGE_ERROR,
    MESSAGE_TOO_LARGE,
    NONE,
    UNKNOWN_SERVER_ERROR,
)
from headrace.kafka.wire.primitives import ELEMENTS_MAX, FrameInvalid
from headrace.kafka.wire.produce import read_produce
from headrace.kafka.wire.schema import read_request
from headrace.log.log_config import LogConfig
from headrace.records.batch import DOUBTFUL_COUNT_MAX, BatchHeader, check_batch, read_header
from headrace.records.codec import (
    Record,
    encode_batch,
    iterate_records,
    keyless_records,
    payload_of,
)
from headrace.records.compression import GZIP, LZ4, SNAPPY, ZSTD
from headrace.records.compression import NONE as NO_CODEC

if TYPE_CHECKING:
    from collections.abc import Mapping

CODECS = pytest.mark.parametrize("codec", [GZIP, SNAPPY, LZ4, ZSTD])


def _request(topic: str, records: bytes) -> dict[str, Any]:
    data = {"name": topic, "partition_data": [{"index": 0, "records": records}]}
    return {"acks": -1, "timeout": 1_000, "transactional_id": None, "topic_data": [data]}


def _code(answer: Any) -> int:
    return int(answer.responses[0].partition_responses[0].error_code)


def _opened(batch: bytes) -> tuple[bytes, BatchHeader]:
    header = read_header(batch)
    return payload_of(batch, header), header


async def _ask(rig: BrokerHarness, records: bytes) -> int:
    return _code(await rig.client().ask(apis.PRODUCE, 9, _request("t", records)))


def _batch(count: int, codec: int, value: bytes = b"v", **options: Any) -> bytes:
    records = [Record(0, 1_700_000_000_000, None, value, []) for _ in range(count)]
    return encode_batch(records, codec=codec, **options)


def _claiming(batch: bytes, count: int) -> bytes:
    data = bytearray(batch)
    data[23:27] = struct.pack(">i", count - 1)
    data[57:61] = struct.pack(">i", count)
    data[17:21] = crc32c(bytes(data[21:])).to_bytes(4, "big")
    return bytes(data)


@CODECS
@pytest.mark.parametrize("claim", [2**31 - 1, 10_000_000, 2**20, 5_000])
async def test_a_compressed_batch_that_claims_more_records_than_bytes_is_refused(
    codec, claim
) -> None:
    async with broker() as rig:
        await rig.node.topics.create("t", 1)
        # By its header alone, or only once it is opened; final, as with Kafka.
        code = CORRUPT_MESSAGE if claim > DOUBTFUL_COUNT_MAX else INVALID_RECORD
        assert await _ask(rig, _claiming(_batch(3, codec), claim)) == code
        assert await _ask(rig, _batch(3, codec)) == NONE
        assert rig.node.topics.get("t").partitions[0].end_offset == 3


@CODECS
async def test_a_batch_that_decompresses_to_more_than_the_limit_is_too_large(
    codec, monkeypatch
) -> None:
    """Not corrupt: a producer sends smaller batches instead."""
    monkeypatch.setattr(admission, "DECOMPRESSED_BYTES_MAX", 500_000)

    async with broker() as rig:
        await rig.node.topics.create("t", 1)
        assert await _ask(rig, _batch(600, codec, bytes(1_000))) == MESSAGE_TOO_LARGE
        assert await _ask(rig, _batch(300, codec, bytes(1_000))) == NONE


def test_batches_that_decompress_beyond_the_topic_limit_are_refused_at_once() -> None:
    """It would fill the memory while its log is not ready."""
    batch = memoryview(_batch(1, GZIP, bytes(2_000_000)))
    config = LogConfig(compression="uncompressed", max_message_bytes=1_000_000)
    with pytest.raises(BatchTooLarge, match=r"max\.message\.bytes=1000000"):
        admission.admit(batch, check_batch(batch), config, 0, 64 << 20)


async def test_records_of_less_than_a_byte_each_are_taken_if_they_are_there() -> None:
    data = _batch(50_000, ZSTD, b"")
    assert len(data) < 50_000 * 7

    async with broker() as rig:
        await rig.node.topics.create("t", 1)
        assert await _ask(rig, data) == NONE
        assert rig.node.topics.get("t").partitions[0].end_offset == 50_000


async def _scenario_of_order(rig: BrokerHarness, configs: Mapping[str, str]) -> None:
    await rig.node.topics.create("t", 1, configs=configs)
    client = rig.client()
    large = 3_000_000
    # Large and small ones by turns, under sequences that refuse any other order.
    for number in range(6):
        value = b"%d" % number * (large if number % 2 == 0 else 1)
        records = _batch(1, GZIP, value, producer_id=1, producer_epoch=0, base_sequence=number)
        client.send(apis.PRODUCE, 9, _request("t", records))
    while len(client.answers()) < 6:
        await asyncio.sleep(0.01)
    assert [_code(answer) for answer in client.answers()] == [NONE] * 6
    log = rig.node.topics.get("t").partitions[0]
    stored = bytes(await log.reader.read(0, 100_000_000))
    assert [record.value[:1] for record in iterate_records(stored)] == [
        b"%d" % number for number in range(6)
    ]


@pytest.mark.parametrize("kind", ["uncompressed", "zstd"])
async def test_batches_decompressed_in_a_thread_keep_their_order(kind) -> None:
    async with broker() as rig:
        configs = {"compression.type": kind, "max.message.bytes": str(32 << 20)}
        await _scenario_of_order(rig, configs)


async def test_batches_of_a_user_that_wait_leave_room_for_others(monkeypatch) -> None:
    may_open, opens = threading.Event(), admission._outcome

    def waiting(*arguments: Any) -> Any:
        may_open.wait()
        return opens(*arguments)

    def batch(producer_id: int, sequence: int) -> bytes:
        of_producer = {"producer_id": producer_id, "producer_epoch": 0, "base_sequence": sequence}
        return _batch(1, NO_CODEC, bytes(300_000), **of_producer)

    most = 9 * len(batch(7, 0))
    monkeypatch.setattr(admission, "_outcome", waiting)
    async with broker() as rig:
        waits = rig.node.appends._waiting
        waits.shares = waits.shares._replace(count_max=most)
        await rig.node.topics.create("t", 1, configs={"compression.type": "zstd"})
        flooding, other = rig.client(), rig.client()
        flooding.connection.session.principal = Principal("flooding")
        other.connection.session.principal = Principal("other")
        try:
            for client, count in ((flooding, 20), (other, 2)):
                for number in range(count):
                    records = batch(count, number)
                    client.send(apis.PRODUCE, 9, _request("t", records))
        finally:
            may_open.set()
        await until(lambda: len(flooding.answers()) == 20 and len(other.answers()) == 2)
        stored = [_code(one) for one in flooding.answers()].count(NONE)
        assert 0 < stored <= 6, "two thirds"
        assert {_code(one) for one in flooding.answers()} == {NONE, KAFKA_STORAGE_ERROR}
        assert [_code(one) for one in other.answers()] == [NONE, NONE]
        assert waits.held.by_tenant == waits.held.by_user == {}
        assert await _ask(rig, batch(20, 20)) == KAFKA_STORAGE_ERROR, "the refused ones come first"
        assert await _ask(rig, batch(20, stored)) == NONE


async def test_a_users_large_batch_does_not_wait_for_all_of_another_user(monkeypatch) -> None:
    opened, may_open, opens = [], threading.Event(), admission._outcome

    def noting(records: memoryview, *rest: Any) -> Any:
        may_open.wait()
        opened.append(len(records))
        return opens(records, *rest)

    monkeypatch.setattr(admission, "_outcome", noting)
    async with broker() as rig:
        await rig.node.topics.create("t", 9, configs={"compression.type": "zstd"})
        flooding, other = rig.client(), rig.client()
        small, large = (_batch(1, NO_CODEC, bytes(size)) for size in (300_000, 400_000))
        try:
            for client, name, batches in (
                (flooding, "flooding", [large] * 8),
                (other, "other", [small]),
            ):
                client.connection.session.principal = Principal(name)
                parts = [
                    {"index": 8 - number, "records": records}
                    for number, records in enumerate(batches, name == "flooding")
                ]
                data = [{"name": "t", "partition_data": parts}]
                asked = {"acks": -1, "timeout": 1_000, "transactional_id": None, "topic_data": data}
                client.send(apis.PRODUCE, 9, asked)
        finally:
            may_open.set()
        await until(lambda: flooding.answers() and other.answers())
        assert [_code(one.answers()[0]) for one in (flooding, other)] == [NONE, NONE]
        assert opened[:3] == [len(large), len(large), len(small)], "one that is opened, and one"


@pytest.mark.parametrize("size", [10, 300_000])
async def test_no_batch_overtakes_one_for_which_memory_was_short(monkeypatch, size) -> None:
    """Opened at once or in the thread; of a producer of which any first sequence would be taken."""

    def too_large(*_arguments: object) -> None:
        raise MemoryError

    def batch(sequence: int) -> bytes:
        of_producer = {"producer_id": 7, "producer_epoch": 0, "base_sequence": sequence}
        return _batch(1, NO_CODEC, bytes(size), **of_producer)

    async with broker() as rig:
        await rig.node.topics.create("t", 1, configs={"compression.type": "zstd"})
        with monkeypatch.context() as patch:
            patch.setattr(admission, "admit", too_large)
            assert await _ask(rig, batch(0)) == KAFKA_STORAGE_ERROR
        assert await _ask(rig, batch(1)) == KAFKA_STORAGE_ERROR
        assert [await _ask(rig, batch(0)), await _ask(rig, batch(1))] == [NONE, NONE]


async def test_a_fault_in_the_thread_is_answered_and_holds_up_no_request(monkeypatch) -> None:
    def broken(*_arguments: object) -> None:
        raise ZeroDivisionError

    async with broker() as rig:
        configs = {"compression.type": "zstd", "max.message.bytes": str(32 << 20)}
        await rig.node.topics.create("t", 1, configs=configs)
        client = rig.client()
        monkeypatch.setattr(admission, "admit", broken)
        client.send(apis.PRODUCE, 9, _request("t", _batch(1, NO_CODEC, bytes(300_000))))
        await until(lambda: client.answers())
        monkeypatch.undo()
        assert _code(client.answers()[0]) == UNKNOWN_SERVER_ERROR
        assert await _ask(rig, _batch(1, GZIP)) == NONE


async def test_the_loop_turns_while_a_large_batch_is_unfolded() -> None:
    async with broker() as rig:
        configs = {"compression.type": "zstd", "max.message.bytes": str(100 << 20)}
        await rig.node.topics.create("t", 1, configs=configs)
        client = rig.client()
        data = _batch(1, GZIP, bytes(60 << 20))
        begun = time.perf_counter()
        client.send(apis.PRODUCE, 9, _request("t", data))
        held_s = time.perf_counter() - begun
        turns = 0
        while not client.answers():
            await asyncio.sleep(0)
            turns += 1
        taken_s = time.perf_counter() - begun
        assert _code(client.answers()[0]) == NONE
        assert turns > 20, "nobody else had a turn"
        assert held_s < taken_s / 2, "the loop's thread has done it itself"


def test_a_request_with_more_elements_than_anybody_needs_is_refused_at_once() -> None:
    count = 1_000_000
    names = struct.pack(">i", count) + b"\x00\x01x" * count
    with pytest.raises(FrameInvalid, match=f"more than {ELEMENTS_MAX}"):
        read_request(apis.METADATA, 1, names, 0)
    few = struct.pack(">i", ELEMENTS_MAX) + b"\x00\x01x" * ELEMENTS_MAX
    for _ in range(2):  # each request has as many
        assert len(read_request(apis.METADATA, 1, few, 0).topics) == ELEMENTS_MAX
    parts = struct.pack(">i", count) + struct.pack(">ii", 0, -1) * count
    head = struct.pack(">hhii", -1, -1, 1000, 1) + b"\x00\x01t"
    with pytest.raises(FrameInvalid, match=f"more than {ELEMENTS_MAX}"):
        read_produce(memoryview(head + parts), 0, 7)


def _keyed(keys: list[bytes | None], codec: int, value: bytes = b"v") -> bytes:
    records = [Record(0, 1_700_000_000_000, key, value, []) for key in keys]
    return encode_batch(records, codec=codec)


@pytest.mark.parametrize("codec", [NO_CODEC, GZIP, SNAPPY, LZ4, ZSTD])
@pytest.mark.parametrize("value_size", [1, 200_000])
async def test_a_compacted_topic_refuses_records_without_a_key_and_names_them(
    codec, value_size
) -> None:
    async with broker() as rig:
        await rig.node.topics.create("t", 1, configs={"cleanup.policy": "compact"})
        value = bytes(value_size)
        bad = _request("t", _keyed([b"a", None, b"", None], codec, value))
        # Earlier versions of Produce cannot carry zstd (KIP-110).
        for version in range(7 if codec == ZSTD else 3, 13):
            answer = await rig.client().ask(apis.PRODUCE, version, bad)
            (refused,) = answer.responses[0].partition_responses
            assert refused.error_code == INVALID_RECORD
            if version >= 8:
                named = [item.batch_index for item in refused.record_errors]
                assert named == [1, 3]
                assert "no key" in refused.record_errors[0].batch_index_error_message
                assert "(index 1, 3)" in refused.error_message
        assert rig.node.topics.get("t").partitions[0].end_offset == 0
        assert await _ask(rig, _keyed([b"a", b""], codec, value)) == NONE
        assert rig.node.topics.get("t").partitions[0].end_offset == 2


async def test_a_policy_that_changes_counts_from_the_next_batch_on() -> None:
    async with broker() as rig:
        await rig.node.topics.create("t", 1)
        assert await _ask(rig, _keyed([None], NO_CODEC)) == NONE
        topic = rig.node.topics.get("t")
        topic.partitions[0].config = LogConfig(is_compacted=True)
        assert await _ask(rig, _keyed([None], NO_CODEC)) == INVALID_RECORD


@CODECS
def test_a_batch_that_lies_about_its_keys_is_corrupt(codec) -> None:
    """Cut anywhere, or with a number of too many bytes: no other error, and never a pass."""
    whole = _keyed([b"key", b"other"], NO_CODEC)
    assert keyless_records(*_opened(whole)) == []
    for size in range(62, len(whole)):
        with pytest.raises(BatchCorrupt):
            keyless_records(*_opened(bytes(whole[:size])))
    assert keyless_records(*_opened(_keyed([None, b"k", None], codec))) == [0, 2]
