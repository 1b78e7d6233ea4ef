"""The Kafka client library, imported on first use.

Invariants: the library's own type hints are inconsistent (a message's offset "may be None", its
admin module "exports nothing"), so it counts as untyped here.
"""

from __future__ import annotations

import importlib
from typing import Any, TypeAlias

Message: TypeAlias = Any
KafkaError: TypeAlias = Any
Client: TypeAlias = Any  # a Producer, Consumer or AdminClient


def kafka() -> Any:
    """The library: Producer, Consumer, TopicPartition, KafkaException ..."""
    return importlib.import_module("confluent_kafka")


def kafka_admin() -> Any:
    """Its admin module."""
    return importlib.import_module("confluent_kafka.admin")
