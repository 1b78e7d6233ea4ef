"""What a broker's error to a record means for the sink."""

from __future__ import annotations

from typing import Final

from headrace.pipeline.errors import DeliveryFailed, RecordRefused

REFUSALS: Final = frozenset({
    "INVALID_RECORD", "MSG_SIZE_TOO_LARGE", "RECORD_LIST_TOO_LARGE", "INVALID_TIMESTAMP",
    "TOPIC_AUTHORIZATION_FAILED", "CLUSTER_AUTHORIZATION_FAILED", "POLICY_VIOLATION",
    "UNSUPPORTED_COMPRESSION_TYPE",
})  # fmt: skip
"""librdkafka's names of the errors that the same record meets each time."""


def failure(name: str, text: str) -> RecordRefused | DeliveryFailed:
    """The error to raise for one that librdkafka calls `name`."""
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
