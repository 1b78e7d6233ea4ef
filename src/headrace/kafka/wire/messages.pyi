# Derived from the message definitions of Apache Kafka 4.4.0, Copyright The Apache Software
# Foundation, licensed under the Apache License 2.0 (see LICENSE and NOTICE). Written by
# scripts/kafka_messages.py: do not edit.
"""What reads of each message give, for type checkers: not a module at run time.

A field that the version of a message lacks has its default.
"""

from uuid import UUID

class ProduceRequest_PartitionProduceData:
    index: int
    records: bytes | None

class ProduceRequest_TopicProduceData:
    name: str
    topic_id: UUID | None
    partition_data: tuple[ProduceRequest_PartitionProduceData, ...]

class ProduceRequest:
    transactional_id: str | None
    acks: int
    timeout_ms: int
    topic_data: tuple[ProduceRequest_TopicProduceData, ...]

class ProduceResponse_BatchIndexAndErrorMessage:
    batch_index: int
    batch_index_error_message: str | None

class ProduceResponse_LeaderIdAndEpoch:
    leader_id: int
    leader_epoch: int

class ProduceResponse_PartitionProduceResponse:
    index: int
    error_code: int
    base_offset: int
    log_append_time_ms: int
    log_start_offset: int
    record_errors: tuple[ProduceResponse_BatchIndexAndErrorMessage, ...]
    error_message: str | None
    current_leader: ProduceResponse_LeaderIdAndEpoch

class ProduceResponse_TopicProduceResponse:
    name: str
    topic_id: UUID | None
    partition_responses: tuple[ProduceResponse_PartitionProduceResponse, ...]

class ProduceResponse_NodeEndpoint:
    node_id: int
    host: str
    port: int
    rack: str | None

class ProduceResponse:
    responses: tuple[ProduceResponse_TopicProduceResponse, ...]
    throttle_time_ms: int
    node_endpoints: tuple[ProduceResponse_NodeEndpoint, ...]

class FetchRequest_ReplicaState:
    replica_id: int
    replica_epoch: int

class FetchRequest_FetchPartition:
    partition: int
    current_leader_epoch: int
    fetch_offset: int
    last_fetched_epoch: int
    log_start_offset: int
    partition_max_bytes: int
    replica_directory_id: UUID | None
    high_watermark: int

class FetchRequest_FetchTopic:
    topic: str
    topic_id: UUID | None
    partitions: tuple[FetchRequest_FetchPartition, ...]

class FetchRequest_ForgottenTopic:
    topic: str
    topic_id: UUID | None
    partitions: tuple[int, ...]

class FetchRequest:
    cluster_id: str | None
    replica_id: int
    replica_state: FetchRequest_ReplicaState
    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    isolation_level: int
    session_id: int
    session_epoch: int
    topics: tuple[FetchRequest_FetchTopic, ...]
    forgotten_topics_data: tuple[FetchRequest_ForgottenTopic, ...]
    rack_id: str

class FetchResponse_EpochEndOffset:
    epoch: int
    end_offset: int

class FetchResponse_LeaderIdAndEpoch:
    leader_id: int
    leader_epoch: int

class FetchResponse_SnapshotId:
    end_offset: int
    epoch: int

class FetchResponse_AbortedTransaction:
    producer_id: int
    first_offset: int

class FetchResponse_PartitionData:
    partition_index: int
    error_code: int
    high_watermark: int
    last_stable_offset: int
    log_start_offset: int
    diverging_epoch: FetchResponse_EpochEndOffset
    current_leader: FetchResponse_LeaderIdAndEpoch
    snapshot_id: FetchResponse_SnapshotId
    aborted_transactions: tuple[FetchResponse_AbortedTransaction, ...] | None
    preferred_read_replica: int
    records: bytes | None

class FetchResponse_FetchableTopicResponse:
    topic: str
    topic_id: UUID | None
    partitions: tuple[FetchResponse_PartitionData, ...]

class FetchResponse_NodeEndpoint:
    node_id: int
    host: str
    port: int
    rack: str | None

class FetchResponse:
    throttle_time_ms: int
    error_code: int
    session_id: int
    responses: tuple[FetchResponse_FetchableTopicResponse, ...]
    node_endpoints: tuple[FetchResponse_NodeEndpoint, ...]

class ListOffsetsRequest_ListOffsetsPartition:
    partition_index: int
    current_leader_epoch: int
    timestamp: int

class ListOffsetsRequest_ListOffsetsTopic:
    name: str
    partitions: tuple[ListOffsetsRequest_ListOffsetsPartition, ...]

class ListOffsetsRequest:
    replica_id: int
    isolation_level: int
    topics: tuple[ListOffsetsRequest_ListOffsetsTopic, ...]
    timeout_ms: int

class ListOffsetsResponse_ListOffsetsPartitionResponse:
    partition_index: int
    error_code: int
    timestamp: int
    offset: int
    leader_epoch: int

class ListOffsetsResponse_ListOffsetsTopicResponse:
    name: str
    partitions: tuple[ListOffsetsResponse_ListOffsetsPartitionResponse, ...]

class ListOffsetsResponse:
    throttle_time_ms: int
    topics: tuple[ListOffsetsResponse_ListOffsetsTopicResponse, ...]

class MetadataRequest_MetadataRequestTopic:
    topic_id: UUID | None
    name: str | None

class MetadataRequest:
    topics: tuple[MetadataRequest_MetadataRequestTopic, ...] | None
    allow_auto_topic_creation: bool
    include_cluster_authorized_operations: bool
    include_topic_authorized_operations: bool

class MetadataResponse_MetadataResponseBroker:
    node_id: int
    host: str
    port: int
    rack: str | None

class MetadataResponse_MetadataResponsePartition:
    error_code: int
    partition_index: int
    leader_id: int
    leader_epoch: int
    replica_nodes: tuple[int, ...]
    isr_nodes: tuple[int, ...]
    offline_replicas: tuple[int, ...]

class MetadataResponse_MetadataResponseTopic:
    error_code: int
    name: str | None
    topic_id: UUID | None
    is_internal: bool
    partitions: tuple[MetadataResponse_MetadataResponsePartition, ...]
    topic_authorized_operations: int

class MetadataResponse:
    throttle_time_ms: int
    brokers: tuple[MetadataResponse_MetadataResponseBroker, ...]
    cluster_id: str | None
    controller_id: int
    topics: tuple[MetadataResponse_MetadataResponseTopic, ...]
    cluster_authorized_operations: int
    error_code: int

class OffsetCommitRequest_OffsetCommitRequestPartition:
    partition_index: int
    committed_offset: int
    committed_leader_epoch: int
    committed_metadata: str | None

class OffsetCommitRequest_OffsetCommitRequestTopic:
    name: str
    topic_id: UUID | None
    partitions: tuple[OffsetCommitRequest_OffsetCommitRequestPartition, ...]

class OffsetCommitRequest:
    group_id: str
    generation_id_or_member_epoch: int
    member_id: str
    group_instance_id: str | None
    retention_time_ms: int
    topics: tuple[OffsetCommitRequest_OffsetCommitRequestTopic, ...]

class OffsetCommitResponse_OffsetCommitResponsePartition:
    partition_index: int
    error_code: int

class OffsetCommitResponse_OffsetCommitResponseTopic:
    name: str
    topic_id: UUID | None
    partitions: tuple[OffsetCommitResponse_OffsetCommitResponsePartition, ...]

class OffsetCommitResponse:
    throttle_time_ms: int
    topics: tuple[OffsetCommitResponse_OffsetCommitResponseTopic, ...]

class OffsetFetchRequest_OffsetFetchRequestTopic:
    name: str
    partition_indexes: tuple[int, ...]

class OffsetFetchRequest_OffsetFetchRequestTopics:
    name: str
    topic_id: UUID | None
    partition_indexes: tuple[int, ...]

class OffsetFetchRequest_OffsetFetchRequestGroup:
    group_id: str
    member_id: str | None
    member_epoch: int
    topics: tuple[OffsetFetchRequest_OffsetFetchRequestTopics, ...] | None

class OffsetFetchRequest:
    group_id: str
    topics: tuple[OffsetFetchRequest_OffsetFetchRequestTopic, ...] | None
    groups: tuple[OffsetFetchRequest_OffsetFetchRequestGroup, ...]
    require_stable: bool

class OffsetFetchResponse_OffsetFetchResponsePartition:
    partition_index: int
    committed_offset: int
    committed_leader_epoch: int
    metadata: str | None
    error_code: int

class OffsetFetchResponse_OffsetFetchResponseTopic:
    name: str
    partitions: tuple[OffsetFetchResponse_OffsetFetchResponsePartition, ...]

class OffsetFetchResponse_OffsetFetchResponsePartitions:
    partition_index: int
    committed_offset: int
    committed_leader_epoch: int
    metadata: str | None
    error_code: int

class OffsetFetchResponse_OffsetFetchResponseTopics:
    name: str
    topic_id: UUID | None
    partitions: tuple[OffsetFetchResponse_OffsetFetchResponsePartitions, ...]

class OffsetFetchResponse_OffsetFetchResponseGroup:
    group_id: str
    topics: tuple[OffsetFetchResponse_OffsetFetchResponseTopics, ...]
    error_code: int

class OffsetFetchResponse:
    throttle_time_ms: int
    topics: tuple[OffsetFetchResponse_OffsetFetchResponseTopic, ...]
    error_code: int
    groups: tuple[OffsetFetchResponse_OffsetFetchResponseGroup, ...]

class FindCoordinatorRequest:
    key: str
    key_type: int
    coordinator_keys: tuple[str, ...]

class FindCoordinatorResponse_Coordinator:
    key: str
    node_id: int
    host: str
    port: int
    error_code: int
    error_message: str | None

class FindCoordinatorResponse:
    throttle_time_ms: int
    error_code: int
    error_message: str | None
    node_id: int
    host: str
    port: int
    coordinators: tuple[FindCoordinatorResponse_Coordinator, ...]

class JoinGroupRequest_JoinGroupRequestProtocol:
    name: str
    metadata: bytes

class JoinGroupRequest:
    group_id: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    member_id: str
    group_instance_id: str | None
    protocol_type: str
    protocols: tuple[JoinGroupRequest_JoinGroupRequestProtocol, ...]
    reason: str | None

class JoinGroupResponse_JoinGroupResponseMember:
    member_id: str
    group_instance_id: str | None
    metadata: bytes

class JoinGroupResponse:
    throttle_time_ms: int
    error_code: int
    generation_id: int
    protocol_type: str | None
    protocol_name: str | None
    leader: str
    skip_assignment: bool
    member_id: str
    members: tuple[JoinGroupResponse_JoinGroupResponseMember, ...]

class HeartbeatRequest:
    group_id: str
    generation_id: int
    member_id: str
    group_instance_id: str | None

class HeartbeatResponse:
    throttle_time_ms: int
    error_code: int

class LeaveGroupRequest_MemberIdentity:
    member_id: str
    group_instance_id: str | None
    reason: str | None

class LeaveGroupRequest:
    group_id: str
    member_id: str
    members: tuple[LeaveGroupRequest_MemberIdentity, ...]

class LeaveGroupResponse_MemberResponse:
    member_id: str
    group_instance_id: str | None
    error_code: int

class LeaveGroupResponse:
    throttle_time_ms: int
    error_code: int
    members: tuple[LeaveGroupResponse_MemberResponse, ...]

class SyncGroupRequest_SyncGroupRequestAssignment:
    member_id: str
    assignment: bytes

class SyncGroupRequest:
    group_id: str
    generation_id: int
    member_id: str
    group_instance_id: str | None
    protocol_type: str | None
    protocol_name: str | None
    assignments: tuple[SyncGroupRequest_SyncGroupRequestAssignment, ...]

class SyncGroupResponse:
    throttle_time_ms: int
    error_code: int
    protocol_type: str | None
    protocol_name: str | None
    assignment: bytes

class DescribeGroupsRequest:
    groups: tuple[str, ...]
    include_authorized_operations: bool

class DescribeGroupsResponse_DescribedGroupMember:
    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    member_metadata: bytes
    member_assignment: bytes

class DescribeGroupsResponse_DescribedGroup:
    error_code: int
    error_message: str | None
    group_id: str
    group_state: str
    protocol_type: str
    protocol_data: str
    members: tuple[DescribeGroupsResponse_DescribedGroupMember, ...]
    authorized_operations: int

class DescribeGroupsResponse:
    throttle_time_ms: int
    groups: tuple[DescribeGroupsResponse_DescribedGroup, ...]

class ListGroupsRequest:
    states_filter: tuple[str, ...]
    types_filter: tuple[str, ...]

class ListGroupsResponse_ListedGroup:
    group_id: str
    protocol_type: str
    group_state: str
    group_type: str

class ListGroupsResponse:
    throttle_time_ms: int
    error_code: int
    groups: tuple[ListGroupsResponse_ListedGroup, ...]

class SaslHandshakeRequest:
    mechanism: str

class SaslHandshakeResponse:
    error_code: int
    mechanisms: tuple[str, ...]

class ApiVersionsRequest:
    client_software_name: str
    client_software_version: str
    cluster_id: str | None
    node_id: int

class ApiVersionsResponse_ApiVersion:
    api_key: int
    min_version: int
    max_version: int

class ApiVersionsResponse_SupportedFeatureKey:
    name: str
    min_version: int
    max_version: int

class ApiVersionsResponse_FinalizedFeatureKey:
    name: str
    max_version_level: int
    min_version_level: int

class ApiVersionsResponse:
    error_code: int
    api_keys: tuple[ApiVersionsResponse_ApiVersion, ...]
    throttle_time_ms: int
    supported_features: tuple[ApiVersionsResponse_SupportedFeatureKey, ...]
    finalized_features_epoch: int
    finalized_features: tuple[ApiVersionsResponse_FinalizedFeatureKey, ...]
    zk_migration_ready: bool

class CreateTopicsRequest_CreatableReplicaAssignment:
    partition_index: int
    broker_ids: tuple[int, ...]

class CreateTopicsRequest_CreatableTopicConfig:
    name: str
    value: str | None

class CreateTopicsRequest_CreatableTopic:
    name: str
    num_partitions: int
    replication_factor: int
    assignments: tuple[CreateTopicsRequest_CreatableReplicaAssignment, ...]
    configs: tuple[CreateTopicsRequest_CreatableTopicConfig, ...]

class CreateTopicsRequest:
    topics: tuple[CreateTopicsRequest_CreatableTopic, ...]
    timeout_ms: int
    validate_only: bool

class CreateTopicsResponse_CreatableTopicConfigs:
    name: str
    value: str | None
    read_only: bool
    config_source: int
    is_sensitive: bool

class CreateTopicsResponse_CreatableTopicResult:
    name: str
    topic_id: UUID | None
    error_code: int
    error_message: str | None
    topic_config_error_code: int
    num_partitions: int
    replication_factor: int
    configs: tuple[CreateTopicsResponse_CreatableTopicConfigs, ...] | None

class CreateTopicsResponse:
    throttle_time_ms: int
    topics: tuple[CreateTopicsResponse_CreatableTopicResult, ...]

class DeleteTopicsRequest_DeleteTopicState:
    name: str | None
    topic_id: UUID | None

class DeleteTopicsRequest:
    topics: tuple[DeleteTopicsRequest_DeleteTopicState, ...]
    topic_names: tuple[str, ...]
    timeout_ms: int

class DeleteTopicsResponse_DeletableTopicResult:
    name: str | None
    topic_id: UUID | None
    error_code: int
    error_message: str | None

class DeleteTopicsResponse:
    throttle_time_ms: int
    responses: tuple[DeleteTopicsResponse_DeletableTopicResult, ...]

class DeleteRecordsRequest_DeleteRecordsPartition:
    partition_index: int
    offset: int

class DeleteRecordsRequest_DeleteRecordsTopic:
    name: str
    partitions: tuple[DeleteRecordsRequest_DeleteRecordsPartition, ...]

class DeleteRecordsRequest:
    topics: tuple[DeleteRecordsRequest_DeleteRecordsTopic, ...]
    timeout_ms: int

class DeleteRecordsResponse_DeleteRecordsPartitionResult:
    partition_index: int
    low_watermark: int
    error_code: int

class DeleteRecordsResponse_DeleteRecordsTopicResult:
    name: str
    partitions: tuple[DeleteRecordsResponse_DeleteRecordsPartitionResult, ...]

class DeleteRecordsResponse:
    throttle_time_ms: int
    topics: tuple[DeleteRecordsResponse_DeleteRecordsTopicResult, ...]

class InitProducerIdRequest:
    transactional_id: str | None
    transaction_timeout_ms: int
    producer_id: int
    producer_epoch: int
    enable2_pc: bool
    keep_prepared_txn: bool

class InitProducerIdResponse:
    throttle_time_ms: int
    error_code: int
    producer_id: int
    producer_epoch: int
    ongoing_txn_producer_id: int
    ongoing_txn_producer_epoch: int

class OffsetForLeaderEpochRequest_OffsetForLeaderPartition:
    partition: int
    current_leader_epoch: int
    leader_epoch: int

class OffsetForLeaderEpochRequest_OffsetForLeaderTopic:
    topic: str
    partitions: tuple[OffsetForLeaderEpochRequest_OffsetForLeaderPartition, ...]

class OffsetForLeaderEpochRequest:
    replica_id: int
    topics: tuple[OffsetForLeaderEpochRequest_OffsetForLeaderTopic, ...]

class OffsetForLeaderEpochResponse_EpochEndOffset:
    error_code: int
    partition: int
    leader_epoch: int
    end_offset: int

class OffsetForLeaderEpochResponse_OffsetForLeaderTopicResult:
    topic: str
    partitions: tuple[OffsetForLeaderEpochResponse_EpochEndOffset, ...]

class OffsetForLeaderEpochResponse:
    throttle_time_ms: int
    topics: tuple[OffsetForLeaderEpochResponse_OffsetForLeaderTopicResult, ...]

class AddPartitionsToTxnRequest_AddPartitionsToTxnTopic:
    name: str
    partitions: tuple[int, ...]

class AddPartitionsToTxnRequest_AddPartitionsToTxnTransaction:
    transactional_id: str
    producer_id: int
    producer_epoch: int
    verify_only: bool
    topics: tuple[AddPartitionsToTxnRequest_AddPartitionsToTxnTopic, ...]

class AddPartitionsToTxnRequest:
    transactions: tuple[AddPartitionsToTxnRequest_AddPartitionsToTxnTransaction, ...]
    v3_and_below_transactional_id: str
    v3_and_below_producer_id: int
    v3_and_below_producer_epoch: int
    v3_and_below_topics: tuple[AddPartitionsToTxnRequest_AddPartitionsToTxnTopic, ...]

class AddPartitionsToTxnResponse_AddPartitionsToTxnTopicResult:
    name: str
    results_by_partition: tuple[AddPartitionsToTxnResponse_AddPartitionsToTxnPartitionResult, ...]

class AddPartitionsToTxnResponse_AddPartitionsToTxnPartitionResult:
    partition_index: int
    partition_error_code: int

class AddPartitionsToTxnResponse_AddPartitionsToTxnResult:
    transactional_id: str
    topic_results: tuple[AddPartitionsToTxnResponse_AddPartitionsToTxnTopicResult, ...]

class AddPartitionsToTxnResponse:
    throttle_time_ms: int
    error_code: int
    results_by_transaction: tuple[AddPartitionsToTxnResponse_AddPartitionsToTxnResult, ...]
    results_by_topic_v3_and_below: tuple[AddPartitionsToTxnResponse_AddPartitionsToTxnTopicResult, ...]

class AddOffsetsToTxnRequest:
    transactional_id: str
    producer_id: int
    producer_epoch: int
    group_id: str

class AddOffsetsToTxnResponse:
    throttle_time_ms: int
    error_code: int

class EndTxnRequest:
    transactional_id: str
    producer_id: int
    producer_epoch: int
    committed: bool

class EndTxnResponse:
    throttle_time_ms: int
    error_code: int
    producer_id: int
    producer_epoch: int

class WriteTxnMarkersRequest_WritableTxnMarkerTopic:
    name: str
    partition_indexes: tuple[int, ...]

class WriteTxnMarkersRequest_WritableTxnMarker:
    producer_id: int
    producer_epoch: int
    transaction_result: bool
    topics: tuple[WriteTxnMarkersRequest_WritableTxnMarkerTopic, ...]
    coordinator_epoch: int
    transaction_version: int

class WriteTxnMarkersRequest:
    markers: tuple[WriteTxnMarkersRequest_WritableTxnMarker, ...]

class WriteTxnMarkersResponse_WritableTxnMarkerPartitionResult:
    partition_index: int
    error_code: int

class WriteTxnMarkersResponse_WritableTxnMarkerTopicResult:
    name: str
    partitions: tuple[WriteTxnMarkersResponse_WritableTxnMarkerPartitionResult, ...]

class WriteTxnMarkersResponse_WritableTxnMarkerResult:
    producer_id: int
    topics: tuple[WriteTxnMarkersResponse_WritableTxnMarkerTopicResult, ...]

class WriteTxnMarkersResponse:
    markers: tuple[WriteTxnMarkersResponse_WritableTxnMarkerResult, ...]

class TxnOffsetCommitRequest_TxnOffsetCommitRequestPartition:
    partition_index: int
    committed_offset: int
    committed_leader_epoch: int
    committed_metadata: str | None

class TxnOffsetCommitRequest_TxnOffsetCommitRequestTopic:
    name: str
    topic_id: UUID | None
    partitions: tuple[TxnOffsetCommitRequest_TxnOffsetCommitRequestPartition, ...]

class TxnOffsetCommitRequest:
    transactional_id: str
    group_id: str
    producer_id: int
    producer_epoch: int
    generation_id_or_member_epoch: int
    member_id: str
    group_instance_id: str | None
    topics: tuple[TxnOffsetCommitRequest_TxnOffsetCommitRequestTopic, ...]

class TxnOffsetCommitResponse_TxnOffsetCommitResponsePartition:
    partition_index: int
    error_code: int

class TxnOffsetCommitResponse_TxnOffsetCommitResponseTopic:
    name: str
    topic_id: UUID | None
    partitions: tuple[TxnOffsetCommitResponse_TxnOffsetCommitResponsePartition, ...]

class TxnOffsetCommitResponse:
    throttle_time_ms: int
    topics: tuple[TxnOffsetCommitResponse_TxnOffsetCommitResponseTopic, ...]

class DescribeAclsRequest:
    resource_type_filter: int
    resource_name_filter: str | None
    pattern_type_filter: int
    principal_filter: str | None
    host_filter: str | None
    operation: int
    permission_type: int

class DescribeAclsResponse_AclDescription:
    principal: str
    host: str
    operation: int
    permission_type: int

class DescribeAclsResponse_DescribeAclsResource:
    resource_type: int
    resource_name: str
    pattern_type: int
    acls: tuple[DescribeAclsResponse_AclDescription, ...]

class DescribeAclsResponse:
    throttle_time_ms: int
    error_code: int
    error_message: str | None
    resources: tuple[DescribeAclsResponse_DescribeAclsResource, ...]

class CreateAclsRequest_AclCreation:
    resource_type: int
    resource_name: str
    resource_pattern_type: int
    principal: str
    host: str
    operation: int
    permission_type: int

class CreateAclsRequest:
    creations: tuple[CreateAclsRequest_AclCreation, ...]

class CreateAclsResponse_AclCreationResult:
    error_code: int
    error_message: str | None

class CreateAclsResponse:
    throttle_time_ms: int
    results: tuple[CreateAclsResponse_AclCreationResult, ...]

class DeleteAclsRequest_DeleteAclsFilter:
    resource_type_filter: int
    resource_name_filter: str | None
    pattern_type_filter: int
    principal_filter: str | None
    host_filter: str | None
    operation: int
    permission_type: int

class DeleteAclsRequest:
    filters: tuple[DeleteAclsRequest_DeleteAclsFilter, ...]

class DeleteAclsResponse_DeleteAclsMatchingAcl:
    error_code: int
    error_message: str | None
    resource_type: int
    resource_name: str
    pattern_type: int
    principal: str
    host: str
    operation: int
    permission_type: int

class DeleteAclsResponse_DeleteAclsFilterResult:
    error_code: int
    error_message: str | None
    matching_acls: tuple[DeleteAclsResponse_DeleteAclsMatchingAcl, ...]

class DeleteAclsResponse:
    throttle_time_ms: int
    filter_results: tuple[DeleteAclsResponse_DeleteAclsFilterResult, ...]

class DescribeConfigsRequest_DescribeConfigsResource:
    resource_type: int
    resource_name: str
    configuration_keys: tuple[str, ...] | None

class DescribeConfigsRequest:
    resources: tuple[DescribeConfigsRequest_DescribeConfigsResource, ...]
    include_synonyms: bool
    include_documentation: bool

class DescribeConfigsResponse_DescribeConfigsSynonym:
    name: str
    value: str | None
    source: int

class DescribeConfigsResponse_DescribeConfigsResourceResult:
    name: str
    value: str | None
    read_only: bool
    config_source: int
    is_sensitive: bool
    synonyms: tuple[DescribeConfigsResponse_DescribeConfigsSynonym, ...]
    config_type: int
    documentation: str | None

class DescribeConfigsResponse_DescribeConfigsResult:
    error_code: int
    error_message: str | None
    resource_type: int
    resource_name: str
    configs: tuple[DescribeConfigsResponse_DescribeConfigsResourceResult, ...]

class DescribeConfigsResponse:
    throttle_time_ms: int
    results: tuple[DescribeConfigsResponse_DescribeConfigsResult, ...]

class AlterConfigsRequest_AlterableConfig:
    name: str
    value: str | None

class AlterConfigsRequest_AlterConfigsResource:
    resource_type: int
    resource_name: str
    configs: tuple[AlterConfigsRequest_AlterableConfig, ...]

class AlterConfigsRequest:
    resources: tuple[AlterConfigsRequest_AlterConfigsResource, ...]
    validate_only: bool

class AlterConfigsResponse_AlterConfigsResourceResponse:
    error_code: int
    error_message: str | None
    resource_type: int
    resource_name: str

class AlterConfigsResponse:
    throttle_time_ms: int
    responses: tuple[AlterConfigsResponse_AlterConfigsResourceResponse, ...]

class AlterReplicaLogDirsRequest_AlterReplicaLogDirTopic:
    name: str
    partitions: tuple[int, ...]

class AlterReplicaLogDirsRequest_AlterReplicaLogDir:
    path: str
    topics: tuple[AlterReplicaLogDirsRequest_AlterReplicaLogDirTopic, ...]

class AlterReplicaLogDirsRequest:
    dirs: tuple[AlterReplicaLogDirsRequest_AlterReplicaLogDir, ...]

class AlterReplicaLogDirsResponse_AlterReplicaLogDirPartitionResult:
    partition_index: int
    error_code: int

class AlterReplicaLogDirsResponse_AlterReplicaLogDirTopicResult:
    topic_name: str
    partitions: tuple[AlterReplicaLogDirsResponse_AlterReplicaLogDirPartitionResult, ...]

class AlterReplicaLogDirsResponse:
    throttle_time_ms: int
    results: tuple[AlterReplicaLogDirsResponse_AlterReplicaLogDirTopicResult, ...]

class DescribeLogDirsRequest_DescribableLogDirTopic:
    topic: str
    partitions: tuple[int, ...]

class DescribeLogDirsRequest:
    topics: tuple[DescribeLogDirsRequest_DescribableLogDirTopic, ...] | None

class DescribeLogDirsResponse_DescribeLogDirsPartition:
    partition_index: int
    partition_size: int
    offset_lag: int
    is_future_key: bool

class DescribeLogDirsResponse_DescribeLogDirsTopic:
    name: str
    partitions: tuple[DescribeLogDirsResponse_DescribeLogDirsPartition, ...]

class DescribeLogDirsResponse_DescribeLogDirsResult:
    error_code: int
    log_dir: str
    topics: tuple[DescribeLogDirsResponse_DescribeLogDirsTopic, ...]
    total_bytes: int
    usable_bytes: int
    is_cordoned: bool

class DescribeLogDirsResponse:
    throttle_time_ms: int
    error_code: int
    results: tuple[DescribeLogDirsResponse_DescribeLogDirsResult, ...]

class SaslAuthenticateRequest:
    auth_bytes: bytes

class SaslAuthenticateResponse:
    error_code: int
    error_message: str | None
    auth_bytes: bytes
    session_lifetime_ms: int

class CreatePartitionsRequest_CreatePartitionsAssignment:
    broker_ids: tuple[int, ...]

class CreatePartitionsRequest_CreatePartitionsTopic:
    name: str
    count: int
    assignments: tuple[CreatePartitionsRequest_CreatePartitionsAssignment, ...] | None

class CreatePartitionsRequest:
    topics: tuple[CreatePartitionsRequest_CreatePartitionsTopic, ...]
    timeout_ms: int
    validate_only: bool

class CreatePartitionsResponse_CreatePartitionsTopicResult:
    name: str
    error_code: int
    error_message: str | None

class CreatePartitionsResponse:
    throttle_time_ms: int
    results: tuple[CreatePartitionsResponse_CreatePartitionsTopicResult, ...]

class CreateDelegationTokenRequest_CreatableRenewers:
    principal_type: str
    principal_name: str

class CreateDelegationTokenRequest:
    owner_principal_type: str | None
    owner_principal_name: str | None
    renewers: tuple[CreateDelegationTokenRequest_CreatableRenewers, ...]
    max_lifetime_ms: int

class CreateDelegationTokenResponse:
    error_code: int
    principal_type: str
    principal_name: str
    token_requester_principal_type: str
    token_requester_principal_name: str
    issue_timestamp_ms: int
    expiry_timestamp_ms: int
    max_timestamp_ms: int
    token_id: str
    hmac: bytes
    throttle_time_ms: int

class RenewDelegationTokenRequest:
    hmac: bytes
    renew_period_ms: int

class RenewDelegationTokenResponse:
    error_code: int
    expiry_timestamp_ms: int
    throttle_time_ms: int

class ExpireDelegationTokenRequest:
    hmac: bytes
    expiry_time_period_ms: int

class ExpireDelegationTokenResponse:
    error_code: int
    expiry_timestamp_ms: int
    throttle_time_ms: int

class DescribeDelegationTokenRequest_DescribeDelegationTokenOwner:
    principal_type: str
    principal_name: str

class DescribeDelegationTokenRequest:
    owners: tuple[DescribeDelegationTokenRequest_DescribeDelegationTokenOwner, ...] | None

class DescribeDelegationTokenResponse_DescribedDelegationTokenRenewer:
    principal_type: str
    principal_name: str

class DescribeDelegationTokenResponse_DescribedDelegationToken:
    principal_type: str
    principal_name: str
    token_requester_principal_type: str
    token_requester_principal_name: str
    issue_timestamp: int
    expiry_timestamp: int
    max_timestamp: int
    token_id: str
    hmac: bytes
    renewers: tuple[DescribeDelegationTokenResponse_DescribedDelegationTokenRenewer, ...]

class DescribeDelegationTokenResponse:
    error_code: int
    tokens: tuple[DescribeDelegationTokenResponse_DescribedDelegationToken, ...]
    throttle_time_ms: int

class DeleteGroupsRequest:
    groups_names: tuple[str, ...]

class DeleteGroupsResponse_DeletableGroupResult:
    group_id: str
    error_code: int
    error_message: str | None

class DeleteGroupsResponse:
    throttle_time_ms: int
    results: tuple[DeleteGroupsResponse_DeletableGroupResult, ...]

class ElectLeadersRequest_TopicPartitions:
    topic: str
    partitions: tuple[int, ...]

class ElectLeadersRequest:
    election_type: int
    topic_partitions: tuple[ElectLeadersRequest_TopicPartitions, ...] | None
    timeout_ms: int

class ElectLeadersResponse_PartitionResult:
    partition_id: int
    error_code: int
    error_message: str | None

class ElectLeadersResponse_ReplicaElectionResult:
    topic: str
    partition_result: tuple[ElectLeadersResponse_PartitionResult, ...]

class ElectLeadersResponse:
    throttle_time_ms: int
    error_code: int
    replica_election_results: tuple[ElectLeadersResponse_ReplicaElectionResult, ...]

class IncrementalAlterConfigsRequest_AlterableConfig:
    name: str
    config_operation: int
    value: str | None

class IncrementalAlterConfigsRequest_AlterConfigsResource:
    resource_type: int
    resource_name: str
    configs: tuple[IncrementalAlterConfigsRequest_AlterableConfig, ...]

class IncrementalAlterConfigsRequest:
    resources: tuple[IncrementalAlterConfigsRequest_AlterConfigsResource, ...]
    validate_only: bool

class IncrementalAlterConfigsResponse_AlterConfigsResourceResponse:
    error_code: int
    error_message: str | None
    resource_type: int
    resource_name: str

class IncrementalAlterConfigsResponse:
    throttle_time_ms: int
    responses: tuple[IncrementalAlterConfigsResponse_AlterConfigsResourceResponse, ...]

class AlterPartitionReassignmentsRequest_ReassignablePartition:
    partition_index: int
    replicas: tuple[int, ...] | None

class AlterPartitionReassignmentsRequest_ReassignableTopic:
    name: str
    partitions: tuple[AlterPartitionReassignmentsRequest_ReassignablePartition, ...]

class AlterPartitionReassignmentsRequest:
    timeout_ms: int
    allow_replication_factor_change: bool
    topics: tuple[AlterPartitionReassignmentsRequest_ReassignableTopic, ...]

class AlterPartitionReassignmentsResponse_ReassignablePartitionResponse:
    partition_index: int
    error_code: int
    error_message: str | None

class AlterPartitionReassignmentsResponse_ReassignableTopicResponse:
    name: str
    partitions: tuple[AlterPartitionReassignmentsResponse_ReassignablePartitionResponse, ...]

class AlterPartitionReassignmentsResponse:
    throttle_time_ms: int
    allow_replication_factor_change: bool
    error_code: int
    error_message: str | None
    responses: tuple[AlterPartitionReassignmentsResponse_ReassignableTopicResponse, ...]

class ListPartitionReassignmentsRequest_ListPartitionReassignmentsTopics:
    name: str
    partition_indexes: tuple[int, ...]

class ListPartitionReassignmentsRequest:
    timeout_ms: int
    topics: tuple[ListPartitionReassignmentsRequest_ListPartitionReassignmentsTopics, ...] | None

class ListPartitionReassignmentsResponse_OngoingPartitionReassignment:
    partition_index: int
    replicas: tuple[int, ...]
    adding_replicas: tuple[int, ...]
    removing_replicas: tuple[int, ...]

class ListPartitionReassignmentsResponse_OngoingTopicReassignment:
    name: str
    partitions: tuple[ListPartitionReassignmentsResponse_OngoingPartitionReassignment, ...]

class ListPartitionReassignmentsResponse:
    throttle_time_ms: int
    error_code: int
    error_message: str | None
    topics: tuple[ListPartitionReassignmentsResponse_OngoingTopicReassignment, ...]

class OffsetDeleteRequest_OffsetDeleteRequestPartition:
    partition_index: int

class OffsetDeleteRequest_OffsetDeleteRequestTopic:
    name: str
    partitions: tuple[OffsetDeleteRequest_OffsetDeleteRequestPartition, ...]

class OffsetDeleteRequest:
    group_id: str
    topics: tuple[OffsetDeleteRequest_OffsetDeleteRequestTopic, ...]

class OffsetDeleteResponse_OffsetDeleteResponsePartition:
    partition_index: int
    error_code: int

class OffsetDeleteResponse_OffsetDeleteResponseTopic:
    name: str
    partitions: tuple[OffsetDeleteResponse_OffsetDeleteResponsePartition, ...]

class OffsetDeleteResponse:
    error_code: int
    throttle_time_ms: int
    topics: tuple[OffsetDeleteResponse_OffsetDeleteResponseTopic, ...]

class DescribeClientQuotasRequest_ComponentData:
    entity_type: str
    match_type: int
    match: str | None

class DescribeClientQuotasRequest:
    components: tuple[DescribeClientQuotasRequest_ComponentData, ...]
    strict: bool

class DescribeClientQuotasResponse_EntityData:
    entity_type: str
    entity_name: str | None

class DescribeClientQuotasResponse_ValueData:
    key: str
    value: float

class DescribeClientQuotasResponse_EntryData:
    entity: tuple[DescribeClientQuotasResponse_EntityData, ...]
    values: tuple[DescribeClientQuotasResponse_ValueData, ...]

class DescribeClientQuotasResponse:
    throttle_time_ms: int
    error_code: int
    error_message: str | None
    entries: tuple[DescribeClientQuotasResponse_EntryData, ...] | None

class AlterClientQuotasRequest_EntityData:
    entity_type: str
    entity_name: str | None

class AlterClientQuotasRequest_OpData:
    key: str
    value: float
    remove: bool

class AlterClientQuotasRequest_EntryData:
    entity: tuple[AlterClientQuotasRequest_EntityData, ...]
    ops: tuple[AlterClientQuotasRequest_OpData, ...]

class AlterClientQuotasRequest:
    entries: tuple[AlterClientQuotasRequest_EntryData, ...]
    validate_only: bool

class AlterClientQuotasResponse_EntityData:
    entity_type: str
    entity_name: str | None

class AlterClientQuotasResponse_EntryData:
    error_code: int
    error_message: str | None
    entity: tuple[AlterClientQuotasResponse_EntityData, ...]

class AlterClientQuotasResponse:
    throttle_time_ms: int
    entries: tuple[AlterClientQuotasResponse_EntryData, ...]

class DescribeUserScramCredentialsRequest_UserName:
    name: str

class DescribeUserScramCredentialsRequest:
    users: tuple[DescribeUserScramCredentialsRequest_UserName, ...] | None

class DescribeUserScramCredentialsResponse_CredentialInfo:
    mechanism: int
    iterations: int

class DescribeUserScramCredentialsResponse_DescribeUserScramCredentialsResult:
    user: str
    error_code: int
    error_message: str | None
    credential_infos: tuple[DescribeUserScramCredentialsResponse_CredentialInfo, ...]

class DescribeUserScramCredentialsResponse:
    throttle_time_ms: int
    error_code: int
    error_message: str | None
    results: tuple[DescribeUserScramCredentialsResponse_DescribeUserScramCredentialsResult, ...]

class AlterUserScramCredentialsRequest_ScramCredentialDeletion:
    name: str
    mechanism: int

class AlterUserScramCredentialsRequest_ScramCredentialUpsertion:
    name: str
    mechanism: int
    iterations: int
    salt: bytes
    salted_password: bytes

class AlterUserScramCredentialsRequest:
    deletions: tuple[AlterUserScramCredentialsRequest_ScramCredentialDeletion, ...]
    upsertions: tuple[AlterUserScramCredentialsRequest_ScramCredentialUpsertion, ...]

class AlterUserScramCredentialsResponse_AlterUserScramCredentialsResult:
    user: str
    error_code: int
    error_message: str | None

class AlterUserScramCredentialsResponse:
    throttle_time_ms: int
    results: tuple[AlterUserScramCredentialsResponse_AlterUserScramCredentialsResult, ...]

class VoteRequest_PartitionData:
    partition_index: int
    replica_epoch: int
    replica_id: int
    replica_directory_id: UUID | None
    voter_directory_id: UUID | None
    last_offset_epoch: int
    last_offset: int
    pre_vote: bool

class VoteRequest_TopicData:
    topic_name: str
    partitions: tuple[VoteRequest_PartitionData, ...]

class VoteRequest:
    cluster_id: str | None
    voter_id: int
    topics: tuple[VoteRequest_TopicData, ...]

class VoteResponse_PartitionData:
    partition_index: int
    error_code: int
    leader_id: int
    leader_epoch: int
    vote_granted: bool

class VoteResponse_TopicData:
    topic_name: str
    partitions: tuple[VoteResponse_PartitionData, ...]

class VoteResponse_NodeEndpoint:
    node_id: int
    host: str
    port: int

class VoteResponse:
    error_code: int
    topics: tuple[VoteResponse_TopicData, ...]
    node_endpoints: tuple[VoteResponse_NodeEndpoint, ...]

class BeginQuorumEpochRequest_PartitionData:
    partition_index: int
    voter_directory_id: UUID | None
    leader_id: int
    leader_epoch: int

class BeginQuorumEpochRequest_TopicData:
    topic_name: str
    partitions: tuple[BeginQuorumEpochRequest_PartitionData, ...]

class BeginQuorumEpochRequest_LeaderEndpoint:
    name: str
    host: str
    port: int

class BeginQuorumEpochRequest:
    cluster_id: str | None
    voter_id: int
    topics: tuple[BeginQuorumEpochRequest_TopicData, ...]
    leader_endpoints: tuple[BeginQuorumEpochRequest_LeaderEndpoint, ...]

class BeginQuorumEpochResponse_PartitionData:
    partition_index: int
    error_code: int
    leader_id: int
    leader_epoch: int

class BeginQuorumEpochResponse_TopicData:
    topic_name: str
    partitions: tuple[BeginQuorumEpochResponse_PartitionData, ...]

class BeginQuorumEpochResponse_NodeEndpoint:
    node_id: int
    host: str
    port: int

class BeginQuorumEpochResponse:
    error_code: int
    topics: tuple[BeginQuorumEpochResponse_TopicData, ...]
    node_endpoints: tuple[BeginQuorumEpochResponse_NodeEndpoint, ...]

class EndQuorumEpochRequest_ReplicaInfo:
    candidate_id: int
    candidate_directory_id: UUID | None

class EndQuorumEpochRequest_PartitionData:
    partition_index: int
    leader_id: int
    leader_epoch: int
    preferred_successors: tuple[int, ...]
    preferred_candidates: tuple[EndQuorumEpochRequest_ReplicaInfo, ...]

class EndQuorumEpochRequest_TopicData:
    topic_name: str
    partitions: tuple[EndQuorumEpochRequest_PartitionData, ...]

class EndQuorumEpochRequest_LeaderEndpoint:
    name: str
    host: str
    port: int

class EndQuorumEpochRequest:
    cluster_id: str | None
    topics: tuple[EndQuorumEpochRequest_TopicData, ...]
    leader_endpoints: tuple[EndQuorumEpochRequest_LeaderEndpoint, ...]

class EndQuorumEpochResponse_PartitionData:
    partition_index: int
    error_code: int
    leader_id: int
    leader_epoch: int

class EndQuorumEpochResponse_TopicData:
    topic_name: str
    partitions: tuple[EndQuorumEpochResponse_PartitionData, ...]

class EndQuorumEpochResponse_NodeEndpoint:
    node_id: int
    host: str
    port: int

class EndQuorumEpochResponse:
    error_code: int
    topics: tuple[EndQuorumEpochResponse_TopicData, ...]
    node_endpoints: tuple[EndQuorumEpochResponse_NodeEndpoint, ...]

class DescribeQuorumRequest_PartitionData:
    partition_index: int

class DescribeQuorumRequest_TopicData:
    topic_name: str
    partitions: tuple[DescribeQuorumRequest_PartitionData, ...]

class DescribeQuorumRequest:
    topics: tuple[DescribeQuorumRequest_TopicData, ...]

class DescribeQuorumResponse_ReplicaState:
    replica_id: int
    replica_directory_id: UUID | None
    log_end_offset: int
    last_fetch_timestamp: int
    last_caught_up_timestamp: int

class DescribeQuorumResponse_PartitionData:
    partition_index: int
    error_code: int
    error_message: str | None
    leader_id: int
    leader_epoch: int
    high_watermark: int
    current_voters: tuple[DescribeQuorumResponse_ReplicaState, ...]
    observers: tuple[DescribeQuorumResponse_ReplicaState, ...]

class DescribeQuorumResponse_TopicData:
    topic_name: str
    partitions: tuple[DescribeQuorumResponse_PartitionData, ...]

class DescribeQuorumResponse_Listener:
    name: str
    host: str
    port: int

class DescribeQuorumResponse_Node:
    node_id: int
    listeners: tuple[DescribeQuorumResponse_Listener, ...]

class DescribeQuorumResponse:
    error_code: int
    error_message: str | None
    topics: tuple[DescribeQuorumResponse_TopicData, ...]
    nodes: tuple[DescribeQuorumResponse_Node, ...]

class AlterPartitionRequest_BrokerState:
    broker_id: int
    broker_epoch: int

class AlterPartitionRequest_PartitionData:
    partition_index: int
    leader_epoch: int
    new_isr: tuple[int, ...]
    new_isr_with_epochs: tuple[AlterPartitionRequest_BrokerState, ...]
    leader_recovery_state: int
    partition_epoch: int

class AlterPartitionRequest_TopicData:
    topic_id: UUID | None
    partitions: tuple[AlterPartitionRequest_PartitionData, ...]

class AlterPartitionRequest:
    broker_id: int
    broker_epoch: int
    topics: tuple[AlterPartitionRequest_TopicData, ...]

class AlterPartitionResponse_PartitionData:
    partition_index: int
    error_code: int
    leader_id: int
    leader_epoch: int
    isr: tuple[int, ...]
    leader_recovery_state: int
    partition_epoch: int

class AlterPartitionResponse_TopicData:
    topic_id: UUID | None
    partitions: tuple[AlterPartitionResponse_PartitionData, ...]

class AlterPartitionResponse:
    throttle_time_ms: int
    error_code: int
    topics: tuple[AlterPartitionResponse_TopicData, ...]

class UpdateFeaturesRequest_FeatureUpdateKey:
    feature: str
    max_version_level: int
    allow_downgrade: bool
    upgrade_type: int

class UpdateFeaturesRequest:
    timeout_ms: int
    feature_updates: tuple[UpdateFeaturesRequest_FeatureUpdateKey, ...]
    validate_only: bool

class UpdateFeaturesResponse_UpdatableFeatureResult:
    feature: str
    error_code: int
    error_message: str | None

class UpdateFeaturesResponse:
    throttle_time_ms: int
    error_code: int
    error_message: str | None
    results: tuple[UpdateFeaturesResponse_UpdatableFeatureResult, ...]

class EnvelopeRequest:
    request_data: bytes
    request_principal: bytes | None
    client_host_address: bytes

class EnvelopeResponse:
    response_data: bytes | None
    error_code: int

class FetchSnapshotRequest_SnapshotId:
    end_offset: int
    epoch: int

class FetchSnapshotRequest_PartitionSnapshot:
    partition: int
    current_leader_epoch: int
    snapshot_id: FetchSnapshotRequest_SnapshotId
    position: int
    replica_directory_id: UUID | None

class FetchSnapshotRequest_TopicSnapshot:
    name: str
    partitions: tuple[FetchSnapshotRequest_PartitionSnapshot, ...]

class FetchSnapshotRequest:
    cluster_id: str | None
    replica_id: int
    max_bytes: int
    topics: tuple[FetchSnapshotRequest_TopicSnapshot, ...]

class FetchSnapshotResponse_SnapshotId:
    end_offset: int
    epoch: int

class FetchSnapshotResponse_LeaderIdAndEpoch:
    leader_id: int
    leader_epoch: int

class FetchSnapshotResponse_PartitionSnapshot:
    index: int
    error_code: int
    snapshot_id: FetchSnapshotResponse_SnapshotId
    current_leader: FetchSnapshotResponse_LeaderIdAndEpoch
    size: int
    position: int
    unaligned_records: bytes

class FetchSnapshotResponse_TopicSnapshot:
    name: str
    partitions: tuple[FetchSnapshotResponse_PartitionSnapshot, ...]

class FetchSnapshotResponse_NodeEndpoint:
    node_id: int
    host: str
    port: int

class FetchSnapshotResponse:
    throttle_time_ms: int
    error_code: int
    topics: tuple[FetchSnapshotResponse_TopicSnapshot, ...]
    node_endpoints: tuple[FetchSnapshotResponse_NodeEndpoint, ...]

class DescribeClusterRequest:
    include_cluster_authorized_operations: bool
    endpoint_type: int
    include_fenced_brokers: bool

class DescribeClusterResponse_DescribeClusterBroker:
    broker_id: int
    host: str
    port: int
    rack: str | None
    is_fenced: bool

class DescribeClusterResponse:
    throttle_time_ms: int
    error_code: int
    error_message: str | None
    endpoint_type: int
    cluster_id: str
    controller_id: int
    brokers: tuple[DescribeClusterResponse_DescribeClusterBroker, ...]
    cluster_authorized_operations: int

class DescribeProducersRequest_TopicRequest:
    name: str
    partition_indexes: tuple[int, ...]

class DescribeProducersRequest:
    topics: tuple[DescribeProducersRequest_TopicRequest, ...]

class DescribeProducersResponse_ProducerState:
    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_timestamp: int
    coordinator_epoch: int
    current_txn_start_offset: int

class DescribeProducersResponse_PartitionResponse:
    partition_index: int
    error_code: int
    error_message: str | None
    active_producers: tuple[DescribeProducersResponse_ProducerState, ...]

class DescribeProducersResponse_TopicResponse:
    name: str
    partitions: tuple[DescribeProducersResponse_PartitionResponse, ...]

class DescribeProducersResponse:
    throttle_time_ms: int
    topics: tuple[DescribeProducersResponse_TopicResponse, ...]

class BrokerRegistrationRequest_Listener:
    name: str
    host: str
    port: int
    security_protocol: int

class BrokerRegistrationRequest_Feature:
    name: str
    min_supported_version: int
    max_supported_version: int

class BrokerRegistrationRequest:
    broker_id: int
    cluster_id: str
    incarnation_id: UUID | None
    listeners: tuple[BrokerRegistrationRequest_Listener, ...]
    features: tuple[BrokerRegistrationRequest_Feature, ...]
    rack: str | None
    is_migrating_zk_broker: bool
    log_dirs: tuple[UUID | None, ...]
    previous_broker_epoch: int

class BrokerRegistrationResponse:
    throttle_time_ms: int
    error_code: int
    broker_epoch: int

class BrokerHeartbeatRequest:
    broker_id: int
    broker_epoch: int
    current_metadata_offset: int
    want_fence: bool
    want_shut_down: bool
    offline_log_dirs: tuple[UUID | None, ...]
    cordoned_log_dirs: tuple[UUID | None, ...] | None

class BrokerHeartbeatResponse:
    throttle_time_ms: int
    error_code: int
    is_caught_up: bool
    is_fenced: bool
    should_shut_down: bool

class UnregisterBrokerRequest:
    broker_id: int

class UnregisterBrokerResponse:
    throttle_time_ms: int
    error_code: int
    error_message: str | None

class DescribeTransactionsRequest:
    transactional_ids: tuple[str, ...]

class DescribeTransactionsResponse_TopicData:
    topic: str
    partitions: tuple[int, ...]

class DescribeTransactionsResponse_TransactionState:
    error_code: int
    transactional_id: str
    transaction_state: str
    transaction_timeout_ms: int
    transaction_start_time_ms: int
    producer_id: int
    producer_epoch: int
    topics: tuple[DescribeTransactionsResponse_TopicData, ...]

class DescribeTransactionsResponse:
    throttle_time_ms: int
    transaction_states: tuple[DescribeTransactionsResponse_TransactionState, ...]

class ListTransactionsRequest:
    state_filters: tuple[str, ...]
    producer_id_filters: tuple[int, ...]
    duration_filter: int
    transactional_id_pattern: str | None

class ListTransactionsResponse_TransactionState:
    transactional_id: str
    producer_id: int
    transaction_state: str

class ListTransactionsResponse:
    throttle_time_ms: int
    error_code: int
    unknown_state_filters: tuple[str, ...]
    transaction_states: tuple[ListTransactionsResponse_TransactionState, ...]

class AllocateProducerIdsRequest:
    broker_id: int
    broker_epoch: int

class AllocateProducerIdsResponse:
    throttle_time_ms: int
    error_code: int
    producer_id_start: int
    producer_id_len: int

class ConsumerGroupHeartbeatRequest_TopicPartitions:
    topic_id: UUID | None
    partitions: tuple[int, ...]

class ConsumerGroupHeartbeatRequest:
    group_id: str
    member_id: str
    member_epoch: int
    instance_id: str | None
    rack_id: str | None
    rebalance_timeout_ms: int
    subscribed_topic_names: tuple[str, ...] | None
    subscribed_topic_regex: str | None
    server_assignor: str | None
    topic_partitions: tuple[ConsumerGroupHeartbeatRequest_TopicPartitions, ...] | None

class ConsumerGroupHeartbeatResponse_TopicPartitions:
    topic_id: UUID | None
    partitions: tuple[int, ...]

class ConsumerGroupHeartbeatResponse_Assignment:
    topic_partitions: tuple[ConsumerGroupHeartbeatResponse_TopicPartitions, ...]

class ConsumerGroupHeartbeatResponse:
    throttle_time_ms: int
    error_code: int
    error_message: str | None
    member_id: str | None
    member_epoch: int
    heartbeat_interval_ms: int
    assignment: ConsumerGroupHeartbeatResponse_Assignment | None

class ConsumerGroupDescribeRequest:
    group_ids: tuple[str, ...]
    include_authorized_operations: bool

class ConsumerGroupDescribeResponse_TopicPartitions:
    topic_id: UUID | None
    topic_name: str
    partitions: tuple[int, ...]

class ConsumerGroupDescribeResponse_Assignment:
    topic_partitions: tuple[ConsumerGroupDescribeResponse_TopicPartitions, ...]

class ConsumerGroupDescribeResponse_Member:
    member_id: str
    instance_id: str | None
    rack_id: str | None
    member_epoch: int
    client_id: str
    client_host: str
    subscribed_topic_names: tuple[str, ...]
    subscribed_topic_regex: str | None
    assignment: ConsumerGroupDescribeResponse_Assignment
    target_assignment: ConsumerGroupDescribeResponse_Assignment
    member_type: int

class ConsumerGroupDescribeResponse_DescribedGroup:
    error_code: int
    error_message: str | None
    group_id: str
    group_state: str
    group_epoch: int
    assignment_epoch: int
    assignor_name: str
    members: tuple[ConsumerGroupDescribeResponse_Member, ...]
    authorized_operations: int

class ConsumerGroupDescribeResponse:
    throttle_time_ms: int
    groups: tuple[ConsumerGroupDescribeResponse_DescribedGroup, ...]

class ControllerRegistrationRequest_Listener:
    name: str
    host: str
    port: int
    security_protocol: int

class ControllerRegistrationRequest_Feature:
    name: str
    min_supported_version: int
    max_supported_version: int

class ControllerRegistrationRequest:
    controller_id: int
    incarnation_id: UUID | None
    zk_migration_ready: bool
    listeners: tuple[ControllerRegistrationRequest_Listener, ...]
    features: tuple[ControllerRegistrationRequest_Feature, ...]

class ControllerRegistrationResponse:
    throttle_time_ms: int
    error_code: int
    error_message: str | None

class GetTelemetrySubscriptionsRequest:
    client_instance_id: UUID | None

class GetTelemetrySubscriptionsResponse:
    throttle_time_ms: int
    error_code: int
    client_instance_id: UUID | None
    subscription_id: int
    accepted_compression_types: tuple[int, ...]
    push_interval_ms: int
    telemetry_max_bytes: int
    delta_temporality: bool
    requested_metrics: tuple[str, ...]

class PushTelemetryRequest:
    client_instance_id: UUID | None
    subscription_id: int
    terminating: bool
    compression_type: int
    metrics: bytes

class PushTelemetryResponse:
    throttle_time_ms: int
    error_code: int

class AssignReplicasToDirsRequest_PartitionData:
    partition_index: int

class AssignReplicasToDirsRequest_TopicData:
    topic_id: UUID | None
    partitions: tuple[AssignReplicasToDirsRequest_PartitionData, ...]

class AssignReplicasToDirsRequest_DirectoryData:
    id: UUID | None
    topics: tuple[AssignReplicasToDirsRequest_TopicData, ...]

class AssignReplicasToDirsRequest:
    broker_id: int
    broker_epoch: int
    directories: tuple[AssignReplicasToDirsRequest_DirectoryData, ...]

class AssignReplicasToDirsResponse_PartitionData:
    partition_index: int
    error_code: int

class AssignReplicasToDirsResponse_TopicData:
    topic_id: UUID | None
    partitions: tuple[AssignReplicasToDirsResponse_PartitionData, ...]

class AssignReplicasToDirsResponse_DirectoryData:
    id: UUID | None
    topics: tuple[AssignReplicasToDirsResponse_TopicData, ...]

class AssignReplicasToDirsResponse:
    throttle_time_ms: int
    error_code: int
    directories: tuple[AssignReplicasToDirsResponse_DirectoryData, ...]

class ListConfigResourcesRequest:
    resource_types: tuple[int, ...]

class ListConfigResourcesResponse_ConfigResource:
    resource_name: str
    resource_type: int

class ListConfigResourcesResponse:
    throttle_time_ms: int
    error_code: int
    config_resources: tuple[ListConfigResourcesResponse_ConfigResource, ...]

class DescribeTopicPartitionsRequest_TopicRequest:
    name: str

class DescribeTopicPartitionsRequest_Cursor:
    topic_name: str
    partition_index: int

class DescribeTopicPartitionsRequest:
    topics: tuple[DescribeTopicPartitionsRequest_TopicRequest, ...]
    response_partition_limit: int
    cursor: DescribeTopicPartitionsRequest_Cursor | None

class DescribeTopicPartitionsResponse_DescribeTopicPartitionsResponsePartition:
    error_code: int
    partition_index: int
    leader_id: int
    leader_epoch: int
    replica_nodes: tuple[int, ...]
    isr_nodes: tuple[int, ...]
    eligible_leader_replicas: tuple[int, ...] | None
    last_known_elr: tuple[int, ...] | None
    offline_replicas: tuple[int, ...]

class DescribeTopicPartitionsResponse_DescribeTopicPartitionsResponseTopic:
    error_code: int
    name: str | None
    topic_id: UUID | None
    is_internal: bool
    partitions: tuple[DescribeTopicPartitionsResponse_DescribeTopicPartitionsResponsePartition, ...]
    topic_authorized_operations: int

class DescribeTopicPartitionsResponse_Cursor:
    topic_name: str
    partition_index: int

class DescribeTopicPartitionsResponse:
    throttle_time_ms: int
    topics: tuple[DescribeTopicPartitionsResponse_DescribeTopicPartitionsResponseTopic, ...]
    next_cursor: DescribeTopicPartitionsResponse_Cursor | None

class ShareGroupHeartbeatRequest:
    group_id: str
    member_id: str
    member_epoch: int
    rack_id: str | None
    subscribed_topic_names: tuple[str, ...] | None

class ShareGroupHeartbeatResponse_TopicPartitions:
    topic_id: UUID | None
    partitions: tuple[int, ...]

class ShareGroupHeartbeatResponse_Assignment:
    topic_partitions: tuple[ShareGroupHeartbeatResponse_TopicPartitions, ...]

class ShareGroupHeartbeatResponse:
    throttle_time_ms: int
    error_code: int
    error_message: str | None
    member_id: str | None
    member_epoch: int
    heartbeat_interval_ms: int
    assignment: ShareGroupHeartbeatResponse_Assignment | None

class ShareGroupDescribeRequest:
    group_ids: tuple[str, ...]
    include_authorized_operations: bool

class ShareGroupDescribeResponse_TopicPartitions:
    topic_id: UUID | None
    topic_name: str
    partitions: tuple[int, ...]

class ShareGroupDescribeResponse_Assignment:
    topic_partitions: tuple[ShareGroupDescribeResponse_TopicPartitions, ...]

class ShareGroupDescribeResponse_Member:
    member_id: str
    rack_id: str | None
    member_epoch: int
    client_id: str
    client_host: str
    subscribed_topic_names: tuple[str, ...]
    assignment: ShareGroupDescribeResponse_Assignment

class ShareGroupDescribeResponse_DescribedGroup:
    error_code: int
    error_message: str | None
    group_id: str
    group_state: str
    group_epoch: int
    assignment_epoch: int
    assignor_name: str
    members: tuple[ShareGroupDescribeResponse_Member, ...]
    authorized_operations: int

class ShareGroupDescribeResponse:
    throttle_time_ms: int
    groups: tuple[ShareGroupDescribeResponse_DescribedGroup, ...]

class ShareFetchRequest_AcknowledgementBatch:
    first_offset: int
    last_offset: int
    acknowledge_types: tuple[int, ...]

class ShareFetchRequest_FetchPartition:
    partition_index: int
    partition_max_bytes: int
    acknowledgement_batches: tuple[ShareFetchRequest_AcknowledgementBatch, ...]

class ShareFetchRequest_FetchTopic:
    topic_id: UUID | None
    partitions: tuple[ShareFetchRequest_FetchPartition, ...]

class ShareFetchRequest_ForgottenTopic:
    topic_id: UUID | None
    partitions: tuple[int, ...]

class ShareFetchRequest:
    group_id: str | None
    member_id: str | None
    share_session_epoch: int
    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    max_records: int
    batch_size: int
    share_acquire_mode: int
    is_renew_ack: bool
    topics: tuple[ShareFetchRequest_FetchTopic, ...]
    forgotten_topics_data: tuple[ShareFetchRequest_ForgottenTopic, ...]

class ShareFetchResponse_LeaderIdAndEpoch:
    leader_id: int
    leader_epoch: int

class ShareFetchResponse_AcquiredRecords:
    first_offset: int
    last_offset: int
    delivery_count: int

class ShareFetchResponse_PartitionData:
    partition_index: int
    error_code: int
    error_message: str | None
    acknowledge_error_code: int
    acknowledge_error_message: str | None
    current_leader: ShareFetchResponse_LeaderIdAndEpoch
    records: bytes | None
    acquired_records: tuple[ShareFetchResponse_AcquiredRecords, ...]

class ShareFetchResponse_ShareFetchableTopicResponse:
    topic_id: UUID | None
    partitions: tuple[ShareFetchResponse_PartitionData, ...]

class ShareFetchResponse_NodeEndpoint:
    node_id: int
    host: str
    port: int
    rack: str | None

class ShareFetchResponse:
    throttle_time_ms: int
    error_code: int
    error_message: str | None
    acquisition_lock_timeout_ms: int
    responses: tuple[ShareFetchResponse_ShareFetchableTopicResponse, ...]
    node_endpoints: tuple[ShareFetchResponse_NodeEndpoint, ...]

class ShareAcknowledgeRequest_AcknowledgementBatch:
    first_offset: int
    last_offset: int
    acknowledge_types: tuple[int, ...]

class ShareAcknowledgeRequest_AcknowledgePartition:
    partition_index: int
    acknowledgement_batches: tuple[ShareAcknowledgeRequest_AcknowledgementBatch, ...]

class ShareAcknowledgeRequest_AcknowledgeTopic:
    topic_id: UUID | None
    partitions: tuple[ShareAcknowledgeRequest_AcknowledgePartition, ...]

class ShareAcknowledgeRequest:
    group_id: str | None
    member_id: str | None
    share_session_epoch: int
    is_renew_ack: bool
    topics: tuple[ShareAcknowledgeRequest_AcknowledgeTopic, ...]

class ShareAcknowledgeResponse_LeaderIdAndEpoch:
    leader_id: int
    leader_epoch: int

class ShareAcknowledgeResponse_PartitionData:
    partition_index: int
    error_code: int
    error_message: str | None
    current_leader: ShareAcknowledgeResponse_LeaderIdAndEpoch

class ShareAcknowledgeResponse_ShareAcknowledgeTopicResponse:
    topic_id: UUID | None
    partitions: tuple[ShareAcknowledgeResponse_PartitionData, ...]

class ShareAcknowledgeResponse_NodeEndpoint:
    node_id: int
    host: str
    port: int
    rack: str | None

class ShareAcknowledgeResponse:
    throttle_time_ms: int
    error_code: int
    error_message: str | None
    acquisition_lock_timeout_ms: int
    responses: tuple[ShareAcknowledgeResponse_ShareAcknowledgeTopicResponse, ...]
    node_endpoints: tuple[ShareAcknowledgeResponse_NodeEndpoint, ...]

class AddRaftVoterRequest_Listener:
    name: str
    host: str
    port: int

class AddRaftVoterRequest:
    cluster_id: str | None
    timeout_ms: int
    voter_id: int
    voter_directory_id: UUID | None
    listeners: tuple[AddRaftVoterRequest_Listener, ...]
    ack_when_committed: bool

class AddRaftVoterResponse:
    throttle_time_ms: int
    error_code: int
    error_message: str | None

class RemoveRaftVoterRequest:
    cluster_id: str | None
    voter_id: int
    voter_directory_id: UUID | None

class RemoveRaftVoterResponse:
    throttle_time_ms: int
    error_code: int
    error_message: str | None

class UpdateRaftVoterRequest_Listener:
    name: str
    host: str
    port: int

class UpdateRaftVoterRequest_KRaftVersionFeature:
    min_supported_version: int
    max_supported_version: int

class UpdateRaftVoterRequest:
    cluster_id: str | None
    current_leader_epoch: int
    voter_id: int
    voter_directory_id: UUID | None
    listeners: tuple[UpdateRaftVoterRequest_Listener, ...]
    k_raft_version_feature: UpdateRaftVoterRequest_KRaftVersionFeature

class UpdateRaftVoterResponse_CurrentLeader:
    leader_id: int
    leader_epoch: int
    host: str
    port: int

class UpdateRaftVoterResponse:
    throttle_time_ms: int
    error_code: int
    current_leader: UpdateRaftVoterResponse_CurrentLeader

class InitializeShareGroupStateRequest_PartitionData:
    partition: int
    state_epoch: int
    start_offset: int

class InitializeShareGroupStateRequest_InitializeStateData:
    topic_id: UUID | None
    partitions: tuple[InitializeShareGroupStateRequest_PartitionData, ...]

class InitializeShareGroupStateRequest:
    group_id: str
    topics: tuple[InitializeShareGroupStateRequest_InitializeStateData, ...]

class InitializeShareGroupStateResponse_PartitionResult:
    partition: int
    error_code: int
    error_message: str | None

class InitializeShareGroupStateResponse_InitializeStateResult:
    topic_id: UUID | None
    partitions: tuple[InitializeShareGroupStateResponse_PartitionResult, ...]

class InitializeShareGroupStateResponse:
    results: tuple[InitializeShareGroupStateResponse_InitializeStateResult, ...]

class ReadShareGroupStateRequest_PartitionData:
    partition: int
    leader_epoch: int

class ReadShareGroupStateRequest_ReadStateData:
    topic_id: UUID | None
    partitions: tuple[ReadShareGroupStateRequest_PartitionData, ...]

class ReadShareGroupStateRequest:
    group_id: str
    topics: tuple[ReadShareGroupStateRequest_ReadStateData, ...]

class ReadShareGroupStateResponse_StateBatch:
    first_offset: int
    last_offset: int
    delivery_state: int
    delivery_count: int

class ReadShareGroupStateResponse_PartitionResult:
    partition: int
    error_code: int
    error_message: str | None
    state_epoch: int
    start_offset: int
    state_batches: tuple[ReadShareGroupStateResponse_StateBatch, ...]

class ReadShareGroupStateResponse_ReadStateResult:
    topic_id: UUID | None
    partitions: tuple[ReadShareGroupStateResponse_PartitionResult, ...]

class ReadShareGroupStateResponse:
    results: tuple[ReadShareGroupStateResponse_ReadStateResult, ...]

class WriteShareGroupStateRequest_StateBatch:
    first_offset: int
    last_offset: int
    delivery_state: int
    delivery_count: int

class WriteShareGroupStateRequest_PartitionData:
    partition: int
    state_epoch: int
    leader_epoch: int
    start_offset: int
    delivery_complete_count: int
    state_batches: tuple[WriteShareGroupStateRequest_StateBatch, ...]

class WriteShareGroupStateRequest_WriteStateData:
    topic_id: UUID | None
    partitions: tuple[WriteShareGroupStateRequest_PartitionData, ...]

class WriteShareGroupStateRequest:
    group_id: str
    topics: tuple[WriteShareGroupStateRequest_WriteStateData, ...]

class WriteShareGroupStateResponse_PartitionResult:
    partition: int
    error_code: int
    error_message: str | None

class WriteShareGroupStateResponse_WriteStateResult:
    topic_id: UUID | None
    partitions: tuple[WriteShareGroupStateResponse_PartitionResult, ...]

class WriteShareGroupStateResponse:
    results: tuple[WriteShareGroupStateResponse_WriteStateResult, ...]

class DeleteShareGroupStateRequest_PartitionData:
    partition: int

class DeleteShareGroupStateRequest_DeleteStateData:
    topic_id: UUID | None
    partitions: tuple[DeleteShareGroupStateRequest_PartitionData, ...]

class DeleteShareGroupStateRequest:
    group_id: str
    topics: tuple[DeleteShareGroupStateRequest_DeleteStateData, ...]

class DeleteShareGroupStateResponse_PartitionResult:
    partition: int
    error_code: int
    error_message: str | None

class DeleteShareGroupStateResponse_DeleteStateResult:
    topic_id: UUID | None
    partitions: tuple[DeleteShareGroupStateResponse_PartitionResult, ...]

class DeleteShareGroupStateResponse:
    results: tuple[DeleteShareGroupStateResponse_DeleteStateResult, ...]

class ReadShareGroupStateSummaryRequest_PartitionData:
    partition: int
    leader_epoch: int

class ReadShareGroupStateSummaryRequest_ReadStateSummaryData:
    topic_id: UUID | None
    partitions: tuple[ReadShareGroupStateSummaryRequest_PartitionData, ...]

class ReadShareGroupStateSummaryRequest:
    group_id: str
    topics: tuple[ReadShareGroupStateSummaryRequest_ReadStateSummaryData, ...]

class ReadShareGroupStateSummaryResponse_PartitionResult:
    partition: int
    error_code: int
    error_message: str | None
    state_epoch: int
    leader_epoch: int
    start_offset: int
    delivery_complete_count: int

class ReadShareGroupStateSummaryResponse_ReadStateSummaryResult:
    topic_id: UUID | None
    partitions: tuple[ReadShareGroupStateSummaryResponse_PartitionResult, ...]

class ReadShareGroupStateSummaryResponse:
    results: tuple[ReadShareGroupStateSummaryResponse_ReadStateSummaryResult, ...]

class StreamsGroupHeartbeatRequest_KeyValue:
    key: str
    value: str

class StreamsGroupHeartbeatRequest_TopicInfo:
    name: str
    partitions: int
    replication_factor: int
    topic_configs: tuple[StreamsGroupHeartbeatRequest_KeyValue, ...]

class StreamsGroupHeartbeatRequest_Endpoint:
    host: str
    port: int

class StreamsGroupHeartbeatRequest_TaskOffset:
    subtopology_id: str
    partition: int
    offset: int

class StreamsGroupHeartbeatRequest_TaskIds:
    subtopology_id: str
    partitions: tuple[int, ...]

class StreamsGroupHeartbeatRequest_CopartitionGroup:
    source_topics: tuple[int, ...]
    source_topic_regex: tuple[int, ...]
    repartition_source_topics: tuple[int, ...]

class StreamsGroupHeartbeatRequest_Subtopology:
    subtopology_id: str
    source_topics: tuple[str, ...]
    source_topic_regex: tuple[str, ...]
    state_changelog_topics: tuple[StreamsGroupHeartbeatRequest_TopicInfo, ...]
    repartition_sink_topics: tuple[str, ...]
    repartition_source_topics: tuple[StreamsGroupHeartbeatRequest_TopicInfo, ...]
    copartition_groups: tuple[StreamsGroupHeartbeatRequest_CopartitionGroup, ...]

class StreamsGroupHeartbeatRequest_Topology:
    epoch: int
    subtopologies: tuple[StreamsGroupHeartbeatRequest_Subtopology, ...]

class StreamsGroupHeartbeatRequest:
    group_id: str
    member_id: str
    member_epoch: int
    endpoint_information_epoch: int
    instance_id: str | None
    rack_id: str | None
    rebalance_timeout_ms: int
    topology: StreamsGroupHeartbeatRequest_Topology | None
    active_tasks: tuple[StreamsGroupHeartbeatRequest_TaskIds, ...] | None
    standby_tasks: tuple[StreamsGroupHeartbeatRequest_TaskIds, ...] | None
    warmup_tasks: tuple[StreamsGroupHeartbeatRequest_TaskIds, ...] | None
    process_id: str | None
    user_endpoint: StreamsGroupHeartbeatRequest_Endpoint | None
    client_tags: tuple[StreamsGroupHeartbeatRequest_KeyValue, ...] | None
    task_offsets: tuple[StreamsGroupHeartbeatRequest_TaskOffset, ...] | None
    task_end_offsets: tuple[StreamsGroupHeartbeatRequest_TaskOffset, ...] | None
    shutdown_application: bool

class StreamsGroupHeartbeatResponse_Status:
    status_code: int
    status_detail: str

class StreamsGroupHeartbeatResponse_TopicPartition:
    topic: str
    partitions: tuple[int, ...]

class StreamsGroupHeartbeatResponse_TaskIds:
    subtopology_id: str
    partitions: tuple[int, ...]

class StreamsGroupHeartbeatResponse_Endpoint:
    host: str
    port: int

class StreamsGroupHeartbeatResponse_EndpointToPartitions:
    user_endpoint: StreamsGroupHeartbeatResponse_Endpoint
    active_partitions: tuple[StreamsGroupHeartbeatResponse_TopicPartition, ...]
    standby_partitions: tuple[StreamsGroupHeartbeatResponse_TopicPartition, ...]

class StreamsGroupHeartbeatResponse:
    throttle_time_ms: int
    error_code: int
    error_message: str | None
    member_id: str
    member_epoch: int
    heartbeat_interval_ms: int
    acceptable_recovery_lag_legacy: int
    task_offset_interval_ms: int
    acceptable_recovery_lag: int
    status: tuple[StreamsGroupHeartbeatResponse_Status, ...] | None
    active_tasks: tuple[StreamsGroupHeartbeatResponse_TaskIds, ...] | None
    standby_tasks: tuple[StreamsGroupHeartbeatResponse_TaskIds, ...] | None
    warmup_tasks: tuple[StreamsGroupHeartbeatResponse_TaskIds, ...] | None
    topology_description_required: bool
    endpoint_information_epoch: int
    partitions_by_user_endpoint: tuple[StreamsGroupHeartbeatResponse_EndpointToPartitions, ...] | None

class StreamsGroupDescribeRequest:
    group_ids: tuple[str, ...]
    include_authorized_operations: bool
    include_topology_description: bool

class StreamsGroupDescribeResponse_Endpoint:
    host: str
    port: int

class StreamsGroupDescribeResponse_TaskOffset:
    subtopology_id: str
    partition: int
    offset: int

class StreamsGroupDescribeResponse_Assignment:
    active_tasks: tuple[StreamsGroupDescribeResponse_TaskIds, ...]
    standby_tasks: tuple[StreamsGroupDescribeResponse_TaskIds, ...]
    warmup_tasks: tuple[StreamsGroupDescribeResponse_TaskIds, ...]

class StreamsGroupDescribeResponse_TaskIds:
    subtopology_id: str
    partitions: tuple[int, ...]

class StreamsGroupDescribeResponse_KeyValue:
    key: str
    value: str

class StreamsGroupDescribeResponse_TopicInfo:
    name: str
    partitions: int
    replication_factor: int
    topic_configs: tuple[StreamsGroupDescribeResponse_KeyValue, ...]

class StreamsGroupDescribeResponse_TopologyDescription:
    subtopologies: tuple[StreamsGroupDescribeResponse_TopologyDescriptionSubtopology, ...]
    global_stores: tuple[StreamsGroupDescribeResponse_TopologyDescriptionGlobalStore, ...]

class StreamsGroupDescribeResponse_TopologyDescriptionSubtopology:
    subtopology_id: str
    nodes: tuple[StreamsGroupDescribeResponse_TopologyDescriptionNode, ...]

class StreamsGroupDescribeResponse_TopologyDescriptionNode:
    name: str
    node_type: int
    source_topics: tuple[str, ...]
    sink_topic: str | None
    stores: tuple[str, ...]
    successors: tuple[str, ...]

class StreamsGroupDescribeResponse_TopologyDescriptionGlobalStore:
    source: StreamsGroupDescribeResponse_TopologyDescriptionNode
    processor: StreamsGroupDescribeResponse_TopologyDescriptionNode

class StreamsGroupDescribeResponse_Subtopology:
    subtopology_id: str
    source_topics: tuple[str, ...]
    repartition_sink_topics: tuple[str, ...]
    state_changelog_topics: tuple[StreamsGroupDescribeResponse_TopicInfo, ...]
    repartition_source_topics: tuple[StreamsGroupDescribeResponse_TopicInfo, ...]

class StreamsGroupDescribeResponse_Topology:
    epoch: int
    subtopologies: tuple[StreamsGroupDescribeResponse_Subtopology, ...] | None

class StreamsGroupDescribeResponse_Member:
    member_id: str
    member_epoch: int
    instance_id: str | None
    rack_id: str | None
    client_id: str
    client_host: str
    topology_epoch: int
    process_id: str
    user_endpoint: StreamsGroupDescribeResponse_Endpoint | None
    client_tags: tuple[StreamsGroupDescribeResponse_KeyValue, ...]
    task_offsets: tuple[StreamsGroupDescribeResponse_TaskOffset, ...]
    task_end_offsets: tuple[StreamsGroupDescribeResponse_TaskOffset, ...]
    assignment: StreamsGroupDescribeResponse_Assignment
    target_assignment: StreamsGroupDescribeResponse_Assignment
    is_classic: bool

class StreamsGroupDescribeResponse_DescribedGroup:
    error_code: int
    error_message: str | None
    group_id: str
    group_state: str
    group_epoch: int
    assignment_epoch: int
    topology: StreamsGroupDescribeResponse_Topology | None
    members: tuple[StreamsGroupDescribeResponse_Member, ...]
    authorized_operations: int
    topology_description: StreamsGroupDescribeResponse_TopologyDescription | None
    topology_description_status: int
    assignor_name: str | None

class StreamsGroupDescribeResponse:
    throttle_time_ms: int
    groups: tuple[StreamsGroupDescribeResponse_DescribedGroup, ...]

class DescribeShareGroupOffsetsRequest_DescribeShareGroupOffsetsRequestTopic:
    topic_name: str
    partitions: tuple[int, ...]

class DescribeShareGroupOffsetsRequest_DescribeShareGroupOffsetsRequestGroup:
    group_id: str
    topics: tuple[DescribeShareGroupOffsetsRequest_DescribeShareGroupOffsetsRequestTopic, ...] | None

class DescribeShareGroupOffsetsRequest:
    groups: tuple[DescribeShareGroupOffsetsRequest_DescribeShareGroupOffsetsRequestGroup, ...]

class DescribeShareGroupOffsetsResponse_DescribeShareGroupOffsetsResponsePartition:
    partition_index: int
    start_offset: int
    leader_epoch: int
    lag: int
    error_code: int
    error_message: str | None

class DescribeShareGroupOffsetsResponse_DescribeShareGroupOffsetsResponseTopic:
    topic_name: str
    topic_id: UUID | None
    partitions: tuple[DescribeShareGroupOffsetsResponse_DescribeShareGroupOffsetsResponsePartition, ...]

class DescribeShareGroupOffsetsResponse_DescribeShareGroupOffsetsResponseGroup:
    group_id: str
    topics: tuple[DescribeShareGroupOffsetsResponse_DescribeShareGroupOffsetsResponseTopic, ...]
    error_code: int
    error_message: str | None

class DescribeShareGroupOffsetsResponse:
    throttle_time_ms: int
    groups: tuple[DescribeShareGroupOffsetsResponse_DescribeShareGroupOffsetsResponseGroup, ...]

class AlterShareGroupOffsetsRequest_AlterShareGroupOffsetsRequestPartition:
    partition_index: int
    start_offset: int

class AlterShareGroupOffsetsRequest_AlterShareGroupOffsetsRequestTopic:
    topic_name: str
    partitions: tuple[AlterShareGroupOffsetsRequest_AlterShareGroupOffsetsRequestPartition, ...]

class AlterShareGroupOffsetsRequest:
    group_id: str
    topics: tuple[AlterShareGroupOffsetsRequest_AlterShareGroupOffsetsRequestTopic, ...]

class AlterShareGroupOffsetsResponse_AlterShareGroupOffsetsResponsePartition:
    partition_index: int
    error_code: int
    error_message: str | None

class AlterShareGroupOffsetsResponse_AlterShareGroupOffsetsResponseTopic:
    topic_name: str
    topic_id: UUID | None
    partitions: tuple[AlterShareGroupOffsetsResponse_AlterShareGroupOffsetsResponsePartition, ...]

class AlterShareGroupOffsetsResponse:
    throttle_time_ms: int
    error_code: int
    error_message: str | None
    responses: tuple[AlterShareGroupOffsetsResponse_AlterShareGroupOffsetsResponseTopic, ...]

class DeleteShareGroupOffsetsRequest_DeleteShareGroupOffsetsRequestTopic:
    topic_name: str

class DeleteShareGroupOffsetsRequest:
    group_id: str
    topics: tuple[DeleteShareGroupOffsetsRequest_DeleteShareGroupOffsetsRequestTopic, ...]

class DeleteShareGroupOffsetsResponse_DeleteShareGroupOffsetsResponseTopic:
    topic_name: str
    topic_id: UUID | None
    error_code: int
    error_message: str | None

class DeleteShareGroupOffsetsResponse:
    throttle_time_ms: int
    error_code: int
    error_message: str | None
    responses: tuple[DeleteShareGroupOffsetsResponse_DeleteShareGroupOffsetsResponseTopic, ...]

class StreamsGroupTopologyDescriptionUpdateRequest_TopologyDescription:
    subtopologies: tuple[StreamsGroupTopologyDescriptionUpdateRequest_TopologyDescriptionSubtopology, ...]
    global_stores: tuple[StreamsGroupTopologyDescriptionUpdateRequest_TopologyDescriptionGlobalStore, ...]

class StreamsGroupTopologyDescriptionUpdateRequest_TopologyDescriptionSubtopology:
    subtopology_id: str
    nodes: tuple[StreamsGroupTopologyDescriptionUpdateRequest_TopologyDescriptionNode, ...]

class StreamsGroupTopologyDescriptionUpdateRequest_TopologyDescriptionNode:
    name: str
    node_type: int
    source_topics: tuple[str, ...]
    sink_topic: str | None
    stores: tuple[str, ...]
    successors: tuple[str, ...]

class StreamsGroupTopologyDescriptionUpdateRequest_TopologyDescriptionGlobalStore:
    source: StreamsGroupTopologyDescriptionUpdateRequest_TopologyDescriptionNode
    processor: StreamsGroupTopologyDescriptionUpdateRequest_TopologyDescriptionNode

class StreamsGroupTopologyDescriptionUpdateRequest:
    group_id: str
    member_id: str
    topology_epoch: int
    topology_description: StreamsGroupTopologyDescriptionUpdateRequest_TopologyDescription

class StreamsGroupTopologyDescriptionUpdateResponse:
    throttle_time_ms: int
    error_code: int
    error_message: str | None

class UnregisterControllerRequest:
    controller_id: int

class UnregisterControllerResponse:
    throttle_time_ms: int
    error_code: int
    error_message: str | None
