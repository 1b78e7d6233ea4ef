"""Transactions over the wire, request by request, as clients of both versions send them."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pytest
from tests.kit.broker import BrokerHarness, broker
from tests.kit.records import batch

from headrace.broker.broker_config import BrokerConfig
from headrace.kafka import apis
from headrace.kafka.error_codes import (
    CONCURRENT_TRANSACTIONS,
    INVALID_PRODUCER_EPOCH,
    INVALID_PRODUCER_ID_MAPPING,
    INVALID_REGULAR_EXPRESSION,
    INVALID_REQUEST,
    INVALID_TRANSACTION_TIMEOUT,
    INVALID_TXN_STATE,
    NONE,
    OPERATION_NOT_ATTEMPTED,
    PRODUCER_FENCED,
    TRANSACTION_ABORTABLE,
    UNKNOWN_TOPIC_ID,
    UNKNOWN_TOPIC_OR_PARTITION,
    UNSTABLE_OFFSET_COMMIT,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.kit.kafka_client import Client

CONFIG = BrokerConfig(offsets_partition_count=2, transactions_partition_count=2)
ID, GROUP = "tx", "g"


class Session:
    """One client of one broker with a topic `t` of two partitions."""

    def __init__(self, rig: BrokerHarness) -> None:
        self.rig = rig
        self.client: Client = rig.client()
        self.producer: dict[str, int] = {}

    async def ask(self, api: int, version: int, body: dict[str, Any]) -> Any:
        return await self.client.ask(api, version, body)

    async def init(self, version: int = 4, **fields: Any) -> int:
        body = {"transactional_id": ID, "transaction_timeout": 60_000, **fields}
        if version >= 3:
            body = {"producer_id": -1, "producer_epoch": -1, **body}
        answer = await self.ask(apis.INIT_PRODUCER_ID, version, body)
        if answer.error_code == NONE:
            self.producer = {
                "producer_id": answer.producer_id,
                "producer_epoch": answer.producer_epoch,
            }
        return int(answer.error_code)

    async def add(self, version: int = 3, topic: str = "t", number: int = 0) -> int:
        topics = [{"name": topic, "partitions": [number]}]
        fields = {**self.producer, "transactional_id": ID, "topics": topics}
        body = {f"v3_and_below_{name}": value for name, value in fields.items()}
        answer = await self.ask(apis.ADD_PARTITIONS_TO_TXN, version, body)
        found = answer.results_by_topic_v3_and_below[0].results_by_partition[0]
        return int(found.partition_error_code)

    async def produce(self, version: int, sequence: int, number: int = 0) -> int:
        records = batch(b"v", base_sequence=sequence, is_transactional=True, **self.producer)
        part = {"index": number, "records": records}
        body = {
            "acks": -1,
            "timeout": 1_000,
            "transactional_id": ID,
            "topic_data": [{"name": "t", "partition_data": [part]}],
        }
        answer = await self.ask(apis.PRODUCE, version, body)
        return int(answer.responses[0].partition_responses[0].error_code)

    async def end(self, version: int, *, commit: bool = True) -> int:
        body = {"transactional_id": ID, "committed": commit, **self.producer}
        answer = await self.ask(apis.END_TXN, version, body)
        if version >= 5 and answer.error_code == NONE:
            self.producer = {
                "producer_id": answer.producer_id,
                "producer_epoch": answer.producer_epoch,
            }
        return int(answer.error_code)

    async def commit_offset(self, version: int, offset: int, *, is_added: bool = True) -> int:
        if version < 5 and is_added:
            body = {"transactional_id": ID, "group_id": GROUP, **self.producer}
            answer = await self.ask(apis.ADD_OFFSETS_TO_TXN, min(version, 4), body)
            assert answer.error_code == NONE
        part = {"partition_index": 0, "committed_offset": offset, "committed_metadata": ""}
        topics = [{"name": "t", "partitions": [part]}]
        body = {"transactional_id": ID, "group_id": GROUP, "topics": topics, **self.producer}
        answer = await self.ask(apis.TXN_OFFSET_COMMIT, version, body)
        return int(answer.topics[0].partitions[0].error_code)

    async def offset(self) -> tuple[int, int]:
        """(error code, stable offset) of the group."""
        topics = [{"name": "t", "partition_indexes": [0]}]
        body = {"groups": [{"group_id": GROUP, "topics": topics}], "require_stable": True}
        answer = await self.ask(apis.OFFSET_FETCH, 8, body)
        found = answer.groups[0].topics[0].partitions[0]
        return int(found.error_code), found.committed_offset

    async def ended(self) -> str:
        """The state of the transactional id, when its markers are written."""
        for _ in range(200):
            body = {"state_filters": (), "producer_id_filters": ()}
            answer = await self.ask(apis.LIST_TRANSACTIONS, 0, body)
            state = answer.transaction_states[0].transaction_state
            if not state.startswith("Prepare"):
                return str(state)
            await asyncio.sleep(0.01)
        raise AssertionError("it does not end")


@asynccontextmanager
async def session() -> AsyncIterator[Session]:
    async with broker(CONFIG) as rig:
        await rig.node.register(("localhost", 9092), ("localhost", 8080))
        rig.node.verifications.verifier = rig.node.transaction_checks
        await rig.node.topics.create("t", 2)
        yield Session(rig)


@pytest.mark.parametrize("version", [0, 1, 3, 5])
@pytest.mark.parametrize("commit", [True, False])
async def test_a_transaction_of_version_1(version, commit) -> None:
    async with session() as s:
        assert await s.init(min(version, 4)) == NONE
        epoch = s.producer["producer_epoch"]
        assert await s.add(min(version, 3)) == NONE
        assert await s.produce(9, 0) == NONE
        assert await s.commit_offset(min(version, 4), 5) == NONE
        assert (await s.offset())[0] == UNSTABLE_OFFSET_COMMIT
        assert await s.end(min(version, 4), commit=commit) == NONE
        assert await s.ended() == ("CompleteCommit" if commit else "CompleteAbort")
        assert await s.offset() == (NONE, 5 if commit else -1)
        assert s.producer["producer_epoch"] == epoch


@pytest.mark.parametrize("commit", [True, False])
async def test_transactions_of_version_2_add_by_writing_and_bump_the_epoch(commit) -> None:
    async with session() as s:
        assert await s.init(5) == NONE
        for number in range(3):
            epoch = s.producer["producer_epoch"]
            assert await s.produce(12, 0) == NONE
            assert await s.produce(12, 1) == NONE
            assert await s.produce(12, 0, 1) == NONE
            assert await s.commit_offset(5, 10 + number) == NONE
            assert await s.end(5, commit=commit) == NONE
            assert s.producer["producer_epoch"] == epoch + 1
            assert await s.ended() == ("CompleteCommit" if commit else "CompleteAbort")
        assert await s.offset() == (NONE, 12 if commit else -1)
        stable = [
            partition.visibility.last_stable_offset
            for partition in s.rig.node.topics.get("t").partitions
        ]
        assert stable == [9, 6]


async def test_a_write_that_was_not_added_is_refused() -> None:
    async with session() as s:
        assert await s.init() == NONE
        assert await s.produce(9, 0) == INVALID_TXN_STATE
        assert await s.produce(11, 0) == TRANSACTION_ABORTABLE
        assert await s.commit_offset(4, 1, is_added=False) == TRANSACTION_ABORTABLE


async def test_old_clients_get_the_fencing_code_that_they_know() -> None:
    async with session() as s:
        assert await s.init() == NONE
        first = dict(s.producer)
        assert await s.init() == NONE
        s.producer = first
        for version, expected in ((1, INVALID_PRODUCER_EPOCH), (2, PRODUCER_FENCED)):
            assert await s.add(version) == expected
            assert await s.end(version) == expected
        assert await s.init(3, **first) == INVALID_PRODUCER_EPOCH
        assert await s.init(4, **first) == PRODUCER_FENCED


async def test_a_second_instance_waits_until_the_first_ones_transaction_is_aborted() -> None:
    async with session() as s:
        assert await s.init() == NONE
        assert await s.add() == NONE
        assert await s.produce(9, 0) == NONE
        assert await s.init() == CONCURRENT_TRANSACTIONS
        assert await s.ended() == "CompleteAbort"
        assert await s.init() == NONE
        assert s.producer["producer_epoch"] == 2


async def test_impossible_transaction_requests_are_refused() -> None:
    async with session() as s:
        assert await s.init(transactional_id="") == INVALID_REQUEST
        assert await s.init(transaction_timeout=3_600_000) == INVALID_TRANSACTION_TIMEOUT
        s.producer = {"producer_id": 77, "producer_epoch": 0}
        assert await s.end(3) == INVALID_PRODUCER_ID_MAPPING
        assert await s.init() == NONE
        assert await s.add(topic="nowhere") == UNKNOWN_TOPIC_OR_PARTITION
        assert await s.add(number=9) == UNKNOWN_TOPIC_OR_PARTITION
        assert await s.add(topic="__transaction_state") == UNKNOWN_TOPIC_OR_PARTITION


async def test_partitions_are_added_all_or_none() -> None:
    async with session() as s:
        assert await s.init() == NONE
        topics = [
            {"name": "t", "partitions": [0]},
            {"name": "nowhere", "partitions": [0]},
        ]
        fields = {**s.producer, "transactional_id": ID, "topics": topics}
        body = {f"v3_and_below_{name}": value for name, value in fields.items()}
        answer = await s.ask(apis.ADD_PARTITIONS_TO_TXN, 3, body)
        codes = {
            topic.name: int(topic.results_by_partition[0].partition_error_code)
            for topic in answer.results_by_topic_v3_and_below
        }
        assert codes == {"t": OPERATION_NOT_ATTEMPTED, "nowhere": UNKNOWN_TOPIC_OR_PARTITION}


async def test_transactions_are_listed_by_state() -> None:
    async with session() as s:
        assert await s.init() == NONE
        for states, expected in (((), [ID]), (("Empty",), [ID]), (("Ongoing",), [])):
            body = {"state_filters": states, "producer_id_filters": ()}
            answer = await s.ask(apis.LIST_TRANSACTIONS, 1, {**body, "duration_filter": -1})
            assert [t.transactional_id for t in answer.transaction_states] == expected
        by_pattern = {"state_filters": (), "producer_id_filters": (), "duration_filter": -1}
        for pattern, expected in (
            (None, [ID]), ("", [ID]), (ID[:1] + ".*", [ID]), (ID[:1], []), ("no.*", [])
        ):  # fmt: skip
            body = {**by_pattern, "transactional_id_pattern": pattern}
            answer = await s.ask(apis.LIST_TRANSACTIONS, 2, body)
            assert [t.transactional_id for t in answer.transaction_states] == expected
        body = {**by_pattern, "transactional_id_pattern": "("}
        answer = await s.ask(apis.LIST_TRANSACTIONS, 2, body)
        assert int(answer.error_code) == INVALID_REGULAR_EXPRESSION
        body = {"state_filters": ("Nonsense",), "producer_id_filters": ()}
        answer = await s.ask(apis.LIST_TRANSACTIONS, 0, body)
        assert answer.unknown_state_filters == ("Nonsense",)


async def test_the_coordinator_of_a_transactional_id_is_found_and_features_are_finalised() -> None:
    async with session() as s:
        body = {"key_type": 1, "coordinator_keys": [ID, "other"]}
        answer = await s.ask(apis.FIND_COORDINATOR, 4, body)
        assert [c.error_code for c in answer.coordinators] == [NONE, NONE]
        versions = await s.ask(
            apis.API_VERSIONS,
            3,
            {"client_software_name": "a", "client_software_version": "1"},
        )
        levels = {one.name: one.max_version_level for one in versions.finalized_features}
        assert levels == {"share.version": 2, "streams.version": 1, "transaction.version": 2}


async def test_offsets_of_a_transaction_are_committed_by_topic_id() -> None:
    """KIP-1319: TxnOffsetCommit v6 names topics by their ids only."""

    async with session() as s:
        assert await s.init() == NONE
        part = {
            "partition_index": 0,
            "committed_offset": 7,
            "committed_leader_epoch": -1,
            "committed_metadata": "",
        }
        ids = s.rig.node.topics.get("t").id, UUID(int=7), None
        topics = [{"topic_id": one, "partitions": [part]} for one in ids]
        body = {
            "transactional_id": ID,
            "group_id": GROUP,
            "generation_id_or_member_epoch": -1,
            "member_id": "",
            "group_instance_id": None,
            "topics": topics,
            **s.producer,
        }
        answer = await s.ask(apis.TXN_OFFSET_COMMIT, 6, body)
        codes = {one.topic_id: one.partitions[0].error_code for one in answer.topics}
        expected = NONE, UNKNOWN_TOPIC_ID, UNKNOWN_TOPIC_ID
        assert codes == dict(zip(ids, expected, strict=True))
        assert await s.end(5) == NONE
        assert await s.ended() == "CompleteCommit"
        assert await s.offset() == (NONE, 7)
