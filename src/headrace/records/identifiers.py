"""Identifier types that are easily confused, and the rules for topic names. No I/O."""

from __future__ import annotations

import re
from base64 import urlsafe_b64encode
from typing import NamedTuple, NewType
from uuid import UUID

Offset = NewType("Offset", int)
LeaderEpoch = NewType("LeaderEpoch", int)
ProducerId = NewType("ProducerId", int)

TOPIC_NAME_SIZE_MAX = 249
_TOPIC_NAME = re.compile(r"[a-zA-Z0-9._-]{1,249}")
LITE_TOPIC_LENGTH_MAX = 64
_LITE_TOPIC = re.compile(rb"[A-Za-z0-9_-]{1,64}")
ZERO_UUID = UUID(int=0)

OFFSETS_TOPIC = "__consumer_offsets"
TRANSACTIONS_TOPIC = "__transaction_state"
INTERNAL_TOPICS = frozenset({OFFSETS_TOPIC, TRANSACTIONS_TOPIC})


class TopicPartition(NamedTuple):
    """One partition of one topic."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


def kafka_uuid(value: UUID) -> str:
    """A UUID in Kafka's notation (base64url)."""
    return urlsafe_b64encode(value.bytes).decode().rstrip("=")


def is_topic_name(name: str) -> bool:
    """Whether `name` is a valid topic name by Kafka's rule (`Topic.validate`)."""
    return name not in {".", ".."} and _TOPIC_NAME.fullmatch(name) is not None


def is_lite_topic(name: bytes) -> bool:
    """Whether `name` is a valid name of a lite topic by RocketMQ's rule; in UTF-8 then."""
    return _LITE_TOPIC.fullmatch(name) is not None
