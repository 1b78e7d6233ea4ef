"""The endpoints of a broker: one for each listener of each protocol.

Do not change: stored.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from headrace.runtime.security_protocols import PLAINTEXT, SASL_SSL, SSL

if TYPE_CHECKING:
    from collections.abc import Iterable

    from headrace.metadata.fact_json import FactReader

KAFKA, HTTP, ROCKETMQ = "kafka", "http", "rocketmq"
"""Protocols."""
HTTP_ADVERTISED = "headrace.http.advertised"
"""The read-only setting by which a broker shows its HTTP addresses to Kafka clients."""
ENCRYPTED = frozenset({SSL, SASL_SSL})
"""The protocols of https."""


@dataclass(slots=True)
class Endpoint:
    """An advertised address."""

    face: str
    listener: str
    host: str
    port: int
    security: str = PLAINTEXT
    unknown: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def read(cls, reader: FactReader) -> Endpoint:
        """Decode one JSON object. Raises DataCorrupt."""
        return cls(
            reader.text("face"),
            reader.text("listener"),
            reader.text("host"),
            reader.integer("port", 0),
            reader.text("security"),
            reader.rest(),
        )


def address_of(endpoints: Iterable[Endpoint], face: str) -> tuple[str, int]:
    """The first address of a protocol; ("", 0) if there is none."""
    return next(((one.host, one.port) for one in endpoints if one.face == face), ("", 0))


def http_text(endpoints: Iterable[Endpoint]) -> str:
    """The HTTP listeners: HOST:PORT of the first one, and further ones as URLs, since their
    protocols may differ from `headrace.http.security.protocol`."""
    found: list[str] = []
    for one in endpoints:
        if one.face == HTTP:
            scheme = "https://" if one.security in ENCRYPTED else "http://"
            host = f"[{one.host}]" if ":" in one.host else one.host
            found.append(f"{scheme if found else ''}{host}:{one.port}")
    return ",".join(found)


def listeners_text(endpoints: Iterable[Endpoint]) -> str:
    """The Kafka listeners, in Kafka's notation."""
    kafka = (one for one in endpoints if one.face == KAFKA)
    return ",".join(f"{one.listener}://{one.host}:{one.port}" for one in kafka)
