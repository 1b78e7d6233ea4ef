"""What administers the cluster over Kafka's protocol is in the audit log, with the resource's name.

The requests are made from Kafka's definitions, as those of `test_authorization`.
"""

from __future__ import annotations

import json
import logging

import pytest
from tests.unit.kafka.access_rig import GROUP, TOPIC, NamedClient, made
from tests.unit.kafka.test_authorization import ROOT, guarded

from headrace.broker.security.authorizer import CLUSTER_NAME
from headrace.kafka import apis
from headrace.kafka.authorization import is_change

ON_TOPIC, ON_GROUP, ON_BOTH, ON_CLUSTER = [TOPIC], [GROUP], [GROUP, TOPIC], [CLUSTER_NAME]
CHANGES = {
    "CreateTopics": ON_TOPIC,
    "DeleteTopics": ON_TOPIC,
    "DeleteRecords": ON_TOPIC,
    "CreatePartitions": ON_TOPIC,
    "AlterConfigs": ON_TOPIC,
    "IncrementalAlterConfigs": ON_TOPIC,
    "ElectLeaders": ON_TOPIC,
    "AlterPartitionReassignments": ON_TOPIC,
    "AlterReplicaLogDirs": ON_CLUSTER,
    "DeleteGroups": ON_GROUP,
    "OffsetDelete": ON_BOTH,
    "AlterShareGroupOffsets": ON_BOTH,
    "DeleteShareGroupOffsets": ON_BOTH,
    "CreateAcls": ON_TOPIC,
    "DeleteAcls": ON_CLUSTER,
    "AlterClientQuotas": ["user=alice", "client-id=<default>"],
    "AlterUserScramCredentials": [TOPIC],  # which the request has for a name
    "CreateDelegationToken": ["alice"],
    "RenewDelegationToken": [],  # it is named by its password alone
    "ExpireDelegationToken": [],
    "UpdateFeatures": ON_CLUSTER,
    "UnregisterBroker": ON_CLUSTER,
}
FIELDS = {
    "CreateDelegationToken": {"owner_principal_type": "User", "owner_principal_name": "alice"},
    "AlterClientQuotas": {
        "entries": [
            {
                "entity": [
                    {"entity_type": "user", "entity_name": "alice"},
                    {"entity_type": "client-id", "entity_name": None},
                ],
                "ops": [{"key": "producer_byte_rate", "value": 1e6, "remove": False}],
            }
        ]
    },
}


@pytest.fixture
def lines(caplog):
    caplog.set_level(logging.INFO, "headrace.audit")

    def found():
        texts = [one.getMessage() for one in caplog.records if one.name == "headrace.audit"]
        return [json.loads(text) for text in texts]

    return found


def test_these_requests_administer_something():
    assert {api.name for api in apis.APIS.values() if is_change(api)} == {*CHANGES}


@pytest.mark.parametrize("name", CHANGES)
async def test_a_request_that_administers_is_in_the_audit_log(name, lines):
    (api,) = [one for one in apis.APIS.values() if one.name == name]
    async with guarded() as rig:
        topic = rig.node.topics.get(TOPIC)
        request = made(api, api.version_max, topic.id) | FIELDS.get(name, {})
        await NamedClient(rig, ROOT).ask(api.key, api.version_max, request)
        (line,) = lines()
    assert (line["event"], line["principal"]) == ("changed", "User:root")
    assert (line["request"], line["resources"]) == (name, CHANGES[name])


async def test_the_settings_of_all_brokers_are_those_of_the_cluster(lines):
    async with guarded() as rig:
        config = {"name": "max.connections", "config_operation": 0, "value": "1000"}
        resource = {"resource_type": 4, "resource_name": "", "configs": [config]}
        request = {"resources": [resource], "validate_only": False}
        await NamedClient(rig, ROOT).ask(apis.INCREMENTAL_ALTER_CONFIGS, 1, request)
        (line,) = lines()
    assert line["resources"] == ON_CLUSTER
    assert "failed" not in line


async def test_a_topic_that_is_created_on_first_use_is_in_the_audit_log(lines):
    async with guarded() as rig:
        client = NamedClient(rig, ROOT)
        request = {"topics": [{"name": "made"}, {"name": TOPIC}], "allow_auto_topic_creation": True}
        request |= dict.fromkeys(
            (f"include_{kind}_authorized_operations" for kind in ("cluster", "topic")), False
        )
        for _ in range(2):
            answer = await client.ask(apis.METADATA, 9, request)
            assert [one.error_code for one in answer.topics] == [0, 0]
        (line,) = lines()
    assert (line["event"], line["request"], line["resources"]) == ("changed", "Metadata", ["made"])
