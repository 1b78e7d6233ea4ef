"""Requests with any client id, decoded responses, and names that must be rejected.

Invariants: as in `wire.abuse`: whatever a broker does is a result; None if it closes the
connection.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headrace_verify.kafka_wire import CREATE_TOPICS, FETCH, PRODUCE, answer_of, request_of

if TYPE_CHECKING:
    from headrace_verify.wire.abuse import Abuse

DESCRIBE_CONFIGS, ALTER_CONFIGS, INCREMENTAL_ALTER_CONFIGS = 32, 33, 44
CREATE_PARTITIONS, DELETE_RECORDS, JOIN_GROUP, LIST_GROUPS, DESCRIBE_GROUPS = 37, 21, 11, 16, 15
TOPIC, BROKER = 2, 4
CANARY = "canary-7f3a91"

NAMES = (
    "../headrace-escaped",
    "..",
    ".",
    "/etc/passwd",
    "a/b",
    "a\\..\\b",
    "nul\x00inside",
    "cr\r\nlf",
    "2026-01-01 00:00:00,000 INFO headrace: forged\n2026-01-01 00:00:00,000 INFO headrace: line",
    "\x1b]0;title\x07\x1b[31mred",
    "${jndi:ldap://127.0.0.1:1/a}",
    "${env:AWS_SECRET_ACCESS_KEY}",
    "%s%n%d",
    "{0.__class__}",
    "$(touch headrace-escaped)",
    "`id`",
    "'; DROP TABLE facts; --",
    "<script>alert(1)</script>",
    "\u202egnp.exe",
    "\u2028line",
    "x" * 250,
    "x" * 30_000,
    " ",
    "",
)
"""Each is rejected as a topic name; as a group name or client id, it is allowed."""


def request(api: int, version: int, client: bytes = b"verify", **values: Any) -> bytes:
    """Encode a request with client id `client`."""
    return request_of(client, api, version, 1, values)


def ask(
    abuse: Abuse, api: int, version: int, client: bytes = b"verify", **values: Any
) -> Any | None:
    """Return the response; None if the connection is closed, or times out, without one."""
    with abuse.open() as peer:
        peer.send(request(api, version, client, **values))
        answer = peer.answer(30)
    abuse.checked += 1
    return None if answer is None else answer_of(api, version, answer, 1)


def create(abuse: Abuse, name: str, configs: dict[str, str] | None = None) -> int | None:
    """Create a topic of one partition; returns the error code."""
    topic = {
        "name": name,
        "num_partitions": 1,
        "replication_factor": 1,
        "configs": [{"name": key, "value": value} for key, value in (configs or {}).items()],
    }
    answer = ask(abuse, CREATE_TOPICS, 4, topics=[topic], timeout=5000)
    return None if answer is None else int(answer.topics[0].error_code)


def produce(abuse: Abuse, topic: str, records: bytes) -> int | None:
    """Write one batch; returns the error code."""
    data = {"name": topic, "partition_data": [{"index": 0, "records": records}]}
    answer = ask(abuse, PRODUCE, 7, acks=-1, timeout=5000, topic_data=[data])
    return None if answer is None else int(answer.responses[0].partition_responses[0].error_code)


def read(abuse: Abuse, topic: str, replica_id: int = -1) -> Any | None:
    """Fetch all of a small topic as `replica_id`; returns the response's partition."""
    part = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 4 << 20}
    answer = ask(
        abuse,
        FETCH,
        4,
        replica_id=replica_id,
        max_wait=100,
        max_bytes=4 << 20,
        topics=[{"topic": topic, "partitions": [part]}],
    )
    return None if answer is None else answer.responses[0].partitions[0]


def alter(
    abuse: Abuse, name: str, value: str | None, topic: str, kind: int = TOPIC, operation: int = 0
) -> int | None:
    """IncrementalAlterConfigs of one setting; returns the error code."""
    change = {"name": name, "config_operation": operation, "value": value}
    resource = {"resource_type": kind, "resource_name": topic, "configs": [change]}
    answer = ask(abuse, INCREMENTAL_ALTER_CONFIGS, 0, resources=[resource], validate_only=False)
    return None if answer is None else int(answer.responses[0].error_code)


def settings_of(abuse: Abuse, name: str, kind: int = TOPIC) -> dict[str, Any]:
    """The result of DescribeConfigs: setting -> entity."""
    resource = {"resource_type": kind, "resource_name": name, "configuration_keys": None}
    answer = ask(abuse, DESCRIBE_CONFIGS, 1, resources=[resource], include_synonyms=False)
    return {} if answer is None else {one.name: one for one in answer.results[0].configs}
