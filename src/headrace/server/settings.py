"""Everything an operator sets when a broker is started, in one value."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from headrace.broker.broker_config import BrokerConfig
from headrace.errors import RequestInvalid

if TYPE_CHECKING:
    from pathlib import Path

KAFKA_PORT = 9092
HTTP_PORT = 9180
LOOPBACK = "127.0.0.1"


@dataclass(slots=True)
class Settings:
    """Where a broker keeps its data and where it listens."""

    data_dir: Path
    kafka: tuple[str, int] = (LOOPBACK, KAFKA_PORT)
    http: tuple[str, int] = (LOOPBACK, HTTP_PORT)
    advertised: tuple[str, int] | None = None
    """What clients are told instead of the listener's own address."""
    broker: BrokerConfig = field(default_factory=BrokerConfig)


def parse_address(text: str) -> tuple[str, int]:
    """`HOST:PORT`, `:PORT` or `[v6]:PORT`. Raises RequestInvalid."""
    host, separator, port = text.rpartition(":")
    if not separator or not port.isdigit() or int(port) > 65535:
        raise RequestInvalid(f"{text!r} is no address: write HOST:PORT, as in 127.0.0.1:9092")
    return host.strip("[]") or LOOPBACK, int(port)
