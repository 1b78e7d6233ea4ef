"""Apache Kafka's Java clients: administration, groups, producers, and its command-line tools."""

from __future__ import annotations

import json
import re

import pytest
from tests.integration.clients import watermarks
from tests.integration.java import session

pytestmark = pytest.mark.java
TOOLS = "org.apache.kafka.tools"


@pytest.mark.parametrize(
    "scenario",
    [
        "topics",
        "configs",
        "quotas",
        "cluster",
        "administration",
        "disk",
        "offsets",
        "groups",
        "staticMembers",
        "producing",
        "transactions",
        "autoCreation",
    ],
)
def test_java_client(broker, name, scenario):
    session().run("Scenarios", broker.kafka, scenario, name)


@pytest.mark.parametrize(
    "assignor",
    ["RangeAssignor", "RoundRobinAssignor", "StickyAssignor", "CooperativeStickyAssignor"],
)
def test_java_group_rebalances_with(broker, name, assignor):
    session().run("Scenarios", broker.kafka, "assignor", name, assignor)


def test_metrics_pushed_by_a_java_producer_are_shown(broker, name):
    instance = session().run("Scenarios", broker.kafka, "telemetry", name).split()[-1]
    _status, text = broker.get("/metrics")
    lines = [line for line in text.splitlines() if f'client_id="{name}"' in line]
    shown = [line for line in lines if line.startswith("headrace_client_metric{")]
    assert shown
    assert all(f'instance="{instance}"' in line for line in shown)
    assert all('metric="org.apache.kafka.producer.' in line for line in shown)
    assert any("apache-kafka-java" in line for line in shown)


class Tool:
    """Kafka's tools against one broker."""

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap

    def __call__(self, tool: str, *arguments: str, text: str = "", ok: bool = True) -> str:
        main = tool if tool.startswith("kafka.") else f"{TOOLS}.{tool}"
        at = ("--bootstrap-server", self.bootstrap)
        return session().run(main, *at, *arguments, text=text, ok=ok)


@pytest.fixture
def tool(broker):
    return Tool(broker.kafka)


def test_topic_command(tool, name):
    tool("TopicCommand", "--create", "--topic", name, "--partitions", "2", "--config", "flush.ms=9")
    assert name in tool("TopicCommand", "--list").split()
    tool("TopicCommand", "--alter", "--topic", name, "--partitions", "4")
    told = tool("TopicCommand", "--describe", "--topic", name)
    assert "PartitionCount: 4" in told
    assert "flush.ms=9" in told
    assert told.count("Leader: 0") == 4
    assert "Partition:" not in tool("TopicCommand", "--describe", "--unavailable-partitions")
    tool("TopicCommand", "--delete", "--topic", name)
    assert name not in tool("TopicCommand", "--list").split()
    assert "does not exist" in tool("TopicCommand", "--describe", "--topic", name, ok=False)


def test_config_command(tool, name):
    entity = ["--entity-type", "topics", "--entity-name", name]
    tool("TopicCommand", "--create", "--topic", name)
    tool("kafka.admin.ConfigCommand", "--alter", *entity, "--add-config", "retention.ms=86400000")
    assert "retention.ms=86400000" in tool("kafka.admin.ConfigCommand", "--describe", *entity)
    tool("kafka.admin.ConfigCommand", "--alter", *entity, "--delete-config", "retention.ms")
    assert "retention.ms" not in tool("kafka.admin.ConfigCommand", "--describe", *entity)
    broker = ["--entity-type", "brokers", "--entity-name", "0"]
    assert "node.id=0" in tool("kafka.admin.ConfigCommand", "--describe", "--all", *broker)


def test_console_producer_consumer_offsets_records_and_groups(tool, name, tmp_path):
    properties = ["parse.key=true", "key.separator=:", "parse.headers=true"]
    flags = [flag for item in properties for flag in ("--reader-property", item)]
    lines = [f"h1:v1,h2:v2\tk{i}:value {i}" for i in range(10)]
    tool("ConsoleProducer", "--topic", name, *flags, text="\n".join(lines) + "\n")
    shown = ["print.key=true", "print.headers=true", "print.offset=true"]
    flags = [flag for item in shown for flag in ("--formatter-property", item)]
    consume = ["--topic", name, "--from-beginning", "--group", f"g-{name}", "--timeout-ms", "90000"]
    out = tool("consumer.ConsoleConsumer", *consume, "--max-messages", "10", *flags)
    assert "Offset:3\th1:v1,h2:v2\tk3\tvalue 3" in out

    assert f"{name}:0:10" in tool("GetOffsetShell", "--topic", name)
    assert f"{name}:0:0" in tool("GetOffsetShell", "--topic", name, "--time", "-2")
    wanted = {"partitions": [{"topic": name, "partition": 0, "offset": 4}], "version": 1}
    (tmp_path / "delete.json").write_text(json.dumps(wanted))
    flags = ["--offset-json-file", str(tmp_path / "delete.json")]
    assert "low_watermark: 4" in tool("DeleteRecordsCommand", *flags)
    assert f"{name}:0:4" in tool("GetOffsetShell", "--topic", name, "--time", "earliest")

    group = ["--group", f"g-{name}"]
    command = "consumer.group.ConsumerGroupCommand"
    assert re.search(rf"{name} +0 +10 +10 +0 ", tool(command, "--describe", *group))
    assert f"g-{name}" in tool(command, "--list").split()
    assert re.search(r"Empty +0", tool(command, "--describe", "--state", *group))
    reset = ["--reset-offsets", "--topic", name, "--to-offset", "6", "--execute"]
    assert re.search(rf"{name} +0 +6", tool(command, *group, *reset))
    consume.remove("--from-beginning")
    out = tool("consumer.ConsoleConsumer", *consume, "--max-messages", "4")
    assert [line for line in out.splitlines() if line.startswith("value")] == [
        f"value {i}" for i in range(6, 10)
    ]
    deleted = tool(command, "--delete-offsets", "--topic", name, *group)
    assert "Successful" in deleted
    assert "successful" in tool(command, "--delete", *group)
    assert f"g-{name}" not in tool(command, "--list").split()


def test_performance_and_verifiable_tools(tool, broker, name):
    tool("TopicCommand", "--create", "--topic", name, "--partitions", "3")
    sizes = ["--num-records", "20000", "--record-size", "100", "--throughput", "-1"]
    out = tool("ProducerPerformance", "--topic", name, *sizes)
    assert "20000 records sent" in out
    flags = ["--num-records", "20000", "--timeout", "90000", "--hide-header"]
    out = tool("ConsumerPerformance", "--topic", name, *flags)
    read = [line.split(",") for line in out.splitlines() if line.count(",") >= 9]
    assert int(read[-1][4]) >= 20_000


def test_verifiable_tools(broker, name):
    flags = ["--bootstrap-server", broker.kafka, "--topic", f"{name}-v", "--max-messages", "500"]
    out = session().run_alone(f"{TOOLS}.VerifiableProducer", *flags)
    assert out.count('"name":"producer_send_success"') == 500
    flags += ["--group-id", f"g-{name}", "--reset-policy", "earliest"]
    out = session().run_alone(f"{TOOLS}.VerifiableConsumer", *flags)
    assert re.search(r'"name":"records_consumed".*"count":\d+', out)
    assert '"success":true' in out
    assert watermarks(broker.kafka, f"{name}-v") == (0, 500)


def test_cluster_and_versions_tools(tool):
    at = session().run(f"{TOOLS}.ClusterTool", "cluster-id", "--bootstrap-server", tool.bootstrap)
    assert re.search(r"Cluster ID: \S{10,}", at)
    told = session().run(f"{TOOLS}.BrokerApiVersionsCommand", "--bootstrap-server", tool.bootstrap)
    assert "Fetch(1)" in told
    assert "Produce(0): 0 to 13 [usable: 13]" in told
    assert "(id: 0 rack: null" in told
    assert "UNSUPPORTED" in told  # what this broker does not have, said as such


def test_tools_about_leaders_replicas_and_features(tool, name, tmp_path):
    tool("TopicCommand", "--create", "--topic", name, "--partitions", "2")
    plan = tmp_path / "plan.json"
    moves = [{"topic": name, "partition": number, "replicas": [0]} for number in range(2)]
    plan.write_text(json.dumps({"version": 1, "partitions": moves}))
    file = ("--reassignment-json-file", str(plan))
    command = "reassign.ReassignPartitionsCommand"
    assert "Successfully started" in tool(command, *file, "--execute")
    assert "is completed" in tool(command, *file, "--verify")
    assert "No partition reassignments found" in tool(command, "--list")
    elect = ("--election-type", "preferred", "--topic", name, "--partition", "0")
    assert "Valid replica already elected" in tool("LeaderElectionCommand", *elect)
    assert "no metadata quorum" in tool("MetadataQuorumCommand", "describe", "--status", ok=False)
    told = tool("FeatureCommand", "describe")
    assert "Feature: share.version" in told
    told = tool("FeatureCommand", "upgrade", "--feature", "share.version=1", ok=False)
    assert "Could not upgrade share.version to 1" in told


def test_client_metrics_tool(tool, name):
    command = "ClientMetricsCommand"
    settings = ("--metrics", "org.apache.kafka.", "--interval", "1000", "--match", "client_id=x")
    tool(command, "--alter", "--name", name, *settings)
    assert name in tool(command, "--list").split()
    told = tool(command, "--describe", "--name", name)
    assert "interval.ms=1000" in told
    assert "match=client_id=x" in told
    tool(command, "--delete", "--name", name)
    assert name not in tool(command, "--list").split()
