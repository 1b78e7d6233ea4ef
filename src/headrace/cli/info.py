"""`headrace info`: shows the cluster and its protocol versions.

Invariants: reads only. The protocol versions come from one hand-written ApiVersions request (key
18, version 0), because the client library does not expose them.
"""

from __future__ import annotations

import struct
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import click

from headrace.cli.client import kafka
from headrace.cli.failures import UNREACHABLE, CommandFailed
from headrace.cli.output import AS_JSON, counted, print_json, print_table, tell
from headrace.cli.raw_request import ask
from headrace.cli.topic_names import is_internal

if TYPE_CHECKING:
    from headrace.cli.session import CliSession

# do not change: protocol. API keys by Kafka's names.
API_NAMES = {
    0: "Produce", 1: "Fetch", 2: "ListOffsets", 3: "Metadata", 8: "OffsetCommit", 9: "OffsetFetch",
    10: "FindCoordinator", 11: "JoinGroup", 12: "Heartbeat", 13: "LeaveGroup", 14: "SyncGroup",
    15: "DescribeGroups", 16: "ListGroups", 17: "SaslHandshake", 18: "ApiVersions",
    19: "CreateTopics", 20: "DeleteTopics", 21: "DeleteRecords", 22: "InitProducerId",
    23: "OffsetForLeaderEpoch", 24: "AddPartitionsToTxn", 25: "AddOffsetsToTxn", 26: "EndTxn",
    27: "WriteTxnMarkers", 28: "TxnOffsetCommit", 29: "DescribeAcls", 30: "CreateAcls",
    31: "DeleteAcls", 32: "DescribeConfigs", 33: "AlterConfigs", 34: "AlterReplicaLogDirs",
    35: "DescribeLogDirs", 36: "SaslAuthenticate", 37: "CreatePartitions",
    38: "CreateDelegationToken", 39: "RenewDelegationToken", 40: "ExpireDelegationToken",
    41: "DescribeDelegationToken", 42: "DeleteGroups", 43: "ElectLeaders",
    44: "IncrementalAlterConfigs", 45: "AlterPartitionReassignments",
    46: "ListPartitionReassignments", 47: "OffsetDelete", 48: "DescribeClientQuotas",
    49: "AlterClientQuotas", 50: "DescribeUserScramCredentials", 51: "AlterUserScramCredentials",
    55: "DescribeQuorum", 57: "UpdateFeatures", 60: "DescribeCluster", 61: "DescribeProducers",
    64: "UnregisterBroker", 65: "DescribeTransactions", 66: "ListTransactions",
    68: "ConsumerGroupHeartbeat", 69: "ConsumerGroupDescribe", 71: "GetTelemetrySubscriptions",
    72: "PushTelemetry", 74: "ListConfigResources", 75: "DescribeTopicPartitions",
    76: "ShareGroupHeartbeat", 77: "ShareGroupDescribe", 78: "ShareFetch", 79: "ShareAcknowledge",
}  # fmt: skip


def ask_api_versions(session: CliSession, address: str) -> list[tuple[int, int, int]]:
    """Return (API key, lowest version, highest version) of the broker at `address`."""
    try:
        answer = ask(session, address, (18, 0), b"", is_flexible=False)
        count = struct.unpack_from(">i", answer, 2)[0]
        return [struct.unpack_from(">hhh", answer, 6 + 6 * index) for index in range(count)]
    except (OSError, struct.error) as error:
        raise CommandFailed(
            f"{address} sent no valid Kafka response ({error})",
            "Check that this is the broker's Kafka port",
            UNREACHABLE,
        ) from None


@click.command()
@click.option("--apis", is_flag=True, help="List all APIs with their versions.")
@AS_JSON
@click.pass_obj
def info(session: CliSession, /, apis: bool, as_json: bool) -> None:
    """Show cluster id, brokers, topics and versions.

    \b
    Examples:
      headrace info
      headrace -b broker-1:9092 info --apis
      headrace info --json | jq -r .cluster_id
    """
    facts = gather(session)
    if as_json:
        print_json(facts)
        return
    tell(f"cluster     {facts['cluster_id']}")
    tell(f"controller  {facts['controller_id']}")
    tell(f"topics      {facts['topics']:,} with {counted(facts['partitions'], 'partition')}")
    tell(f"speaks      {len(facts['apis'])} Kafka APIs")
    versions = ", ".join(f"{name} {value}" for name, value in facts["versions"].items())
    tell(f"client      {versions}")
    print_table(
        ["broker", "host", "port", "rack"],
        [[str(b["id"]), b["host"], str(b["port"]), b["rack"]] for b in facts["brokers"]],
    )
    if apis:
        print_table(
            ["key", "api", "from", "to"],
            [[a["key"], a["name"], a["min_version"], a["max_version"]] for a in facts["apis"]],
        )


def gather(session: CliSession) -> dict[str, Any]:
    """What --json prints. Raises CommandFailed."""
    admin = session.admin()
    cluster = session.answer(
        admin.describe_cluster(request_timeout=session.timeout_s), "describe the cluster"
    )
    topics = session.cluster_metadata().topics
    shown = {name: topic for name, topic in topics.items() if not is_internal(name)}
    apis = ask_api_versions(session, session.bootstrap.split(",")[0].strip())
    return {
        "cluster_id": cluster.cluster_id,
        "controller_id": cluster.controller.id if cluster.controller else None,
        "brokers": [
            {"id": node.id, "host": node.host, "port": node.port, "rack": node.rack}
            for node in sorted(cluster.nodes, key=lambda node: node.id)
        ],
        "topics": len(shown),
        "partitions": sum(len(topic.partitions) for topic in shown.values()),
        "internal_topics": len(topics) - len(shown),
        "apis": [
            {
                "key": key,
                "name": API_NAMES.get(key, "unknown"),
                "min_version": lowest,
                "max_version": highest,
            }
            for key, lowest, highest in sorted(apis)
        ],
        "versions": {
            "headrace": version("headrace"),
            "confluent-kafka": kafka().version(),
            "librdkafka": kafka().libversion()[0],
        },
    }
