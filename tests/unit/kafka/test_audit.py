"""What administers the cluster over Kafka's protocol is in the audit log, with the resource's name.

The requests are made from Kafka's definitions, as those of `test_authorization`.
"""

from __future__ import annotations

import asyncio
import json
import logging
from typing import Any

import pytest
from tests.clocks import HandClock
from tests.unit.kafka.access_rig import GROUP, TOPIC, NamedClient, made
from tests.unit.kafka.test_authorization import ROOT, guarded
from tests.waiting import until

from headrace.broker.security.authorizer import CLUSTER_NAME, Operation, ResourceType
from headrace.broker.security.principal import Principal
from headrace.broker.security.sessions import ClientSession
from headrace.broker.services import audit
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
    "RenewDelegationToken": [],  # of a token that does not exist
    "ExpireDelegationToken": [],
    "UpdateFeatures": ON_CLUSTER,
    "UnregisterBroker": ON_CLUSTER,
}
BY_HANDLER = {"RenewDelegationToken", "ExpireDelegationToken"}
"""Their handlers write the line: no field names the token."""
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


class Lines:
    """Of the audit log, since the test has begun."""

    def __init__(self, caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level(logging.INFO, "headrace.audit")
        self._caplog = caplog

    def begin(self) -> None:
        """Forget what the rig has done to be filled."""
        self._caplog.clear()

    def __call__(self) -> list[dict[str, Any]]:
        texts = [one.getMessage() for one in self._caplog.records if one.name == "headrace.audit"]
        return [json.loads(text) for text in texts]


@pytest.fixture
def lines(caplog):
    return Lines(caplog)


def test_these_requests_administer_something():
    found = {api.name for api in apis.APIS.values() if is_change(api)}
    assert found == {*CHANGES} - BY_HANDLER


@pytest.mark.parametrize("name", CHANGES)
async def test_a_request_that_administers_is_in_the_audit_log(name, lines):
    (api,) = [one for one in apis.APIS.values() if one.name == name]
    async with guarded() as rig:
        lines.begin()
        topic = rig.node.topics.get(TOPIC)
        request = made(api, api.version_max, topic.id) | FIELDS.get(name, {})
        await NamedClient(rig, ROOT).ask(api.key, api.version_max, request)
        (line,) = lines()
    assert (line["event"], line["principal"]) == ("changed", "User:root")
    assert (line["request"], line["resources"]) == (name, CHANGES[name])


async def test_the_settings_of_all_brokers_are_those_of_the_cluster(lines):
    async with guarded() as rig:
        lines.begin()
        config = {"name": "max.connections", "config_operation": 0, "value": "1000"}
        resource = {"resource_type": 4, "resource_name": "", "configs": [config]}
        request = {"resources": [resource], "validate_only": False}
        await NamedClient(rig, ROOT).ask(apis.INCREMENTAL_ALTER_CONFIGS, 1, request)
        (line,) = lines()
    assert line["resources"] == ON_CLUSTER
    assert "failed" not in line


async def test_a_topic_that_is_created_on_first_use_is_in_the_audit_log(lines):
    async with guarded() as rig:
        lines.begin()
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


def commit(topic_id, *, member: str = "", generation: int = -1, partitions: int = 1) -> Any:
    offset = {"committed_offset": 0, "committed_leader_epoch": -1, "committed_metadata": ""}
    places = [{"partition_index": one, **offset} for one in range(partitions)]
    return {
        "group_id": "reset",
        "generation_id_or_member_epoch": generation,
        "member_id": member,
        "group_instance_id": None,
        "topics": [{"name": TOPIC, "topic_id": topic_id, "partitions": places}],
    }


@pytest.mark.parametrize("version", [8, 10])
async def test_positions_that_no_member_commits_are_one_line_for_each_request(version, lines):
    """As kafka-consumer-groups resets a group. A consumer that is no member of a group commits the
    same way all the time: what it repeats is counted."""
    async with guarded() as rig:
        lines.begin()
        client, topic = NamedClient(rig, ROOT), rig.node.topics.get(TOPIC)
        for partitions in (99, 1, 1):
            asked = commit(topic.id, partitions=partitions)
            await client.ask(apis.OFFSET_COMMIT, version, asked)
        (line,) = lines()
        await client.ask(apis.OFFSET_COMMIT, version, commit(topic.id, member="m", generation=1))
        assert len(lines()) == 1, "of a member"
    assert (line["event"], line["request"]) == ("changed", "OffsetCommit")
    assert (line["resources"], line["failed"]) == (["reset", TOPIC], 98)


async def test_positions_that_no_member_commits_in_a_transaction_are_noted_too(lines):
    async with guarded() as rig:
        client, topic = NamedClient(rig, ROOT), rig.node.topics.get(TOPIC)
        asked = {"transactional_id": "txn", "transaction_timeout_ms": 60_000}
        asked |= {"producer_id": -1, "producer_epoch": -1}
        found = await client.ask(apis.INIT_PRODUCER_ID, 4, asked)
        async with asyncio.timeout(60):
            while int(found.error_code):  # the coordinator is loading
                found = await client.ask(apis.INIT_PRODUCER_ID, 4, asked)
        lines.begin()
        producer = {"transactional_id": "txn", "producer_id": found.producer_id}
        producer |= {"producer_epoch": found.producer_epoch}
        for _ in range(2):
            offsets = commit(topic.id) | producer
            offsets["generation_id"] = offsets.pop("generation_id_or_member_epoch")
            answer = await client.ask(apis.TXN_OFFSET_COMMIT, 5, offsets)
            assert [int(one.error_code) for one in answer.topics[0].partitions] == [0]
        (line,) = lines()
        member = commit(topic.id, member="m", generation=1) | producer
        member["generation_id"] = member.pop("generation_id_or_member_epoch")
        await client.ask(apis.TXN_OFFSET_COMMIT, 5, member)
        assert len(lines()) == 1, "of a member"
    assert (line["event"], line["request"]) == ("changed", "TxnOffsetCommit")
    assert (line["resources"], "failed" in line) == (["reset", TOPIC], False)


async def test_what_is_repeated_is_counted_and_a_flood_of_logins_is_bounded(monkeypatch, lines):
    monkeypatch.setattr(audit, "LOGIN_REPEATS_S", 0.01)
    log = audit.Audit(HandClock())
    for _ in range(1_000):
        log.login_failed(ClientSession("SASL", "10.0.0.1"), "alice", "PLAIN")
    (line,) = lines()
    assert (line["event"], line["user"], line["host"]) == ("login_failed", "alice", "10.0.0.1")
    assert (line["principal"], line["mechanism"]) == ("", "PLAIN")
    await until(lambda: len(lines()) == 2)
    assert lines()[1]["repeated"] == 999
    for number in range(10_000):
        session = ClientSession("SASL", f"10.0.{number // 256}.{number % 256}")
        log.login_failed(session, f"user-{number}", "PLAIN")
    assert len(lines()) <= audit.FAILED_LOGINS_PER_S * audit.BURST_S + 1
    for number in range(20_000):  # of each client that commits to groups of any name
        log.changed_frequently(session, "OffsetCommit", [f"group-{number}"], 0)
    log.changed(ClientSession("SASL", "10.0.0.1"), "DeleteTopics", ["t"], 0)
    assert lines()[-1]["request"] == "DeleteTopics", "a flood hides no change"


async def test_who_changes_things_all_the_time_has_no_others_repetitions_written(lines):
    log = audit.Audit(HandClock())
    mallory, alice = (ClientSession("SASL", "::1", Principal(one)) for one in ("mallory", "alice"))
    for number in range(2 * audit.REPEATED_MAX):
        log.changed_frequently(mallory, "OffsetCommit", [f"group-{number}"], 0)
    before = len(lines())
    for _ in range(10):
        log.changed_frequently(alice, "OffsetCommit", ["reset"], 0)
    assert len(lines()) == before + 1


async def test_failed_logins_from_a_network_of_ipv6_are_those_of_one_client(lines):
    log = audit.Audit(HandClock())
    for number in range(10):
        log.login_failed(ClientSession("SASL", f"2001:db8::{number}"), "alice", "PLAIN")
    assert len(lines()) == 1


async def test_who_is_denied_all_the_time_hides_nobody_elses_denials(lines):
    clock = HandClock()
    log = audit.Audit(clock)

    def deny(user: str, count: int) -> int:
        before = len(lines())
        session = ClientSession("SASL", "10.0.0.1", Principal(user))
        for _ in range(count):
            log.denied(session, Operation.READ, ResourceType.TOPIC, "t", "Fetch")
        return len(lines()) - before

    most = audit.DENIALS_PER_S * audit.BURST_S
    flooded = deny("mallory", 2 * most)
    assert 0 < flooded <= most * 2 // 3 + 1
    assert deny("alice", 100) == 100
    assert "omitted_before" in lines()[flooded]
    assert deny("bob", 1) == 1
    for number in range(2 * most):  # of any number of users
        deny(f"mallory-{number}", 1)
    assert len(lines()) <= most
    assert log.denied_total == 4 * most + 101
    clock.ms += audit.BURST_S * 1_000
    assert deny("alice", 1) == 1


async def test_a_member_id_without_a_generation_hides_no_reset(lines):
    async with guarded() as rig:
        lines.begin()
        topic = rig.node.topics.get(TOPIC)
        asked = commit(topic.id, member="m")
        answer = await NamedClient(rig, ROOT).ask(apis.OFFSET_COMMIT, 8, asked)
        assert answer.topics[0].partitions[0].error_code == 0, "the group has no members"
        (line,) = lines()
    assert (line["request"], line["resources"]) == ("OffsetCommit", ["reset", TOPIC])


async def test_what_is_counted_keeps_no_more_than_a_line_has(lines):
    log = audit.Audit(HandClock())
    names = [f"{'t' * 200}-{number}" for number in range(10_000)]
    for _ in range(2):
        log.changed_frequently(ClientSession("SASL", "10.0.0.1"), "OffsetCommit", names, 0)
    (line,) = lines()
    assert line["further"] == len(names) - audit.RESOURCES_MAX
    ((kept, _count),) = log._repeats.items()
    assert len(str(kept)) < 10_000


async def test_a_flood_of_tokens_that_do_not_exist_is_one_line(lines):
    """It needs no right: it must not use up what other changes have."""
    async with guarded() as rig:
        lines.begin()
        client = NamedClient(rig, ROOT)
        for number in range(100):
            request = {"hmac": b"%064d" % number, "expiry_time_period_ms": -1}
            await client.ask(apis.EXPIRE_DELEGATION_TOKEN, 2, request)
        (line,) = lines()
    assert (line["request"], line["resources"], line["failed"]) == ("ExpireDelegationToken", [], 1)
