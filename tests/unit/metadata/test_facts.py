"""Typed facts: strict where they are known, kept where they are not."""

from __future__ import annotations

import json
from uuid import UUID

import pytest

from headrace.errors import DataCorrupt, FormatUnsupported
from headrace.metadata import facts
from headrace.metadata.config_facts import BrokerConfigFact
from headrace.metadata.facts import (
    BrokerFact,
    ClusterFact,
    LedgerLink,
    OwnerFact,
    PartitionFact,
    PinFact,
    TopicFact,
    allocate_producer_ids,
)
from headrace.metadata.load_facts import LoadFact, MovedPartition, MovesFact, PartitionRate
from headrace.metadata.memory import MemoryMetadataStore
from headrace.metadata.store import ABSENT

ID = UUID("0123456789abcdef0123456789abcdef")
TOPIC = TopicFact("orders", ID, 6, 1, {"cleanup.policy": "compact"}, 1_700_000_000_000)
LINKS = [
    LedgerLink(3, 10, 1, 1_700, 4_096, 25, 1_900),
    LedgerLink(9, 25, 2),
]
FACTS = [
    TOPIC,
    PartitionFact(12, 2, LINKS),
    PartitionFact(),
    BrokerFact(1, "localhost", 9092, "localhost", 8080, 1_700, "rack-1"),
    BrokerFact(1, "localhost", 9092, "localhost", 8080, 1_700),
    BrokerFact(1, "localhost", 9092, "localhost", 8080, 1_700, None, "5f"),
    OwnerFact(1, "5f", 4),
    PinFact(2),
    BrokerConfigFact({"log.retention.ms": "1"}),
    ClusterFact("abc"),
    BrokerFact(1, "localhost", 9092, "localhost", 8080, 1_700, None, "5f", 1),
    LoadFact("5f", 1_000, 2_000, 310, [PartitionRate(ID, 3, 900)]),
    MovesFact([MovedPartition(ID, 3, 2, 1_700), MovedPartition(ID, 0, 1, 1_800)]),
]


@pytest.mark.parametrize("fact", FACTS, ids=lambda fact: type(fact).__name__)
def test_a_fact_is_what_it_was_stored_as(fact):
    assert type(fact).decode(fact.encode()) == fact


def test_the_stored_shape_stays():
    """Golden: brokers of other versions read this."""
    assert json.loads(TOPIC.encode()) == {
        "v": 1,
        "name": "orders",
        "id": "0123456789abcdef0123456789abcdef",
        "partition_count": 6,
        "replication_factor": 1,
        "configs": {"cleanup.policy": "compact"},
        "created_ms": 1_700_000_000_000,
    }
    assert PartitionFact(12, 2, LINKS).encode() == (
        b'{"v":1,"log_start_offset":12,"leader_epoch":2,"ledgers":['
        b'{"ledger":3,"base_offset":10,"leader_epoch":1,"first_timestamp_ms":1700,'
        b'"size_bytes":4096,"end_offset":25,"max_timestamp_ms":1900},'
        b'{"ledger":9,"base_offset":25,"leader_epoch":2}]}'
    )
    assert [link.is_sealed for link in LINKS] == [True, False]
    assert MovesFact([MovedPartition(ID, 3, 2, 1_700)]).encode() == (
        b'{"v":1,"moves":[{"topic":"0123456789abcdef0123456789abcdef","partition":3,"broker":2,'
        b'"moved_ms":1700}]}'
    )


@pytest.mark.parametrize("fact", FACTS, ids=lambda fact: type(fact).__name__)
def test_fields_of_a_newer_version_are_kept(fact):
    stored = json.loads(fact.encode()) | {"tiers": [{"bucket": "b"}], "note": None}
    decoded = type(fact).decode(json.dumps(stored).encode())
    assert decoded.unknown == {"tiers": [{"bucket": "b"}], "note": None}
    assert json.loads(decoded.encode()) == stored


def test_fields_of_a_newer_version_are_kept_in_links_too():
    stored = json.loads(PartitionFact(0, 0, LINKS).encode())
    stored["ledgers"][0]["tier"] = "s3"
    decoded = PartitionFact.decode(json.dumps(stored).encode())
    assert json.loads(decoded.encode()) == stored


def test_a_newer_version_that_must_not_be_overlooked_is_refused():
    with pytest.raises(FormatUnsupported, match="start a newer one"):
        ClusterFact.decode(b'{"v":2,"id":"a"}')


@pytest.mark.parametrize(
    "change",
    [
        {"v": 0},
        {"v": None},
        {"v": "1"},
        {"name": 5},
        {"name": None},
        {"id": "xyz"},
        {"id": 7},
        {"partition_count": 0},
        {"partition_count": True},
        {"partition_count": 1.0},
        {"partition_count": "6"},
        {"partition_count": 1 << 63},
        {"configs": {"a": 1}},
        {"configs": []},
        {"created_ms": -1},
    ],
    ids=str,
)
def test_a_known_field_of_the_wrong_shape_is_corruption(change):
    stored = json.loads(TOPIC.encode()) | change
    with pytest.raises(DataCorrupt, match="stored topic"):
        TopicFact.decode(json.dumps(stored).encode())


@pytest.mark.parametrize("name", ["name", "id", "partition_count", "configs", "created_ms", "v"])
def test_a_missing_field_is_corruption(name):
    stored = json.loads(TOPIC.encode())
    del stored[name]
    with pytest.raises(DataCorrupt, match=name):
        TopicFact.decode(json.dumps(stored).encode())


@pytest.mark.parametrize("value", [b"", b"\xff", b"[]", b"null", b"{", b"[" * 100_000])
def test_a_fact_that_is_no_json_object_is_reported_as_corruption(value):
    with pytest.raises(DataCorrupt):
        PartitionFact.decode(value)


@pytest.mark.parametrize(
    "links",
    [
        [LedgerLink(1, 10, 0, None, 5, 9, 1)],
        [LedgerLink(1, 0, 0, 1, 5, 10, 1), LedgerLink(2, 9, 0)],
        [LedgerLink(1, 5, 0), LedgerLink(2, 4, 0)],
    ],
    ids=["ends before its base", "overlap", "backwards"],
)
def test_a_chain_that_contradicts_itself_is_corruption(links):
    with pytest.raises(DataCorrupt):
        PartitionFact.decode(PartitionFact(0, 0, links).encode())


def test_keys_lead_back_to_what_they_name():
    assert facts.topic_of_key(facts.topic_key("a/b")) == "a/b"
    key = facts.partition_key(ID, 11)
    assert key == "/partitions/0123456789abcdef0123456789abcdef/11"
    assert key.startswith(facts.partitions_prefix(ID))
    assert facts.partition_of_key(key) == (ID, 11)
    assert facts.broker_key(3) == "/brokers/3"
    with pytest.raises(DataCorrupt):
        facts.partition_of_key("/partitions/x/1")


async def test_producer_ids_go_on_where_they_were_and_a_damaged_counter_is_noticed():
    store = MemoryMetadataStore()
    assert await allocate_producer_ids(store, 1_000) == range(1_000)
    assert await allocate_producer_ids(store, 1) == range(1_000, 1_001)
    await store.delete(facts.PRODUCER_IDS_NEXT, 1)
    await store.put(facts.PRODUCER_IDS_NEXT, b'{"v":1,"next":-4}', ABSENT)
    with pytest.raises(DataCorrupt):
        await allocate_producer_ids(store, 1)
