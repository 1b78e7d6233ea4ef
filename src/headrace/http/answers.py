"""What each operation under `/v1` answers when it succeeds: examples, and the schemas they imply.

Invariants: one table, by the operation's name; a schema is derived from its example, so that the
two cannot differ. Tests compare every answer of a broker with its schema, and demand one for every
operation. Clients take fields that they do not know: an answer may gain some.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

Json = dict[str, Any]


class OrNull(NamedTuple):
    """A value that may also be null."""

    value: Any


class Entries(NamedTuple):
    """An object with names of its clients' or Kafka's choice."""

    name: str
    value: Any


class Part(NamedTuple):
    """A shape that several answers share: a component of its own."""

    name: str
    shape: Any


def schema_of(shape: Any) -> Json:
    """The JSON Schema of a shape. Names that end with `?` are optional."""
    match shape:
        case OrNull(value):
            inner = schema_of(value)
            if "$ref" in inner:
                return {"oneOf": [inner, {"type": "null"}]}
            return inner | {"type": [inner["type"], "null"]}
        case Entries(_, value):
            return {"type": "object", "additionalProperties": schema_of(value)}
        case Part(name, _):
            return {"$ref": f"#/components/schemas/{name}"}
        case bool():
            return {"type": "boolean"}
        case int():
            return {"type": "integer"}
        case float():
            return {"type": "number"}
        case str():
            return {"type": "string"}
        case list():
            return {"type": "array", "items": schema_of(shape[0])}
        case _:
            return _object(shape)


def _object(shape: Json) -> Json:
    if not shape:
        return {"type": "object"}
    return {
        "type": "object",
        "required": [name for name in shape if not name.endswith("?")],
        "properties": {name.removesuffix("?"): schema_of(one) for name, one in shape.items()},
    }


def example_of(shape: Any) -> Any:
    """The example of a shape."""
    match shape:
        case OrNull(value):
            return example_of(value)
        case Entries(name, value):
            return {name: example_of(value)}
        case Part(_, inner):
            return example_of(inner)
        case list():
            return [example_of(one) for one in shape]
        case dict():
            return {name.removesuffix("?"): example_of(one) for name, one in shape.items()}
        case _:
            return shape


def component(operation: str) -> str:
    """The name of an operation's answer among the document's components."""
    return f"{operation[0].upper()}{operation[1:]}Answer"


def components() -> Json:
    """All schemas of answers, by name."""
    found = {component(name): schema_of(shape) for name, shape in ANSWERS.items()}
    parts: list[Any] = [*ANSWERS.values()]
    while parts:
        one = parts.pop()
        if isinstance(one, Part):
            found[one.name] = schema_of(one.shape)
            parts.append(one.shape)
        elif isinstance(one, OrNull | Entries):
            parts.append(one.value)
        elif isinstance(one, list | dict):
            parts += one.values() if isinstance(one, dict) else one
    return dict(sorted(found.items()))


# --- shared parts ----------------------------------------------------------------------------

_AT_MS: Final = 1_764_201_600_000
_RECEIPT: Final = "0.41.f3c9a1d27b60"
_TOKEN: Final = "b3JkZXJz"  # noqa: S105 a page's
_ID: Final = "5f8c2d1e-9a47-4c0b-8f31-2f6b0a7d9e54"

PROBLEM: Final = Part(
    "Problem",
    {
        "type": "about:blank",
        "status": 404,
        "detail": "the topic orders does not exist",
        "retriable": False,
        "next_step": "create the topic, or check its name",
    },
)
_FAILED: Final = [Part("FailedPartition", {"partition": 2, "error": PROBLEM})]
_FAILED_TOPICS: Final = [
    Part("FailedTopicPartition", {"topic": "orders", "partition": 2, "error": PROBLEM})
]
_FAILED_BROKERS: Final = [Part("FailedBroker", {"broker": 2, "error": PROBLEM})]
_CONTENT: Final[Json] = {
    "headers": [[OrNull("source"), "shop"]],
    "key": OrNull("customer-7"),
    "key_encoding?": "text",
    "value": OrNull('{"total": 12}'),
    "value_encoding?": "text",
}
_RECORD: Final = Part("Record", {"offset": 41, "timestamp_ms": _AT_MS, **_CONTENT})
_SETTING: Final = Part(
    "Setting",
    {
        "name": "retention.ms",
        "value": OrNull("86400000"),
        "default": OrNull("604800000"),
        "is_set": True,
        "documentation": "How long records are kept, in ms.",
    },
)
_CONFIG: Final = Entries("retention.ms", "86400000")
_UNREADABLE: Final = Part(
    "UnreadableBatch", {"offset": 7, "last_offset": 9, "reason": "the checksum is wrong"}
)
_MESSAGE_PLACE: Final[Json] = {"topic": "orders", "partition": 0}
_DELIVERY: Final = Part(
    "Delivery",
    {
        "group": "billing",
        "state": "acquired",
        "deliveries": 1,
        "member?": "http-f3c9a1d27b60",
        "lock_ends_ms?": _AT_MS,
        "next_delivery_ms?": _AT_MS,
    },
)
_MESSAGE: Final = Part(
    "FoundMessage",
    {
        "state": "log",
        **_MESSAGE_PLACE,
        "offset?": 41,
        "timestamp_ms": _AT_MS,
        **_CONTENT,
        "due_ms?": _AT_MS,
        "groups?": [_DELIVERY],
        "origin?": Entries("topic", OrNull("orders")),
    },
)
_EVENT: Final = Part(
    "TraceEvent",
    {
        "event": "stored",
        "at_ms?": _AT_MS,
        **_MESSAGE_PLACE,
        "offset?": 41,
        "group?": "billing",
        "attempt?": 1,
        "state?": "acquired",
        "member?": "http-f3c9a1d27b60",
        "lock_ends_ms?": _AT_MS,
        "next_delivery_ms?": _AT_MS,
        "due_ms?": _AT_MS,
        "redrives?": "1",
        "reason?": "no payment",
    },
)
_TASK_FIELDS: Final[Json] = {
    "id": "b1946ac92492d234",
    "state": "running",
    "asked": {},
    "started_ms": _AT_MS,
    "progress": {},
    "result_count": 3,
    "ended_ms?": _AT_MS,
    "error?": PROBLEM,
}
_TASK: Final = Part("Task", _TASK_FIELDS)
_TASK_AND_RESULTS: Final = Part(
    "TaskAndResults", {**_TASK_FIELDS, "results": [{}], "next_page_token?": _TOKEN}
)
_LETTER: Final[Json] = {
    "partition": 0,
    "letter_offset": 3,
    "origin": OrNull("orders"),
    "origin_partition": OrNull(0),
    "origin_offset": OrNull(41),
    "group": OrNull("billing"),
    "reason": "the card was refused",
    "cause": OrNull("deliveries"),
    "stage": OrNull("parse"),
    "format": OrNull("share"),
    "deliveries": OrNull(5),
    "redrives": 0,
    "edits": ["User:alice"],
    "record": _RECORD,
    "own_headers": [[OrNull("source"), "shop"]],
}
_DEAD_LETTER: Final = Part("DeadLetter", _LETTER)
_TIMED: Final[Json] = {"topic": "orders", "reads_attributes": True}
_HALF: Final[Json] = {
    "receipt": "0.17",
    "partition": 0,
    "state": "pending",
    "message_id": "payment-7",
    "group": "payments",
    "received_ms": _AT_MS,
}
_PENDING: Final[Json] = {"checks": 0, "next_check_ms": _AT_MS}
_SETTLED: Final[Json] = {"settled_ms?": _AT_MS, "reason?": "paid"}
_PROBLEM_TEXT: Final[Json] = {"error?": "the receipt is not valid", "retriable?": False}
_SHOWN_PROBLEM: Final = Part(
    "HealthProblem",
    {
        "what": "the disk",
        "cause": "it is full, and records are refused",
        "next_step": "make room on the broker's disk",
        "is_passing": False,
    },
)
_POINT: Final = Part(
    "HistoryPoint",
    {
        "at_ms": _AT_MS,
        "records_in_per_s": 120.5,
        "bytes_in_per_s": 24_000.0,
        "bytes_out_per_s": 48_000.0,
        "refused_batches_per_s": 0.0,
        "dead_letters_per_s": 0.0,
        "cpu_percent": 3.5,
        "connections": 4,
        "memory_bytes": 90_000_000,
        "disk_free_bytes": 40_000_000_000,
    },
)
_KEY: Final[Json] = {
    "id": "0f1e2d3c4b5a6978",
    "name": "shop",
    "kind": "http",
    "principal": "User:alice",
    "created_ms": _AT_MS,
    "expires_ms": _AT_MS,
    "scope?": [
        Part(
            "ScopeRule",
            {"operation": "READ", "resource": "topic", "name": "orders", "pattern": "literal"},
        )
    ],
}
_API_KEY: Final = Part("ApiKey", _KEY)
_ACL: Final = Part(
    "Acl",
    {
        "id": "5a1b2c3d4e5f6071",
        "permission": "allow",
        "principal": "User:alice",
        "host": "*",
        "operation": "READ",
        "resource": "topic",
        "name": "orders",
        "pattern": "literal",
    },
)
_SESSION: Final = Part(
    "Session",
    {
        "principal": "User:alice",
        "is_authenticated": True,
        "by?": "session",
        "can_sign_in": True,
        "expires_ms?": _AT_MS,
        "csrf_token?": "8d1c0b5f",
    },
)
_ENTITY: Final = Part(
    "QuotaEntity",
    {
        "user?": "alice",
        "default_user?": True,
        "client_id?": "billing",
        "default_client_id?": True,
        "ip?": "127.0.0.1",
        "default_ip?": True,
    },
)
_CHANGED_QUOTA: Final[Json] = {
    "entity": _ENTITY,
    "quotas": Entries("producer_byte_rate", 1_048_576.0),
    "dry_run": False,
}
_QUEUE: Final[Json] = {"topic": "orders", "group": "billing"}
_STREAM: Final = Part(
    "ServerSentEvent",
    {"event": "rates", "data": '{"at_ms": 1764201600000}', "id?": "19acdeadbeef-12"},
)
"""Each event of a stream (OpenAPI has no schema for a stream as a whole); `data` is JSON."""

# --- the answers -----------------------------------------------------------------------------

ANSWERS: Final[dict[str, Any]] = {
    # topics
    "listTopics": {
        "topics": [
            Part(
                "TopicListed",
                {
                    "name": "orders",
                    "id": _ID,
                    "partitions": 3,
                    "internal": False,
                    "partitions_shown?": 3,
                    "records?": 1_200,
                    "size_bytes?": 52_000,
                },
            )
        ],
        "next_page_token?": _TOKEN,
    },
    "createTopic": {
        "name": "orders",
        "id": OrNull(_ID),
        "partitions": 3,
        "replication_factor": 1,
        "config": _CONFIG,
        "dry_run": False,
    },
    "getTopic": {
        "name": "orders",
        "id": _ID,
        "internal": False,
        "replication_factor": 1,
        "config": _CONFIG,
        "partitions": [
            Part(
                "Partition",
                {
                    "partition": 0,
                    "leader": 1,
                    "leader_epoch": 4,
                    "start_offset?": 0,
                    "end_offset?": 42,
                    "size_bytes?": OrNull(52_000),
                },
            )
        ],
    },
    "growTopic": {"name": "orders", "partitions": 6, "dry_run": False},
    "deleteTopic": {"name": "orders", "deleted": True, "dry_run": False},
    "getTopicConfig": {"topic": "orders", "settings": [_SETTING]},
    "changeTopicConfig": {"topic": "orders", "config": _CONFIG, "dry_run": False},
    # records
    "produce": {
        "topic": "orders",
        "results": [
            Part(
                "ProduceResult",
                {
                    "ok": True,
                    "partition?": 0,
                    "offset?": OrNull(41),
                    "state?": "stored",
                    "receipt?": "0.1764201600000.17",
                    "error?": PROBLEM,
                },
            )
        ],
    },
    "readRecords": {
        "topic": "orders",
        "partition": 0,
        "records": [_RECORD],
        "next_offset": 42,
        "start_offset": 0,
        "end_offset": 42,
        "unreadable?": [_UNREADABLE],
    },
    "followTopic": Part(
        "FollowedRecord",
        {"event": "record", "data": '{"partition": 0, "offset": 41, "value": "hello"}'},
    ),
    # delayed records and half messages
    "listDelayed": {
        **_TIMED,
        "delayed": [
            Part(
                "DelayedRecord",
                {
                    "receipt": "0.1764201600000.17",
                    "partition": 0,
                    "due_ms": _AT_MS,
                    "timestamp_ms": _AT_MS,
                    "message_id": OrNull("payment-7"),
                    "key": OrNull("customer-7"),
                    "value_bytes": 120,
                },
            )
        ],
        "next_page_token?": _TOKEN,
        "failed?": _FAILED,
    },
    "cancelDelayed": {
        **_TIMED,
        "results": [
            Part(
                "CancelResult",
                {
                    "receipt?": "0.1764201600000.17",
                    "message_id?": "payment-7",
                    "cancelled": 1,
                    **_PROBLEM_TEXT,
                },
            )
        ],
        "failed?": _FAILED,
    },
    "listRefusedDelayed": {
        **_TIMED,
        "refused": [
            Part(
                "RefusedDelayedRecord",
                {
                    "partition": 0,
                    "offset": 41,
                    "refused_ms": _AT_MS,
                    "reason": "the checksum is wrong",
                },
            )
        ],
        "failed?": _FAILED,
    },
    "listHalfMessages": {
        **_TIMED,
        "half": [
            Part(
                "HalfMessage",
                {**_HALF, **{f"{name}?": one for name, one in _PENDING.items()}, **_SETTLED},
            )
        ],
        "next_page_token?": _TOKEN,
        "failed?": _FAILED,
    },
    "settleHalfMessages": {
        **_TIMED,
        "results": [
            Part(
                "HalfResult",
                {
                    "receipt?": "0.17",
                    "message_id?": "payment-7",
                    "ok": True,
                    "outcome?": "committed",
                    "settled_now?": 1,
                    **_PROBLEM_TEXT,
                },
            )
        ],
        "failed?": _FAILED,
    },
    "pollHalfChecks": {
        "group": "payments",
        "checks": [Part("HalfCheck", {"topic": "orders", **_HALF, **_PENDING, **_CONTENT})],
        "failed?": _FAILED_BROKERS,
    },
    # groups
    "listGroups": {
        "groups": [
            Part("GroupListed", {"group": "billing", "state": "Stable", "type": "consumer"})
        ],
        "next_page_token?": _TOKEN,
        "failed?": _FAILED_BROKERS,
    },
    "getGroup": {
        "group": "billing",
        "type": "consumer",
        "state": "Stable",
        "members": [
            Part(
                "Member",
                {
                    "id": "c-1",
                    "client_id": "billing",
                    "host": "127.0.0.1",
                    "instance_id?": OrNull("billing-1"),
                    "topics?": ["orders"],
                },
            )
        ],
    },
    "deleteGroup": {"group": "billing", "deleted": True, "dry_run": False},
    "getGroupOffsets": {
        "group": "billing",
        "offsets": [
            Part(
                "GroupOffset",
                {
                    **_MESSAGE_PLACE,
                    "offset": OrNull(41),
                    "lag": OrNull(1),
                    "lag_ms?": OrNull(1_200),
                    "error?": PROBLEM,
                },
            )
        ],
    },
    "moveGroup": {
        "group": "billing",
        "dry_run": False,
        "results": [
            Part(
                "MoveResult",
                {**_MESSAGE_PLACE, "ok": True, "offset?": OrNull(41), "error?": PROBLEM},
            )
        ],
    },
    "getGroupConfig": {"group": "billing", "settings": [_SETTING]},
    "changeGroupConfig": {"group": "billing", "config": _CONFIG, "dry_run": False},
    "diagnoseGroup": {
        "group": "billing",
        "span_ms": 6_000,
        "lag": 1_200,
        "findings": [
            Part(
                "Finding",
                {
                    "kind": "slow",
                    "sentence": "The consumers are slower than the producers.",
                    "evidence": {},
                    "next_step": "add consumers",
                },
            )
        ],
    },
    # queues
    "queue": {
        **_QUEUE,
        "dead_letter_topic": OrNull("orders.dead"),
        "delivery_count_limit": 5,
        "partitions": [
            Part(
                "QueuePartition",
                {
                    "partition": 0,
                    "start_offset": 40,
                    "end_offset": 42,
                    "in_flight": 1,
                    "waiting_for_dead_letter_copy": 0,
                    "lag": 2,
                },
            )
        ],
        "failed?": _FAILED,
    },
    "receive": {
        **_QUEUE,
        "lock_ends_ms?": _AT_MS,
        "note?": "the group is new and begins at the end of the topic",
        "failed?": _FAILED,
        "messages": [
            Part(
                "ReceivedMessage",
                {
                    "receipt": _RECEIPT,
                    "partition": 0,
                    "deliveries": 1,
                    "offset": 41,
                    "timestamp_ms": _AT_MS,
                    **_CONTENT,
                },
            )
        ],
    },
    "settle": {
        "results": [
            Part(
                "SettleResult",
                {
                    "receipt": _RECEIPT,
                    "ok": True,
                    **_PROBLEM_TEXT,
                    "next_step?": "receive it again",
                },
            )
        ]
    },
    "listParkedKeys": {
        **_QUEUE,
        "parked": [
            Part(
                "ParkedKey",
                {
                    "partition": 0,
                    "key": "customer-7",
                    "key_encoding?": "text",
                    "parked_ms": _AT_MS,
                    "records": 3,
                },
            )
        ],
        "next_page_token?": _TOKEN,
        "failed?": _FAILED,
    },
    "parkKeys": {**_QUEUE, "parked": 1, "failed?": _FAILED},
    "unparkKeys": {**_QUEUE, "released": 1, "keys": ["customer-7"], "failed?": _FAILED},
    # dead letters
    "listDeadLetterTopics": {
        "topics": [Part("DeadLetterTopic", {"name": "orders.dead", "records": 4, "partitions": 1})],
        "next_page_token?": _TOKEN,
    },
    "summarizeDeadLetters": {
        "topic": "orders.dead",
        "records": 4,
        "edits": 1,
        "is_complete": True,
        "causes": [
            Part(
                "DeadLetterCause",
                {
                    "origin": OrNull("orders"),
                    "group": OrNull("billing"),
                    "reason": "the card was refused",
                    "format": OrNull("share"),
                    "count": 4,
                    "first_ms": _AT_MS,
                    "last_ms": _AT_MS,
                    "deliveries_max": 5,
                    "redrives_max": 0,
                    "samples": [Part("Place", {"partition": 0, "offset": 3})],
                },
            )
        ],
    },
    "listDeadLetters": {
        "topic": "orders.dead",
        "letters": [_DEAD_LETTER],
        "next_page_token?": "0:3",
        "is_complete": True,
    },
    "getDeadLetter": {"topic": "orders.dead", **_LETTER},
    "editDeadLetter": {
        "topic": "orders.dead",
        "changed": ["value"],
        "before": _DEAD_LETTER,
        "after": _DEAD_LETTER,
    },
    "takeBackDeadLetters": {
        "topic": "orders.dead",
        "dry_run": False,
        "taken_back": 1,
        "results": [
            Part(
                "TakeBackResult",
                {
                    "letter": "0:3",
                    "to": "orders-0:57",
                    "taken_back": True,
                    "groups?": ["billing"],
                    "reason?": "it was delivered",
                    "error?": PROBLEM,
                },
            )
        ],
    },
    # searches, traces and redrives
    "findMessages": {
        "topic": "orders",
        "messages": [_MESSAGE],
        "is_complete": True,
        "searched": Part(
            "SearchProgress",
            {
                "records": 1_200,
                "bytes": 52_000,
                "unreadable_batches?": 1,
                "not_evaluated?": 1,
                "not_evaluated_because?": "a string has no field 'n'",
                "up_to?": {**_MESSAGE_PLACE, "timestamp_ms?": _AT_MS},
            },
        ),
        "failed?": _FAILED_TOPICS,
        "next_page_token?": _TOKEN,
    },
    "exportMessages": {},  # a message a line, as NDJSON or CSV
    "traceMessage": {
        "topic": "orders",
        "events": [_EVENT],
        "messages": [_MESSAGE],
        "traceparents": ["00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"],
        "unknown": ["what became of it before the checkpoint"],
        "is_complete": True,
        "failed?": _FAILED_BROKERS,
    },
    **{f"start{kind}": _TASK for kind in ("Search", "Trace", "Redrive")},
    "listSearchTasks": {"searches": [_TASK]},
    "listTraceTasks": {"traces": [_TASK]},
    "listRedriveTasks": {"redrives": [_TASK]},
    **{f"get{kind}": _TASK_AND_RESULTS for kind in ("Search", "Trace", "Redrive")},
    **{f"follow{kind}": _STREAM for kind in ("Search", "Trace", "Redrive")},
    **{f"cancel{kind}": _TASK for kind in ("Search", "Trace", "Redrive")},
    # quotas and keys
    "listQuotas": {
        "quotas": [
            Part(
                "Quota",
                {
                    "id": "user=alice",
                    "entity": _ENTITY,
                    "quotas": Entries("producer_byte_rate", 1_048_576.0),
                },
            )
        ],
        "next_page_token?": _TOKEN,
    },
    "changeQuota": _CHANGED_QUOTA,
    "deleteQuota": _CHANGED_QUOTA,
    "listKeys": {"keys": [_API_KEY], "next_page_token?": _TOKEN},
    "createKey": {**_KEY, "key?": "hr_0f1e2d3c4b5a6978_example", "secret?": "example"},
    "revokeKey": _API_KEY,
    "listAcls": {"acls": [_ACL], "next_page_token?": _TOKEN},
    "createAcl": {"acl": _ACL, "existed": False, "dry_run": False},
    "deleteAcl": {"acl": _ACL, "dry_run": False},
    "explainAcl": {"allowed": True, "reason": "a rule allows it", "acls": [_ACL]},
    # the cluster
    "getCluster": {"cluster_id": "r5yYkI4bTp2mB7s0", "broker": 1},
    "listBrokers": {
        "broker": 1,
        "brokers": [
            Part(
                "Broker",
                {
                    "id": 1,
                    "rack": OrNull("a"),
                    "started_ms": OrNull(_AT_MS),
                    "is_leaving": False,
                    "partitions": 12,
                    "endpoints": [
                        Part(
                            "Endpoint",
                            {
                                "face": "kafka",
                                "listener": "client",
                                "address": "127.0.0.1:9092",
                                "security": "PLAINTEXT",
                            },
                        )
                    ],
                },
            )
        ],
    },
    "listConnections": {
        "connections": [
            Part(
                "Connection",
                {
                    "address": "127.0.0.1:51234",
                    "listener": "client",
                    "principal": OrNull("User:alice"),
                    "client_id": OrNull("billing"),
                    "software": OrNull("apache-kafka-java"),
                    "software_version": OrNull("4.3.0"),
                },
            )
        ],
        "next_page_token?": _TOKEN,
    },
    "getOverview": {
        "is_well": True,
        "problems": [_SHOWN_PROBLEM],
        "cluster_id": "r5yYkI4bTp2mB7s0",
        "broker": 1,
        "brokers": 1,
        "topics": 4,
        "partitions": 12,
        "lag_records": 1_200,
        "lags": [Part("GroupLag", {"group": "billing", "records": 1_200})],
        "dead_letters": {"copied": 4, "failed": 0, "given_up": 0},
        "disk": OrNull(
            Part(
                "DiskSpace",
                {
                    "free_bytes": 40_000_000_000,
                    "total_bytes": 100_000_000_000,
                    "reserve_bytes": 1_000_000_000,
                    "is_full": False,
                },
            )
        ),
        "bookies?": {"known": 3, "registered": 3, "writable": 3},
        "zookeeper?": "connected",
    },
    "getHistory": {
        "interval_ms": 5_000,
        "last_event_id": "19acdeadbeef-12",
        "points": [_POINT],
    },
    "followEvents": _STREAM,
    "getSession": _SESSION,
    "signIn": _SESSION,
    "signOut": {},
}
