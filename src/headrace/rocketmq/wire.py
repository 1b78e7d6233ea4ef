"""The messages of RocketMQ's gRPC service, `apache.rocketmq.v2.MessagingService`.

Invariants: names and field numbers, no behaviour. They are those of the published protocol
(`apache/rocketmq-apis`, version 5.2). Enums are open: a value which a later client sends is a
number, and breaks nothing. Do not change: on the wire.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

if TYPE_CHECKING:
    from collections.abc import Collection

PACKAGE: Final = "apache.rocketmq.v2"
SERVICE: Final = f"{PACKAGE}.MessagingService"

# A field: [optional | repeated] type name number; `of NAME` makes it one of several alternatives.
_MESSAGES: Final = """
Timestamp: int64 seconds 1, int32 nanos 2
Duration: int64 seconds 1, int32 nanos 2
FilterExpression: FilterType type 1, string expression 2
RetryPolicy: int32 max_attempts 1, ExponentialBackoff exponential_backoff 2 of strategy,
  CustomizedBackoff customized_backoff 3 of strategy
ExponentialBackoff: Duration initial 1, Duration max 2, float multiplier 3
CustomizedBackoff: repeated Duration next 1
Resource: string resource_namespace 1, string name 2
SubscriptionEntry: Resource topic 1, FilterExpression expression 2
Address: string host 1, int32 port 2
Endpoints: AddressScheme scheme 1, repeated Address addresses 2
Broker: string name 1, int32 id 2, Endpoints endpoints 3
MessageQueue: Resource topic 1, int32 id 2, Permission permission 3, Broker broker 4,
  repeated MessageType accept_message_types 5
Digest: DigestType type 1, string checksum 2
SystemProperties: optional string tag 1, repeated string keys 2, string message_id 3,
  Digest body_digest 4, Encoding body_encoding 5, MessageType message_type 6,
  Timestamp born_timestamp 7, string born_host 8, Timestamp store_timestamp 9, string store_host 10,
  Timestamp delivery_timestamp 11, optional string receipt_handle 12, int32 queue_id 13,
  optional int64 queue_offset 14, Duration invisible_duration 15,
  optional int32 delivery_attempt 16, optional string message_group 17,
  optional string trace_context 18, Duration orphaned_transaction_recovery_duration 19,
  DeadLetterQueue dead_letter_queue 20, optional string lite_topic 21, optional int32 priority 22
DeadLetterQueue: string topic 1, string message_id 2
Message: Resource topic 1, map user_properties 2, SystemProperties system_properties 3, bytes body 4
Assignment: MessageQueue message_queue 1
Status: Code code 1, string message 2
UA: Language language 1, string version 2, string platform 3, string hostname 4
Settings: optional ClientType client_type 1, Endpoints access_point 2, RetryPolicy backoff_policy 3,
  Duration request_timeout 4, Publishing publishing 5 of pub_sub,
  Subscription subscription 6 of pub_sub, UA user_agent 7, Metric metric 8
Publishing: repeated Resource topics 1, int32 max_body_size 2, bool validate_message_type 3
Subscription: Resource group 1, repeated SubscriptionEntry subscriptions 2, optional bool fifo 3,
  optional int32 receive_batch_size 4, Duration long_polling_timeout 5,
  optional int32 lite_subscription_quota 6, optional int32 max_lite_topic_size 7
Metric: bool on 1, Endpoints endpoints 2
OffsetOption: OffsetOption.Policy policy 1 of offset_type, int64 offset 2 of offset_type,
  int64 tail_n 3 of offset_type, int64 timestamp 4 of offset_type
QueryRouteRequest: Resource topic 1, Endpoints endpoints 2
QueryRouteResponse: Status status 1, repeated MessageQueue message_queues 2
SendMessageRequest: repeated Message messages 1
SendResultEntry: Status status 1, string message_id 2, string transaction_id 3, int64 offset 4,
  string recall_handle 5
SendMessageResponse: Status status 1, repeated SendResultEntry entries 2
QueryAssignmentRequest: Resource topic 1, Resource group 2, Endpoints endpoints 3
QueryAssignmentResponse: Status status 1, repeated Assignment assignments 2
ReceiveMessageRequest: Resource group 1, MessageQueue message_queue 2,
  FilterExpression filter_expression 3, int32 batch_size 4, Duration invisible_duration 5,
  bool auto_renew 6, Duration long_polling_timeout 7, optional string attempt_id 8
ReceiveMessageResponse: Status status 1 of content, Message message 2 of content,
  Timestamp delivery_timestamp 3 of content
AckMessageEntry: string message_id 1, string receipt_handle 2, optional string lite_topic 3
AckMessageRequest: Resource group 1, Resource topic 2, repeated AckMessageEntry entries 3
AckMessageResultEntry: string message_id 1, string receipt_handle 2, Status status 3
AckMessageResponse: Status status 1, repeated AckMessageResultEntry entries 2
ForwardMessageToDeadLetterQueueRequest: Resource group 1, Resource topic 2,
  string receipt_handle 3, string message_id 4, int32 delivery_attempt 5,
  int32 max_delivery_attempts 6, optional string lite_topic 7
ForwardMessageToDeadLetterQueueResponse: Status status 1
HeartbeatRequest: Resource group 1, ClientType client_type 2
HeartbeatResponse: Status status 1
EndTransactionRequest: Resource topic 1, string message_id 2, string transaction_id 3,
  TransactionResolution resolution 4, TransactionSource source 5, string trace_context 6
EndTransactionResponse: Status status 1
PrintThreadStackTraceCommand: string nonce 1
ReconnectEndpointsCommand: string nonce 1
ThreadStackTrace: string nonce 1, optional string thread_stack_trace 2
VerifyMessageCommand: string nonce 1, Message message 2
VerifyMessageResult: string nonce 1
RecoverOrphanedTransactionCommand: Message message 1, string transaction_id 2
NotifyUnsubscribeLiteCommand: string lite_topic 1
TelemetryCommand: Status status 1, Settings settings 2 of command,
  ThreadStackTrace thread_stack_trace 3 of command,
  VerifyMessageResult verify_message_result 4 of command,
  RecoverOrphanedTransactionCommand recover_orphaned_transaction_command 5 of command,
  PrintThreadStackTraceCommand print_thread_stack_trace_command 6 of command,
  VerifyMessageCommand verify_message_command 7 of command,
  ReconnectEndpointsCommand reconnect_endpoints_command 8 of command,
  NotifyUnsubscribeLiteCommand notify_unsubscribe_lite_command 9 of command
NotifyClientTerminationRequest: Resource group 1
NotifyClientTerminationResponse: Status status 1
ChangeInvisibleDurationRequest: Resource group 1, Resource topic 2, string receipt_handle 3,
  Duration invisible_duration 4, string message_id 5, optional string lite_topic 6,
  optional bool suspend 7
ChangeInvisibleDurationResponse: Status status 1, string receipt_handle 2
PullMessageRequest: Resource group 1, MessageQueue message_queue 2, int64 offset 3,
  int32 batch_size 4, FilterExpression filter_expression 5, Duration long_polling_timeout 6
PullMessageResponse: Status status 1 of content, Message message 2 of content,
  int64 next_offset 3 of content
UpdateOffsetRequest: Resource group 1, MessageQueue message_queue 2, int64 offset 3
UpdateOffsetResponse: Status status 1
GetOffsetRequest: Resource group 1, MessageQueue message_queue 2
GetOffsetResponse: Status status 1, int64 offset 2
QueryOffsetRequest: MessageQueue message_queue 1, QueryOffsetPolicy query_offset_policy 2,
  Timestamp timestamp 3
QueryOffsetResponse: Status status 1, int64 offset 2
RecallMessageRequest: Resource topic 1, string recall_handle 2
RecallMessageResponse: Status status 1, string message_id 2
SyncLiteSubscriptionRequest: LiteSubscriptionAction action 1, Resource topic 2, Resource group 3,
  repeated string lite_topic_set 4, optional int64 version 5, OffsetOption offset_option 6
SyncLiteSubscriptionResponse: Status status 1
"""

_ENUMS: Final = """
MessageType: MESSAGE_TYPE_UNSPECIFIED 0, NORMAL 1, FIFO 2, DELAY 3, TRANSACTION 4, LITE 5,
  PRIORITY 6
TransactionResolution: TRANSACTION_RESOLUTION_UNSPECIFIED 0, COMMIT 1, ROLLBACK 2
TransactionSource: SOURCE_UNSPECIFIED 0, SOURCE_CLIENT 1, SOURCE_SERVER_CHECK 2
Permission: PERMISSION_UNSPECIFIED 0, NONE 1, READ 2, WRITE 3, READ_WRITE 4
FilterType: FILTER_TYPE_UNSPECIFIED 0, TAG 1, SQL 2
AddressScheme: ADDRESS_SCHEME_UNSPECIFIED 0, IPv4 1, IPv6 2, DOMAIN_NAME 3
DigestType: DIGEST_TYPE_UNSPECIFIED 0, CRC32 1, MD5 2, SHA1 3
Encoding: ENCODING_UNSPECIFIED 0, IDENTITY 1, GZIP 2
ClientType: CLIENT_TYPE_UNSPECIFIED 0, PRODUCER 1, PUSH_CONSUMER 2, SIMPLE_CONSUMER 3,
  PULL_CONSUMER 4, LITE_PUSH_CONSUMER 5, LITE_SIMPLE_CONSUMER 6
Language: LANGUAGE_UNSPECIFIED 0, JAVA 1, CPP 2, DOT_NET 3, GOLANG 4, RUST 5, PYTHON 6, PHP 7,
  NODE_JS 8, RUBY 9, OBJECTIVE_C 10, DART 11, KOTLIN 12
LiteSubscriptionAction: PARTIAL_ADD 0, PARTIAL_REMOVE 1, COMPLETE_ADD 2, COMPLETE_REMOVE 3
QueryOffsetPolicy: BEGINNING 0, END 1, TIMESTAMP 2
OffsetOption.Policy: LAST 0, MIN 1, MAX 2
Code: CODE_UNSPECIFIED 0, OK 20000, MULTIPLE_RESULTS 30000, BAD_REQUEST 40000,
  ILLEGAL_ACCESS_POINT 40001, ILLEGAL_TOPIC 40002, ILLEGAL_CONSUMER_GROUP 40003,
  ILLEGAL_MESSAGE_TAG 40004, ILLEGAL_MESSAGE_KEY 40005, ILLEGAL_MESSAGE_GROUP 40006,
  ILLEGAL_MESSAGE_PROPERTY_KEY 40007, INVALID_TRANSACTION_ID 40008, ILLEGAL_MESSAGE_ID 40009,
  ILLEGAL_FILTER_EXPRESSION 40010, ILLEGAL_INVISIBLE_TIME 40011, ILLEGAL_DELIVERY_TIME 40012,
  INVALID_RECEIPT_HANDLE 40013, MESSAGE_PROPERTY_CONFLICT_WITH_TYPE 40014,
  UNRECOGNIZED_CLIENT_TYPE 40015, MESSAGE_CORRUPTED 40016, CLIENT_ID_REQUIRED 40017,
  ILLEGAL_POLLING_TIME 40018, ILLEGAL_OFFSET 40019, ILLEGAL_LITE_TOPIC 40020, UNAUTHORIZED 40100,
  PAYMENT_REQUIRED 40200, FORBIDDEN 40300, NOT_FOUND 40400, MESSAGE_NOT_FOUND 40401,
  TOPIC_NOT_FOUND 40402, CONSUMER_GROUP_NOT_FOUND 40403, OFFSET_NOT_FOUND 40404,
  REQUEST_TIMEOUT 40800, PAYLOAD_TOO_LARGE 41300, MESSAGE_BODY_TOO_LARGE 41301,
  MESSAGE_BODY_EMPTY 41302, PRECONDITION_FAILED 42800, TOO_MANY_REQUESTS 42900,
  LITE_TOPIC_QUOTA_EXCEEDED 42901, LITE_SUBSCRIPTION_QUOTA_EXCEEDED 42902,
  REQUEST_HEADER_FIELDS_TOO_LARGE 43100, MESSAGE_PROPERTIES_TOO_LARGE 43101, INTERNAL_ERROR 50000,
  INTERNAL_SERVER_ERROR 50001, HA_NOT_AVAILABLE 50002, NOT_IMPLEMENTED 50100, PROXY_TIMEOUT 50400,
  MASTER_PERSISTENCE_TIMEOUT 50401, SLAVE_PERSISTENCE_TIMEOUT 50402, UNSUPPORTED 50500,
  VERSION_UNSUPPORTED 50501, VERIFY_FIFO_MESSAGE_UNSUPPORTED 50502, FAILED_TO_CONSUME_MESSAGE 60000
"""

_FIELD: Final = descriptor_pb2.FieldDescriptorProto
_TYPES: Final = {
    "bool": _FIELD.TYPE_BOOL,
    "bytes": _FIELD.TYPE_BYTES,
    "float": _FIELD.TYPE_FLOAT,
    "int32": _FIELD.TYPE_INT32,
    "int64": _FIELD.TYPE_INT64,
    "string": _FIELD.TYPE_STRING,
}


RPCS: Final = (
    *("QueryRoute", "Heartbeat", "SendMessage", "QueryAssignment", "ReceiveMessage"),
    *("AckMessage", "ForwardMessageToDeadLetterQueue", "PullMessage", "UpdateOffset", "GetOffset"),
    *("QueryOffset", "EndTransaction", "Telemetry", "NotifyClientTermination"),
    *("ChangeInvisibleDuration", "RecallMessage", "SyncLiteSubscription"),
)
TELEMETRY: Final = "Telemetry"
"""Streams in both directions, of the same message."""
STREAMED: Final = frozenset({"ReceiveMessage", "PullMessage", TELEMETRY})
"""RPCs whose response is a stream."""


def _described() -> Any:
    """The description of the protocol, for the classes and for reflection."""
    file = descriptor_pb2.FileDescriptorProto(
        name="headrace/rocketmq.proto", package=PACKAGE, syntax="proto3"
    )
    enums = _lines(_ENUMS)
    for name, fields in _lines(_MESSAGES).items():
        _add_message(file, name, fields, enums)
    messages = {one.name: one for one in file.message_type}
    for name, values in enums.items():
        outer, _, inner = name.rpartition(".")
        enum = (messages[outer] if outer else file).enum_type.add(name=inner)
        for text in values:
            value_name, number = text.split()
            enum.value.add(name=value_name, number=int(number))
    service = file.service.add(name=SERVICE.rpartition(".")[2])
    for rpc in RPCS:
        is_telemetry = rpc == TELEMETRY
        kinds = ("Command", "Command") if is_telemetry else ("Request", "Response")
        service.method.add(
            name=rpc,
            input_type=f".{PACKAGE}.{rpc}{kinds[0]}",
            output_type=f".{PACKAGE}.{rpc}{kinds[1]}",
            client_streaming=is_telemetry,
            server_streaming=rpc in STREAMED,
        )
    return file


def _lines(text: str) -> dict[str, list[str]]:
    """What is described, by name."""
    found = {}
    for line in text.replace("\n  ", " ").strip().splitlines():
        name, parts = line.split(": ", 1)
        found[name] = parts.split(", ")
    return found


def _classes(file: Any) -> dict[str, Any]:
    """The message classes by name."""
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {
        one.name: message_factory.GetMessageClass(
            pool.FindMessageTypeByName(f"{PACKAGE}.{one.name}")
        )
        for one in file.message_type
    }


def _add_message(file: Any, name: str, fields: list[str], enums: Collection[str]) -> None:
    message = file.message_type.add(name=name)
    alternatives: dict[str, int] = {}
    optional: list[Any] = []
    for text in fields:
        words = text.split()
        label = words.pop(0) if words[0] in {"optional", "repeated"} else ""
        kind, field_name, number = words[:3]
        is_repeated = label == "repeated" or kind == "map"
        field = message.field.add(
            name=field_name,
            number=int(number),
            label=_FIELD.LABEL_REPEATED if is_repeated else _FIELD.LABEL_OPTIONAL,
        )
        if kind == "map":  # of texts
            entry = message.nested_type.add(name="UserPropertiesEntry")
            for at, part in enumerate(("key", "value"), 1):
                entry.field.add(
                    name=part, number=at, label=_FIELD.LABEL_OPTIONAL, type=_FIELD.TYPE_STRING
                )
            entry.options.map_entry = True
            field.type = _FIELD.TYPE_MESSAGE
            field.type_name = f".{PACKAGE}.{name}.{entry.name}"
        elif kind in _TYPES:
            field.type = _TYPES[kind]
        else:
            field.type = _FIELD.TYPE_ENUM if kind in enums else _FIELD.TYPE_MESSAGE
            field.type_name = f".{PACKAGE}.{kind}"
        if label == "optional":
            optional.append(field)
        if words[3:]:
            if words[4] not in alternatives:
                alternatives[words[4]] = len(message.oneof_decl)
                message.oneof_decl.add(name=words[4])
            field.oneof_index = alternatives[words[4]]
    for field in optional:  # behind the real ones, as protobuf demands
        field.proto3_optional = True
        field.oneof_index = len(message.oneof_decl)
        message.oneof_decl.add(name=f"_{field.name}")


_FILE: Final = _described()
FILE: Final[bytes] = _FILE.SerializeToString()
"""For gRPC's reflection."""
_FOUND: Final = _classes(_FILE)
Address: Any = _FOUND["Address"]
Endpoints: Any = _FOUND["Endpoints"]
Message: Any = _FOUND["Message"]
MessageQueue: Any = _FOUND["MessageQueue"]
Resource: Any = _FOUND["Resource"]
Settings: Any = _FOUND["Settings"]
Status: Any = _FOUND["Status"]
TelemetryCommand: Any = _FOUND["TelemetryCommand"]


def request_of(rpc: str) -> Any:
    """The class of an RPC's request."""
    return _FOUND["TelemetryCommand" if rpc == TELEMETRY else f"{rpc}Request"]


def response_of(rpc: str) -> Any:
    """The class of an RPC's response."""
    return _FOUND["TelemetryCommand" if rpc == TELEMETRY else f"{rpc}Response"]


# --- enums -----------------------------------------------------------------------------------

NORMAL, FIFO, DELAY, TRANSACTION, LITE, PRIORITY = range(1, 7)
"""MessageType."""
COMMIT, ROLLBACK = 1, 2
"""TransactionResolution."""
READ_WRITE: Final = 4
"""Permission."""
TAG, SQL = 1, 2
"""FilterType."""
IPV4, IPV6, DOMAIN_NAME = 1, 2, 3
"""AddressScheme."""
CRC32, MD5, SHA1 = 1, 2, 3
"""DigestType."""
IDENTITY, GZIP = 1, 2
"""Encoding."""
UNSPECIFIED_CLIENT, PRODUCER, PUSH_CONSUMER, SIMPLE_CONSUMER, PULL_CONSUMER = range(5)
"""ClientType."""
LITE_PUSH_CONSUMER, LITE_SIMPLE_CONSUMER = 5, 6
BEGINNING, END, TIMESTAMP = 0, 1, 2
"""QueryOffsetPolicy."""


# --- times -----------------------------------------------------------------------------------


def ms_of(time: Any) -> int:
    """The milliseconds of a Timestamp or Duration."""
    return int(time.seconds) * 1_000 + int(time.nanos) // 1_000_000


def set_ms(time: Any, ms: int) -> None:
    """Set a Timestamp or Duration."""
    time.seconds, rest = divmod(ms, 1_000)
    if rest:
        time.nanos = rest * 1_000_000
