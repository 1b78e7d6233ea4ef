"""Groups of the new protocol (KIP-848) of librdkafka and Java: gathering, leaving, coming back."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import pytest
from tests.integration.clients import create_topic
from tests.integration.java import session
from tests.integration.test_groups import PARTITIONS, ConfluentMember, is_shared, offsets, spread
from tests.waiting import wait_until

NEW = {"group_protocol": "consumer"}


@pytest.fixture
def topic(broker, name):
    create_topic(broker.kafka, name, PARTITIONS)
    return name


def test_members_join_and_leave_without_stopping_the_others(broker, topic):
    members, left = [], []
    try:
        for count in (1, 2, 3):
            members.append(ConfluentMember(broker.kafka, topic, topic, **NEW))
            wait_until(lambda: is_shared(members))
            spread(broker.kafka, topic, [f"{count}-{n}".encode() for n in range(60)])
        wait_until(lambda: len({v for m in members for v in m.values}) == 180)
        kept = [set(member.owned) for member in members[:2]]
        revocations = [len(member.revoked) for member in members[:2]]
        left.append(members.pop())
        left[0].leave()
        wait_until(lambda: is_shared(members))
        for member, owned, count in zip(members, kept, revocations, strict=True):
            assert owned <= member.owned
            assert not any(member.revoked[count:]), "it gave nothing up"
        spread(broker.kafka, topic, [f"4-{n}".encode() for n in range(60)])
        wait_until(lambda: len({v for m in members + left for v in m.values}) == 240)
        wait_until(lambda: sum(offsets(broker.kafka, topic).values()) == 240)
    finally:
        for member in members:
            member.leave()


def test_a_pattern_finds_topics_that_come_later(broker, topic):
    member = ConfluentMember(broker.kafka, topic, f"^{topic}(-late)?", **NEW)
    try:
        wait_until(lambda: len(member.owned) == PARTITIONS)
        create_topic(broker.kafka, f"{topic}-late", PARTITIONS + 1)
        wait_until(lambda: PARTITIONS in member.owned)
    finally:
        member.leave()


def test_a_pattern_finds_internal_topics_as_in_kafka(broker, topic):
    member = ConfluentMember(broker.kafka, topic, "^__consumer_offset[s]$", **NEW)
    try:
        wait_until(lambda: len(member.owned) > PARTITIONS)
    finally:
        member.leave()


def test_a_pattern_that_cannot_be_used_is_a_clear_error(broker, topic):
    from confluent_kafka import Consumer

    settings = {
        "bootstrap.servers": broker.kafka,
        "group.id": topic,
        "group.protocol": "consumer",
        "log_level": 0,
    }
    consumer = Consumer(settings)
    consumer.subscribe(["^(a{1,40}){1,40}"])  # glibc compiles it in the client, RE2 refuses it
    found = []

    def is_refused() -> bool:
        message = consumer.poll(0.1)
        if message is not None and message.error():
            found.append(str(message.error()))
        return bool(found)

    wait_until(is_refused)
    consumer.close()
    assert "regular expression" in found[0]


def test_static_members_come_back_to_their_partitions(broker, topic):
    one = ConfluentMember(broker.kafka, topic, topic, group_instance_id="one", **NEW)
    two = ConfluentMember(broker.kafka, topic, topic, group_instance_id="two", **NEW)
    wait_until(lambda: is_shared([one, two]))
    owned, assignments = set(two.owned), one.assignments
    two.leave()
    two = ConfluentMember(broker.kafka, topic, topic, group_instance_id="two", **NEW)
    try:
        wait_until(lambda: two.owned == owned)
        assert one.assignments == assignments, "the other has seen no rebalance"
    finally:
        one.leave()
        two.leave()


@pytest.mark.parametrize("strategy", ["range", "cooperative-sticky"])
def test_a_group_changes_its_protocol_while_it_reads(broker, topic, strategy):
    old = [
        ConfluentMember(broker.kafka, topic, topic, partition_assignment_strategy=strategy)
        for _ in range(2)
    ]
    new: list[ConfluentMember] = []
    left: list[ConfluentMember] = []
    try:
        wait_until(lambda: is_shared(old))
        new.append(ConfluentMember(broker.kafka, topic, topic, **NEW))
        wait_until(lambda: is_shared([*old, *new]))
        spread(broker.kafka, topic, [f"mixed-{n}".encode() for n in range(60)])
        wait_until(lambda: len({v for m in [*old, *new] for v in m.values}) == 60)
        left.append(new.pop())
        left[0].leave()
        wait_until(lambda: is_shared(old))
        new.append(ConfluentMember(broker.kafka, topic, topic, **NEW))
        for _ in range(2):
            left.append(old.pop())
            left[-1].leave()
        wait_until(lambda: is_shared(new))
        spread(broker.kafka, topic, [f"new-{n}".encode() for n in range(60)])
        wait_until(lambda: len({v for m in [*left, *new] for v in m.values}) == 120)
    finally:
        for member in old + new:
            member.leave()


@pytest.mark.parametrize("how", ["restart", "crash"])
def test_a_group_goes_on_after_its_broker(own_broker, how):
    bootstrap = own_broker.kafka
    create_topic(bootstrap, "t", PARTITIONS)
    members = [ConfluentMember(bootstrap, "g", "t", **NEW) for _ in range(2)]
    try:
        wait_until(lambda: is_shared(members))
        owned = [set(member.owned) for member in members]
        spread(bootstrap, "t", [str(n).encode() for n in range(60)])
        wait_until(lambda: sum(offsets(bootstrap, "g").values()) == 60)
        getattr(own_broker, how)()
        spread(bootstrap, "t", [str(n).encode() for n in range(60, 120)])
        wait_until(lambda: len({v for m in members for v in m.values}) == 120)
        wait_until(lambda: sum(offsets(bootstrap, "g").values()) == 120)
        assert [member.owned for member in members] == owned, "no partition has moved"
    finally:
        for member in members:
            member.leave()


def headrace(broker, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "headrace", "-b", broker.kafka, "group", *arguments],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_command_line_shows_the_group(broker, topic):
    member = ConfluentMember(broker.kafka, topic, topic, **NEW)
    try:
        wait_until(lambda: is_shared([member]))
        spread(broker.kafka, topic, [b"v"] * 12)
        wait_until(lambda: sum(offsets(broker.kafka, topic).values()) == 12)
        listed = {row["group"]: row for row in json.loads(headrace(broker, "list", "--json"))}
        assert (listed[topic]["type"], listed[topic]["state"]) == ("consumer", "Stable")
        (described,) = json.loads(headrace(broker, "describe", topic, "--json"))
        assert described["state"] == "Stable"
        assert described["protocol"] == "uniform"
        assert len(described["members"][0]["partitions"]) == PARTITIONS
    finally:
        member.leave()
    headrace(broker, "delete", topic)


@pytest.mark.java
@pytest.mark.parametrize("scenario", ["members", "patterns", "staticMembers", "administration"])
def test_java_consumer(broker, name, scenario):
    session().run("ConsumerGroupScenarios", broker.kafka, scenario, name)


@pytest.mark.java
def test_kafkas_own_tool_describes_the_group(broker, topic):
    member = ConfluentMember(broker.kafka, topic, topic, **NEW)
    command = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"
    about = ["--bootstrap-server", broker.kafka, "--describe", "--group", topic]
    try:
        wait_until(lambda: is_shared([member]))
        spread(broker.kafka, topic, [b"v"] * 12)
        wait_until(lambda: sum(offsets(broker.kafka, topic).values()) == 12)
        assert re.search(rf"{topic} +0 +2 +2 +0 ", session().run(command, *about))
        assert re.search(r"uniform +Stable +1", session().run(command, *about, "--state"))
        assert re.search(
            rf"{topic}:0,1,2,3,4,5", session().run(command, *about, "--members", "--verbose")
        )
    finally:
        member.leave()
