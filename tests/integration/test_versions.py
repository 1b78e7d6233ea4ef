"""Every version of every API that is advertised is answered, and decodes as its schema says.

One minimal valid request each, encoded and decoded by kio; error codes are all 0 unless the table
says what else is promised.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING
from uuid import UUID

import pytest
from tests.integration.raw import (
    Closed,
    Raw,
    batch,
    batches_of,
    error_codes,
    fetch_values,
    frame,
    parse,
    produce_values,
)

from headrace.kafka.apis import APIS, TELEMETRY
from headrace_verify.kafka_wire import is_in_kio

if TYPE_CHECKING:
    from tests.integration.broker import Broker

UNKNOWN_MEMBER_ID, UNSUPPORTED_VERSION, GROUP_ID_NOT_FOUND = 25, 35, 69
SECURITY_DISABLED, LOG_DIR_NOT_FOUND, ELECTION_NOT_NEEDED = 54, 57, 84
DELEGATION_TOKEN_REQUEST_NOT_ALLOWED = 64
THROTTLING_QUOTA_EXCEEDED, RESOURCE_NOT_FOUND = 89, 91
BROKER_ID_NOT_REGISTERED, UNKNOWN_SUBSCRIPTION_ID = 102, 117
MEMBER_ID_REQUIRED, SHARE_SESSION_NOT_FOUND = 79, 122
TOPIC, GROUP = "versions", "versions-group"
CLIENT = UUID(int=7)
_numbers = itertools.count()


@pytest.fixture(scope="session")
def topic_id(shared_broker: Broker) -> UUID:
    """The id of a topic with some records and a group with an offset."""
    with Raw(shared_broker.address) as raw:
        made = raw.call(19, 7, topics=[topic_values(TOPIC)], timeout=5000)
        assert error_codes(made) == [0], made
        for _ in range(5):
            answer = raw.call(0, 7, **produce_values(TOPIC, None, batch(b"a", b"b")))
            assert error_codes(answer) == [0]
        return made.topics[0].topic_id


def topic_values(name: str, partitions: int = 1) -> dict:
    return {"name": name, "num_partitions": partitions, "replication_factor": 1}


def commit_values(topic: str, topic_id: UUID, group: str, offset: int = 3) -> dict:
    part = {
        "partition_index": 0,
        "committed_offset": offset,
        "committed_leader_epoch": -1,
        "committed_metadata": "metadata ✓",
    }
    return {
        "group_id": group,
        "generation_id_or_member_epoch": -1,
        "retention_time": -1,
        "topics": [{"name": topic, "topic_id": topic_id, "partitions": [part]}],
    }


def minimal(api: int, version: int, topic_id: UUID, fresh: str) -> dict:
    """A small valid request; `fresh` is the name of a topic made for it, or to be made."""
    one = [{"partition_index": 0, "timestamp": -1, "current_leader_epoch": -1}]
    config = {"name": "retention.ms", "value": "86400000"}
    resource = {"resource_type": 2, "resource_name": fresh}
    epochs = {"partition": 0, "current_leader_epoch": -1}
    named = [{"name": TOPIC, "topic_id": topic_id, "partition_indexes": (0,)}]
    return {
        0: produce_values(TOPIC, topic_id, batch(b"v")),
        1: fetch_values(TOPIC, topic_id, 0),
        2: {"replica_id": -1, "topics": [{"name": TOPIC, "partitions": one}]},
        3: {"topics": [{"name": TOPIC}], "allow_auto_topic_creation": True},
        8: commit_values(TOPIC, topic_id, GROUP),
        9: {
            "group_id": GROUP,
            "topics": [{"name": TOPIC, "partition_indexes": (0,)}],
            "groups": [{"group_id": GROUP, "member_epoch": -1, "topics": named}],
        },
        10: {"key": GROUP, "coordinator_keys": (GROUP,)},
        11: {
            "group_id": fresh,
            "session_timeout": 10_000,
            "rebalance_timeout": 10_000,
            "protocol_type": "consumer",
            "protocols": [{"name": "range", "metadata": b""}],
        },
        12: {"group_id": GROUP, "generation_id": 1, "member_id": "nobody"},
        13: {"group_id": GROUP, "member_id": "nobody", "members": [{"member_id": "nobody"}]},
        14: {"group_id": GROUP, "generation_id": 1, "member_id": "nobody"},
        15: {"groups": (GROUP,)},
        16: {},
        17: {"mechanism": "PLAIN"},
        18: {"client_software_name": "raw", "client_software_version": "1"},
        19: {"topics": [topic_values(fresh + "-new")], "timeout": 5000},
        20: {"topic_names": (fresh,), "topics": [{"name": fresh}], "timeout": 5000},
        21: {
            "topics": [{"name": fresh, "partitions": [{"partition_index": 0, "offset": 0}]}],
            "timeout": 5000,
        },
        22: {"producer_id": -1, "producer_epoch": -1, "transaction_timeout": 1000},
        23: {"replica_id": -1, "topics": [{"topic": TOPIC, "partitions": [epochs]}]},
        27: {
            "markers": [
                {
                    "producer_id": 7,
                    "producer_epoch": 0,
                    "transaction_result": True,
                    "coordinator_epoch": 0,
                    "topics": [{"name": fresh, "partition_indexes": (0,)}],
                }
            ]
        },
        24: {},
        25: {"group_id": GROUP},
        26: {"committed": True},
        28: {
            "group_id": GROUP,
            "generation_id": -1,
            "topics": [
                {
                    "name": TOPIC,
                    "partitions": [
                        {
                            "partition_index": 0,
                            "committed_offset": 3,
                            "committed_leader_epoch": -1,
                        }
                    ],
                }
            ],
        },
        29: acl_values("_filter", pattern=1, allow=1),
        30: {"creations": [acl_values(resource_pattern_type=3)]},
        31: {"filters": [acl_values("_filter", pattern=1, allow=1)]},
        32: {"resources": [resource]},
        33: {"resources": [resource | {"configs": [config]}]},
        34: {"dirs": [{"path": "/", "topics": [{"name": TOPIC, "partitions": (0,)}]}]},
        35: {"topics": None},
        36: {"auth_bytes": b"\0user\0password"},
        37: {"topics": [{"name": fresh, "count": 2}], "timeout": 5000},
        41: {"owners": None},
        42: {"groups_names": (fresh + "-group",)},
        43: {"topic_partitions": [{"topic": TOPIC, "partitions": (0,)}], "timeout": 5000},
        44: {"resources": [resource | {"configs": [config]}]},
        45: {"topics": [reassignment_values(TOPIC)], "timeout": 5000},
        46: {"topics": None, "timeout": 5000},
        47: {
            "group_id": fresh + "-group",
            "topics": [{"name": TOPIC, "partitions": [{"partition_index": 0}]}],
        },
        48: {"components": [], "strict": False},
        49: {
            "entries": [
                {
                    "entity": [{"entity_type": "client-id", "entity_name": fresh}],
                    "ops": [{"key": "producer_byte_rate", "value": 1e9, "remove": False}],
                }
            ],
            "validate_only": True,
        },
        50: {"users": [{"name": fresh}]},
        51: {
            "upsertions": [
                {
                    "name": fresh,
                    "mechanism": 1,
                    "iterations": 4096,
                    "salt": b"salt",
                    "salted_password": bytes(32),
                }
            ]
        },
        55: {"topics": [{"topic_name": TOPIC, "partitions": [{"partition_index": 0}]}]},
        57: {"feature_updates": [{"feature": "share.version", "max_version_level": 2}]},
        60: {"endpoint_type": 1},
        61: {"topics": [{"name": TOPIC, "partition_indexes": (0,)}]},
        64: {"broker_id": 99},
        65: {"transactional_ids": (fresh,)},
        66: {"duration_filter": -1},
        68: {
            "group_id": fresh,
            "member_id": "member-of-" + fresh,
            "member_epoch": 0,
            "rebalance_timeout": 10_000,
            "subscribed_topic_names": (TOPIC,),
            "topic_partitions": (),
        },
        69: {"group_ids": (fresh + "-consumers",), "include_authorized_operations": True},
        71: {"client_instance_id": CLIENT},
        72: {"client_instance_id": CLIENT, "subscription_id": 1},
        74: {"resource_types": (2,)},
        75: {"topics": [{"name": TOPIC}], "response_partition_limit": 10},
        76: {"group_id": fresh, "member_id": "m", "subscribed_topic_names": (TOPIC,)},
        77: {"group_ids": (fresh,)},
        78: share_values(fresh, topic_id) | {"max_bytes": 1_000_000, "max_records": 10},
        79: share_values(fresh, topic_id) | {"share_session_epoch": 1},
        83: share_state(fresh, topic_id, state_epoch=0, start_offset=0),
        86: share_state(fresh, topic_id),
        87: share_state(fresh, topic_id, leader_epoch=-1),
        88: streams_values(fresh),
        89: {"group_ids": (fresh + "-streams",), "include_authorized_operations": True},
        90: {"groups": [{"group_id": fresh, "topics": None}]},
        91: {
            "group_id": fresh,
            "topics": [
                {"topic_name": TOPIC, "partitions": [{"partition_index": 0, "start_offset": 0}]}
            ],
        },
        92: {"group_id": fresh, "topics": [{"topic_name": TOPIC}]},
    }[api]


def acl_values(
    suffix: str = "", *, pattern: int | None = None, allow: int = 3, **more: int
) -> dict:
    """A rule, or the filter that finds it."""
    patterns = {} if pattern is None else {"pattern_type_filter": pattern}
    names = {"resource_type": 2, "resource_name": TOPIC, "principal": "User:x", "host": "*"}
    named = {f"{name}{suffix}": value for name, value in names.items()}
    return {**named, **patterns, **more, "operation": 3, "permission_type": allow}


def reassignment_values(topic: str) -> dict:
    return {"name": topic, "partitions": [{"partition_index": 0, "replicas": (0,)}]}


def share_values(group: str, topic_id: UUID) -> dict:
    topics = [{"topic_id": topic_id, "partitions": [{"partition_index": 0}]}]
    return {"group_id": group, "member_id": "m", "topics": topics}


def streams_values(group: str) -> dict:
    """A member that joins an application which reads one topic, without state."""
    subtopology = {"subtopology_id": "0", "source_topics": (TOPIC,)}
    return {
        "group_id": group,
        "member_id": "member-of-" + group,
        "member_epoch": 0,
        "rebalance_timeout": 10_000,
        "topology": {"epoch": 0, "subtopologies": [subtopology]},
        "active_tasks": (),
        "standby_tasks": (),
        "warmup_tasks": (),
        "process_id": "p",
        "endpoint_information_epoch": -1,
    }


def share_state(group: str, topic_id: UUID, **values: int) -> dict:
    topics = [{"topic_id": topic_id, "partitions": [{"partition": 0, **values}]}]
    return {"group_id": group, "topics": topics}


def begin_transaction(raw: Raw, api: int, version: int, fresh: str) -> dict:
    """A producer with a transactional id, as the request names it; where it has to be in one, a
    transaction with the offsets of a group."""
    made = raw.call(
        22,
        4,
        transactional_id=fresh,
        transaction_timeout=10_000,
        producer_id=-1,
        producer_epoch=-1,
    )
    assert error_codes(made) == [0]
    who = {
        "transactional_id": fresh,
        "producer_id": made.producer_id,
        "producer_epoch": made.producer_epoch,
    }
    topics = [{"name": TOPIC, "partitions": (0,)}]
    if api == ADD_PARTITIONS and version < 4:
        return {f"v3_and_below_{name}": value for name, value in (who | {"topics": topics}).items()}
    if api == ADD_PARTITIONS:
        return {"transactions": [who | {"topics": topics}]}
    if api in {END_TRANSACTION, COMMIT_OFFSETS}:
        assert error_codes(raw.call(25, 3, **who, group_id=GROUP)) == [0]
    return who


NEEDS_A_TOPIC = {20, 21, 27, 32, 33, 37, 44}
NEEDS_A_GROUP = {42, 47}
ADD_PARTITIONS, ADD_OFFSETS, END_TRANSACTION, COMMIT_OFFSETS = 24, 25, 26, 28
DESCRIBE_TRANSACTIONS = 65
DESCRIBE_CONSUMERS, DESCRIBE_STREAMS = 69, 89
NEEDS_A_TRANSACTION = {ADD_PARTITIONS, ADD_OFFSETS, END_TRANSACTION, COMMIT_OFFSETS}
ILLEGAL_SASL_STATE = 34
PROMISED_ERRORS = {
    17: {ILLEGAL_SASL_STATE},
    36: {ILLEGAL_SASL_STATE},
    11: {0, MEMBER_ID_REQUIRED},
    12: {UNKNOWN_MEMBER_ID},
    13: {0, UNKNOWN_MEMBER_ID},
    14: {UNKNOWN_MEMBER_ID},
    29: {SECURITY_DISABLED},
    30: {SECURITY_DISABLED},
    31: {SECURITY_DISABLED},
    34: {LOG_DIR_NOT_FOUND},
    41: {DELEGATION_TOKEN_REQUEST_NOT_ALLOWED},
    43: {0, ELECTION_NOT_NEEDED},
    50: {0, RESOURCE_NOT_FOUND},
    55: {UNSUPPORTED_VERSION},
    64: {BROKER_ID_NOT_REGISTERED},
    72: {THROTTLING_QUOTA_EXCEEDED, UNKNOWN_SUBSCRIPTION_ID},
    77: {GROUP_ID_NOT_FOUND},
    79: {SHARE_SESSION_NOT_FOUND},
    90: {GROUP_ID_NOT_FOUND},
    92: {GROUP_ID_NOT_FOUND},
}
UNREADABLE = {38, 39, 40}
"""Responses about tokens: kio cannot read Kafka's -1 for no time (tests/unit/kafka has them)."""
VERSIONS = [
    pytest.param(api.key, version, id=f"{api.name}-v{version}")
    for api in APIS.values()
    for version in range(api.version_min, api.version_max + 1)
    if is_in_kio(api.key, version) and api.key not in UNREADABLE
]


def test_advertised_versions_are_the_tested_ones(broker):
    with Raw(broker.address) as raw:
        for version in range(5):
            told = raw.call(18, version, client_software_name="raw", client_software_version="1")
            ranges = {int(item.api_key): item for item in told.api_keys}
            assert {key: item.max_version for key, item in ranges.items()} == {
                key: api.version_max for key, api in APIS.items() if key not in TELEMETRY
            }
            assert all(
                item.min_version == APIS[key].version_min for key, item in ranges.items() if key
            )
            assert ranges[0].min_version == 0  # as Kafka 4 says it, for old librdkafka


@pytest.mark.parametrize(("api", "version"), VERSIONS)
def test_each_version_is_answered(broker, topic_id, api, version):
    fresh = f"versions-{api}-{version}-{next(_numbers)}"
    with Raw(broker.address) as raw:
        if api in NEEDS_A_TOPIC:
            made = raw.call(19, 7, topics=[topic_values(fresh)], timeout=5000)
            assert error_codes(made) == [0]
        if api in NEEDS_A_GROUP:
            values = commit_values(TOPIC, topic_id, fresh + "-group")
            assert error_codes(raw.call(8, 9, **values)) == [0]
        if api == 9:
            values = commit_values(TOPIC, topic_id, GROUP)
            assert error_codes(raw.call(8, 9, **values)) == [0]
        values = minimal(api, version, topic_id, fresh)
        if api in NEEDS_A_TRANSACTION:
            values |= begin_transaction(raw, api, version, fresh)
        if api == DESCRIBE_CONSUMERS:
            joined = minimal(68, 1, topic_id, fresh + "-consumers")
            assert error_codes(raw.call(68, 1, **joined)) == [0]
        if api == DESCRIBE_STREAMS:
            joined = minimal(88, 0, topic_id, fresh + "-streams")
            assert error_codes(raw.call(88, 0, **joined)) == [0]
        if api == DESCRIBE_TRANSACTIONS:
            begin_transaction(raw, END_TRANSACTION, 3, fresh)
        answer = raw.call(api, version, **values)
    codes = set(error_codes(answer))
    assert codes <= PROMISED_ERRORS.get(api, {0}), answer
    check(api, version, answer)


def check(api: int, version: int, answer) -> None:
    """The least that the answer must contain."""
    if api == 0:
        assert answer.responses[0].partition_responses[0].base_offset >= 10
    if api == 1:
        part = answer.responses[0].partitions[0]
        assert part.high_watermark >= 10
        assert len(batches_of(part.records)) >= 5
    if api == 2:
        assert answer.topics[0].partitions[0].offset >= 10
    if api == 3:
        assert [topic.name for topic in answer.topics] == [TOPIC]
        assert len(answer.topics[0].partitions) == 1
    if api == 9:
        group = answer if version < 8 else answer.groups[0]
        part = group.topics[0].partitions[0]
        assert (part.committed_offset, part.metadata) == (3, "metadata ✓")
    if api == 10:
        at = answer if version < 4 else answer.coordinators[0]
        assert at.port > 0
    if api == 22:
        assert answer.producer_id >= 0
        assert answer.producer_epoch == 0
    if api == 23:
        assert answer.topics[0].partitions[0].end_offset >= 10
    if api == 32:
        assert len(answer.results[0].configs) > 10
    if api == 60:
        assert len(answer.brokers) == 1
    if api == 75:
        assert answer.topics[0].name == TOPIC
    check_of_groups(api, version, answer)


def check_of_groups(api: int, version: int, answer) -> None:
    """The same, of consumer groups of the new protocol and of streams groups."""
    if api == 68:
        assert answer.member_epoch == 1
        assert [t.partitions for t in answer.assignment.topic_partitions] == [(0,)]
    if api == 69:
        member = answer.groups[0].members[0]
        assert answer.groups[0].group_state == "Stable"
        assert member.assignment.topic_partitions[0].topic_name == TOPIC
        assert version < 1 or member.member_type == 1
    if api == 88:
        assert answer.member_epoch > 0
        assert answer.status == ()
    if api == 89:
        (group,) = answer.groups
        assert (group.group_state, len(group.members)) in {("Assigning", 1), ("Stable", 1)}
        assert group.topology.subtopologies[0].source_topics == (TOPIC,)


@pytest.mark.parametrize("version", range(10))
def test_a_member_joins_commits_and_leaves_in_each_version(broker, topic_id, version):
    group = f"cycle-{version}"
    who = {"group_id": group, "member_id": "", "group_instance_id": None}
    join = minimal(11, version, topic_id, group) | {"group_id": group}
    with Raw(broker.address) as raw:
        joined = raw.call(11, version, **join)
        if version >= 4:
            assert error_codes(joined) == [MEMBER_ID_REQUIRED]
            joined = raw.call(11, version, **join | {"member_id": joined.member_id})
        assert error_codes(joined) == [0]
        assert joined.leader == joined.member_id
        assert [member.member_id for member in joined.members] == [joined.member_id]
        who |= {"member_id": joined.member_id, "generation_id": joined.generation_id}
        assigned = {"member_id": joined.member_id, "assignment": b"all of it"}
        names = {"protocol_type": "consumer", "protocol_name": "range"}
        synced = raw.call(14, min(version, 5), assignments=[assigned], **who, **names)
        assert error_codes(synced) == [0]
        assert synced.assignment == b"all of it"
        assert error_codes(raw.call(12, min(version, 4), **who)) == [0]
        commit = commit_values(TOPIC, topic_id, group)
        commit["generation_id_or_member_epoch"] = joined.generation_id
        commit["member_id"] = joined.member_id
        assert error_codes(raw.call(8, max(2, version), **commit)) == [0]
        told = raw.call(15, min(version, 6), groups=(group,)).groups[0]
        assert told.group_state == "Stable"
        assert told.members[0].member_assignment == b"all of it"
        leaving = {"members": [{"member_id": joined.member_id}]} | who
        assert set(error_codes(raw.call(13, min(version, 5), **leaving))) == {0}
        assert set(error_codes(raw.call(12, min(version, 4), **who))) == {UNKNOWN_MEMBER_ID}


def test_api_versions_of_the_future_is_answered_in_v0(broker):
    with Raw(broker.address) as raw:
        for version in (APIS[18].version_max + 1, 99):
            future = frame(18, 4, {"client_software_name": "x", "client_software_version": "1"})
            raw.send(future[:6] + version.to_bytes(2, "big") + future[8:])
            told = parse(18, 0, raw.receive())
            assert told.error_code == UNSUPPORTED_VERSION
            assert len(told.api_keys) == len(APIS)
        assert error_codes(raw.call(18, 0)) == [0]  # and the connection goes on


def test_bytes_after_a_request_are_ignored_as_in_kafka(broker, topic_id):
    # librdkafka 2.16 asking for all topics, to the byte.
    asked = bytes.fromhex("0000001900 03000d00000003000772646b61666b61 00 00000000010000")
    with Raw(broker.address) as raw:
        raw.send(asked)
        told = parse(3, 13, raw.receive(), 3)
        assert TOPIC in [topic.name for topic in told.topics]


def test_no_keys_of_configs_stand_for_all(broker, topic_id):
    with Raw(broker.address) as raw:
        for keys, count in ((None, 20), ((), 20), (("retention.ms", "absent"), 1)):
            resource = {"resource_type": 2, "resource_name": TOPIC, "configuration_keys": keys}
            told = raw.call(32, 4, resources=[resource]).results[0].configs
            assert len(told) == count if count == 1 else len(told) > count


@pytest.mark.parametrize("version", [0, 1, 2])
def test_produce_of_the_past_is_refused_as_kafka_4_does(broker, version):
    with Raw(broker.address) as raw:
        request = frame(0, 3, produce_values(TOPIC, None, batch(b"v")))
        raw.send(request[:6] + version.to_bytes(2, "big") + request[8:])
        with pytest.raises(Closed):
            raw.receive()


def test_answers_come_in_the_order_of_requests(broker, topic_id):
    with Raw(broker.address) as raw:
        waits = frame(1, 4, fetch_values(TOPIC, None, 0, min_bytes=1_000_000, max_wait=700), 1)
        quick = frame(18, 0, {}, 2)
        raw.send(waits + quick)
        parse(1, 4, raw.receive(), 1)
        parse(18, 0, raw.receive(), 2)


# --- sequences of idempotent producers, by hand -----------------------------------------------


def produce(raw: Raw, topic: str, producer: tuple[int, int, int], *values: bytes):
    answer = raw.call(0, 8, **produce_values(topic, None, batch(*values, producer=producer)))
    part = answer.responses[0].partition_responses[0]
    return int(part.error_code), part.base_offset


def test_retries_are_answered_with_their_offset_and_gaps_are_refused(own_broker):
    with Raw(own_broker.address) as raw:
        raw.call(19, 7, topics=[topic_values("seq")], timeout=5000)
        made = raw.call(22, 4, producer_id=-1, producer_epoch=-1, transaction_timeout=1000)
        mine = made.producer_id, made.producer_epoch
        assert produce(raw, "seq", (*mine, 0), b"a", b"b") == (0, 0)
        assert produce(raw, "seq", (*mine, 2), b"c") == (0, 2)
        assert produce(raw, "seq", (*mine, 0), b"a", b"b") == (0, 0)
        assert produce(raw, "seq", (*mine, 2), b"c") == (0, 2)
        assert produce(raw, "seq", (*mine, 5), b"gap")[0] == 45
    for again in (own_broker.restart, own_broker.crash):
        again()
        with Raw(own_broker.address) as raw:
            assert produce(raw, "seq", (*mine, 2), b"c") == (0, 2)
            assert produce(raw, "seq", (*mine, 9), b"gap")[0] == 45
    with Raw(own_broker.address) as raw:
        assert produce(raw, "seq", (*mine, 3), b"d") == (0, 3)
        # An idempotent producer bumps its epoch by itself; the broker would give it a new id.
        assert produce(raw, "seq", (mine[0], mine[1] + 1, 0), b"e") == (0, 4)
        assert produce(raw, "seq", (*mine, 4), b"old epoch")[0] == 47
        for named in (-1, -1), mine:
            other = raw.call(22, 4, producer_id=named[0], producer_epoch=named[1])
            assert other.producer_id != mine[0], "an id is never given twice, restarts or not"
            assert other.producer_epoch == 0


def test_producers_that_name_the_same_id_store_all_their_records(broker, name):
    producers, records = 4, 50
    with Raw(broker.address) as raw:
        raw.call(19, 7, topics=[topic_values(name)], timeout=5000)
        made = [raw.call(22, 4, producer_id=0, producer_epoch=0) for _ in range(producers)]
        for number in range(records):
            for one in made:
                producer = one.producer_id, one.producer_epoch, number
                code, offset = produce(raw, name, producer, b"%d" % number)
                assert code == 0
        assert offset == producers * records - 1
