"""Produce over the wire: what is refused and with which code, what is stored."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from tests.kit.broker import BrokerHarness, broker
from tests.kit.records import batch

from headrace.kafka import apis
from headrace.kafka.error_codes import (
    INVALID_RECORD,
    INVALID_REQUIRED_ACKS,
    NONE,
    UNSUPPORTED_COMPRESSION_TYPE,
)
from headrace.records.batch import HEADER_SIZE, read_header
from headrace.records.codec import Record, decode_batch, encode_batch
from headrace.records.compression import ZSTD, decompress

if TYPE_CHECKING:
    from collections.abc import Mapping


def _request(records: bytes, *, acks: int = -1) -> dict[str, Any]:
    partition = {"index": 0, "records": records}
    return {
        "acks": acks,
        "timeout": 1_000,
        "transactional_id": None,
        "topic_data": [{"name": "t", "partition_data": [partition]}],
    }


async def _produce(rig: BrokerHarness, records: bytes, *, acks: int = -1, version: int = 9) -> int:
    answer = await rig.client().ask(apis.PRODUCE, version, _request(records, acks=acks))
    return int(answer.responses[0].partition_responses[0].error_code)


async def _topic(rig: BrokerHarness, configs: Mapping[str, str] | None = None) -> None:
    await rig.node.topics.create("t", 1, configs=configs)


@pytest.mark.parametrize("version", [3, 7, 8, 9, 12])
async def test_acks_that_mean_nothing_are_refused_with_the_code_for_them(version: int) -> None:
    async with broker() as rig:
        await _topic(rig)
        assert await _produce(rig, batch(b"v"), acks=2, version=version) == (INVALID_REQUIRED_ACKS)
        assert await _produce(rig, batch(b"v"), version=version) == NONE


async def test_producers_with_acks_0_are_disconnected_only_when_a_batch_fails() -> None:
    """Kafka's way: there is no answer that could make the client refresh its metadata."""

    async with broker() as rig:
        await _topic(rig)
        client = rig.client()
        client.send(apis.PRODUCE, 9, _request(batch(b"kept"), acks=0))
        client.asked.clear()  # no answer to it will come
        answer = await client.ask(apis.API_VERSIONS, 0, {})
        assert answer.error_code == 0, "the connection lives, and owes nothing"
        client.send(apis.PRODUCE, 9, _request(batch(b"kept")[:-1], acks=0))
        for _ in range(20):
            await asyncio.sleep(0)
        assert client.transport.is_over
        log = rig.node.topics.get("t").partitions[0]
        assert log.high_watermark == 1
        # One that failed when its log was asked, later than the request was read.
        client = rig.client()
        await rig.node.services.topics.delete("t")
        client.send(apis.PRODUCE, 9, _request(batch(b"for nobody"), acks=0))
        for _ in range(20):
            await asyncio.sleep(0)
        assert client.transport.is_over


async def test_a_producer_id_without_a_sequence_is_refused() -> None:
    async with broker() as rig:
        await _topic(rig)
        records = batch(b"v", producer_id=7, producer_epoch=0, base_sequence=-1)
        assert await _produce(rig, records) == INVALID_RECORD
        records = batch(b"v", producer_id=7, producer_epoch=0, base_sequence=0)
        assert await _produce(rig, records) == NONE


async def test_another_codec_changes_nothing_but_the_codec() -> None:
    async with broker() as rig:
        await _topic(rig, {"compression.type": "zstd"})
        # A name that is no UTF-8, as a C client may write it, and times far apart.
        sent = encode_batch(
            [
                Record(0, 1_700_000_000_000, None, b"v", [("name", b"x")]),
                Record(0, -(2**62), None, b"w", []),
            ]
        )
        sent = sent.replace(b"name", b"na\xff\xfe")
        sent = _with_crc(sent)
        assert await _produce(rig, sent) == NONE
        log = rig.node.topics.get("t").partitions[0]
        stored = bytes(await log.reader.read(0, 1_000))
        header = read_header(stored)
        assert header.attributes & 7 == ZSTD
        assert decompress(ZSTD, stored[HEADER_SIZE:], 10_000) == sent[HEADER_SIZE:]
        assert [r.timestamp_ms for r in decode_batch(stored)] == [1_700_000_000_000, -(2**62)]


def _with_crc(data: bytes) -> bytes:
    from crc32c import crc32c

    return data[:17] + crc32c(data[21:]).to_bytes(4, "big") + data[21:]


async def test_a_log_that_takes_the_brokers_time_does_not_mind_the_producers() -> None:
    async with broker() as rig:
        await _topic(
            rig,
            {
                "message.timestamp.type": "LogAppendTime",
                "message.timestamp.before.max.ms": "1000",
            },
        )
        assert await _produce(rig, batch(b"v", timestamp_ms=5)) == NONE


@pytest.mark.parametrize("version", range(3, 10))
async def test_zstd_needs_the_version_that_introduced_it(version: int) -> None:
    async with broker() as rig:
        await rig.node.topics.create("t")
        records = batch(b"v" * 100, codec=ZSTD)
        for _ in range(2):  # the second time, the broker knows the way to the partition
            code = await _produce(rig, records, version=version)
            assert code == (UNSUPPORTED_COMPRESSION_TYPE if version < 7 else NONE)
