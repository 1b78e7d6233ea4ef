"""Maps Headrace errors to Kafka error codes: the one table of this face.

Invariants: codes are Kafka's (`Errors.java`). Do not change: on the wire. A test walks every error
class through `code_of`. The most specific class decides.
"""

from __future__ import annotations

import re

from headrace import errors
from headrace.errors import HeadraceError

NONE = 0
UNKNOWN_SERVER_ERROR = -1
OFFSET_OUT_OF_RANGE = 1
CORRUPT_MESSAGE = 2
UNKNOWN_TOPIC_OR_PARTITION = 3
INVALID_FETCH_SIZE = 4
LEADER_NOT_AVAILABLE = 5
NOT_LEADER_OR_FOLLOWER = 6
REPLICA_NOT_AVAILABLE = 9
MESSAGE_TOO_LARGE = 10
OFFSET_METADATA_TOO_LARGE = 12
NETWORK_EXCEPTION = 13
COORDINATOR_LOAD_IN_PROGRESS = 14
COORDINATOR_NOT_AVAILABLE = 15
NOT_COORDINATOR = 16
INVALID_TOPIC_EXCEPTION = 17
NOT_ENOUGH_REPLICAS = 19
INVALID_REQUIRED_ACKS = 21
ILLEGAL_GENERATION = 22
INCONSISTENT_GROUP_PROTOCOL = 23
INVALID_GROUP_ID = 24
UNKNOWN_MEMBER_ID = 25
INVALID_SESSION_TIMEOUT = 26
REBALANCE_IN_PROGRESS = 27
TOPIC_AUTHORIZATION_FAILED = 29
GROUP_AUTHORIZATION_FAILED = 30
CLUSTER_AUTHORIZATION_FAILED = 31
INVALID_TIMESTAMP = 32
UNSUPPORTED_SASL_MECHANISM = 33
ILLEGAL_SASL_STATE = 34
UNSUPPORTED_VERSION = 35
TOPIC_ALREADY_EXISTS = 36
INVALID_PARTITIONS = 37
INVALID_REPLICATION_FACTOR = 38
INVALID_REPLICA_ASSIGNMENT = 39
INVALID_CONFIG = 40
INVALID_REQUEST = 42
UNSUPPORTED_FOR_MESSAGE_FORMAT = 43
POLICY_VIOLATION = 44
OUT_OF_ORDER_SEQUENCE_NUMBER = 45
DUPLICATE_SEQUENCE_NUMBER = 46
INVALID_PRODUCER_EPOCH = 47
INVALID_TXN_STATE = 48
INVALID_PRODUCER_ID_MAPPING = 49
INVALID_TRANSACTION_TIMEOUT = 50
CONCURRENT_TRANSACTIONS = 51
TRANSACTION_COORDINATOR_FENCED = 52
TRANSACTIONAL_ID_AUTHORIZATION_FAILED = 53
SECURITY_DISABLED = 54
OPERATION_NOT_ATTEMPTED = 55
KAFKA_STORAGE_ERROR = 56
LOG_DIR_NOT_FOUND = 57
SASL_AUTHENTICATION_FAILED = 58
UNKNOWN_PRODUCER_ID = 59
NON_EMPTY_GROUP = 68
GROUP_ID_NOT_FOUND = 69
FETCH_SESSION_ID_NOT_FOUND = 70
INVALID_FETCH_SESSION_EPOCH = 71
FENCED_LEADER_EPOCH = 74
UNKNOWN_LEADER_EPOCH = 75
UNSUPPORTED_COMPRESSION_TYPE = 76
MEMBER_ID_REQUIRED = 79
PREFERRED_LEADER_NOT_AVAILABLE = 80
GROUP_MAX_SIZE_REACHED = 81
FENCED_INSTANCE_ID = 82
DELEGATION_TOKEN_AUTH_DISABLED = 61
DELEGATION_TOKEN_NOT_FOUND = 62
DELEGATION_TOKEN_OWNER_MISMATCH = 63
DELEGATION_TOKEN_REQUEST_NOT_ALLOWED = 64
DELEGATION_TOKEN_AUTHORIZATION_FAILED = 65
DELEGATION_TOKEN_EXPIRED = 66
INVALID_PRINCIPAL_TYPE = 67
ELIGIBLE_LEADERS_NOT_AVAILABLE = 83
ELECTION_NOT_NEEDED = 84
NO_REASSIGNMENT_IN_PROGRESS = 85
GROUP_SUBSCRIBED_TO_TOPIC = 86
INVALID_RECORD = 87
UNSTABLE_OFFSET_COMMIT = 88
PRODUCER_FENCED = 90
THROTTLING_QUOTA_EXCEEDED = 89
INVALID_UPDATE_VERSION = 95
RESOURCE_NOT_FOUND = 91
DUPLICATE_RESOURCE = 92
UNACCEPTABLE_CREDENTIAL = 93
UNKNOWN_TOPIC_ID = 100
BROKER_ID_NOT_REGISTERED = 102
TRANSACTIONAL_ID_NOT_FOUND = 105
UNKNOWN_SUBSCRIPTION_ID = 117
TELEMETRY_TOO_LARGE = 118
TRANSACTION_ABORTABLE = 120
FENCED_MEMBER_EPOCH = 110
UNRELEASED_INSTANCE_ID = 111
UNSUPPORTED_ASSIGNOR = 112
STALE_MEMBER_EPOCH = 113
INVALID_RECORD_STATE = 121
SHARE_SESSION_NOT_FOUND = 122
INVALID_SHARE_SESSION_EPOCH = 123
INVALID_REGULAR_EXPRESSION = 128
REBOOTSTRAP_REQUIRED = 129
STREAMS_INVALID_TOPOLOGY = 130
SHARE_SESSION_LIMIT_REACHED = 133

_CODES: dict[type[HeadraceError], int] = {
    errors.HeadraceError: UNKNOWN_SERVER_ERROR,
    errors.Retriable: UNKNOWN_SERVER_ERROR,
    errors.Rejected: INVALID_REQUEST,
    errors.Fenced: NOT_LEADER_OR_FOLLOWER,
    errors.Fatal: UNKNOWN_SERVER_ERROR,
    errors.AuthenticationFailed: SASL_AUTHENTICATION_FAILED,
    errors.SaslStateIllegal: ILLEGAL_SASL_STATE,
    errors.MechanismUnsupported: UNSUPPORTED_SASL_MECHANISM,
    errors.CredentialInvalid: UNACCEPTABLE_CREDENTIAL,
    errors.CredentialDuplicate: DUPLICATE_RESOURCE,
    errors.CredentialUnknown: RESOURCE_NOT_FOUND,
    errors.StorageUnavailable: KAFKA_STORAGE_ERROR,
    errors.CopiesDamaged: KAFKA_STORAGE_ERROR,
    # Not retriable, unlike KAFKA_STORAGE_ERROR: clients retry that for minutes without reporting it
    # to the application, and then report a timeout.
    errors.DiskFull: POLICY_VIOLATION,
    errors.LedgerUnknown: KAFKA_STORAGE_ERROR,
    errors.LedgerSealed: NOT_LEADER_OR_FOLLOWER,
    errors.LedgerFenced: NOT_LEADER_OR_FOLLOWER,
    errors.LedgerLost: KAFKA_STORAGE_ERROR,
    errors.DataCorrupt: KAFKA_STORAGE_ERROR,
    errors.ChainMissing: KAFKA_STORAGE_ERROR,
    errors.FactMissing: KAFKA_STORAGE_ERROR,
    errors.FolderInUse: KAFKA_STORAGE_ERROR,
    errors.FormatUnsupported: KAFKA_STORAGE_ERROR,
    errors.CompactionInterrupted: KAFKA_STORAGE_ERROR,
    errors.OffsetOutOfRange: OFFSET_OUT_OF_RANGE,
    errors.BatchCorrupt: CORRUPT_MESSAGE,
    errors.BatchExpandsTooFar: MESSAGE_TOO_LARGE,
    errors.BatchTooLarge: MESSAGE_TOO_LARGE,
    errors.RecordInvalid: INVALID_RECORD,
    errors.LiteTopicsFull: INVALID_RECORD,
    errors.UnsupportedForMessageFormat: UNSUPPORTED_FOR_MESSAGE_FORMAT,
    errors.CodecUnsupported: UNSUPPORTED_COMPRESSION_TYPE,
    errors.OutOfOrderSequence: OUT_OF_ORDER_SEQUENCE_NUMBER,
    errors.DuplicateSequence: DUPLICATE_SEQUENCE_NUMBER,
    errors.UnknownProducerId: UNKNOWN_PRODUCER_ID,
    errors.ProducerFenced: INVALID_PRODUCER_EPOCH,
    errors.TransactionStateInvalid: INVALID_TXN_STATE,
    errors.TransactionCoordinatorFenced: TRANSACTION_COORDINATOR_FENCED,
    errors.TransactionAbortable: TRANSACTION_ABORTABLE,
    errors.ConcurrentTransactions: CONCURRENT_TRANSACTIONS,
    errors.TransactionUnverified: NOT_ENOUGH_REPLICAS,
    errors.TransactionalProducerFenced: PRODUCER_FENCED,
    errors.ProducerIdMappingInvalid: INVALID_PRODUCER_ID_MAPPING,
    errors.TransactionTimeoutInvalid: INVALID_TRANSACTION_TIMEOUT,
    errors.TransactionalIdUnknown: TRANSACTIONAL_ID_NOT_FOUND,
    errors.TransactionalIdRefused: TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    errors.Unauthorized: CLUSTER_AUTHORIZATION_FAILED,
    errors.TopicUnauthorized: TOPIC_AUTHORIZATION_FAILED,
    errors.GroupUnauthorized: GROUP_AUTHORIZATION_FAILED,
    errors.ClusterUnauthorized: CLUSTER_AUTHORIZATION_FAILED,
    errors.TransactionalIdUnauthorized: TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    errors.DelegationTokenUnauthorized: DELEGATION_TOKEN_AUTHORIZATION_FAILED,
    errors.DelegationTokenDisabled: DELEGATION_TOKEN_AUTH_DISABLED,
    errors.DelegationTokenUnknown: DELEGATION_TOKEN_NOT_FOUND,
    errors.DelegationTokenOwnerMismatch: DELEGATION_TOKEN_OWNER_MISMATCH,
    errors.DelegationTokenRequestForbidden: DELEGATION_TOKEN_REQUEST_NOT_ALLOWED,
    errors.DelegationTokenExpired: DELEGATION_TOKEN_EXPIRED,
    errors.PrincipalTypeInvalid: INVALID_PRINCIPAL_TYPE,
    errors.SecurityDisabled: SECURITY_DISABLED,
    errors.OffsetCommitUnstable: UNSTABLE_OFFSET_COMMIT,
    errors.VersionConflict: UNKNOWN_SERVER_ERROR,
    errors.MetadataUnavailable: COORDINATOR_NOT_AVAILABLE,
    errors.TopicUnknown: UNKNOWN_TOPIC_OR_PARTITION,
    errors.TopicIdUnknown: UNKNOWN_TOPIC_ID,
    errors.TopicExists: TOPIC_ALREADY_EXISTS,
    errors.TopicNameInvalid: INVALID_TOPIC_EXCEPTION,
    errors.PartitionsInvalid: INVALID_PARTITIONS,
    errors.ReplicationFactorInvalid: INVALID_REPLICATION_FACTOR,
    errors.AssignmentInvalid: INVALID_REPLICA_ASSIGNMENT,
    errors.SubscriptionUnknown: UNKNOWN_SUBSCRIPTION_ID,
    errors.TelemetryTooLarge: TELEMETRY_TOO_LARGE,
    errors.NoReassignment: NO_REASSIGNMENT_IN_PROGRESS,
    errors.ConfigInvalid: INVALID_CONFIG,
    errors.RequestInvalid: INVALID_REQUEST,
    errors.VersionUnsupported: UNSUPPORTED_VERSION,
    errors.AcksInvalid: INVALID_REQUIRED_ACKS,
    errors.BrokerIdInUse: UNKNOWN_SERVER_ERROR,
    errors.BrokerUnknown: BROKER_ID_NOT_REGISTERED,
    errors.NotOwner: NOT_LEADER_OR_FOLLOWER,
    errors.LeaderEpochFenced: FENCED_LEADER_EPOCH,
    errors.LeaderEpochUnknown: UNKNOWN_LEADER_EPOCH,
    errors.BrokerUnreachable: NETWORK_EXCEPTION,
    errors.PeerVersionDiffers: NETWORK_EXCEPTION,
    errors.PolicyViolation: POLICY_VIOLATION,
    errors.QuotaExceeded: THROTTLING_QUOTA_EXCEEDED,
    # Producers know no quota error. This one they all take for "not stored, send it again".
    errors.WriteDeferred: NOT_ENOUGH_REPLICAS,
    errors.CoordinatorLoading: COORDINATOR_LOAD_IN_PROGRESS,
    errors.CoordinatorUnavailable: COORDINATOR_NOT_AVAILABLE,
    errors.NotCoordinator: NOT_COORDINATOR,
    errors.GroupIdInvalid: INVALID_GROUP_ID,
    errors.GroupUnknown: GROUP_ID_NOT_FOUND,
    errors.GroupNotEmpty: NON_EMPTY_GROUP,
    errors.GroupSubscribed: GROUP_SUBSCRIBED_TO_TOPIC,
    errors.MemberUnknown: UNKNOWN_MEMBER_ID,
    errors.MemberIdRequired: MEMBER_ID_REQUIRED,
    errors.IllegalGeneration: ILLEGAL_GENERATION,
    errors.RebalanceInProgress: REBALANCE_IN_PROGRESS,
    errors.InconsistentProtocol: INCONSISTENT_GROUP_PROTOCOL,
    errors.SessionTimeoutInvalid: INVALID_SESSION_TIMEOUT,
    errors.InstanceIdFenced: FENCED_INSTANCE_ID,
    errors.GroupFull: GROUP_MAX_SIZE_REACHED,
    errors.OffsetMetadataTooLarge: OFFSET_METADATA_TOO_LARGE,
    errors.MemberEpochStale: STALE_MEMBER_EPOCH,
    errors.InstanceIdUnreleased: UNRELEASED_INSTANCE_ID,
    errors.AssignorUnsupported: UNSUPPORTED_ASSIGNOR,
    errors.RegularExpressionInvalid: INVALID_REGULAR_EXPRESSION,
    errors.StreamsTopologyInvalid: STREAMS_INVALID_TOPOLOGY,
    errors.FetchSessionUnknown: FETCH_SESSION_ID_NOT_FOUND,
    errors.FetchSessionEpochInvalid: INVALID_FETCH_SESSION_EPOCH,
    errors.RecordStateInvalid: INVALID_RECORD_STATE,
    errors.DeliverySettled: INVALID_RECORD_STATE,
    errors.DeliveryFinished: INVALID_RECORD_STATE,
    errors.DeliveryLost: INVALID_RECORD_STATE,
    errors.DeliveryExpired: INVALID_RECORD_STATE,
    errors.DeliveryTaken: INVALID_RECORD_STATE,
    errors.DeliveryUnknown: INVALID_REQUEST,
    errors.ReceiptInvalid: INVALID_REQUEST,
    errors.GroupKindMismatch: GROUP_ID_NOT_FOUND,
    errors.MemberEpochFenced: FENCED_MEMBER_EPOCH,
    errors.ShareSessionUnknown: SHARE_SESSION_NOT_FOUND,
    errors.ShareSessionEpochInvalid: INVALID_SHARE_SESSION_EPOCH,
    errors.ShareSessionLimitReached: SHARE_SESSION_LIMIT_REACHED,
}

_KINDS: dict[int, type[HeadraceError]] = {}
for _kind, _code in _CODES.items():
    if _kind.__mro__[1] is not HeadraceError and _code not in _KINDS:
        _KINDS[_code] = _kind
_KINDS[NOT_LEADER_OR_FOLLOWER] = errors.NotOwner

_NAMES = {
    code: name for name, code in list(globals().items()) if name.isupper() and type(code) is int
}
_PATH = re.compile(r"(?<![\w/:.])(?:/[\w.+@~-]+){2,}")


def code_of(error: BaseException | None) -> int:
    """The code of `error`; NONE for None, UNKNOWN_SERVER_ERROR for other exceptions."""
    if error is None:
        return NONE
    if isinstance(error, errors.RecordInvalid) and error.fields.get("is_timestamp"):
        return INVALID_TIMESTAMP
    for kind in type(error).__mro__:
        code = _CODES.get(kind)
        if code is not None:
            return code
    return UNKNOWN_SERVER_ERROR


def name_of(code: int) -> str:
    """Kafka's name of an error code; the number if it is not used here."""
    return _NAMES.get(code, str(code))


def error_of(code: int) -> HeadraceError | None:
    """The error for another broker's error code; None for NONE."""
    if code == NONE:
        return None
    kind = _KINDS.get(code, errors.HeadraceError)
    if issubclass(kind, errors.Retriable):
        return kind("the broker responsible for this is changing or busy: try again")
    return kind(f"another broker refused the request ({kind.__name__}): see its log")


def message_of(error: BaseException | None) -> str | None:
    """The message that a client may see: that of a HeadraceError, none of other exceptions.

    File paths of the broker's machine appear only in its own log.
    """
    if error is None:
        return None
    if not isinstance(error, HeadraceError):
        return "internal error: see the broker's log"
    return _PATH.sub("(a path)", str(error))
