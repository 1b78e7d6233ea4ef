"""The start-up settings of a broker, in one value."""

from __future__ import annotations

import ipaddress
import socket
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from headrace.broker.broker_config import BrokerConfig
from headrace.broker.security.listener import PROTOCOLS
from headrace.broker.settings.kinds import (
    ADMIN_LISTENER,
    HTTP_LISTENER,
    LOOPBACK,
    ROCKETMQ_LISTENER,
    HostAndPort,
    Listener,
)
from headrace.broker.settings.table import SETTINGS
from headrace.errors import RequestInvalid
from headrace.metadata.endpoints import HTTP, KAFKA, ROCKETMQ, Endpoint
from headrace.runtime.security_protocols import PLAINTEXT, SASL_PLAINTEXT, SASL_SSL, SSL
from headrace.runtime.tls import REQUIRED

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from headrace.administration.cluster_settings import ClusterSettings

KAFKA_PORT = 9092
HTTP_PORT = 9180
_ALL, _ALL_V6 = "0.0.0.0", "::"  # noqa: S104  asked for; refused without logins


@dataclass(slots=True)
class Settings:
    """A broker's data locations and listeners."""

    data_dir: Path
    kafka: tuple[str, int] = (LOOPBACK, KAFKA_PORT)
    http: tuple[str, int] = (LOOPBACK, HTTP_PORT)
    advertised: Mapping[str, tuple[str, int]] = field(default_factory=dict)
    """Advertised addresses by listener, where they differ from the listener's own."""
    objects_url: str | None = None
    """The bucket or folder to which closed ledgers are offloaded. Contains no secret."""
    tables: str | None = None
    """The warehouse of topics' tables; None: object storage gives up no records for them."""
    tables_catalog: str = ""
    """Where its catalog is, if not in it."""
    offload_bytes_per_s: int | None = 128 << 20
    """For all offloads together; None: unlimited."""
    broker: BrokerConfig = field(default_factory=BrokerConfig)
    worker_count: int = 1
    """Brokers that share the metadata in `data_dir`, each with its ledgers in a folder of its own;
    this one has the id `broker.broker_id`, from 0 on."""

    cluster: ClusterSettings | None = None
    """None: a stand-alone broker, with files and SQLite in `data_dir`."""

    given: Mapping[str, str] = field(default_factory=dict)
    """Settings given at start, by name, for display."""
    more_listeners: Sequence[Listener] = ()
    """Further Kafka listeners besides the first one at `kafka`."""
    kafka_listener: str = PLAINTEXT
    """The name of the first listener."""
    protocols: Mapping[str, str] = field(default_factory=dict)
    """Security protocols by Kafka listener."""
    http_protocol: str = PLAINTEXT
    inter_broker_name: str | None = None
    """`inter.broker.listener.name`."""
    is_insecure: bool = False
    """Whether the operator allows other machines to reach listeners without authentication."""
    admin: tuple[str, int] | None = None
    """Where health and metrics are served besides."""
    admin_protocol: str = PLAINTEXT
    rocketmq: tuple[str, int] | None = None
    """Where RocketMQ's clients are served."""
    rocketmq_protocol: str = PLAINTEXT
    more_http: Sequence[tuple[str, int]] = ()
    """Further HTTP listeners besides the first one at `http`: HTTP_2, HTTP_3 ..."""

    @property
    def endpoints(self) -> list[Endpoint]:
        """The endpoints to listen on, Kafka's first listener first."""
        kafka = (Listener(self.kafka_listener, *self.kafka), *self.more_listeners)
        return [
            *(
                Endpoint(KAFKA, one.name, one.host, one.port, self.protocol_of(one.name))
                for one in kafka
            ),
            Endpoint(HTTP, HTTP_LISTENER, *self.http, self.http_protocol),
            *(
                Endpoint(HTTP, name, *address, self.protocols.get(name, self.http_protocol))
                for name, address in self.http_by_name()
            ),
            *(
                [Endpoint(HTTP, ADMIN_LISTENER, *self.admin, self.admin_protocol)]
                if self.admin is not None
                else ()
            ),
            *(
                [Endpoint(ROCKETMQ, ROCKETMQ_LISTENER, *self.rocketmq, self.rocketmq_protocol)]
                if self.rocketmq is not None
                else ()
            ),
        ]

    def http_by_name(self) -> Iterator[tuple[str, tuple[str, int]]]:
        """The further HTTP listeners."""
        for number, address in enumerate(self.more_http, 2):
            yield f"{HTTP_LISTENER}_{number}", address

    def protocol_of(self, listener: str) -> str:
        """The security protocol of a Kafka listener. Raises RequestInvalid."""
        if listener in self.protocols:
            return self.protocols[listener]
        if listener in PROTOCOLS:
            return listener
        if self.protocols.keys() - {name for name, _ in self.http_by_name()}:
            raise RequestInvalid(
                f"listener.security.protocol.map does not name the listener {listener}: add"
                f" {listener}:SSL, or the protocol that it should have; nothing was started"
            )
        return PLAINTEXT

    @property
    def inter_broker_listener(self) -> str:
        """The Kafka listener at which brokers and workers reach each other."""
        return self.inter_broker_name or self.kafka_listener

    @property
    def has_peers(self) -> bool:
        """Whether there may be other brokers."""
        return self.cluster is not None or self.worker_count > 1

    def of_listener(self, listener: str, name: str) -> str | None:
        """The value of a setting for one listener: that of `listener.name.<listener>.<name>`, as in
        Kafka, or else that of all."""
        own = self.given.get(f"listener.name.{listener.lower()}.{name}")
        return own if own is not None else self.given.get(name, SETTINGS[name].default)

    @property
    def ledger_dir(self) -> Path:
        """The folder of this broker's ledgers."""
        number = self.broker.broker_id
        return worker_dir(self.data_dir, number) if self.worker_count > 1 else self.data_dir


def worker_dir(data_dir: Path, number: int) -> Path:
    """The folder of one worker. The first one uses that of a stand-alone broker, so that such a
    broker can become several workers."""
    return data_dir / f"worker-{number}" if number else data_dir


def stored_worker_count(data_dir: Path) -> int:
    """The number of workers that have stored ledgers under `data_dir`."""
    numbers = [
        int(path.name.removeprefix("worker-"))
        for path in data_dir.glob("worker-*")
        if path.name.removeprefix("worker-").isdigit()
    ]
    return max(numbers, default=0) + 1


def is_loopback(host: str) -> bool:
    """Whether a listener at `host` is reachable from this machine only.

    Host names except `localhost` may resolve to any address, so they are not.
    """
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def opened_to_network(settings: Settings) -> Settings:
    """The same with each listener on loopback listening on all interfaces instead. That of
    `--admin-address` stays: it needs no logins."""

    def opened(host: str, port: int) -> tuple[str, int]:
        if not is_loopback(host):
            return host, port
        return (_ALL_V6 if ":" in host else _ALL), port

    return replace(
        settings,
        kafka=opened(*settings.kafka),
        http=opened(*settings.http),
        more_listeners=[
            Listener(one.name, *opened(one.host, one.port)) for one in settings.more_listeners
        ],
        more_http=[opened(*one) for one in settings.more_http],
        rocketmq=None if settings.rocketmq is None else opened(*settings.rocketmq),
    )


def check_exposure(settings: Settings) -> None:
    """Raise RequestInvalid if other machines could reach a listener without authentication, and the
    operator has not allowed that."""
    names = {KAFKA: "Kafka", HTTP: "HTTP", ROCKETMQ: "RocketMQ"}
    for endpoint in settings.endpoints:
        if endpoint.security not in SUPPORTED:
            raise RequestInvalid(
                f"{names[endpoint.face]} listener {endpoint.listener} has the protocol"
                f" {endpoint.security}, which this version does not support; nothing was started."
                f" Use {' or '.join(SUPPORTED)}"
            )
        if is_exposed(settings, endpoint) and not settings.is_insecure:
            raise RequestInvalid(
                f"{names[endpoint.face]} listener {endpoint.host}:{endpoint.port}"
                f" ({endpoint.security}) is reachable from other machines, but its clients are not"
                " authenticated: any client that connects could read, write and delete everything."
                " Listen on 127.0.0.1, or require client certificates (protocol SSL with"
                " ssl.client.auth=required) or logins (SASL_SSL), or set"
                " --insecure if the network keeps others out; nothing was started"
            )


SUPPORTED = (PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL)
"""Protocols that listeners can have."""


def is_exposed(settings: Settings, endpoint: Endpoint) -> bool:
    """Whether clients on other machines may do everything there without being authenticated. Not
    at the admin listener, where no record is read or changed."""
    if endpoint.listener == ADMIN_LISTENER or is_loopback(endpoint.host):
        return False
    if endpoint.face == ROCKETMQ and endpoint.security == SASL_PLAINTEXT:
        return True  # a signature names no call: who sees one can make any
    return not is_authenticated(settings, endpoint)


def is_authenticated(settings: Settings, endpoint: Endpoint) -> bool:
    """Whether each client of a listener has a principal of its own. TLS without client certificates
    authenticates the server only."""
    client_auth = settings.of_listener(endpoint.listener, "ssl.client.auth")
    is_certified = endpoint.security == SSL and client_auth == REQUIRED
    return is_certified or endpoint.security in {SASL_PLAINTEXT, SASL_SSL}


def check_listeners(settings: Settings) -> None:
    """Raise RequestInvalid unless brokers can reach each other at one of the listeners."""
    names = [one.listener for one in settings.endpoints if one.face == KAFKA]
    if settings.inter_broker_listener not in names:
        raise RequestInvalid(
            f"inter.broker.listener.name={settings.inter_broker_listener} is not a Kafka listener"
            f" of this broker, which has {', '.join(names)}; nothing was started"
        )
    names += [name for name, _ in settings.http_by_name()]
    unknown = sorted(settings.protocols.keys() - set(names) - set(PROTOCOLS))
    if unknown:
        raise RequestInvalid(
            f"listener.security.protocol.map names the listener {unknown[0]}, which neither --kafka"
            " nor --http has; nothing was started"
        )


def check_advertised(settings: Settings) -> None:
    """Raise RequestInvalid if an advertised address leads nowhere: Kafka refuses
    0.0.0.0 among `advertised.listeners`, too."""
    for endpoint in settings.endpoints:
        if endpoint.face != KAFKA and endpoint.listener not in settings.advertised:
            continue
        host, _ = settings.advertised.get(endpoint.listener, (endpoint.host, endpoint.port))
        if is_wildcard(host):
            raise RequestInvalid(
                f"clients of listener {endpoint.listener} would be told to connect to {host!r},"
                " which is not an address of this machine: name one that they reach with"
                " --advertise (with --workers, listen on that address); nothing was started"
            )


def is_wildcard(host: str) -> bool:
    """Whether `host` stands for every address of the machine: `0.0.0.0` in any notation, `::`."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        try:
            return host == "" or not any(socket.inet_aton(host))  # "0", "0x0", "0.0"
        except OSError:
            return False
    mapped = getattr(address, "ipv4_mapped", None)
    return address.is_unspecified or (mapped is not None and mapped.is_unspecified)


def parse_address(text: str) -> tuple[str, int]:
    """Parse `HOST:PORT`, `:PORT` or `[v6]:PORT`. Raises RequestInvalid."""
    kind = HostAndPort()
    try:
        return kind.parse(text)
    except ValueError as error:
        raise RequestInvalid(f"{text[:100]!r} is not an address: expected {error}") from error
