"""Metadata of credentials that brokers issue: browser sessions, API keys, delegation tokens.

Invariants: nothing stored here is enough to log in. Ids are random and never used twice, so a fact
is deleted when its credential ends. Do not change: stored.

    /browser-sessions/<SHA-256 of the id, hex>
    /api-keys/<id>
    /delegation-tokens/<id, hex>
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from headrace.metadata.fact_json import FactReader
from headrace.metadata.facts import StoredFact

if TYPE_CHECKING:
    from collections.abc import Callable

BROWSER_SESSIONS = "/browser-sessions/"
API_KEYS = "/api-keys/"
DELEGATION_TOKENS = "/delegation-tokens/"
ISSUED = (BROWSER_SESSIONS, API_KEYS, DELEGATION_TOKENS)


@dataclass(slots=True)
class PrincipalFact(StoredFact):
    """A principal: `type:name`."""

    type: str
    name: str
    unknown: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def read(cls, reader: FactReader) -> PrincipalFact:
        """Decode one JSON object. Raises DataCorrupt."""
        return cls(reader.text("type"), reader.text("name"), reader.rest())


@dataclass(slots=True)
class ScopeFact(StoredFact):
    """One operation on the resources of a pattern, by Kafka's numbers."""

    kind: int
    pattern_type: int
    name: str
    operation: int
    unknown: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def read(cls, reader: FactReader) -> ScopeFact:
        """Decode one JSON object. Raises DataCorrupt."""
        return cls(
            reader.integer("kind", 0),
            reader.integer("pattern_type", 0),
            reader.text("name"),
            reader.integer("operation", 0),
            reader.rest(),
        )


@dataclass(slots=True)
class IssuedFact(StoredFact):
    """One credential; what does not apply to its kind is None."""

    owner_type: str
    owner: str
    """Whom it acts as: `type:name`."""
    created_ms: int
    expires_ms: int
    max_ms: int | None = None
    """Until when a delegation token can be renewed."""
    mechanism: str | None = None
    """By which the owner had logged in."""
    user_proof: str | None = None
    """Of a stored user: SHA-256 (hex) of the stored key that the credential depends on."""
    of_user: int | None = None
    """1: it ends when the stored user is removed."""
    name: str | None = None
    secret_hash: str | None = None
    """SHA-256 (hex) of an API key's secret."""
    requester_type: str | None = None
    requester: str | None = None
    renewers: list[PrincipalFact] | None = None
    scope: list[ScopeFact] | None = None
    """What it is limited to; None: whatever its owner may do."""
    kind: str | None = None
    """Of an API key that is not for HTTP: for which clients."""
    unknown: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def decode(cls, value: bytes) -> IssuedFact:
        """Decode stored bytes. Raises DataCorrupt, FormatUnsupported."""
        reader = FactReader.parse("issued credential", value)
        return cls(
            reader.text("owner_type"),
            reader.text("owner"),
            reader.integer("created_ms", 0),
            reader.integer("expires_ms", 0),
            reader.integer_or_none("max_ms", 0),
            reader.text_or_none("mechanism"),
            reader.text_or_none("user_proof"),
            reader.integer_or_none("of_user", 0),
            reader.text_or_none("name"),
            reader.text_or_none("secret_hash"),
            reader.text_or_none("requester_type"),
            reader.text_or_none("requester"),
            _each(reader.objects_or_none("renewers", "renewer"), PrincipalFact.read),
            _each(reader.objects_or_none("scope", "scope"), ScopeFact.read),
            reader.text_or_none("kind"),
            reader.rest(),
        )


def _each(readers: list[FactReader] | None, read: Callable[[FactReader], Any]) -> Any:
    return None if readers is None else [read(one) for one in readers]
