"""What each operation under `/v1` answers when it succeeds: one table, by the operation's name.

Invariants: tests compare every answer of a broker with its schema, and demand one for every
operation. Clients take fields that they do not know: an answer may gain some.
"""

from __future__ import annotations

from typing import Any, Final

from headrace.http.answer_parts import (
    ACL,
    API_KEY,
    AT_MS,
    CHANGED_QUOTA,
    CHANGED_USER,
    CONFIG,
    CONTENT,
    DEAD_LETTER,
    ENTITY,
    EVENT,
    FAILED,
    FAILED_BROKERS,
    FAILED_TOPICS,
    ID,
    KEY,
    LETTER,
    MESSAGE,
    MESSAGE_PLACE,
    OF_TIMERS,
    PROBLEM,
    PROBLEM_TEXT,
    QUEUE,
    RECEIPT,
    RECORD,
    SESSION,
    SETTING,
    STREAM,
    TASK,
    TASK_AND_RESULTS,
    TENANT,
    TOKEN,
    UNREADABLE,
)
from headrace.http.cluster_answers import CLUSTER_ANSWERS
from headrace.http.shapes import Entries, Json, OrNull, Part, schema_of

ANSWERS: Final[dict[str, Any]] = {
    # topics
    "listTopics": {
        "topics": [
            Part(
                "TopicListed",
                {
                    "name": "orders",
                    "id": ID,
                    "partitions": 3,
                    "internal": False,
                    "partitions_shown?": 3,
                    "is_partial?": False,
                    "lag_is_partial?": False,
                    "records?": 1_200,
                    "size_bytes?": 52_000,
                    "records_in_per_s?": 12.5,
                    "bytes_in_per_s?": 540.0,
                    "bytes_out_per_s?": 1_080.0,
                    "lag_records?": 1_200,
                    "lags?": [Part("GroupLag", {"group": "billing", "records": 1_200})],
                },
            )
        ],
        "next_page_token?": TOKEN,
        "failed?": FAILED_BROKERS,
    },
    "createTopic": {
        "name": "orders",
        "id": OrNull(ID),
        "partitions": 3,
        "replication_factor": 1,
        "config": CONFIG,
        "dry_run": False,
    },
    "getTopic": {
        "name": "orders",
        "id": ID,
        "internal": False,
        "replication_factor": 1,
        "config": CONFIG,
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
    "listLedgers": {
        "topic": "orders",
        "partitions": [
            Part(
                "LedgersOfPartition",
                {
                    "partition": 0,
                    "broker": 1,
                    "is_loaded": True,
                    "ledger_count": 12,
                    "ledgers": [
                        Part(
                            "Ledger",
                            {
                                "ledger": 17,
                                "base_offset": 0,
                                "end_offset": 42,
                                "size_bytes": 52_000,
                                "newest_ms": OrNull(AT_MS),
                                "is_open": False,
                                "is_local": True,
                                "is_offloaded": False,
                                "copies_missing": 0,
                                "bookies?": ["10.0.0.7:3181"],
                                "is_tabled": False,
                                "object_kept_because": OrNull("its batches are compressed"),
                            },
                        )
                    ],
                },
            )
        ],
        "failed?": FAILED,
    },
    "listObjects": {
        "topic": "orders",
        "topic_id": ID,
        "partition": 0,
        "prefix": OrNull("7f3a1c9e5b2d4f60"),
        "objects": [
            Part(
                "StoredLedger",
                {
                    "ledger": 17,
                    "base_offset": 0,
                    "end_offset": 42,
                    "leader_epoch": 4,
                    "size_bytes": 52_000,
                    "is_tabled": False,
                },
            )
        ],
        "next_offset?": 42,
    },
    "growTopic": {"name": "orders", "partitions": 6, "dry_run": False},
    "deleteTopic": {"name": "orders", "deleted": True, "dry_run": False},
    "getTopicConfig": {"topic": "orders", "settings": [SETTING]},
    "changeTopicConfig": {"topic": "orders", "config": CONFIG, "dry_run": False},
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
        "records": [RECORD],
        "next_offset": 42,
        "start_offset": 0,
        "end_offset": 42,
        "unreadable?": [UNREADABLE],
    },
    "followTopic": Part(
        "FollowedRecord",
        {"event": "record", "data": '{"partition": 0, "offset": 41, "value": "hello"}'},
    ),
    **OF_TIMERS,
    # groups
    "listGroups": {
        "groups": [
            Part("GroupListed", {"group": "billing", "state": "Stable", "type": "consumer"})
        ],
        "next_page_token?": TOKEN,
        "failed?": FAILED_BROKERS,
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
                    "assignments": [
                        Part("Assignment", {"topic": "orders", "partitions": [0, 1]}),
                    ],
                    "tasks?": [
                        Part(
                            "StreamsTasks",
                            {"role": "active", "subtopology": "0", "partitions": [0, 1]},
                        ),
                    ],
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
                    **MESSAGE_PLACE,
                    "offset": OrNull(41),
                    "lag": OrNull(1),
                    "lag_ms?": OrNull(1_200),
                    "error?": PROBLEM,
                },
            )
        ],
        "failed?": FAILED_BROKERS,
    },
    "listPastOffsets": {
        "topic": "orders",
        "at_ms": AT_MS,
        "groups": [
            Part(
                "PastOffsetsOfGroup",
                {
                    "group": "billing",
                    "offsets": [
                        Part(
                            "PastOffset",
                            {
                                "partition": 0,
                                "state": "committed",
                                "offset": OrNull(41),
                                "committed_ms": OrNull(AT_MS),
                            },
                        )
                    ],
                },
            )
        ],
        "is_partial": False,
        "failed?": FAILED,
    },
    "moveGroup": {
        "group": "billing",
        "dry_run": False,
        "results": [
            Part(
                "MoveResult",
                {**MESSAGE_PLACE, "ok": True, "offset?": OrNull(41), "error?": PROBLEM},
            )
        ],
    },
    "getGroupConfig": {"group": "billing", "settings": [SETTING]},
    "changeGroupConfig": {"group": "billing", "config": CONFIG, "dry_run": False},
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
                    "values": {},
                },
            )
        ],
    },
    "getGroupLag": {
        "group": "billing",
        "interval_ms": 15_000,
        "points": [
            Part(
                "LagPoint",
                {
                    "at_ms": AT_MS,
                    "lag_records": 1_200,
                    "lag_ms": OrNull(1_200),
                    "is_partial": False,
                },
            )
        ],
        "lag_is_partial": False,
        "trend": OrNull(Part("LagTrend", {"records_per_s": -12.5, "span_ms": 300_000})),
        "failed?": FAILED_BROKERS,
    },
    "listHotKeys": {
        "topic": "orders",
        "partition": 0,
        "first_offset": 1_200,
        "end_offset": 11_200,
        "is_whole": True,
        "records": 10_000,
        "distinct_keys": 420,
        "unreadable": 0,
        "keys": [
            Part(
                "HotKey",
                {
                    "key": OrNull("customer-7"),
                    "key_encoding?": "text",
                    "key_bytes": 10,
                    "records": 4_200,
                    "size_bytes": 218_400,
                },
            )
        ],
    },
    # queues
    "queue": {
        **QUEUE,
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
                    "redelivered": OrNull(1),
                },
            )
        ],
        "failed?": FAILED,
    },
    "receive": {
        **QUEUE,
        "lock_ends_ms?": AT_MS,
        "note?": "the group is new and begins at the end of the topic",
        "failed?": FAILED,
        "messages": [
            Part(
                "ReceivedMessage",
                {
                    "receipt": RECEIPT,
                    "partition": 0,
                    "deliveries": 1,
                    "offset": 41,
                    "timestamp_ms": AT_MS,
                    **CONTENT,
                },
            )
        ],
    },
    "settle": {
        "results": [
            Part(
                "SettleResult",
                {
                    "receipt": RECEIPT,
                    "ok": True,
                    **PROBLEM_TEXT,
                    "next_step?": "receive it again",
                },
            )
        ]
    },
    "listParkedKeys": {
        **QUEUE,
        "parked": [
            Part(
                "ParkedKey",
                {
                    "partition": 0,
                    "key": "customer-7",
                    "key_encoding?": "text",
                    "parked_ms": AT_MS,
                    "records": 3,
                },
            )
        ],
        "next_page_token?": TOKEN,
        "failed?": FAILED,
    },
    "parkKeys": {**QUEUE, "dry_run": False, "parked": 1, "records?": 3, "failed?": FAILED},
    "unparkKeys": {
        **QUEUE,
        "dry_run": False,
        "released": 1,
        "keys": ["customer-7"],
        "records?": 3,
        "failed?": FAILED,
    },
    # dead letters
    "listDeadLetterTopics": {
        "topics": [Part("DeadLetterTopic", {"name": "orders.dead", "records": 4, "partitions": 1})],
        "next_page_token?": TOKEN,
        "failed?": FAILED_TOPICS,
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
                    "first_ms": AT_MS,
                    "last_ms": AT_MS,
                    "deliveries_max": 5,
                    "redrives_max": 0,
                    "samples": [Part("Place", {"partition": 0, "offset": 3})],
                },
            )
        ],
    },
    "listDeadLetters": {
        "topic": "orders.dead",
        "letters": [DEAD_LETTER],
        "next_page_token?": "0:3",
        "is_complete": True,
    },
    "getDeadLetter": {"topic": "orders.dead", **LETTER},
    "editDeadLetter": {
        "topic": "orders.dead",
        "changed": ["value"],
        "before": DEAD_LETTER,
        "after": DEAD_LETTER,
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
        "messages": [MESSAGE],
        "is_complete": True,
        "searched": Part(
            "SearchProgress",
            {
                "records": 1_200,
                "bytes": 52_000,
                "unreadable_batches?": 1,
                "not_evaluated?": 1,
                "not_evaluated_because?": "a string has no field 'n'",
                "up_to?": {**MESSAGE_PLACE, "timestamp_ms?": AT_MS},
            },
        ),
        "failed?": FAILED_TOPICS,
        "next_page_token?": TOKEN,
    },
    "exportMessages": {},  # a message a line, as NDJSON or CSV
    "traceMessage": {
        "topic": "orders",
        "events": [EVENT],
        "messages": [MESSAGE],
        "traceparents": ["00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"],
        "unknown": ["what became of it before the checkpoint"],
        "tables?": [
            Part(
                "TableOfTopic",
                {
                    "group": "headrace-table.headrace.headrace.orders",
                    "table": "headrace.headrace.orders",
                    "table_uuid": "2bd1f6c4-9d4f-4f0e-9f0a-3e9b7e1d3a55",
                    "mode": "append",
                },
            )
        ],
        "is_complete": True,
        "failed?": FAILED_BROKERS,
    },
    "readShareJournal": {
        "topic": "orders",
        "partition": 0,
        "changes": [
            Part(
                "ShareChange",
                {
                    "position": 7,
                    "at_ms": AT_MS,
                    "group": "billing",
                    "event": "acknowledged",
                    "first": 0,
                    "last": 41,
                    "deliveries": 1,
                },
            )
        ],
        "first_position": 0,
        "next_page_token?": "8.0",
    },
    **{f"start{kind}": TASK for kind in ("Search", "Trace", "Redrive")},
    "listSearchTasks": {"searches": [TASK], "failed?": FAILED_BROKERS},
    "listTraceTasks": {"traces": [TASK], "failed?": FAILED_BROKERS},
    "listRedriveTasks": {"redrives": [TASK], "failed?": FAILED_BROKERS},
    **{f"get{kind}": TASK_AND_RESULTS for kind in ("Search", "Trace", "Redrive")},
    **{f"follow{kind}": STREAM for kind in ("Search", "Trace", "Redrive")},
    **{f"cancel{kind}": TASK for kind in ("Search", "Trace", "Redrive")},
    # quotas and keys
    "listQuotas": {
        "quotas": [
            Part(
                "Quota",
                {
                    "id": "user=alice",
                    "entity": ENTITY,
                    "quotas": Entries("producer_byte_rate", 1_048_576.0),
                },
            )
        ],
        "next_page_token?": TOKEN,
    },
    "changeQuota": CHANGED_QUOTA,
    "deleteQuota": CHANGED_QUOTA,
    "listKeys": {"keys": [API_KEY], "next_page_token?": TOKEN},
    "createKey": {
        **{"id?" if name == "id" else name: one for name, one in KEY.items()},
        "key?": "hr_0f1e2d3c4b5a6978_example",
        "secret?": "example",
        "dry_run": False,
    },
    "revokeKey": {**KEY, "dry_run": False},
    "listUsers": {
        "users": [Part("User", {"user": "alice", "mechanisms": Entries("SCRAM-SHA-256", 4_096)})],
        "next_page_token?": TOKEN,
    },
    "createUser": CHANGED_USER,
    "setPassword": CHANGED_USER,
    "deleteUser": {"user": "alice", "dry_run": False},
    "listSharedTopics": {
        "topics": [Part("SharedTopic", {"topic": "orders", "reader": "beta", "exists": True})],
        "next_page_token?": TOKEN,
    },
    "shareTopic": {"topic": "orders", "reader": "beta", "dry_run": False},
    "unshareTopic": {"topic": "orders", "reader": "beta", "existed": True, "dry_run": False},
    "listAcceptedTopics": {
        "topics": [
            Part(
                "AcceptedTopic",
                {"topic": "partner-orders", "source": "acme/orders", "is_shared": True},
            )
        ],
        "next_page_token?": TOKEN,
    },
    "acceptTopic": {"topic": "partner-orders", "source": "acme/orders", "dry_run": False},
    "leaveTopic": {"topic": "partner-orders", "existed": True, "dry_run": False},
    "listTenants": {"tenants": [TENANT], "next_page_token?": TOKEN},
    "getTenant": {
        **TENANT.shape,
        "topics": 3,
        "groups": 2,
        "used": Entries("topics", 3),
    },
    "createTenant": {"tenant": "acme", "existed": False, "dry_run": False},
    "changeTenant": {"tenant": TENANT, "dry_run": False},
    "deleteTenant": {
        "tenant": "acme",
        "topics": 0,
        "groups": 0,
        "principals": 0,
        "users": 0,
        "dry_run": False,
    },
    "listAcls": {"acls": [ACL], "next_page_token?": TOKEN},
    "createAcl": {"acl": ACL, "existed": False, "dry_run": False},
    "deleteAcl": {"acl": ACL, "dry_run": False},
    "explainAcl": {
        "allowed": True,
        "reason": "this rule decides: allow User:alice READ",
        "code": "rule",
        "values": {},
        "may_differ": False,
        "acls": [ACL],
    },
    # the cluster
    **CLUSTER_ANSWERS,
    "getSession": SESSION,
    "signIn": SESSION,
    "signOut": {},
}


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
