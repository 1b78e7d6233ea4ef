"""ApiVersions, Metadata, DescribeCluster, DescribeTopicPartitions, FindCoordinator.

Invariants: describes the cluster, and creates a topic only if a client requests it by name and the
broker allows it. The node knows the owners of partitions.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

from headrace.broker.services.tenant_view import view_of
from headrace.broker.topics.ownership import NO_LEADER
from headrace.errors import HeadraceError, RequestInvalid
from headrace.kafka import apis
from headrace.kafka.error_codes import (
    INVALID_REQUEST,
    LEADER_NOT_AVAILABLE,
    REBOOTSTRAP_REQUIRED,
    code_of,
    message_of,
)
from headrace.records.cluster_ids import is_id_of

if TYPE_CHECKING:
    from collections.abc import Sequence
    from uuid import UUID

    from headrace.broker.coordinators.coordinator_shards import CoordinatorShards
    from headrace.broker.node import Node
    from headrace.broker.security.sessions import ClientSession
    from headrace.broker.topics.topic import Topic
    from headrace.kafka.handlers.context import Context, Handler
    from headrace.kafka.wire.messages import (
        ApiVersionsRequest,
        DescribeClusterRequest,
        DescribeTopicPartitionsRequest,
        FindCoordinatorRequest,
        MetadataRequest,
    )
    from headrace.kafka.wire.schema import Answer
    from headrace.metadata.facts import BrokerFact

log = logging.getLogger(__name__)

TOPIC_OPERATIONS = 0b1101_1111_1000
"""READ WRITE CREATE DELETE ALTER DESCRIBE DESCRIBE_CONFIGS ALTER_CONFIGS: all, without ACLs."""
CLUSTER_OPERATIONS = 0b1_1111_1010_0000
NOT_ASKED = -(2**31)
GROUP_KEY, TRANSACTION_KEY = 0, 1
MOVED_S = 1.0
MOVED_PAUSE_S = 0.01
"""For the first second after a move, FindCoordinator responses are delayed this long: librdkafka
closes the connection to the former coordinator in another thread. If the response arrives first,
it takes the closing for the loss of the new coordinator, and retries after 0.5 to 1 s."""
FEATURES = {"share.version": 2, "streams.version": 1, "transaction.version": 2}
"""The level of each feature: share groups (KIP-932) with dead letter topics (KIP-1191), Kafka
Streams groups (KIP-1071), and KIP-890, by which clients bump their epoch with every transaction."""
FEATURES_FROM_0_SINCE = 4
"""The first version of ApiVersions that may list features whose minimum is 0 (KAFKA-17011)."""
PARTITIONS_MAX = 2_000
"""max.request.partition.size.limit"""
SOFTWARE_LENGTH_MAX = 200
"""Characters of a client's name for its software, and of the version: they are kept with its
connection, and labels of a metric."""


def _supported_features(version: int) -> list[dict[str, Any]]:
    # As Kafka: Java clients 3.3 to 3.7, which send v3, cannot read features that begin at level 0.
    if version < FEATURES_FROM_0_SINCE:
        return []
    return [
        {"name": name, "min_version": 0, "max_version": level} for name, level in FEATURES.items()
    ]


def _wrong_broker(node: Node, request: ApiVersionsRequest, session: ClientSession) -> int:
    """The error if the client looks for another broker or cluster (KIP-1242), or 0. Before its
    login a client may be of any tenant, and the answer does not say whether there is such a one."""
    if (request.cluster_id is None) != (request.node_id == NO_LEADER):
        return INVALID_REQUEST
    if request.cluster_id is None:
        return 0
    cluster, view = node.services.cluster, view_of(node.services, session)
    is_cluster = request.cluster_id == view.without_id(cluster.id) or (
        not session.is_authenticated and is_id_of(cluster.id, request.cluster_id)
    )
    is_broker = request.node_id == cluster.broker_id
    return 0 if is_cluster and is_broker else REBOOTSTRAP_REQUIRED


async def api_versions(node: Node, request: ApiVersionsRequest, context: Context) -> Answer:
    """ApiVersions; since v3 a client sends its software name (KIP-511), since v5 the broker that
    it looks for, if it knows: another one may have taken over the address."""
    refusal = _wrong_broker(node, request, context.session)
    if refusal:
        return {"error_code": refusal, "api_keys": []}
    session = context.session
    session.client_id = context.client_id
    session.software_name = request.client_software_name[:SOFTWARE_LENGTH_MAX]
    session.software_version = request.client_software_version[:SOFTWARE_LENGTH_MAX]
    return {
        "error_code": 0,
        "api_keys": apis.advertised(with_telemetry=node.services.telemetry.subscriptions.is_any),
        "supported_features": _supported_features(context.version),
        "finalized_features_epoch": 1,
        "finalized_features": [
            {"name": name, "max_version_level": level, "min_version_level": level}
            for name, level in FEATURES.items()
        ],
        "zk_migration_ready": False,
    }


def _brokers(brokers: Sequence[BrokerFact], context: Context) -> list[dict[str, Any]]:
    described: list[dict[str, Any]] = []
    for broker in brokers:
        host, port = broker.kafka_address(context.session.listener)
        described.append(
            {
                "node_id": broker.id,
                "broker_id": broker.id,
                "host": host,
                "port": port,
                "rack": broker.rack,
                "is_fenced": False,
            }
        )
    return described


def _partitions(node: Node, topic: Topic) -> list[dict[str, Any]]:
    described: list[dict[str, Any]] = []
    for number in range(len(topic.partitions)):
        leader, leader_epoch = node.services.topics.leader(topic, number)
        # Brokers store no data themselves: the broker that serves a partition is its one replica.
        replicas = [] if leader == NO_LEADER else [leader]
        described.append(
            {
                "error_code": LEADER_NOT_AVAILABLE if leader == NO_LEADER else 0,
                "partition_index": number,
                "leader_id": leader,
                "leader_epoch": leader_epoch,
                "replica_nodes": replicas,
                "isr_nodes": replicas,
                "offline_replicas": [],
                "eligible_leader_replicas": [],
                "last_known_elr": [],
            }
        )
    return described


def _described(node: Node, topic: Topic, *, with_operations: bool) -> dict[str, Any]:
    return {
        "error_code": 0,
        "name": topic.name,
        "topic_id": topic.id,
        "is_internal": topic.is_internal,
        "partitions": _partitions(node, topic),
        "topic_authorized_operations": TOPIC_OPERATIONS if with_operations else NOT_ASKED,
    }


def _missing(name: str | None, topic_id: UUID | None, error: HeadraceError) -> dict[str, Any]:
    return {
        "error_code": code_of(error),
        "name": name,
        "topic_id": topic_id,
        "is_internal": False,
        "partitions": [],
        "topic_authorized_operations": NOT_ASKED,
    }


async def metadata(node: Node, request: MetadataRequest, context: Context) -> Answer:
    """Metadata; creates topics that are requested by name."""
    topics, cluster = node.services.topics, node.services.cluster
    may_create = (
        node.services.settings.current.auto_create_topics and request.allow_auto_topic_creation
    )
    with_operations = request.include_topic_authorized_operations
    asked = request.topics
    found: list[Topic | dict[str, Any]] = []
    if asked is None or (context.version == 0 and not asked):
        found = [topics.readable.get(name) for name in topics.readable.names()]
        asked = ()
    # Each name once, as in Kafka: a name repeated a million times must not cause a million entries.
    for item in dict.fromkeys(asked):
        topic_id = item.topic_id
        try:
            if item.name is None or (topic_id is not None and not item.name):
                if topic_id is None:
                    raise RequestInvalid("the request has a topic with neither a name nor an id")
                found.append(topics.readable.get_by_id(topic_id))
            else:
                is_new = may_create and topics.readable.find(item.name) is None
                topic = await topics.get_or_create(item.name, may_create=may_create)
                found.append(topic)
                if is_new and topic.home is topic:
                    node.services.audit.changed(context.session, "Metadata", [item.name], 0)
        except HeadraceError as error:
            name = item.name if item.name is not None or context.version >= 12 else ""
            found.append(_missing(name, topic_id, error))
    await node.services.cluster.wait_settled()
    # No await from here on: every leader is among the brokers. A broker may have left while a topic
    # was created, and clients do not expect a leader without an address.
    described = [
        item if isinstance(item, dict) else _described(node, item, with_operations=with_operations)
        for item in found
    ]
    cluster_operations = request.include_cluster_authorized_operations
    return {
        "brokers": _brokers(cluster.listed_brokers(), context),
        "cluster_id": node.services.cluster.id,
        "controller_id": node.services.cluster.broker_id,
        "topics": described,
        "cluster_authorized_operations": CLUSTER_OPERATIONS if cluster_operations else NOT_ASKED,
        "error_code": 0,
    }


async def describe_cluster(node: Node, request: DescribeClusterRequest, context: Context) -> Answer:
    """DescribeCluster."""
    with_operations = request.include_cluster_authorized_operations
    return {
        "error_code": 0,
        "error_message": None,
        "endpoint_type": request.endpoint_type,
        "cluster_id": node.services.cluster.id,
        "controller_id": node.services.cluster.broker_id,
        "brokers": _brokers(node.services.cluster.brokers(), context),
        "cluster_authorized_operations": CLUSTER_OPERATIONS if with_operations else NOT_ASKED,
    }


async def describe_topic_partitions(
    node: Node, request: DescribeTopicPartitionsRequest, _context: Context
) -> Answer:
    """DescribeTopicPartitions (KIP-966): pages of at most `response_partition_limit`."""
    topics = node.services.topics.readable
    names = sorted({item.name for item in request.topics}) or topics.names()
    cursor = request.cursor
    if cursor is not None:
        names = [name for name in names if name >= cursor.topic_name]
    left = max(1, min(request.response_partition_limit, PARTITIONS_MAX))
    described: list[dict[str, Any]] = []
    next_cursor: dict[str, Any] | None = None
    for name in names:
        if left <= 0:
            next_cursor = {"topic_name": name, "partition_index": 0}
            break
        try:
            topic = topics.get(name)
        except HeadraceError as error:
            described.append(_missing(name, None, error))
            continue
        answer = _described(node, topic, with_operations=True)
        first_partition = 0
        if cursor is not None and cursor.topic_name == name:
            first_partition = max(cursor.partition_index, 0)
        partitions = answer["partitions"][first_partition:]
        answer["partitions"] = partitions[:left]
        described.append(answer)
        if len(partitions) > left:
            next_cursor = {"topic_name": name, "partition_index": first_partition + left}
            break
        left -= len(partitions)
    return {"topics": described, "next_cursor": next_cursor}


async def find_coordinator(node: Node, request: FindCoordinatorRequest, context: Context) -> Answer:
    """FindCoordinator, for groups and transactional ids."""
    keys = [request.key] if context.version < 4 else list(request.coordinator_keys)
    kind = request.key_type
    coordinators: list[dict[str, Any]] = []
    has_paused = False
    await node.services.cluster.wait_settled()
    for key in keys:
        error: HeadraceError | None = None
        broker: BrokerFact | None = None
        try:
            if kind == GROUP_KEY:
                shards: CoordinatorShards[Any, Any, Any] = node.services.groups.shards
            elif kind == TRANSACTION_KEY:
                shards = node.services.transactions.shards
            else:
                raise RequestInvalid("unsupported coordinator type: use group or transaction")
            await node.services.topics.create_internal(shards.topic)
            await shards.wait_handed_over(key)
            if not has_paused and node.services.cluster.coordinated_for_s(shards, key) < MOVED_S:
                has_paused = True
                await asyncio.sleep(MOVED_PAUSE_S)
            broker = node.services.cluster.coordinator_of(shards, key)
        except HeadraceError as refused:
            error = refused
        host, port = broker.kafka_address(context.session.listener) if broker else ("", -1)
        coordinators.append(
            {
                "key": key,
                "node_id": broker.id if broker else -1,
                "host": host,
                "port": port,
                "error_code": code_of(error),
                "error_message": message_of(error),
            }
        )
    if context.version < 4:
        return coordinators[0]
    return {"coordinators": coordinators}


HANDLERS: dict[int, Handler] = {
    apis.API_VERSIONS: api_versions,
    apis.METADATA: metadata,
    apis.DESCRIBE_CLUSTER: describe_cluster,
    apis.DESCRIBE_TOPIC_PARTITIONS: describe_topic_partitions,
    apis.FIND_COORDINATOR: find_coordinator,
}
