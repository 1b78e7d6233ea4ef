"""Streams groups as a client of the wire sees them: internal topics, restarts, tools, refusals."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import pytest
from tests.integration.clients import admin, create_topic
from tests.integration.java import session
from tests.integration.raw import Raw, error_codes
from tests.integration.streams import PARTITIONS, Thread, counting
from tests.integration.test_consumer_groups import headrace
from tests.integration.test_transactions import fresh
from tests.waiting import wait_until

DESCRIBE_CONFIGS = 32
STREAMS_GROUP_DESCRIBE = 89
MISSING_SOURCE_TOPICS, MISSING_INTERNAL_TOPICS, STREAMS_INVALID_TOPOLOGY = 1, 3, 130
TOPIC_CONFIGS = 2


@pytest.fixture
def topic(broker) -> str:
    name = fresh("streams")
    create_topic(broker.kafka, name, PARTITIONS)
    return name


def test_internal_topics_are_created_as_the_topology_asks(broker, topic):
    thread = Thread(broker.address, topic, counting(topic, topic))
    assert error_codes(thread.beat()) == [0]
    assert MISSING_INTERNAL_TOPICS in thread.statuses
    wait_until(thread.has_all)
    assert thread.statuses == {}
    topics = admin(broker.kafka).list_topics(timeout=10).topics
    wanted = {"repartition": ("retention.ms", "60000"), "changelog": ("cleanup.policy", "compact")}
    for suffix, (name, value) in wanted.items():
        assert len(topics[f"{topic}-{suffix}"].partitions) == PARTITIONS
        resource = {
            "resource_type": TOPIC_CONFIGS,
            "resource_name": f"{topic}-{suffix}",
            "configuration_keys": (name,),
        }
        with Raw(broker.address) as raw:
            answer = raw.call(DESCRIBE_CONFIGS, 4, resources=[resource])
        assert answer.results[0].configs[0].value == value


def test_a_refused_topic_creation_is_reported_in_the_group_status(broker, topic):
    thread = Thread(broker.address, topic, counting(topic, topic, factor=3))

    def is_told() -> bool:
        thread.beat()
        return "replication" in thread.statuses.get(MISSING_INTERNAL_TOPICS, "")

    wait_until(is_told)
    assert thread.tasks == set()


def test_a_topology_that_cannot_be_is_refused(broker, topic):
    topology = counting(topic, topic)
    topology["subtopologies"][0]["source_topics"] = ("no/name",)
    answer = Thread(broker.address, topic, topology).beat()
    assert error_codes(answer) == [STREAMS_INVALID_TOPOLOGY]
    assert "no/name" in answer.error_message


def test_two_tenants_have_an_application_of_the_same_names(tenants, name):
    for place in tenants:
        thread = Thread(place.address, name, counting(name, name))
        thread.beat()
        assert thread.statuses == {MISSING_SOURCE_TOPICS: f"source topics are missing: {name}"}
        create_topic(place.kafka, name, PARTITIONS)
        wait_until(thread.has_all)
        topics = admin(place.kafka).list_topics(timeout=10).topics
        assert {*topics} == {name, f"{name}-repartition", f"{name}-changelog"}
        with Raw(place.address) as raw:
            (described,) = raw.call(STREAMS_GROUP_DESCRIBE, 0, group_ids=(name,)).groups
        first, second = described.topology.subtopologies
        assert [*first.source_topics, *first.repartition_sink_topics] == [
            name, f"{name}-repartition",
        ]  # fmt: skip
        assert second.state_changelog_topics[0].name == f"{name}-changelog"


@pytest.mark.parametrize("how", ["restart", "crash"])
def test_a_group_goes_on_after_its_broker(own_broker, how):
    create_topic(own_broker.kafka, "t", PARTITIONS)
    first, second = (
        Thread(own_broker.address, "g", counting("t", "g"), name) for name in ("a", "b")
    )
    wait_until(first.has_all)

    def is_shared() -> bool:
        first.beat()
        second.beat()
        return len(first.tasks) == len(second.tasks) == PARTITIONS and first.epoch == second.epoch

    wait_until(is_shared)
    assert not first.tasks & second.tasks
    before = [(thread.epoch, thread.tasks) for thread in (first, second)]
    getattr(own_broker, how)()
    for thread in (first, second):
        thread.address = own_broker.address
        wait_until(lambda thread=thread: error_codes(thread.beat()) == [0])
    assert [(thread.epoch, thread.tasks) for thread in (first, second)] == before


def test_the_command_line_shows_the_group(broker, topic):
    thread = Thread(broker.address, topic, counting(topic, topic))
    wait_until(thread.has_all)
    listed = {row["group"]: row for row in json.loads(headrace(broker, "list", "--json"))}
    assert (listed[topic]["type"], listed[topic]["state"]) == ("streams", "Stable")
    (described,) = json.loads(headrace(broker, "describe", topic, "--json"))
    assert described["state"] == "Stable"
    held = {(p["topic"], p["partition"]) for p in described["members"][0]["partitions"]}
    names = (topic, f"{topic}-repartition")
    assert held == {(name, n) for name in names for n in range(PARTITIONS)}
    reset = ("reset", topic, "--topic", topic, "--to", "latest")
    assert "is active (Stable, 1 members)" in refused(broker, *reset)
    thread.beat(member_epoch=-1)
    headrace(broker, *reset)
    headrace(broker, "delete", topic)


def refused(broker, *arguments: str) -> str:
    """What a group command says that fails."""
    command = [sys.executable, "-m", "headrace", "-b", broker.kafka, "group", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode != 0, done.stdout
    return done.stderr


@pytest.mark.java
def test_kafkas_own_tool_describes_the_group(broker, topic):
    command = "org.apache.kafka.tools.streams.StreamsGroupCommand"
    about = ["--bootstrap-server", broker.kafka, "--describe", "--group", topic]
    thread = Thread(broker.address, topic, counting(topic, topic))
    wait_until(thread.has_all)
    assert re.search(rf"{topic} .*Stable +1", session().run(command, *about, "--state"))
    members = session().run(command, *about, "--members", "--verbose")
    assert "0:[0,1,2,3]" in members.replace(" ", ""), members
    thread.beat(member_epoch=-1)
