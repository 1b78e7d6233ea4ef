"""What admission does with records that are due later, over a `Delays` that keeps them in memory.

Through the Kafka face, so that order, sequences and answers are those that producers meet.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from tests.kit.broker import BrokerHarness, broker

from headrace.broker.coordinators.delays import Kept, NoDelays
from headrace.broker.services import admission
from headrace.errors import StorageUnavailable
from headrace.kafka import apis
from headrace.kafka.error_codes import (
    INVALID_RECORD,
    INVALID_TIMESTAMP,
    KAFKA_STORAGE_ERROR,
    MESSAGE_TOO_LARGE,
    NONE,
    NOT_LEADER_OR_FOLLOWER,
)
from headrace.records.codec import Headers, Record, encode_batch, iterate_records
from headrace.records.compression import GZIP, LZ4, SNAPPY, ZSTD
from headrace.runtime.completion import Completion

if TYPE_CHECKING:
    from headrace.broker.coordinators.delays import DelayedBatch
    from headrace.log.partition_log import PartitionLog

ON = {"headrace.message.attributes": "true"}
IGNORED = {"headrace.message.attributes": "ignore"}
LATER: Headers = [("headrace-delay", b"60000")]
PAST: Headers = [("headrace-deliver-at", b"1000")]


class _KeptDelays:
    def __init__(self) -> None:
        self.batches: list[DelayedBatch] = []
        self.completions: list[Completion] = []
        self.is_prompt = True
        self.fault: StorageUnavailable | None = None

    def add(self, partition: PartitionLog, batch: DelayedBatch, user: str = "") -> Kept:
        if self.fault is not None:
            raise self.fault
        self.batches.append(batch)
        self.completions.append(Completion())
        if self.is_prompt:
            self.completions[-1].succeed()
        return Kept(self.completions[-1], [])

    @property
    def values(self) -> list[list[bytes | None]]:
        return [[item.record.value for item in batch.records] for batch in self.batches]


def _request(records: bytes) -> dict[str, Any]:
    data = {"name": "t", "partition_data": [{"index": 0, "records": records}]}
    return {"acks": -1, "timeout": 1_000, "transactional_id": None, "topic_data": [data]}


def _batch(items: dict[bytes, Headers], **options: Any) -> bytes:
    records = [Record(0, 1_700_000_000_000, None, v, list(h)) for v, h in items.items()]
    return encode_batch(records, **options)


async def _ask(rig: BrokerHarness, records: bytes) -> Any:
    answer = await rig.client().ask(apis.PRODUCE, 9, _request(records))
    return answer.responses[0].partition_responses[0]


async def _stored(rig: BrokerHarness) -> list[tuple[int, bytes | None]]:
    log = rig.node.topics.get("t").partitions[0]
    data = bytes(await log.reader.read(0, 1_000_000))
    return [(record.offset, record.value) for record in iterate_records(data)]


def _kept(rig: BrokerHarness) -> _KeptDelays:
    kept = rig.node.appends.delays = _KeptDelays()
    return kept


async def test_delayed_records_are_refused_where_nothing_delivers_them():
    async with broker() as rig:
        rig.node.appends.delays = NoDelays()
        await rig.node.topics.create("t", 1, configs=ON)
        refused = await _ask(rig, _batch({b"a": [], b"b": LATER}))
        assert refused.error_code == INVALID_RECORD
        assert [item.batch_index for item in refused.record_errors] == [1]
        assert "headrace-delay" in refused.record_errors[0].batch_index_error_message
        assert rig.node.topics.get("t").partitions[0].end_offset == 0


@pytest.mark.parametrize("codec", [0, LZ4])
async def test_a_batch_is_split_into_what_is_due_and_what_is_not(codec):
    async with broker() as rig:
        await rig.node.topics.create("t", 1, configs=ON)
        kept = _kept(rig)
        items = {b"a": [], b"b": LATER, b"c": PAST, b"d": LATER, b"e": []}
        assert (await _ask(rig, _batch(items, codec=codec))).base_offset == -1
        assert await _stored(rig) == [(0, b"a"), (1, b"c"), (2, b"e")]
        assert kept.values == [[b"b", b"d"]]
        assert [item.batch_index for item in kept.batches[0].records] == [1, 3]
        assert kept.batches[0].origin is None
        answer = await _ask(rig, _batch({b"f": LATER}, codec=codec))
        assert (answer.error_code, answer.base_offset) == (NONE, -1)
        assert rig.node.topics.get("t").partitions[0].end_offset == 3
        assert rig.node.appends.delayed_total == 3


async def test_a_fault_while_a_batch_is_split_answers_it_and_holds_up_no_other(monkeypatch):
    async with broker() as rig:
        await rig.node.topics.create("t", 1, configs=ON)
        kept = _kept(rig)
        kept.is_prompt = False
        first = asyncio.create_task(_ask(rig, _batch({b"a": LATER})))
        while not kept.completions:
            await asyncio.sleep(0)
        faulty = asyncio.create_task(_ask(rig, _batch({b"b": LATER, b"c": []})))
        for _ in range(20):
            await asyncio.sleep(0)

        def fail(*_: object) -> None:
            raise AssertionError("as for records whose times cannot be encoded together")

        with monkeypatch.context() as patch:
            patch.setattr(admission, "without_records", fail)
            kept.completions[0].succeed()
            assert (await first).error_code == NONE
            assert (await faulty).error_code == INVALID_RECORD
        answer = await _ask(rig, _batch({b"d": []}))
        assert (answer.error_code, answer.base_offset) == (NONE, 0)


@pytest.mark.parametrize("is_at_once", [False, True])
async def test_no_batch_overtakes_one_whose_delayed_records_could_not_be_stored(is_at_once):
    """Of a producer that the partition does not know yet: it would take any first sequence."""
    async with broker() as rig:
        await rig.node.topics.create("t", 1, configs=ON)
        kept = _kept(rig)
        kept.is_prompt = False
        options = {"producer_id": 5, "producer_epoch": 0}
        first = _batch({b"a": LATER, b"b": []}, base_sequence=0, **options)
        second = _batch({b"c": []}, base_sequence=2, **options)
        if is_at_once:
            kept.fault = StorageUnavailable("loading")
        sent = [asyncio.create_task(_ask(rig, one)) for one in (first, second)]
        if not is_at_once:
            while not kept.completions:
                await asyncio.sleep(0)
            kept.completions[0].fail(StorageUnavailable("loading"))
        codes = [(await one).error_code for one in sent]
        assert codes == [KAFKA_STORAGE_ERROR, KAFKA_STORAGE_ERROR]
        kept.is_prompt, kept.fault = True, None
        assert [(await _ask(rig, one)).error_code for one in (first, second)] == [NONE, NONE]
        assert await _stored(rig) == [(1, b"b"), (2, b"c")]


async def test_an_idempotent_producers_sequences_go_on_over_delayed_records():
    async with broker() as rig:
        await rig.node.topics.create("t", 1, configs=ON)
        kept = _kept(rig)
        options = {"producer_id": 5, "producer_epoch": 0}
        first = _batch({b"a": [], b"b": LATER}, base_sequence=0, **options)
        second = _batch({b"c": LATER, b"d": LATER}, base_sequence=2, **options)
        third = _batch({b"e": LATER, b"f": []}, base_sequence=4, **options)
        for batch, base in ((first, 0), (second, 2), (second, 2), (third, 4), (third, 4)):
            answer = await _ask(rig, batch)
            assert (answer.error_code, answer.base_offset) == (NONE, base)
        assert kept.values == [[b"b"], [b"c", b"d"], [b"e"]]  # no retry is kept twice
        assert kept.batches[1].origin == (5, 0, 2)
        assert await _stored(rig) == [(0, b"a"), (5, b"f")]
        assert rig.node.topics.get("t").partitions[0].end_offset == 6


async def test_batches_after_delayed_records_keep_their_order_until_those_are_durable():
    async with broker() as rig:
        await rig.node.topics.create("t", 1, configs=ON)
        kept = _kept(rig)
        await _ask(rig, _batch({b"0": []}))
        kept.is_prompt = False
        client = rig.client()
        options = {"producer_id": 5, "producer_epoch": 0}
        first = _batch({b"a": LATER, b"b": []}, base_sequence=0, **options)
        second = _batch({b"c": []}, base_sequence=2, **options)
        third = _batch({b"d": LATER}, base_sequence=3, **options)
        for batch in (first, second, third):
            client.send(apis.PRODUCE, 9, _request(batch))
        log = rig.node.topics.get("t").partitions[0]
        assert (log.end_offset, len(kept.completions)) == (1, 1)
        kept.completions[0].succeed()
        assert (log.end_offset, len(kept.completions)) == (4, 2)
        kept.completions[1].fail(StorageUnavailable("the disk is full"))
        while len(client.answers()) < 3:
            await asyncio.sleep(0)
        parts = [answer.responses[0].partition_responses[0] for answer in client.answers()]
        assert [part.error_code for part in parts[:2]] == [NONE, NONE]
        assert parts[2].error_code not in {NONE, INVALID_RECORD, NOT_LEADER_OR_FOLLOWER}
        kept.is_prompt = True
        assert (await _ask(rig, third)).base_offset == 4
        assert kept.values == [[b"a"], [b"d"], [b"d"]]


async def test_a_record_of_a_transaction_cannot_be_delayed():
    async with broker() as rig:
        await rig.node.topics.create("t", 1, configs=ON)
        rig.node.verifications.verifier = None
        options = {"producer_id": 5, "producer_epoch": 0, "base_sequence": 0}
        batch = _batch({b"a": [], b"b": LATER}, is_transactional=True, **options)
        request = {**_request(batch), "transactional_id": "x"}
        answer = await rig.client().ask(apis.PRODUCE, 9, request)
        refused = answer.responses[0].partition_responses[0]
        assert refused.error_code == INVALID_RECORD
        assert "transaction" in refused.error_message


CODECS = pytest.mark.parametrize("codec", [0, GZIP, SNAPPY, LZ4, ZSTD])
ASKING: dict[str, Headers] = {
    "headrace-delay": LATER,
    "headrace-deliver-at": [("headrace-deliver-at", b"4000000000000")],
    "headrace-half": [("headrace-message-id", b"1"), ("headrace-half", b"shop")],
    "headrace-expire-at": [("headrace-expire-at", b"1")],
    "headrace-message-group": [("headrace-message-group", b"")],
    "headrace-priority": [("headrace-priority", b"none")],
    "headrace-producer": [("headrace-producer", b"p"), ("headrace-sequence", b"1")],
}


@CODECS
@pytest.mark.parametrize("configs", [{}, {"compression.type": "lz4"}])
@pytest.mark.parametrize("name", ASKING)
async def test_a_topic_that_does_not_say_otherwise_refuses_what_it_would_not_do(
    name, configs, codec
):
    async with broker() as rig:
        await rig.node.topics.create("t", 1, configs=configs)
        items = {b"a": [("x", b"headrace-delay")], b"b": ASKING[name]}
        refused = await _ask(rig, _batch(items, codec=codec))
        assert refused.error_code == INVALID_RECORD
        for text in (name, "headrace.message.attributes=read", "=ignore", "record 1"):
            assert text in refused.error_message
        assert [item.batch_index for item in refused.record_errors] == [1]
        assert (await _ask(rig, _batch({b"c": []}, codec=codec))).base_offset == 0
        assert await _stored(rig) == [(0, b"c")]


async def test_headers_that_ask_for_nothing_are_stored_everywhere():
    plain: list[Headers] = [
        [("headrace-tag", b"t"), ("headrace-keys", b"a b"), ("headrace-message-id", b"7")],
        [("headrace-probe", b"1"), ("headrace-redrives", b"1"), ("headrace-dlq-delay", b"1")],
        [("headrace-delay", None)],
        PAST,  # as a delivered record has it, which is forwarded
    ]

    async with broker() as rig:
        await rig.node.topics.create("t", 1)
        for offset, headers in enumerate(plain):
            answer = await _ask(rig, _batch({b"a": headers}))
            assert (answer.error_code, answer.base_offset) == (NONE, offset)


async def test_large_batches_and_transactions_are_refused_as_well():
    async with broker() as rig:
        await rig.node.topics.create("t", 1)
        rig.node.verifications.verifier = None
        filler = {b"%d" % n: list[Any]() for n in range(admission.INLINE_RECORDS_MAX)}
        large = _batch({**filler, b"last": LATER}, codec=LZ4)
        assert (await _ask(rig, large)).error_code == INVALID_RECORD
        ids = {"producer_id": 5, "producer_epoch": 0, "base_sequence": 0}
        within = _batch({b"a": LATER}, is_transactional=True, **ids)
        request = {**_request(within), "transactional_id": "x"}
        answer = await rig.client().ask(apis.PRODUCE, 9, request)
        assert answer.responses[0].partition_responses[0].error_code == INVALID_RECORD
        assert await _stored(rig) == []


@CODECS
async def test_a_topic_that_ignores_attributes_stores_a_batch_byte_for_byte(codec):
    async with broker() as rig:
        await rig.node.topics.create("t", 1, configs=IGNORED)
        items = {b"a": LATER, b"b": [("headrace-priority", b"\xff")]}
        batch = _batch(items, codec=codec)
        assert (await _ask(rig, batch)).error_code == NONE
        log = rig.node.topics.get("t").partitions[0]
        assert bytes(await log.reader.read(0, 1_000_000))[16:] == batch[16:]
        await rig.node.topics.change_configs(rig.node.topics.get("t"), lambda _: ON)
        refused = await _ask(rig, batch)
        assert refused.error_code == INVALID_RECORD
        assert [item.batch_index for item in refused.record_errors] == [1]


async def test_ignored_attributes_are_counted_where_batches_are_opened():
    async with broker() as rig:
        await rig.node.topics.create("t", 1, configs={"compression.type": "lz4", **IGNORED})
        for _ in range(3):
            assert (await _ask(rig, _batch({b"a": LATER}))).error_code == NONE
        assert [value for _, value in await _stored(rig)] == [b"a"] * 3
        assert rig.node.appends.unread_attributes_total == 3


async def test_records_that_are_not_validated_are_not_searched_for_attributes():
    async with broker() as rig:
        configs = {"headrace.record.validation": "header"}
        await rig.node.topics.create("t", 1, configs=configs)
        assert (await _ask(rig, _batch({b"a": LATER}))).error_code == NONE


async def test_a_delayed_record_is_delivered_though_its_topic_no_longer_reads_attributes():
    async with broker() as rig:
        await rig.node.topics.create("t", 1, configs=ON)
        soon: Headers = [("headrace-delay", b"50"), ("headrace-priority", b"9")]
        assert (await _ask(rig, _batch({b"a": soon}))).error_code == NONE
        await rig.node.topics.change_configs(rig.node.topics.get("t"), lambda _: {})
        async with asyncio.timeout(20):
            while not await _stored(rig):
                await asyncio.sleep(0.01)
        assert await _stored(rig) == [(0, b"a")]


async def test_nothing_of_a_batch_is_delayed_whose_rest_is_refused():
    async with broker() as rig:
        future_ms = 4_000_000_000_000
        await rig.node.topics.create("t", 1, configs=ON)
        kept = _kept(rig)
        batch = encode_batch(
            [
                Record(0, 1_700_000_000_000, None, b"later", list(LATER)),
                Record(0, future_ms, None, b"now", []),
            ]
        )
        answer = await _ask(rig, batch)
        assert answer.error_code == INVALID_TIMESTAMP
        assert kept.values == []


async def test_delayed_records_that_no_timer_log_can_store_together_are_refused(monkeypatch):
    monkeypatch.setattr(admission, "DELAYED_BYTES_MAX", 1_000)

    async with broker() as rig:
        await rig.node.topics.create("t", 1, configs=ON)
        kept = _kept(rig)
        names = [("\u4e00", None)] * 200
        for items in ({b"x" * 900: LATER}, {b"x": [*LATER, *names]}):
            answer = await _ask(rig, _batch(items, codec=LZ4))
            assert answer.error_code == MESSAGE_TOO_LARGE
        assert kept.values == []


@pytest.mark.parametrize(
    "marked",
    [
        LATER,
        [("headrace-half", b"group"), ("headrace-message-id", b"one")],
        [("headrace-producer", b"p"), ("headrace-sequence", b"1")],
    ],
    ids=["delayed", "half", "named"],
)
async def test_a_batch_whose_records_become_objects_has_a_bounded_number_of_them(marked):
    """A megabyte can hold a million records, which would take the loop and the memory from all."""
    async with broker() as rig:
        await rig.node.topics.create("t", 1, configs=ON)
        _kept(rig)

        def batch(count: int) -> bytes:
            records = [Record(0, 1_700_000_000_000, None, b"", []) for _ in range(count)]
            records[7] = Record(0, 1_700_000_000_000, None, b"", list(marked))
            return encode_batch(records, codec=ZSTD)

        answer = await _ask(rig, batch(admission.SPLIT_RECORDS_MAX + 1))
        assert answer.error_code == MESSAGE_TOO_LARGE
        assert "send smaller batches" in answer.error_message
        assert (await _ask(rig, batch(admission.SPLIT_RECORDS_MAX))).error_code == NONE
