"""The Kafka APIs of this face and their versions: the one table.

Invariants: a version is listed once all of its fields are honoured. Check the table of real clients
before changing a minimum.
"""

from __future__ import annotations

from typing import NamedTuple

from headrace.broker.security.access import (
    BETWEEN_BROKERS,
    Access,
    How,
    Need,
    cluster,
    group,
    needs,
    public,
    topics,
    transaction,
)
from headrace.broker.security.authorizer import Operation, ResourceType

PRODUCE, FETCH, LIST_OFFSETS, METADATA = 0, 1, 2, 3
OFFSET_COMMIT, OFFSET_FETCH, FIND_COORDINATOR = 8, 9, 10
JOIN_GROUP, HEARTBEAT, LEAVE_GROUP, SYNC_GROUP = 11, 12, 13, 14
DESCRIBE_GROUPS, LIST_GROUPS = 15, 16
SASL_HANDSHAKE, API_VERSIONS = 17, 18
CREATE_TOPICS, DELETE_TOPICS, DELETE_RECORDS, INIT_PRODUCER_ID = 19, 20, 21, 22
OFFSET_FOR_LEADER_EPOCH = 23
ADD_PARTITIONS_TO_TXN, ADD_OFFSETS_TO_TXN, END_TXN, WRITE_TXN_MARKERS = 24, 25, 26, 27
TXN_OFFSET_COMMIT = 28
DESCRIBE_ACLS, CREATE_ACLS, DELETE_ACLS = 29, 30, 31
DESCRIBE_CONFIGS, ALTER_CONFIGS, DESCRIBE_LOG_DIRS = 32, 33, 35
SASL_AUTHENTICATE, CREATE_PARTITIONS, DELETE_GROUPS = 36, 37, 42
ALTER_REPLICA_LOG_DIRS, ELECT_LEADERS = 34, 43
INCREMENTAL_ALTER_CONFIGS, OFFSET_DELETE = 44, 47
ALTER_PARTITION_REASSIGNMENTS, LIST_PARTITION_REASSIGNMENTS = 45, 46
DESCRIBE_QUORUM, UPDATE_FEATURES, UNREGISTER_BROKER = 55, 57, 64
GET_TELEMETRY_SUBSCRIPTIONS, PUSH_TELEMETRY, LIST_CONFIG_RESOURCES = 71, 72, 74
DESCRIBE_CLIENT_QUOTAS, ALTER_CLIENT_QUOTAS = 48, 49
DESCRIBE_USER_SCRAM_CREDENTIALS, ALTER_USER_SCRAM_CREDENTIALS = 50, 51
CREATE_DELEGATION_TOKEN, RENEW_DELEGATION_TOKEN = 38, 39
EXPIRE_DELEGATION_TOKEN, DESCRIBE_DELEGATION_TOKEN = 40, 41
DESCRIBE_CLUSTER, DESCRIBE_PRODUCERS, DESCRIBE_TOPIC_PARTITIONS = 60, 61, 75
DESCRIBE_TRANSACTIONS, LIST_TRANSACTIONS = 65, 66
CONSUMER_GROUP_HEARTBEAT, CONSUMER_GROUP_DESCRIBE = 68, 69
SHARE_GROUP_HEARTBEAT, SHARE_GROUP_DESCRIBE, SHARE_FETCH, SHARE_ACKNOWLEDGE = 76, 77, 78, 79
STREAMS_GROUP_HEARTBEAT, STREAMS_GROUP_DESCRIBE = 88, 89
INITIALIZE_SHARE_GROUP_STATE, DELETE_SHARE_GROUP_STATE, READ_SHARE_GROUP_STATE_SUMMARY = 83, 86, 87
DESCRIBE_SHARE_GROUP_OFFSETS, ALTER_SHARE_GROUP_OFFSETS, DELETE_SHARE_GROUP_OFFSETS = 90, 91, 92


class Api(NamedTuple):
    """One API: the supported versions, the first with a flexible request header, and who may send
    it."""

    key: int
    name: str
    version_min: int
    version_max: int
    flexible_from: int
    access: Access
    """What its client must be allowed to do."""


def _configs(operation: Operation) -> Access:
    """A right to each topic and group; those of brokers are the cluster's."""
    kinds = ResourceType.TOPIC, ResourceType.GROUP, ResourceType.CLUSTER
    each = [Need(operation, kind, "resources.resource_name", How.EACH) for kind in kinds]
    return needs(*each).by("configs")


_TOKENS = public(
    "a client's own tokens; others by CREATE_TOKENS and DESCRIBE_TOKENS on their owner, or DESCRIBE"
    " on the token, which the handlers ask for (KIP-373)"
)
_APIS = (
    Api(
        PRODUCE,
        "Produce",
        3,
        13,
        9,
        needs(topics(Operation.WRITE), transaction(Operation.WRITE)).by("produce"),
    ),
    Api(FETCH, "Fetch", 4, 18, 12, needs(topics(Operation.READ)).by("fetch")),
    Api(LIST_OFFSETS, "ListOffsets", 1, 11, 6, needs(topics(Operation.DESCRIBE))),
    Api(
        METADATA,
        "Metadata",
        0,
        13,
        9,
        needs(topics(Operation.DESCRIBE), topics(Operation.CREATE, unless=Operation.CREATE)).by(
            "metadata"
        ),
    ),
    Api(
        OFFSET_COMMIT,
        "OffsetCommit",
        2,
        10,
        8,
        needs(group(Operation.READ), topics(Operation.READ)),
    ),
    Api(
        OFFSET_FETCH,
        "OffsetFetch",
        1,
        10,
        6,
        needs(
            group(Operation.DESCRIBE, "groups.group_id", How.EACH),
            topics(Operation.DESCRIBE, "groups.topics.name"),
        ).by("offset_fetch"),
    ),
    Api(
        FIND_COORDINATOR,
        "FindCoordinator",
        0,
        6,
        3,
        needs(
            group(Operation.DESCRIBE, "coordinator_keys", How.EACH),
            transaction(Operation.DESCRIBE, "coordinator_keys", How.EACH),
        ).by("find_coordinator"),
    ),
    Api(JOIN_GROUP, "JoinGroup", 0, 9, 6, needs(group(Operation.READ))),
    Api(HEARTBEAT, "Heartbeat", 0, 4, 4, needs(group(Operation.READ))),
    Api(LEAVE_GROUP, "LeaveGroup", 0, 5, 4, needs(group(Operation.READ))),
    Api(SYNC_GROUP, "SyncGroup", 0, 5, 4, needs(group(Operation.READ))),
    Api(
        DESCRIBE_GROUPS,
        "DescribeGroups",
        0,
        6,
        5,
        needs(
            group(Operation.DESCRIBE, "groups", How.EACH),
            topics(Operation.DESCRIBE, "groups.members"),
        ).by("describe_groups"),
    ),
    Api(
        LIST_GROUPS,
        "ListGroups",
        0,
        5,
        3,
        needs(
            Need(
                Operation.DESCRIBE,
                ResourceType.GROUP,
                "groups.group_id",
                How.SHOWN,
                unless=Operation.DESCRIBE,
            )
        ),
    ),
    Api(SASL_HANDSHAKE, "SaslHandshake", 0, 1, 99, public("how a client begins to log in")),
    Api(API_VERSIONS, "ApiVersions", 0, 5, 3, public("what a client asks before it logs in")),
    Api(
        CREATE_TOPICS,
        "CreateTopics",
        2,
        7,
        5,
        needs(
            topics(Operation.CREATE, unless=Operation.CREATE),
            topics(Operation.DESCRIBE_CONFIGS, "topics.name", How.SHOWN),
        ).by("create_topics"),
    ),
    Api(
        DELETE_TOPICS,
        "DeleteTopics",
        1,
        6,
        4,
        needs(topics(Operation.DELETE), topics(Operation.DESCRIBE)).by("delete_topics"),
    ),
    Api(DELETE_RECORDS, "DeleteRecords", 0, 2, 2, needs(topics(Operation.DELETE))),
    Api(
        INIT_PRODUCER_ID,
        "InitProducerId",
        0,
        5,
        2,
        needs(
            transaction(Operation.WRITE),
            Need(
                Operation.WRITE, ResourceType.TOPIC, how=How.ANY, unless=Operation.IDEMPOTENT_WRITE
            ),
        ).by("init_producer_id"),
    ),
    Api(
        OFFSET_FOR_LEADER_EPOCH,
        "OffsetForLeaderEpoch",
        2,
        4,
        4,
        needs(topics(Operation.DESCRIBE, "topics.topic", unless=Operation.CLUSTER_ACTION)),
    ),
    Api(
        ADD_PARTITIONS_TO_TXN,
        "AddPartitionsToTxn",
        0,
        5,
        3,
        needs(
            transaction(Operation.WRITE, "v3_and_below_transactional_id"),
            topics(Operation.WRITE, "v3_and_below_topics.name"),
        ).by("add_partitions"),
    ),
    Api(
        ADD_OFFSETS_TO_TXN,
        "AddOffsetsToTxn",
        0,
        4,
        3,
        needs(transaction(Operation.WRITE), group(Operation.READ)),
    ),
    Api(END_TXN, "EndTxn", 0, 5, 3, needs(transaction(Operation.WRITE))),
    Api(
        WRITE_TXN_MARKERS,
        "WriteTxnMarkers",
        1,
        2,
        1,
        needs(cluster(Operation.CLUSTER_ACTION, unless=Operation.ALTER)),
    ),
    Api(
        TXN_OFFSET_COMMIT,
        "TxnOffsetCommit",
        0,
        6,
        3,
        needs(transaction(Operation.WRITE), group(Operation.READ), topics(Operation.READ)),
    ),
    Api(DESCRIBE_ACLS, "DescribeAcls", 1, 3, 2, needs(cluster(Operation.DESCRIBE)).by("of_tenant")),
    Api(CREATE_ACLS, "CreateAcls", 1, 3, 2, needs(cluster(Operation.ALTER)).by("of_tenant")),
    Api(DELETE_ACLS, "DeleteAcls", 1, 3, 2, needs(cluster(Operation.ALTER)).by("of_tenant")),
    Api(DESCRIBE_CONFIGS, "DescribeConfigs", 1, 4, 4, _configs(Operation.DESCRIBE_CONFIGS)),
    Api(ALTER_CONFIGS, "AlterConfigs", 0, 2, 2, _configs(Operation.ALTER_CONFIGS)),
    Api(ALTER_REPLICA_LOG_DIRS, "AlterReplicaLogDirs", 1, 2, 2, needs(cluster(Operation.ALTER))),
    Api(DESCRIBE_LOG_DIRS, "DescribeLogDirs", 1, 5, 2, needs(cluster(Operation.DESCRIBE))),
    Api(SASL_AUTHENTICATE, "SaslAuthenticate", 0, 2, 2, public("how a client logs in")),
    Api(CREATE_PARTITIONS, "CreatePartitions", 0, 3, 2, needs(topics(Operation.ALTER))),
    Api(
        DELETE_GROUPS,
        "DeleteGroups",
        0,
        2,
        2,
        needs(group(Operation.DELETE, "groups_names", How.EACH)),
    ),
    Api(ELECT_LEADERS, "ElectLeaders", 0, 2, 2, needs(cluster(Operation.ALTER))),
    Api(
        INCREMENTAL_ALTER_CONFIGS,
        "IncrementalAlterConfigs",
        0,
        1,
        1,
        _configs(Operation.ALTER_CONFIGS),
    ),
    Api(
        ALTER_PARTITION_REASSIGNMENTS,
        "AlterPartitionReassignments",
        0,
        1,
        0,
        needs(cluster(Operation.ALTER)),
    ),
    Api(
        LIST_PARTITION_REASSIGNMENTS,
        "ListPartitionReassignments",
        0,
        0,
        0,
        needs(cluster(Operation.DESCRIBE)),
    ),
    Api(
        OFFSET_DELETE,
        "OffsetDelete",
        0,
        0,
        99,
        needs(group(Operation.DELETE), topics(Operation.READ)),
    ),
    Api(
        DESCRIBE_CLIENT_QUOTAS,
        "DescribeClientQuotas",
        0,
        1,
        1,
        needs(cluster(Operation.DESCRIBE_CONFIGS)).by("of_tenant"),
    ),
    Api(
        ALTER_CLIENT_QUOTAS,
        "AlterClientQuotas",
        0,
        1,
        1,
        needs(cluster(Operation.ALTER_CONFIGS)).by("of_tenant"),
    ),
    Api(DESCRIBE_QUORUM, "DescribeQuorum", 0, 2, 0, needs(cluster(Operation.DESCRIBE))),
    Api(UPDATE_FEATURES, "UpdateFeatures", 0, 2, 0, needs(cluster(Operation.ALTER))),
    Api(
        DESCRIBE_USER_SCRAM_CREDENTIALS,
        "DescribeUserScramCredentials",
        0,
        0,
        0,
        needs(cluster(Operation.DESCRIBE)).by("scram_users"),
    ),
    Api(
        ALTER_USER_SCRAM_CREDENTIALS,
        "AlterUserScramCredentials",
        0,
        0,
        0,
        needs(cluster(Operation.ALTER)).by("scram_users"),
    ),
    Api(CREATE_DELEGATION_TOKEN, "CreateDelegationToken", 1, 3, 2, _TOKENS.audited()),
    Api(RENEW_DELEGATION_TOKEN, "RenewDelegationToken", 1, 2, 2, _TOKENS.audited()),
    Api(EXPIRE_DELEGATION_TOKEN, "ExpireDelegationToken", 1, 2, 2, _TOKENS.audited()),
    Api(DESCRIBE_DELEGATION_TOKEN, "DescribeDelegationToken", 1, 3, 2, _TOKENS),
    Api(
        DESCRIBE_CLUSTER,
        "DescribeCluster",
        0,
        2,
        0,
        public("the brokers, which every client must reach"),
    ),
    Api(DESCRIBE_PRODUCERS, "DescribeProducers", 0, 0, 0, needs(topics(Operation.READ))),
    Api(UNREGISTER_BROKER, "UnregisterBroker", 0, 0, 0, needs(cluster(Operation.ALTER))),
    Api(
        DESCRIBE_TRANSACTIONS,
        "DescribeTransactions",
        0,
        0,
        0,
        needs(
            transaction(Operation.DESCRIBE, "transactional_ids", How.EACH),
            topics(Operation.DESCRIBE, "transaction_states.topics.topic", How.SHOWN),
        ).by("describe_transactions"),
    ),
    Api(
        LIST_TRANSACTIONS,
        "ListTransactions",
        0,
        2,
        0,
        needs(transaction(Operation.DESCRIBE, "transaction_states.transactional_id", How.SHOWN)),
    ),
    Api(
        CONSUMER_GROUP_HEARTBEAT,
        "ConsumerGroupHeartbeat",
        0,
        1,
        0,
        needs(
            group(Operation.READ), topics(Operation.DESCRIBE, "subscribed_topic_names", How.WHOLE)
        ).by("subscribe"),
    ),
    Api(
        CONSUMER_GROUP_DESCRIBE,
        "ConsumerGroupDescribe",
        0,
        1,
        0,
        needs(
            group(Operation.DESCRIBE, "group_ids", How.EACH),
            topics(Operation.DESCRIBE, "groups.members"),
        ).by("describe_members"),
    ),
    Api(
        GET_TELEMETRY_SUBSCRIPTIONS,
        "GetTelemetrySubscriptions",
        0,
        0,
        0,
        public("what a client is to report about itself"),
    ),
    Api(PUSH_TELEMETRY, "PushTelemetry", 0, 0, 0, public("what a client reports about itself")),
    Api(
        LIST_CONFIG_RESOURCES,
        "ListConfigResources",
        0,
        1,
        0,
        needs(cluster(Operation.DESCRIBE_CONFIGS)),
    ),
    Api(
        DESCRIBE_TOPIC_PARTITIONS,
        "DescribeTopicPartitions",
        0,
        0,
        0,
        needs(topics(Operation.DESCRIBE)).by("describe_topic_partitions"),
    ),
    Api(
        SHARE_GROUP_HEARTBEAT,
        "ShareGroupHeartbeat",
        1,
        1,
        0,
        needs(
            group(Operation.READ), topics(Operation.DESCRIBE, "subscribed_topic_names", How.WHOLE)
        ).by("subscribe"),
    ),
    Api(
        SHARE_GROUP_DESCRIBE,
        "ShareGroupDescribe",
        1,
        1,
        0,
        needs(
            group(Operation.DESCRIBE, "group_ids", How.EACH),
            topics(Operation.DESCRIBE, "groups.members"),
        ).by("describe_members"),
    ),
    Api(
        SHARE_FETCH,
        "ShareFetch",
        1,
        2,
        0,
        needs(group(Operation.READ), topics(Operation.READ)).by("share"),
    ),
    Api(
        SHARE_ACKNOWLEDGE,
        "ShareAcknowledge",
        1,
        2,
        0,
        needs(group(Operation.READ), topics(Operation.READ)).by("share"),
    ),
    Api(INITIALIZE_SHARE_GROUP_STATE, "InitializeShareGroupState", 0, 0, 0, BETWEEN_BROKERS),
    Api(DELETE_SHARE_GROUP_STATE, "DeleteShareGroupState", 0, 0, 0, BETWEEN_BROKERS),
    Api(READ_SHARE_GROUP_STATE_SUMMARY, "ReadShareGroupStateSummary", 0, 1, 0, BETWEEN_BROKERS),
    Api(
        STREAMS_GROUP_HEARTBEAT,
        "StreamsGroupHeartbeat",
        0,
        0,
        0,
        needs(group(Operation.READ), topics(Operation.DESCRIBE, "topology", How.WHOLE)).by(
            "streams_heartbeat"
        ),
    ),
    Api(
        STREAMS_GROUP_DESCRIBE,
        "StreamsGroupDescribe",
        0,
        0,
        0,
        needs(
            group(Operation.DESCRIBE, "group_ids", How.EACH),
            topics(Operation.DESCRIBE, "groups.topology"),
        ).by("describe_members"),
    ),
    Api(
        DESCRIBE_SHARE_GROUP_OFFSETS,
        "DescribeShareGroupOffsets",
        0,
        1,
        0,
        needs(
            group(Operation.DESCRIBE, "groups.group_id", How.EACH),
            topics(Operation.DESCRIBE, "groups.topics.topic_name"),
        ).by("offset_fetch"),
    ),
    Api(
        ALTER_SHARE_GROUP_OFFSETS,
        "AlterShareGroupOffsets",
        0,
        0,
        0,
        needs(group(Operation.READ), topics(Operation.READ, "topics.topic_name")).audited(),
    ),
    Api(
        DELETE_SHARE_GROUP_OFFSETS,
        "DeleteShareGroupOffsets",
        0,
        0,
        0,
        needs(group(Operation.DELETE), topics(Operation.READ, "topics.topic_name")),
    ),
)
APIS: dict[int, Api] = {api.key: api for api in _APIS}

QUEUE_RECEIVE, QUEUE_WAIT, QUEUE_SETTLE, QUEUE_RELEASE = 20_000, 20_001, 20_002, 20_003
QUEUE_DESCRIBE, QUEUE_LIST_PARKED, QUEUE_PARK, QUEUE_UNPARK = 20_004, 20_005, 20_006, 20_007
QUEUE_APPEND_COPIES, QUEUE_APPEND, QUEUE_ASK = 20_008, 20_009, 20_010
OWN_APIS: dict[int, Api] = {
    api.key: api
    for api in (
        Api(QUEUE_RECEIVE, "QueueReceive", 0, 0, 0, BETWEEN_BROKERS),
        Api(QUEUE_WAIT, "QueueWait", 0, 0, 0, BETWEEN_BROKERS),
        Api(QUEUE_SETTLE, "QueueSettle", 0, 0, 0, BETWEEN_BROKERS),
        Api(QUEUE_RELEASE, "QueueRelease", 0, 0, 0, BETWEEN_BROKERS),
        Api(QUEUE_DESCRIBE, "QueueDescribe", 0, 0, 0, BETWEEN_BROKERS),
        Api(QUEUE_LIST_PARKED, "QueueListParked", 0, 0, 0, BETWEEN_BROKERS),
        Api(QUEUE_PARK, "QueuePark", 0, 0, 0, BETWEEN_BROKERS),
        Api(QUEUE_UNPARK, "QueueUnpark", 0, 0, 0, BETWEEN_BROKERS),
        Api(QUEUE_APPEND_COPIES, "QueueAppendCopies", 0, 0, 0, BETWEEN_BROKERS),
        Api(QUEUE_APPEND, "QueueAppend", 0, 0, 0, BETWEEN_BROKERS),
        Api(QUEUE_ASK, "QueueAsk", 0, 0, 0, BETWEEN_BROKERS),
    )
}
"""Requests between Headrace brokers for which Kafka has no API. Not advertised: clients do not use
them."""

BROKER_APIS = frozenset(
    {
        *OWN_APIS,
        WRITE_TXN_MARKERS,
        INITIALIZE_SHARE_GROUP_STATE,
        DELETE_SHARE_GROUP_STATE,
        READ_SHARE_GROUP_STATE_SUMMARY,
    }
)
"""Refused to others once the brokers of a cluster authenticate clients."""

ADVERTISED_MIN = {PRODUCE: 0}
"""librdkafka up to 2.x assumes that a broker without Produce v0 cannot compress (KAFKA-18659), so
Kafka 4 advertises v0 to v2 and refuses them; Headrace does the same."""


TELEMETRY = frozenset({GET_TELEMETRY_SUBSCRIPTIONS, PUSH_TELEMETRY})


def advertised(*, with_telemetry: bool = True) -> list[dict[str, int]]:
    """The entries of an ApiVersions response. Without a use for telemetry it is not advertised, as
    by Kafka: each client would ask, and librdkafka logs that it does."""
    return [
        {
            "api_key": api.key,
            "min_version": ADVERTISED_MIN.get(api.key, api.version_min),
            "max_version": api.version_max,
        }
        for api in APIS.values()
        if with_telemetry or api.key not in TELEMETRY
    ]
