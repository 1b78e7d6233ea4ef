"""Everything an operator sets when a broker is started, in one value."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from headrace.broker.broker_config import BrokerConfig
from headrace.broker.settings.kinds import LOOPBACK, HostAndPort, Listener
from headrace.errors import RequestInvalid
from headrace.metadata.endpoints import HTTP, KAFKA, PLAINTEXT, Endpoint
from headrace.runtime.tls import TlsFiles, client_context

if TYPE_CHECKING:
    import ssl
    from collections.abc import Mapping, Sequence
    from pathlib import Path

KAFKA_PORT = 9092
HTTP_PORT = 9180


@dataclass(frozen=True, slots=True)
class ClusterSettings:
    """Where the cluster is that a broker joins: ZooKeeper, and through it BookKeeper."""

    zookeeper: str
    """HOST:PORT[,HOST:PORT...]"""
    session_timeout_ms: int = 6_000
    """How long after its last sign of life other brokers take over a broker's partitions."""
    root: str = "/headrace"
    """Where in ZooKeeper this cluster keeps its facts."""
    ledgers_root: str = "/ledgers"
    """Where in ZooKeeper BookKeeper keeps its own."""
    ensemble: int = 3
    write_quorum: int = 3
    ack_quorum: int = 2
    credential: str | None = field(default=None, repr=False)
    """`user:password` for ZooKeeper; a secret."""
    tls: TlsFiles | None = None
    """Who is believed and who this broker is, where TLS is spoken to the cluster's servers."""
    is_zookeeper_tls: bool = False
    is_bookie_tls: bool = False

    def zookeeper_context(self) -> ssl.SSLContext | None:
        """How to speak to ZooKeeper. Raises RequestInvalid."""
        return client_context(self.tls) if self.tls and self.is_zookeeper_tls else None

    def bookie_context(self) -> ssl.SSLContext | None:
        """How to speak to bookies. Raises RequestInvalid."""
        return client_context(self.tls) if self.tls and self.is_bookie_tls else None


@dataclass(slots=True)
class Settings:
    """Where a broker keeps its data and where it listens."""

    data_dir: Path
    kafka: tuple[str, int] = (LOOPBACK, KAFKA_PORT)
    http: tuple[str, int] = (LOOPBACK, HTTP_PORT)
    advertised: Mapping[str, tuple[str, int]] = field(default_factory=dict)
    """By listener: what clients are told instead of its own address."""
    objects_url: str | None = None
    """Where closed ledgers are offloaded to: a bucket or a folder. It holds no secret."""
    offload_bytes_per_s: int | None = 128 << 20
    """Of all offloads together; None: as fast as it goes."""
    broker: BrokerConfig = field(default_factory=BrokerConfig)
    worker_count: int = 1
    """Brokers that share the metadata in `data_dir`, each with ledgers in a folder of its own; this
    one has the id `broker.broker_id`, from 0 on."""

    cluster: ClusterSettings | None = None
    """None: a broker of one machine, with files and SQLite in `data_dir`."""

    given: Mapping[str, str] = field(default_factory=dict)
    """What was set at the start, by the settings' names: for those who ask for the settings."""
    more_listeners: Sequence[Listener] = ()
    """Of Kafka clients, beside the first one at `kafka`."""
    kafka_listener: str = PLAINTEXT
    """The name of the first one."""
    is_open_to_network: bool = False
    """Whether the user lets other machines reach listeners without authentication."""

    @property
    def endpoints(self) -> list[Endpoint]:
        """Where to listen, Kafka's first listener first."""
        kafka = (Listener(self.kafka_listener, *self.kafka), *self.more_listeners)
        return [
            *(Endpoint(KAFKA, listener.name, listener.host, listener.port) for listener in kafka),
            Endpoint(HTTP, PLAINTEXT, *self.http),
        ]

    @property
    def ledger_dir(self) -> Path:
        """Where this broker keeps its ledgers."""
        number = self.broker.broker_id
        return worker_dir(self.data_dir, number) if self.worker_count > 1 else self.data_dir


def worker_dir(data_dir: Path, number: int) -> Path:
    """The folder of one worker. The first has that of a broker that is alone, so that such a one
    can become many."""
    return data_dir / f"worker-{number}" if number else data_dir


def stored_worker_count(data_dir: Path) -> int:
    """How many workers have kept their ledgers under `data_dir`."""
    numbers = [
        int(path.name.removeprefix("worker-"))
        for path in data_dir.glob("worker-*")
        if path.name.removeprefix("worker-").isdigit()
    ]
    return max(numbers, default=0) + 1


def is_loopback(host: str) -> bool:
    """Whether a listener at `host` is reached from this machine alone.

    A name but `localhost` may mean anything, so it is not.
    """
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def check_exposure(settings: Settings) -> None:
    """Raises RequestInvalid where other machines could reach a port without consent."""
    names = {KAFKA: "Kafka", HTTP: "HTTP"}
    for endpoint in settings.endpoints:
        if not is_loopback(endpoint.host) and not settings.is_open_to_network:
            raise RequestInvalid(
                f"{names[endpoint.face]} clients at {endpoint.host}:{endpoint.port} could come from"
                " other machines, and there is no authentication yet. Listen on 127.0.0.1, or"
                " set --open-to-network if the network itself keeps strangers out"
            )


def parse_address(text: str) -> tuple[str, int]:
    """`HOST:PORT`, `:PORT` or `[v6]:PORT`. Raises RequestInvalid."""
    kind = HostAndPort()
    try:
        return kind.parse(text)
    except ValueError as error:
        raise RequestInvalid(f"{text[:100]!r} is not an address: expected {error}") from error
