"""WriteTxnMarkers and DescribeProducers over the wire."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from tests.kit.broker import BrokerHarness, broker
from tests.kit.records import batch

from headrace.errors import NotOwner
from headrace.kafka import apis
from headrace.kafka.error_codes import (
    INVALID_PRODUCER_EPOCH,
    NONE,
    NOT_LEADER_OR_FOLLOWER,
    TRANSACTION_COORDINATOR_FENCED,
    UNKNOWN_TOPIC_OR_PARTITION,
)
from headrace.kafka.handlers import partition_transactions
from headrace.kafka.wire.schema import encode_elements
from headrace.log import producer_encoding

if TYPE_CHECKING:
    from tests.kit.kafka_client import Client

    from headrace.log.partition_log import PartitionLog

NOW_MS = 1_700_000_000_000


async def _logs(rig: BrokerHarness) -> list[PartitionLog]:
    await rig.node.topics.create("t", 3, 1, {})
    rig.node.verifications.verifier = None
    return rig.node.topics.get("t").partitions


async def _send(client: Client, sequence: int, producer_id: int = 7, number: int = 0) -> None:
    records = batch(
        b"v",
        producer_id=producer_id,
        producer_epoch=0,
        base_sequence=sequence,
        is_transactional=True,
    )
    answer = await client.ask(
        apis.PRODUCE,
        9,
        {
            "acks": -1,
            "transactional_id": "tx",
            "topic_data": [
                {"name": "t", "partition_data": [{"index": number, "records": records}]}
            ],
        },
    )
    assert int(answer.responses[0].partition_responses[0].error_code) == NONE


def _marker(
    producer_id: int = 7,
    *,
    epoch: int = 0,
    coordinator_epoch: int = 0,
    is_commit: bool = True,
    version: int | None = None,
    topics: dict[str, list[int]] | None = None,
) -> dict[str, Any]:
    marker = {
        "producer_id": producer_id,
        "producer_epoch": epoch,
        "transaction_result": is_commit,
        "coordinator_epoch": coordinator_epoch,
        "topics": [
            {"name": name, "partition_indexes": numbers}
            for name, numbers in (topics or {"t": [0]}).items()
        ],
    }
    return marker if version is None else {**marker, "transaction_version": version}


async def _write(
    client: Client, *markers: dict[str, Any], version: int = 1
) -> list[dict[tuple[str, int], int]]:
    """For each marker: (topic, partition) -> error code."""
    answer = await client.ask(apis.WRITE_TXN_MARKERS, version, {"markers": markers})
    assert [one.producer_id for one in answer.markers] == [one["producer_id"] for one in markers]
    return [
        {
            (topic.name, part.partition_index): int(part.error_code)
            for topic in one.topics
            for part in topic.partitions
        }
        for one in answer.markers
    ]


@pytest.mark.parametrize("version", [1, 2])
async def test_markers_end_transactions_in_many_partitions(version) -> None:
    async with broker() as rig:
        logs = await _logs(rig)
        client = rig.client()
        for number in range(3):
            await _send(client, 0, 7, number)
            await _send(client, 0, 8, number)
        outcome = await _write(
            client,
            _marker(7, topics={"t": [0, 1, 2]}),
            _marker(8, is_commit=False, topics={"t": [2]}),
            version=version,
        )
        assert outcome == [{("t", n): NONE for n in range(3)}, {("t", 2): NONE}]
        stable = [log.visibility.last_stable_offset for log in logs]
        assert stable == [1, 1, 4]
        assert logs[2].producers.open_transaction(8) is None


async def test_each_partition_has_its_own_error() -> None:
    async with broker() as rig:
        logs = await _logs(rig)
        client = rig.client()
        await _send(client, 0)
        logs[1].tenure.abandon(NotOwner("moved"))
        (outcome,) = await _write(client, _marker(topics={"t": [0, 1, 9], "other": [0]}))
        assert outcome == {
            ("t", 0): NONE,
            ("t", 1): NOT_LEADER_OR_FOLLOWER,
            ("t", 9): UNKNOWN_TOPIC_OR_PARTITION,
            ("other", 0): UNKNOWN_TOPIC_OR_PARTITION,
        }


async def test_older_epochs_are_fenced() -> None:
    async with broker() as rig:
        await _logs(rig)
        client = rig.client()
        await _send(client, 0)
        await _write(client, _marker(epoch=2, coordinator_epoch=5, is_commit=False))
        (outcome,) = await _write(client, _marker(epoch=2, coordinator_epoch=4))
        assert outcome == {("t", 0): TRANSACTION_COORDINATOR_FENCED}
        (outcome,) = await _write(client, _marker(epoch=1, coordinator_epoch=5))
        assert outcome == {("t", 0): INVALID_PRODUCER_EPOCH}
        (outcome,) = await _write(client, _marker(epoch=2, coordinator_epoch=5))
        assert outcome == {("t", 0): NONE}, "a repeat is harmless"


async def test_markers_of_version_2_need_a_new_epoch() -> None:
    async with broker() as rig:
        (log, *_) = await _logs(rig)
        client = rig.client()
        await _send(client, 0)
        (outcome,) = await _write(client, _marker(version=2), version=2)
        assert outcome == {("t", 0): INVALID_PRODUCER_EPOCH}
        for _ in range(2):
            (outcome,) = await _write(client, _marker(epoch=1, version=2), version=2)
            assert outcome == {("t", 0): NONE}
        assert log.end_offset == 2


@pytest.mark.parametrize("slice_size", [1, 2_000])
async def test_producers_are_described_with_their_open_transactions(
    slice_size, monkeypatch
) -> None:
    """Some in each turn of the event loop, also for encoding."""
    monkeypatch.setattr(producer_encoding, "SLICE", slice_size)
    sizes: list[int] = []

    def spied(api_key: int, version: int, kind: str, elements: Any, to: Any) -> None:
        sizes.append(len(elements))
        encode_elements(api_key, version, kind, elements, to)

    monkeypatch.setattr(partition_transactions, "encode_elements", spied)
    async with broker() as rig:
        await _logs(rig)
        client = rig.client()
        await _send(client, 0, 9)
        await _send(client, 0)
        await _send(client, 1)
        await _write(client, _marker(9, coordinator_epoch=3))
        topics = [{"name": "t", "partition_indexes": [0, 1, 0, 9]}] * 2
        answer = await client.ask(apis.DESCRIBE_PRODUCERS, 0, {"topics": topics})
        first, second, unknown = answer.topics[0].partitions
        assert not answer.topics[1].partitions, "a partition is described once"
        assert sorted(
            (
                one.producer_id,
                one.producer_epoch,
                one.last_sequence,
                one.last_timestamp,
                one.coordinator_epoch,
                one.current_txn_start_offset,
            )
            for one in first.active_producers
        ) == [(7, 0, 1, NOW_MS, -1, 1), (9, 0, 0, NOW_MS, 3, -1)]
        assert sizes == ([1, 1] if slice_size == 1 else [2])
        assert (int(second.error_code), list(second.active_producers)) == (NONE, [])
        assert int(unknown.error_code) == UNKNOWN_TOPIC_OR_PARTITION
