"""Named sequences through the Kafka face: any client's append is exactly-once."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from tests.kit.broker import BrokerHarness, broker

from headrace.broker.services import admission
from headrace.kafka import apis
from headrace.kafka.error_codes import INVALID_RECORD, NONE
from headrace.records.codec import Headers, Record, encode_batch, iterate_records, mark_named
from headrace.records.compression import GZIP

ON = {"headrace.message.attributes": "true"}


def _named(name: str, *sequences: int, **options: Any) -> bytes:
    records = [
        Record(0, 1, None, f"{name}{n}".encode(), _headers(name, n))
        if n >= 0
        else Record(0, 1, None, b"plain", [])
        for n in sequences
    ]
    return encode_batch(records, **options)


def _headers(name: str, sequence: int) -> Headers:
    return [("headrace-producer", name.encode()), ("headrace-sequence", b"%d" % sequence)]


async def _ask(rig: BrokerHarness, records: bytes, **request: Any) -> Any:
    data = {"name": "t", "partition_data": [{"index": 0, "records": records}]}
    body = {"acks": -1, "timeout": 1_000, "transactional_id": None, "topic_data": [data], **request}
    answer = await rig.client().ask(apis.PRODUCE, 9, body)
    return answer.responses[0].partition_responses[0]


async def _stored(rig: BrokerHarness) -> list[tuple[int, bytes | None]]:
    log = rig.node.topics.get("t").partitions[0]
    data = bytes(await log.reader.read(0, 1_000_000))
    return [(record.offset, record.value) for record in iterate_records(data)]


@pytest.mark.parametrize("codec", [0, GZIP])
async def test_duplicates_are_acknowledged_and_left_out(codec):
    async with broker() as rig:
        await rig.node.topics.create("t", 1, configs=ON)
        for batch, base in (
            (_named("a", 1, codec=codec), 0),
            (_named("a", 1, codec=codec), 0),
            (_named("a", 0, codec=codec), 0),
            (_named("b", 0, codec=codec), 1),
            (_named("a", 1, -1, 7, 7, 5, 8, codec=codec), -1),  # not one after the other
            (_named("a", 8, codec=codec), 2),
        ):
            answer = await _ask(rig, batch)
            assert (answer.error_code, answer.base_offset) == (NONE, base)
        assert await _stored(rig) == [
            (0, b"a1"),
            (1, b"b0"),
            (2, b"plain"),
            (3, b"a7"),
            (4, b"a8"),
        ]
        assert rig.node.appends.duplicates_total == 6


async def test_an_idempotent_producers_sequences_go_on_over_duplicates():
    async with broker() as rig:
        await rig.node.topics.create("t", 1, configs=ON)
        ids = {"producer_id": 5, "producer_epoch": 0}
        await _ask(rig, _named("a", 1))
        for batch, base in (
            (_named("a", 1, base_sequence=0, **ids), 1),
            (_named("a", 1, base_sequence=0, **ids), 1),
            (_named("a", 1, 2, base_sequence=1, **ids), 2),
            (_named("a", 1, 2, base_sequence=1, **ids), 2),
        ):
            answer = await _ask(rig, batch)
            assert (answer.error_code, answer.base_offset) == (NONE, base)
        assert await _stored(rig) == [(0, b"a1"), (3, b"a2")]


async def test_a_transaction_takes_no_named_sequences():
    async with broker() as rig:
        await rig.node.topics.create("t", 1, configs=ON)
        rig.node.verifications.verifier = None
        ids = {"producer_id": 5, "producer_epoch": 0, "base_sequence": 0}
        batch = _named("a", 1, is_transactional=True, **ids)
        refused = await _ask(rig, batch, transactional_id="x")
        assert refused.error_code == INVALID_RECORD
        assert "transaction" in refused.error_message


async def test_the_brokers_own_mark_is_taken_from_no_client():
    async with broker() as rig:
        configs = {"headrace.message.attributes": "ignore"}
        await rig.node.topics.create("t", 1, configs=configs)
        assert (await _ask(rig, mark_named(_named("a", 1)))).error_code == INVALID_RECORD
        assert (await _ask(rig, _named("a", 1))).error_code == NONE


@pytest.mark.parametrize("codec", [0, GZIP])
async def test_many_records_without_a_few_duplicates_are_made_beside_the_event_loop(
    monkeypatch, codec
):
    """10,000 of them held it for 0.1 s, and up to 0.7 s if they were large."""
    threads: list[bool] = []
    without_records = admission.without_records

    def noting(*arguments: Any) -> Any:
        threads.append(threading.current_thread() is threading.main_thread())
        return without_records(*arguments)

    monkeypatch.setattr(admission, "without_records", noting)
    async with broker() as rig:
        await rig.node.topics.create("t", 1, configs=ON)
        count = 5_000
        all_new = _named("a", *range(1, count), codec=codec)
        with_old = _named("a", *range(count - 2, 2 * count), codec=codec)
        asked = [_ask(rig, one) for one in (all_new, with_old, all_new, _named("a", 2 * count))]
        answers = await asyncio.gather(*asked)
        assert [one.error_code for one in answers] == [NONE] * 4
        stored = await _stored(rig)
        assert [value for _, value in stored] == [b"a%d" % n for n in range(1, 2 * count + 1)]
    assert threads == [False, True], "where all are duplicates, nothing is decoded"
