"""Metadata of client metrics subscriptions (KIP-714): one fact per subscription.

Do not change: stored. Brokers of earlier versions ignore these keys and preserve them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from headrace.errors import DataCorrupt
from headrace.metadata.fact_json import FactReader
from headrace.metadata.facts import StoredFact

CLIENT_METRICS = "/client-metrics/"


def subscription_key(name: str) -> str:
    """The key of a subscription: its name in hexadecimal, as it may contain any character."""
    return CLIENT_METRICS + name.encode().hex()


def subscription_of_key(key: str) -> str:
    """The subscription's name in a key under CLIENT_METRICS. Raises DataCorrupt."""
    try:
        return bytes.fromhex(key.removeprefix(CLIENT_METRICS)).decode()
    except ValueError as error:
        raise DataCorrupt(
            f"{key!r} is not the key of a client metrics subscription: remove it", key=key
        ) from error


@dataclass(slots=True)
class SubscriptionFact(StoredFact):
    """The settings of one subscription, under Kafka's names."""

    configs: dict[str, str]
    unknown: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def decode(cls, value: bytes) -> SubscriptionFact:
        """Decode stored bytes. Raises DataCorrupt, FormatUnsupported."""
        reader = FactReader.parse("client metrics subscription", value)
        return cls(reader.texts("configs"), reader.rest())

    @property
    def is_empty(self) -> bool:
        """Whether nothing is lost with the fact."""
        return not self.configs and not self.unknown
