"""What a broker's refusals of reads and writes mean, and the next step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from headrace.pipeline.errors import DeliveryFailed, ReadRefused, RecordRefused
from headrace.pipeline.written import GROUP_PREFIX
from headrace.runtime.access import allowing

if TYPE_CHECKING:
    from collections.abc import Mapping

REFUSALS: Final = frozenset({
    "INVALID_RECORD", "MSG_SIZE_TOO_LARGE", "RECORD_LIST_TOO_LARGE", "INVALID_TIMESTAMP",
    "TOPIC_AUTHORIZATION_FAILED", "CLUSTER_AUTHORIZATION_FAILED", "POLICY_VIOLATION",
    "UNSUPPORTED_COMPRESSION_TYPE",
})  # fmt: skip
"""librdkafka's names of the errors that the same record meets each time."""


def prefix_of_jobs(group: str) -> str:
    """How groups of all jobs of a kind begin, or those of their writes, of which each has a name of
    its own; "" for the group of a query, beside which are those of other users."""
    sink = f"{GROUP_PREFIX}." * group.startswith(f"{GROUP_PREFIX}.")
    kind, dot, _ = group.removeprefix(sink).partition(".")
    return f"{sink}{kind}." if dot and kind.startswith("headrace-") else ""


def read_refused(client: Mapping[str, str], topic: str, partition: int, reason: str) -> ReadRefused:
    """The error to raise where a broker does not serve a partition, for an error of this name or
    another reason."""
    step = "Check the client's access and the kafka.* options."
    if reason == "TOPIC_AUTHORIZATION_FAILED":
        reason = "this client may not read the topic"
        step = allowing(client, "read", "topic", topic)
    return ReadRefused(
        f"{topic}-{partition}: the broker refuses to serve it: {reason}. Nothing was read from"
        f" there. {step}",
        topic=topic,
        partition=partition,
    )


def failure(
    name: str, text: str, client: Mapping[str, str], topic: str
) -> RecordRefused | DeliveryFailed:
    """The error to raise for one to a record of `topic` that librdkafka calls `name`."""
    # Of the cluster: who may write to no topic at all gets no producer id either.
    if name in {"TOPIC_AUTHORIZATION_FAILED", "CLUSTER_AUTHORIZATION_FAILED"} and topic:
        return RecordRefused(
            f"The client may not write to the topic {topic}. The batch is not committed."
            f" {allowing(client, 'write', 'topic', topic)}",
            topic=topic,
        )
    if name in REFUSALS:
        return RecordRefused(
            f"A record is refused: {text}. The batch is not committed, and sending it"
            " again does not help. Filter or change such rows, or the settings of the topic"
            " and the client (for large records max.message.bytes and kafka.message.max.bytes)."
        )
    return DeliveryFailed(
        f"The broker rejected a record: {text}. The batch is not committed;"
        " Spark retries the task, which writes the missing records."
    )
