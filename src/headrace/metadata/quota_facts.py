"""Metadata of client quotas: one fact per entity.

Do not change: stored. Brokers of earlier versions ignore these keys and preserve them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from headrace.errors import DataCorrupt
from headrace.metadata.fact_json import FactReader
from headrace.metadata.facts import StoredFact

QUOTAS = "/quotas/"
_DEFAULT = "~"

Parts = tuple[tuple[str, str | None], ...]


def quota_key(entity: Parts) -> str:
    """The key of an entity's quotas: names in hexadecimal, `~` for the default entity."""
    return QUOTAS + ",".join(
        f"{kind}={_DEFAULT if name is None else name.encode().hex()}" for kind, name in entity
    )


def entity_of_key(key: str) -> Parts:
    """The entity in a key under QUOTAS. Raises DataCorrupt."""
    parts: list[tuple[str, str | None]] = []
    try:
        for part in key.removeprefix(QUOTAS).split(","):
            kind, name = part.split("=")
            parts.append((kind, None if name == _DEFAULT else bytes.fromhex(name).decode()))
    except ValueError as error:
        raise DataCorrupt(f"{key!r} is not the key of a quota: remove it", key=key) from error
    return tuple(parts)


@dataclass(slots=True)
class QuotaFact(StoredFact):
    """The quotas of one entity: numbers as text, under Kafka's names."""

    quotas: dict[str, str]
    unknown: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def decode(cls, value: bytes) -> QuotaFact:
        """Decode stored bytes. Raises DataCorrupt, FormatUnsupported."""
        reader = FactReader.parse("quota", value)
        fact = cls(reader.texts("quotas"), reader.rest())
        try:
            fact.rates()
        except ValueError:
            raise reader.corrupt(f"has invalid rates {fact.quotas!r}") from None
        return fact

    def rates(self) -> dict[str, float]:
        """The quotas as numbers."""
        return {key: float(value) for key, value in self.quotas.items()}

    @property
    def is_empty(self) -> bool:
        """Whether nothing is lost with the fact."""
        return not self.quotas and not self.unknown
