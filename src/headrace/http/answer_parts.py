"""What several answers under `/v1` share: records, tasks, dead letters, problems.

Invariants: see `shapes`. A name that a `Part` gives is a component of the OpenAPI document.
"""

from __future__ import annotations

from typing import Final

from headrace.http.shapes import Entries, Json, OrNull, Part

AT_MS: Final = 1_764_201_600_000
RECEIPT: Final = "0.41.f3c9a1d27b60"
TOKEN: Final = "b3JkZXJz"  # noqa: S105 a page's
ID: Final = "5f8c2d1e-9a47-4c0b-8f31-2f6b0a7d9e54"

PROBLEM: Final = Part(
    "Problem",
    {
        "type": "about:blank",
        "status": 404,
        "code?": "TopicUnknown",
        "detail": "the topic orders does not exist",
        "retriable": False,
        "next_step": "create the topic, or check its name",
    },
)
FAILED: Final = [Part("FailedPartition", {"partition": 2, "error": PROBLEM})]
FAILED_TOPICS: Final = [
    Part("FailedTopicPartition", {"topic": "orders", "partition": 2, "error": PROBLEM})
]
FAILED_BROKERS: Final = [Part("FailedBroker", {"broker": 2, "error": PROBLEM})]
CONTENT: Final[Json] = {
    "headers": [[OrNull("source"), "shop"]],
    "key": OrNull("customer-7"),
    "key_encoding?": "text",
    "value": OrNull('{"total": 12}'),
    "value_encoding?": "text",
}
DECODED: Final[Json] = {
    "decoded?": Part("DecodedValue", {"format": "avro", "schema": "7", "json": '{"total":12}'}),
    "undecodable?": "neither a prefix nor a header names its schema",
}
"""Where a request asks for it with `decode=schema`."""
RECORD: Final = Part("Record", {"offset": 41, "timestamp_ms": AT_MS, **CONTENT, **DECODED})
SETTING: Final = Part(
    "Setting",
    {
        "name": "retention.ms",
        "value": OrNull("86400000"),
        "default": OrNull("604800000"),
        "is_set": True,
        "documentation": "How long records are kept, in ms.",
    },
)
CONFIG: Final = Entries("retention.ms", "86400000")
UNREADABLE: Final = Part(
    "UnreadableBatch", {"offset": 7, "last_offset": 9, "reason": "the checksum is wrong"}
)
MESSAGE_PLACE: Final[Json] = {"topic": "orders", "partition": 0}
DELIVERY: Final = Part(
    "Delivery",
    {
        "group": "billing",
        "state": "acquired",
        "deliveries": 1,
        "member?": "http-f3c9a1d27b60",
        "lock_ends_ms?": AT_MS,
        "next_delivery_ms?": AT_MS,
    },
)
MESSAGE: Final = Part(
    "FoundMessage",
    {
        "state": "log",
        **MESSAGE_PLACE,
        "offset?": 41,
        "timestamp_ms": AT_MS,
        **CONTENT,
        **DECODED,
        "due_ms?": AT_MS,
        "groups?": [DELIVERY],
        "origin?": Entries("topic", OrNull("orders")),
    },
)
EVENT: Final = Part(
    "TraceEvent",
    {
        "event": "stored",
        "at_ms?": AT_MS,
        **MESSAGE_PLACE,
        "offset?": 41,
        "group?": "billing",
        "attempt?": 1,
        "state?": "acquired",
        "member?": "http-f3c9a1d27b60",
        "lock_ends_ms?": AT_MS,
        "next_delivery_ms?": AT_MS,
        "due_ms?": AT_MS,
        "redrives?": "1",
        "reason?": "no payment",
        "ledger?": 17,
        "bookies?": ["10.0.0.7:3181"],
        "table?": "headrace.headrace.orders",
        "table_uuid?": "9c12d441-03fe-4693-9a96-a0705ddf69c1",
        "mode?": "append",
        "snapshot_or_earlier?": "3055729675574597004",
        "committed_ms?": AT_MS,
    },
)
TASK_FIELDS: Final[Json] = {
    "id": "b1946ac92492d234",
    "broker": 0,
    "state": "running",
    "asked": {},
    "started_ms": AT_MS,
    "progress": {},
    "result_count": 3,
    "ended_ms?": AT_MS,
    "error?": PROBLEM,
}
TASK: Final = Part("Task", TASK_FIELDS)
TASK_AND_RESULTS: Final = Part(
    "TaskAndResults", {**TASK_FIELDS, "results": [{}], "next_page_token?": TOKEN}
)
LETTER: Final[Json] = {
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
    "record": RECORD,
    "own_headers": [[OrNull("source"), "shop"]],
}
DEAD_LETTER: Final = Part("DeadLetter", LETTER)
TIMED: Final[Json] = {"topic": "orders", "reads_attributes": True}
HALF: Final[Json] = {
    "receipt": "0.17",
    "partition": 0,
    "state": "pending",
    "message_id": "payment-7",
    "group": "payments",
    "received_ms": AT_MS,
}
PENDING: Final[Json] = {"checks": 0, "next_check_ms": AT_MS}
SETTLED: Final[Json] = {"settled_ms?": AT_MS, "reason?": "paid"}
PROBLEM_TEXT: Final[Json] = {"error?": "the receipt is not valid", "retriable?": False}
SHOWN_PROBLEM: Final = Part(
    "HealthProblem",
    {
        "code": "disk_full",
        "what": "the disk",
        "cause": "it is full, and records are refused",
        "next_step": "make room on the broker's disk",
        "is_passing": False,
        "values": {},
        "brokers?": [1],
    },
)
POINT: Final = Part(
    "HistoryPoint",
    {
        "at_ms": AT_MS,
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
KEY: Final[Json] = {
    "id": "0f1e2d3c4b5a6978",
    "name": "shop",
    "kind": "http",
    "principal": "User:alice",
    "created_ms": AT_MS,
    "expires_ms": AT_MS,
    "scope?": [
        Part(
            "ScopeRule",
            {"operation": "READ", "resource": "topic", "name": "orders", "pattern": "literal"},
        )
    ],
}
API_KEY: Final = Part("ApiKey", KEY)
ACL: Final = Part(
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
TENANT: Final = Part(
    "Tenant",
    {
        "name": "acme",
        "principals": ["User:alice"],
        "limits": Entries("topics", 100),
        "when_full": "reject",
        "access": "all",
        "audit_topic?": "audit",
        "in_setting": False,
    },
)
SESSION: Final = Part(
    "Session",
    {
        "principal": "User:alice",
        "is_authenticated": True,
        "by?": "session",
        "can_sign_in": True,
        "is_operator?": True,
        "expires_ms?": AT_MS,
        "csrf_token?": "8d1c0b5f",
    },
)
ENTITY: Final = Part(
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
CHANGED_QUOTA: Final[Json] = {
    "entity": ENTITY,
    "quotas": Entries("producer_byte_rate", 1_048_576.0),
    "dry_run": False,
}
CHANGED_USER: Final[Json] = {
    "user": "alice",
    "mechanisms": Entries("SCRAM-SHA-256", 4_096),
    "password?": "example",
    "dry_run": False,
}
QUEUE: Final[Json] = {"topic": "orders", "group": "billing"}
STREAM: Final = Part(
    "ServerSentEvent",
    {"event": "rates", "data": '{"at_ms": 1764201600000}', "id?": "19acdeadbeef-12"},
)
"""Each event of a stream (OpenAPI has no schema for a stream as a whole); `data` is JSON."""


def _of_each(name: str, **done: int) -> Json:
    """The answer of a change of delayed records; `done`: what counts them."""
    record: Json = {"receipt?": "0.1764201600000.17", "message_id?": "payment-7"}
    results = [Part(name, {**record, **done, **PROBLEM_TEXT})]
    return {**TIMED, "dry_run": False, "results": results, "failed?": FAILED}


OF_TIMERS: Final[Json] = {
    "listDelayed": {
        **TIMED,
        "delayed": [
            Part(
                "DelayedRecord",
                {
                    "receipt": "0.1764201600000.17",
                    "partition": 0,
                    "due_ms": AT_MS,
                    "timestamp_ms": AT_MS,
                    "message_id": OrNull("payment-7"),
                    "key": OrNull("customer-7"),
                    "value_bytes": 120,
                },
            )
        ],
        "next_page_token?": TOKEN,
        "failed?": FAILED,
    },
    "cancelDelayed": _of_each("CancelResult", cancelled=1),
    "deliverDelayed": _of_each("DeliverResult", delivered=1),
    "listRefusedDelayed": {
        **TIMED,
        "refused": [
            Part(
                "RefusedDelayedRecord",
                {
                    "partition": 0,
                    "offset": 41,
                    "refused_ms": AT_MS,
                    "reason": "the checksum is wrong",
                },
            )
        ],
        "failed?": FAILED,
    },
    "listHalfMessages": {
        **TIMED,
        "half": [
            Part(
                "HalfMessage",
                {**HALF, **{f"{name}?": one for name, one in PENDING.items()}, **SETTLED},
            )
        ],
        "next_page_token?": TOKEN,
        "failed?": FAILED,
    },
    "settleHalfMessages": {
        **TIMED,
        "dry_run": False,
        "results": [
            Part(
                "HalfResult",
                {
                    "receipt?": "0.17",
                    "message_id?": "payment-7",
                    "ok": True,
                    "outcome?": "committed",
                    "settled_now?": 1,
                    **PROBLEM_TEXT,
                },
            )
        ],
        "failed?": FAILED,
    },
    "pollHalfChecks": {
        "group": "payments",
        "checks": [Part("HalfCheck", {"topic": "orders", **HALF, **PENDING, **CONTENT})],
        "failed?": FAILED_BROKERS,
    },
}
"""The answers about delayed records and half messages."""
