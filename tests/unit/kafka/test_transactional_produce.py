"""Produce with transactions: what is taken, and how a first write waits to be verified."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from tests.kit.broker import BrokerHarness, broker
from tests.kit.records import batch

from headrace.errors import (
    ConcurrentTransactions,
    CoordinatorLoading,
    HeadraceError,
    ProducerFenced,
    TransactionAbortable,
)
from headrace.kafka import apis
from headrace.kafka.error_codes import (
    CONCURRENT_TRANSACTIONS,
    INVALID_PRODUCER_EPOCH,
    INVALID_RECORD,
    INVALID_TXN_STATE,
    NONE,
    NOT_ENOUGH_REPLICAS,
    OUT_OF_ORDER_SEQUENCE_NUMBER,
    TRANSACTION_ABORTABLE,
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    UNKNOWN_SERVER_ERROR,
)
from headrace.records.batch import iterate_headers
from headrace.records.codec import decode_batch

if TYPE_CHECKING:
    from tests.kit.kafka_client import Client

    from headrace.log.partition_log import PartitionLog

TEXT = b"some text that is long enough to be worth compressing" * 4


def write(
    sequence: int, producer_id: int = 7, *, epoch: int = 0, is_transactional: bool = True
) -> bytes:
    return batch(
        b"%d" % sequence,
        TEXT,
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=2 * sequence,
        is_transactional=is_transactional,
    )


def request(
    rig: BrokerHarness, version: int, records: bytes, transactional_id: str | None
) -> dict[str, Any]:
    topic = rig.node.topics.get("t")
    key = {"topic_id": topic.id} if version >= 13 else {"name": "t"}
    return {
        "acks": -1,
        "timeout": 1_000,
        "transactional_id": transactional_id,
        "topic_data": [{**key, "partition_data": [{"index": 0, "records": records}]}],
    }


def code(answer: Any) -> int:
    return int(answer.responses[0].partition_responses[0].error_code)


async def produce(
    rig: BrokerHarness, records: bytes, transactional_id: str | None = "tx", version: int = 9
) -> int:
    """The error code."""
    sent = request(rig, version, records, transactional_id)
    return code(await rig.client().ask(apis.PRODUCE, version, sent))


def begin(client: Client, rig: BrokerHarness, records: bytes, version: int = 9) -> None:
    client.send(apis.PRODUCE, version, request(rig, version, records, "tx"))


async def topic(rig: BrokerHarness, **configs: str) -> PartitionLog:
    await rig.node.topics.create("t", 1, 1, {k.replace("_", "."): v for k, v in configs.items()})
    rig.node.verifications.verifier = None
    log = rig.node.topics.get("t").partitions[0]
    await log.wait_loaded()
    return log


async def settle() -> None:
    for _ in range(30):
        await asyncio.sleep(0)


async def headers(rig: BrokerHarness, log: PartitionLog) -> list[tuple[int, int]]:
    """(producer id, base sequence) of each batch."""
    data = await log.reader.read(0, 1 << 20)
    return [(one.producer_id, one.base_sequence) for _at, one in iterate_headers(data)]


class Verifier:
    """Answers when the test says so."""

    def __init__(self) -> None:
        self.asked: list[tuple[tuple[int, int], bool]] = []
        """((producer id, epoch), whether the partition is added)."""
        self.answer: asyncio.Future[None] | None = None
        self.outcome: Exception | None = None

    async def check(
        self,
        transactional_id: str,
        producer: tuple[int, int],
        partitions: frozenset[tuple[str, int]],
        *,
        is_adding: bool,
    ) -> HeadraceError | None:
        assert (transactional_id, partitions) == ("tx", {("t", 0)})
        self.asked.append((producer, is_adding))
        if self.answer is not None:
            await self.answer
        if self.outcome is None or isinstance(self.outcome, HeadraceError):
            return self.outcome
        raise self.outcome


@pytest.mark.parametrize("version", [3, 8, 9, 11, 12, 13])
async def test_a_transactional_batch_opens_a_transaction(version) -> None:
    async with broker() as rig:
        log = await topic(rig)
        assert await produce(rig, write(0), version=version) == NONE
        assert log.producers.open_transaction(7) == 0
        assert log.visibility.last_stable_offset == 0
        assert await produce(rig, write(1), version=version) == NONE
        assert await produce(rig, write(1), version=version) == NONE, "a retry"
        assert log.high_watermark == 4


@pytest.mark.parametrize("configs", [{"compression_type": "zstd"}, {"compression_type": "gzip"}])
@pytest.mark.parametrize("time", ["CreateTime", "LogAppendTime"])
async def test_a_batch_that_is_stored_in_another_form_stays_transactional(configs, time) -> None:
    async with broker() as rig:
        log = await topic(rig, **configs, message_timestamp_type=time)
        assert await produce(rig, write(0)) == NONE
        data = await log.reader.read(0, 1 << 20)
        ((_, header),) = iterate_headers(data)
        assert header.is_transactional
        assert (header.producer_id, header.base_sequence) == (7, 0)
        assert decode_batch(data)[1].value == TEXT
        assert log.producers.open_transaction(7) == 0


@pytest.mark.parametrize("version", [3, 9, 13])
async def test_produce_requests_with_control_or_mismatched_transactional_batches_are_refused(
    version,
) -> None:
    async with broker() as rig:
        log = await topic(rig)
        assert await produce(rig, batch(b"plain"), None, version) == NONE
        outcome = await produce(rig, write(0), None, version)
        assert outcome == TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        control = batch(
            b"c", producer_id=7, producer_epoch=0, is_transactional=True, is_control=True
        )
        assert await produce(rig, control, "tx", version) == INVALID_RECORD
        assert await produce(rig, write(0, is_transactional=False), "tx", version) == NONE
        assert await produce(rig, write(1), "tx", version) == NONE
        outcome = await produce(rig, write(2, is_transactional=False), "tx", version)
        assert outcome == INVALID_TXN_STATE
        assert log.high_watermark == 5


async def test_a_first_write_waits_for_its_verification_and_others_wait_in_order() -> None:
    async with broker() as rig:
        log = await topic(rig)
        verifier = rig.node.verifications.verifier = Verifier()
        verifier.answer = asyncio.get_running_loop().create_future()
        client, other = rig.client(), rig.client()
        for sequence in range(4):
            begin(client, rig, write(sequence))
        await settle()
        assert verifier.asked == [((7, 0), False)]
        plain = await other.ask(apis.PRODUCE, 9, request(rig, 9, batch(b"plain"), None))
        assert code(plain) == NONE, "what needs no verification passes"
        assert not client.answers()
        verifier.answer.set_result(None)
        await settle()
        assert [code(answer) for answer in client.answers()] == [NONE] * 4
        assert await headers(rig, log) == [(-1, -1), (7, 0), (7, 2), (7, 4), (7, 6)]
        assert await produce(rig, write(4)) == NONE
        assert len(verifier.asked) == 1, "an open transaction is not verified again"
        appended = log.append_marker(7, 0, 0, is_commit=True)
        assert appended is not None
        await appended.completion.wait()
        assert await produce(rig, write(5), version=12) == NONE
        assert verifier.asked == [((7, 0), False), ((7, 0), True)]


@pytest.mark.parametrize(
    ("error", "codes"),
    [
        (TransactionAbortable(""), (INVALID_TXN_STATE, TRANSACTION_ABORTABLE)),
        (CoordinatorLoading(""), (NOT_ENOUGH_REPLICAS, NOT_ENOUGH_REPLICAS)),
        (ConcurrentTransactions(""), (NOT_ENOUGH_REPLICAS, CONCURRENT_TRANSACTIONS)),
        (ProducerFenced(""), (INVALID_PRODUCER_EPOCH, INVALID_PRODUCER_EPOCH)),
        (ZeroDivisionError(), (NOT_ENOUGH_REPLICAS, NOT_ENOUGH_REPLICAS)),
        (HeadraceError(""), (UNKNOWN_SERVER_ERROR, UNKNOWN_SERVER_ERROR)),
    ],
    ids=lambda value: type(value).__name__,
)
async def test_a_write_that_is_not_verified_is_not_stored(error, codes) -> None:
    async with broker() as rig:
        log = await topic(rig)
        verifier = rig.node.verifications.verifier = Verifier()
        verifier.outcome = error
        for version, expected in zip((9, 12), codes, strict=True):
            assert await produce(rig, write(0), version=version) == expected
        assert log.high_watermark == 0
        verifier.outcome = None
        assert await produce(rig, write(0)) == NONE


async def test_a_marker_voids_a_verification_that_is_under_way() -> None:
    async with broker() as rig:
        log = await topic(rig)
        assert await produce(rig, batch(b"plain"), None) == NONE
        verifier = rig.node.verifications.verifier = Verifier()
        verifier.answer = asyncio.get_running_loop().create_future()
        client = rig.client()
        begin(client, rig, write(0))
        await settle()
        appended = log.append_marker(7, 0, 0, is_commit=False)
        assert appended is not None
        await appended.completion.wait()
        verifier.answer.set_result(None)
        await settle()
        assert [code(answer) for answer in client.answers()] == [INVALID_TXN_STATE]
        assert log.producers.open_transaction(7) is None


async def test_another_epoch_is_verified_apart() -> None:
    async with broker() as rig:
        await topic(rig)
        verifier = rig.node.verifications.verifier = Verifier()
        assert await produce(rig, write(0)) == NONE
        assert await produce(rig, write(0, epoch=1)) == NONE
        assert verifier.asked == [((7, 0), False), ((7, 1), False)]


async def test_an_unknown_producer_of_the_newer_protocol_begins_with_sequence_0() -> None:
    async with broker() as rig:
        log = await topic(rig)
        await produce(rig, batch(b"plain"), None)
        log.retries.has_failures = False
        log.retries._until_ms = -1
        assert await produce(rig, write(3), version=12) == OUT_OF_ORDER_SEQUENCE_NUMBER
        assert await produce(rig, write(3), version=11) == NONE
        assert await produce(rig, write(0, 8), version=12) == NONE
        assert await produce(rig, write(1, 8), version=12) == NONE
