"""Requests about leaders, replicas and the cluster, most of which have nothing to do here."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest
from tests.kit.broker import BrokerHarness, broker

from headrace.kafka import apis
from headrace.kafka.error_codes import (
    BROKER_ID_NOT_REGISTERED,
    ELECTION_NOT_NEEDED,
    INVALID_REPLICA_ASSIGNMENT,
    INVALID_REPLICATION_FACTOR,
    INVALID_REQUEST,
    INVALID_UPDATE_VERSION,
    LOG_DIR_NOT_FOUND,
    NO_REASSIGNMENT_IN_PROGRESS,
    NONE,
    UNKNOWN_TOPIC_OR_PARTITION,
    UNSUPPORTED_VERSION,
)
from headrace.kafka.handlers.log_dirs import LOG_DIR

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


@asynccontextmanager
async def broker_of_topic() -> AsyncIterator[BrokerHarness]:
    async with broker() as rig:
        await rig.node.topics.create("t", 2)
        yield rig


@pytest.mark.parametrize("version", range(3))
async def test_an_election_is_not_needed_where_a_partition_has_a_leader(version):
    async with broker_of_topic() as rig:

        async def elect(topics: list[dict[str, Any]] | None, election: int = 0) -> Any:
            request: dict[str, Any] = {"topic_partitions": topics, "timeout": 0}
            if version:
                request["election_type"] = election
            return await rig.client().ask(apis.ELECT_LEADERS, version, request)

        answer = await elect(
            [{"topic": "t", "partitions": (0, 5)}, {"topic": "none", "partitions": (0,)}]
        )
        found = {
            (one.topic, part.partition_id): part.error_code
            for one in answer.replica_election_results
            for part in one.partition_result
        }
        assert found == {
            ("t", 0): ELECTION_NOT_NEEDED,
            ("t", 5): UNKNOWN_TOPIC_OR_PARTITION,
            ("none", 0): UNKNOWN_TOPIC_OR_PARTITION,
        }
        # of all partitions, only those are named that have no leader
        assert not (await elect(None)).replica_election_results
        assert not (await elect([])).replica_election_results
        if version:
            assert (await elect([], 9)).error_code == INVALID_REQUEST


@pytest.mark.parametrize(
    ("name", "partition", "replicas", "code"),
    [
        ("t", 0, (0,), NONE),
        ("t", 0, (1,), INVALID_REPLICA_ASSIGNMENT),
        ("t", 0, (), INVALID_REPLICA_ASSIGNMENT),
        ("t", 0, (0, 0), INVALID_REPLICA_ASSIGNMENT),
        ("t", 0, (-1,), INVALID_REPLICA_ASSIGNMENT),
        ("t", 0, None, NO_REASSIGNMENT_IN_PROGRESS),
        ("t", 2, (0,), UNKNOWN_TOPIC_OR_PARTITION),
        ("none", 0, (0,), UNKNOWN_TOPIC_OR_PARTITION),
        ("none", 0, None, UNKNOWN_TOPIC_OR_PARTITION),
    ],
)
async def test_a_broker_alone_serves_every_partition(name, partition, replicas, code):
    async with broker_of_topic() as rig:
        for version in range(2):
            one = {"partition_index": partition, "replicas": replicas}
            answer = await rig.client().ask(
                apis.ALTER_PARTITION_REASSIGNMENTS,
                version,
                {"topics": [{"name": name, "partitions": [one]}]},
            )
            (result,) = answer.responses[0].partitions
            assert (answer.error_code, result.error_code) == (NONE, code)
            assert bool(result.error_message) == (code != NONE)
        for topics in (None, [], [{"name": name, "partition_indexes": (partition,)}]):
            listed = await rig.client().ask(
                apis.LIST_PARTITION_REASSIGNMENTS, 0, {"topics": topics}
            )
            assert (listed.error_code, listed.topics) == (NONE, ())


async def test_a_request_without_partitions_changes_nothing_and_one_too_many_is_refused(
    monkeypatch,
):
    async with broker_of_topic() as rig:

        async def alter(topics: list[dict[str, Any]]) -> Any:
            request = {"topics": topics, "allow_replication_factor_change": False}
            return await rig.client().ask(apis.ALTER_PARTITION_REASSIGNMENTS, 1, request)

        answer = await alter([])
        assert (answer.responses, answer.allow_replication_factor_change) == ((), False)
        partitions = [{"partition_index": n, "replicas": (0,)} for n in (0, 1)]
        monkeypatch.setattr("headrace.broker.services.reassignments.PARTITIONS_MAX", 1)
        answer = await alter([{"name": "t", "partitions": partitions}])
        assert [one.error_code for one in answer.responses[0].partitions] == [NONE, INVALID_REQUEST]


async def test_the_number_of_copies_is_not_changed_by_a_reassignment(monkeypatch):
    async def _registered(rig: Any, broker_id: int) -> Any:
        await rig.node.register(("127.0.0.1", 1), ("127.0.0.1", 0))
        (fact,) = rig.node.ownership.brokers()
        fact.id = broker_id
        return fact

    async with broker_of_topic() as rig:
        live = [await _registered(rig, broker_id) for broker_id in range(2)]
        monkeypatch.setattr(rig.node.ownership, "brokers", lambda: live)
        one = {"partition_index": 0, "replicas": (0, 1)}
        answer = await rig.client().ask(
            apis.ALTER_PARTITION_REASSIGNMENTS, 0, {"topics": [{"name": "t", "partitions": [one]}]}
        )
        (result,) = answer.responses[0].partitions
        assert result.error_code == INVALID_REPLICATION_FACTOR


async def test_a_partition_can_be_moved_to_the_one_directory_only():
    async with broker_of_topic() as rig:
        for version in (1, 2):
            dirs = [
                {"path": LOG_DIR, "topics": [{"name": "t", "partitions": (0, 9)}]},
                {"path": "/other", "topics": [{"name": "t", "partitions": (1,)}]},
                {"path": "/other", "topics": [{"name": "none", "partitions": (0,)}]},
            ]
            answer = await rig.client().ask(apis.ALTER_REPLICA_LOG_DIRS, version, {"dirs": dirs})
            found = {
                (topic.topic_name, one.partition_index): one.error_code
                for topic in answer.results
                for one in topic.partitions
            }
            assert found == {
                ("t", 0): NONE,
                ("t", 9): UNKNOWN_TOPIC_OR_PARTITION,
                ("t", 1): LOG_DIR_NOT_FOUND,
                ("none", 0): UNKNOWN_TOPIC_OR_PARTITION,
            }


@pytest.mark.parametrize("version", range(3))
async def test_there_is_no_metadata_quorum(version):
    async with broker_of_topic() as rig:
        topics = [{"topic_name": "__cluster_metadata", "partitions": [{"partition_index": 0}]}]
        answer = await rig.client().ask(apis.DESCRIBE_QUORUM, version, {"topics": topics})
        assert (answer.error_code, answer.topics) == (UNSUPPORTED_VERSION, ())
        assert version < 2 or "no metadata quorum" in answer.error_message


@pytest.mark.parametrize(
    ("feature", "level", "code"),
    [
        ("share.version", 2, NONE),
        ("share.version", 3, INVALID_UPDATE_VERSION),
        ("share.version", 0, INVALID_UPDATE_VERSION),
        ("metadata.version", 27, INVALID_UPDATE_VERSION),
    ],
)
@pytest.mark.parametrize("upgrade_type", [1, 2, 3, 4])
async def test_features_keep_the_levels_that_they_have(feature, level, code, upgrade_type):
    async with broker_of_topic() as rig:
        update = {"feature": feature, "max_version_level": level}
        expected = INVALID_REQUEST if upgrade_type == 4 else code
        for version in range(3):
            update["allow_downgrade"] = True
            if version:
                update.pop("allow_downgrade")
                update["upgrade_type"] = upgrade_type
            answer = await rig.client().ask(
                apis.UPDATE_FEATURES, version, {"feature_updates": [update]}
            )
            assert answer.error_code == (expected if version else code)
            done = [result.error_code for result in getattr(answer, "results", ())]
            assert done == ([NONE] if answer.error_code == NONE and version < 2 else [])
        twice = {"feature_updates": [update, update]}
        answer = await rig.client().ask(apis.UPDATE_FEATURES, 2, twice)
        assert answer.error_code == INVALID_REQUEST
        answer = await rig.client().ask(apis.UPDATE_FEATURES, 2, {"feature_updates": []})
        assert answer.error_code == NONE


async def test_a_registration_ends_with_its_broker_alone():
    async with broker_of_topic() as rig:
        await rig.node.register(("127.0.0.1", 1), ("127.0.0.1", 0))
        for broker_id, code in ((0, INVALID_REQUEST), (7, BROKER_ID_NOT_REGISTERED)):
            answer = await rig.client().ask(apis.UNREGISTER_BROKER, 0, {"broker_id": broker_id})
            assert answer.error_code == code
            assert answer.error_message


async def test_resources_with_a_configuration_are_listed_by_type():
    async with broker_of_topic() as rig:
        await rig.node.services.configurations.replace_group(
            "g", {"share.auto.offset.reset": "earliest"}
        )

        async def listed(*kinds: int) -> Any:
            return await rig.client().ask(
                apis.LIST_CONFIG_RESOURCES, 1, {"resource_types": list(kinds)}
            )

        def pairs(answer: Any) -> set[tuple[int, str]]:
            assert answer.error_code == NONE
            return {(one.resource_type, one.resource_name) for one in answer.config_resources}

        assert pairs(await listed()) == {(2, "t"), (4, "0"), (32, "g")}
        assert pairs(await listed(2, 2, 8)) == {(2, "t")}
        for unknown in (0, 1, 64):
            answer = await listed(2, unknown)
            assert (answer.error_code, answer.config_resources) == (UNSUPPORTED_VERSION, ())
