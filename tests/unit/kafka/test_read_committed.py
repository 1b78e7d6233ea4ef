"""Readers of committed transactions over the wire: Fetch and ListOffsets."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from tests.kit.broker import BrokerHarness, broker
from tests.kit.records import append, batch

from headrace.kafka import apis
from headrace.records.batch import iterate_headers

if TYPE_CHECKING:
    from headrace.log.partition_log import PartitionLog

PRODUCER = 7
LATEST, MAX_TIMESTAMP = -1, -3
START_MS = 1_700_000_000_000


async def _log(rig: BrokerHarness) -> PartitionLog:
    await rig.node.topics.create("t")
    log = rig.node.topics.get("t").partitions[0]
    await log.wait_loaded()
    await append(log, batch(b"plain", timestamp_ms=START_MS))
    return log


async def _send(log: PartitionLog, sequence: int, producer_id: int = PRODUCER) -> int:
    data = batch(
        b"%d" % sequence,
        timestamp_ms=START_MS + 10,
        producer_id=producer_id,
        producer_epoch=0,
        base_sequence=sequence,
        is_transactional=True,
    )
    return await append(log, data)


async def _end(log: PartitionLog, producer_id: int = PRODUCER, *, is_commit: bool) -> None:
    appended = log.append_marker(producer_id, 0, 0, is_commit=is_commit)
    assert appended is not None
    await appended.completion.wait()


def _fetch(
    rig: BrokerHarness, version: int, offset: int, *, isolation: int = 1, wait_ms: int = 0
) -> Any:
    topic = rig.node.topics.get("t")
    key = {"topic_id": topic.id} if version >= 13 else {"topic": "t"}
    part = {
        "partition": 0,
        "fetch_offset": offset,
        "partition_max_bytes": 1 << 20,
        "current_leader_epoch": -1,
    }
    return {
        "max_wait": wait_ms,
        "min_bytes": 1,
        "max_bytes": 1 << 20,
        "session_epoch": -1,
        "isolation_level": isolation,
        "topics": [{**key, "partitions": [part]}],
    }


def _offsets(part: Any) -> list[int]:
    return [header.base_offset for _at, header in iterate_headers(part.records or b"")]


@pytest.mark.parametrize("version", [4, 5, 11, 12, 13, 16, 18])
async def test_a_reader_of_committed_ends_at_the_last_stable_offset(version) -> None:
    async with broker() as rig:
        log = await _log(rig)
        await _send(log, 0, 8)
        await _send(log, 0, 9)
        await _end(log, 9, is_commit=False)
        await _end(log, 8, is_commit=False)
        await _send(log, 0)
        await append(log, batch(b"plain"))
        client = rig.client()
        answer = await client.ask(apis.FETCH, version, _fetch(rig, version, 0))
        (part,) = answer.responses[0].partitions
        assert (part.high_watermark, part.last_stable_offset) == (7, 5)
        assert _offsets(part) == [0, 1, 2, 3, 4]
        told = [(one.first_offset, one.producer_id) for one in part.aborted_transactions]
        assert told == [(1, 8), (2, 9)]
        answer = await client.ask(apis.FETCH, version, _fetch(rig, version, 0, isolation=0))
        (part,) = answer.responses[0].partitions
        assert (part.high_watermark, part.last_stable_offset) == (7, 5)
        assert _offsets(part) == [0, 1, 2, 3, 4, 5, 6]
        assert not part.aborted_transactions
        for offset in (5, 6, 7):
            answer = await client.ask(apis.FETCH, version, _fetch(rig, version, offset))
            (part,) = answer.responses[0].partitions
            assert int(part.error_code) == 0
            assert _offsets(part) == []


async def test_a_waiting_reader_of_committed_is_answered_by_the_end_of_the_transaction() -> None:
    async with broker() as rig:
        log = await _log(rig)
        committed, plain = rig.client(), rig.client()
        committed.send(apis.FETCH, 12, _fetch(rig, 12, 1, wait_ms=60_000))
        plain.send(apis.FETCH, 12, _fetch(rig, 12, 1, wait_ms=60_000, isolation=0))
        await _send(log, 0)
        await _send(log, 1)
        for _ in range(20):
            await asyncio.sleep(0)
        assert len(plain.answers()) == 1
        assert not committed.answers()
        await _end(log, is_commit=True)
        for _ in range(20):
            await asyncio.sleep(0)
        (answer,) = committed.answers()
        assert _offsets(answer.responses[0].partitions[0]) == [1, 2, 3]


@pytest.mark.parametrize("version", [2, 6, 9])
async def test_list_offsets_hides_what_is_not_committed(version) -> None:
    async with broker() as rig:
        log = await _log(rig)
        await _send(log, 0)
        client = rig.client()

        async def listed(timestamp: int, isolation: int) -> int:
            part = {"partition_index": 0, "timestamp": timestamp, "current_leader_epoch": -1}
            request = {
                "isolation_level": isolation,
                "topics": [{"name": "t", "partitions": [part]}],
            }
            answer = await client.ask(apis.LIST_OFFSETS, version, request)
            (found,) = answer.topics[0].partitions
            assert int(found.error_code) == 0
            return int(found.offset)

        def time_of(offset: int) -> int:
            return START_MS + 10 * offset

        assert [await listed(LATEST, level) for level in (0, 1)] == [2, 1]
        assert [await listed(time_of(0), level) for level in (0, 1)] == [0, 0]
        assert [await listed(time_of(1), level) for level in (0, 1)] == [1, -1]
        await _end(log, is_commit=True)
        assert [await listed(LATEST, level) for level in (0, 1)] == [3, 3]
        assert [await listed(time_of(1), level) for level in (0, 1)] == [1, 1]
