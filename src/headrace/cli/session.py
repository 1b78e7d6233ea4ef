"""A command's connection to the cluster: settings, clients, and waiting for results.

Invariants: the client library is imported only when a client is created, and its log is suppressed;
its errors reach the user as CommandFailed.
"""

from __future__ import annotations

import socket
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from headrace.cli.client import kafka, kafka_admin
from headrace.cli.failures import NOT_FOUND, UNREACHABLE, USAGE, CommandFailed, from_kafka, no_topic

if TYPE_CHECKING:
    from concurrent.futures import Future

    from headrace.cli.client import Client

Answer = TypeVar("Answer")

CONNECT_TIMEOUT_S = 3.0  # a broker that does not accept within this time is down


@dataclass(slots=True)
class CliSession:
    """The global options of one `headrace` command."""

    bootstrap: str
    timeout_s: float = 15.0
    client_config: dict[str, str] = field(default_factory=dict)
    http: str | None = None
    """The HTTP address of a broker, if one was given."""
    cluster_id: str | None = None
    """Once known: see `identify`."""
    same_cluster: set[str] = field(default_factory=set)
    """HTTP addresses of brokers that are known to belong to it."""
    is_default: bool = False
    """Whether nobody named `bootstrap`."""
    _admin: Client | None = None

    def settings(self, **more: Any) -> dict[str, Any]:
        """The client's settings; those given with -X take precedence."""
        quiet = {"bootstrap.servers": self.bootstrap, "log_level": 0, "client.id": "headrace-cli"}
        named = {name.replace("_", "."): value for name, value in more.items()}
        return {**quiet, **named, **self.client_config}

    def check_reachable(self) -> None:
        """Fail immediately, with a clear message, if the bootstrap address refuses connections."""
        troubles = []
        for address in self.bootstrap.split(","):
            host, port = host_and_port(address.strip())
            try:
                socket.create_connection((host, port), CONNECT_TIMEOUT_S).close()
            except OSError as error:
                troubles.append(f"{address.strip()} ({error.strerror or error})")
            else:
                return
        raise CommandFailed(
            f"cannot connect to {', '.join(troubles)}: nothing was sent or changed",
            "Start a broker with `headrace serve`, or specify another address with"
            " --bootstrap HOST:PORT (or HEADRACE_BOOTSTRAP)",
            UNREACHABLE,
        )

    def admin(self) -> Client:
        """The admin client, created once."""
        if self._admin is None:
            self.check_reachable()
            self._admin = _made(kafka_admin().AdminClient, self.settings())
        return self._admin

    def producer(self, config: dict[str, Any]) -> Client:
        """Create a producer with `config` in addition to the global settings."""
        self.check_reachable()
        return _made(kafka().Producer, {**self.settings(), **config, **self.client_config})

    def consumer(self, config: dict[str, Any]) -> Client:
        """Create a consumer with `config` in addition to the global settings."""
        self.check_reachable()
        return _made(kafka().Consumer, {**self.settings(), **config, **self.client_config})

    def answer(self, future: Future[Answer], doing: str) -> Answer:
        """Wait for `future`. Raises CommandFailed with a message if the broker returns an error."""
        try:
            return future.result(timeout=self.timeout_s + 1)
        except kafka().KafkaException as error:
            raise from_kafka(error.args[0], doing) from None
        except TimeoutError:
            raise CommandFailed(
                f"{doing}: no response from {self.bootstrap} within {self.timeout_s:g} s",
                "Try again, or with a longer --timeout",
                UNREACHABLE,
            ) from None

    def describe_topics(self, names: list[str]) -> dict[str, Any]:
        """Describe the named topics. Raises CommandFailed (not found) if one does not exist."""
        futures = self.admin().describe_topics(
            kafka().TopicCollection(names), request_timeout=self.timeout_s
        )
        found = {}
        for name in names:
            try:
                found[name] = self.answer(futures[name], f"topic {name!r}")
            except CommandFailed as failure:
                if failure.exit_code == NOT_FOUND:
                    raise no_topic(name) from None
                raise
        return found

    def identify(self) -> str:
        """The id of the cluster that `bootstrap` names. Raises CommandFailed."""
        if self.cluster_id is None:
            admin = self.admin()
            cluster = self.answer(
                admin.describe_cluster(request_timeout=self.timeout_s), "describe the cluster"
            )
            self.cluster_id = str(cluster.cluster_id)
        return self.cluster_id

    def cluster_metadata(self) -> Any:
        """All brokers and topics."""
        try:
            return self.admin().list_topics(timeout=self.timeout_s)
        except kafka().KafkaException as error:
            raise from_kafka(error.args[0], "ask for the list of topics") from None

    def partitions_of(self, name: str) -> list[int]:
        """The partition numbers of a topic, in order."""
        return sorted(p.id for p in self.describe_topics([name])[name].partitions)


def host_and_port(address: str) -> tuple[str, int]:
    """Split `HOST:PORT`. Raises CommandFailed (usage)."""
    host, colon, port = address.rpartition(":")
    if not colon or not port.isdigit() or not host:
        raise CommandFailed(
            f"{address!r} is not HOST:PORT", "For example --bootstrap 127.0.0.1:9092", USAGE
        )
    return host.strip("[]"), int(port)


def _made(kind: Any, config: dict[str, Any]) -> Client:
    """Create a client of this kind. Raises CommandFailed (usage) for unknown settings."""
    try:
        return kind(_checked(config))
    except kafka().KafkaException as error:
        raise CommandFailed(
            f"the client refused its settings: {error.args[0].str().rstrip('.')}; nothing was sent",
            "Check the names and values of -X; they are librdkafka's",
            USAGE,
        ) from None


def _checked(config: dict[str, Any]) -> dict[str, Any]:
    return {"error_cb": _ignore, **config}


def _ignore(_error: object) -> None:
    """Errors reach the user through the calls that fail."""
