"""Dynamic broker configuration: settings changed while brokers run, and their keys.

Do not change: stored.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from headrace.metadata.fact_json import FactReader
from headrace.metadata.facts import StoredFact

BROKER_CONFIGS = "/broker-configs/"
BROKER_CONFIG = "/config/broker"
"""Reserved: golden data contains a fact here that no version reads."""


def broker_config_key(broker_id: int | None) -> str:
    """The key of a broker's dynamic configuration; None: of all brokers'."""
    return BROKER_CONFIGS + ("all" if broker_id is None else str(broker_id))


@dataclass(slots=True)
class BrokerConfigFact(StoredFact):
    """Dynamic configuration of all brokers, or of one."""

    configs: dict[str, str] = field(default_factory=dict)
    unknown: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def decode(cls, value: bytes) -> BrokerConfigFact:
        """Decode stored bytes. Raises DataCorrupt, FormatUnsupported."""
        reader = FactReader.parse("broker configuration", value)
        return cls(reader.texts("configs"), reader.rest())
