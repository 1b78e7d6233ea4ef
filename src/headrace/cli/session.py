"""A command's connection to the cluster: settings, clients, and waiting for results.

Invariants: the client library is imported only when a client is created, and its log is suppressed;
its errors reach the user as CommandFailed.
"""

from __future__ import annotations

import re
import socket
import ssl
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from headrace.broker.security.plain import PLAIN
from headrace.cli.client import kafka, kafka_admin
from headrace.cli.contexts import context_for, helper_settings
from headrace.cli.failures import (
    CHECK_CERTIFICATE,
    CHECK_LOGIN,
    NOT_FOUND,
    START_A_BROKER,
    UNREACHABLE,
    USAGE,
    CommandFailed,
    from_kafka,
    no_group,
    no_topic,
)
from headrace.errors import AuthenticationFailed, RequestInvalid
from headrace.kafka.client.blocking import BlockingConnection
from headrace.runtime.access import Right, access_of, allowing
from headrace.runtime.scram import HASHES

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from concurrent.futures import Future

    from headrace.cli.client import Client, KafkaError
    from headrace.cli.contexts import Context
    from headrace.runtime.access import Access

Answer = TypeVar("Answer")
KAFKA_PORT = 9092
DEFAULT_BOOTSTRAP = f"127.0.0.1:{KAFKA_PORT}"
_ADDRESS = re.compile(r"(?P<host>\[[^\]\s]+\]|[^:/\[\]\s]+)(:(?P<port>\d{1,5}))?")

CONNECT_TIMEOUT_S = 3.0  # a broker that does not accept within this time is down


@dataclass(slots=True)
class CliSession:
    """The global options of one `headrace` command."""

    given_bootstrap: str | None
    """As given with --bootstrap; None: the context's, or the default."""
    timeout_s: float = 15.0
    given_config: dict[str, str] = field(default_factory=dict)
    """The client's settings given with -X."""
    given_http: str | None = None
    """The HTTP address of a broker, if one was given."""
    objects: str | None = None
    """Where the pipeline's jobs read tiered records themselves, if they do."""
    context_name: str | None = None
    """As given with --context; None: the current context, unless --bootstrap is given."""
    cluster_id: str | None = None
    """Once known: see `identify`."""
    same_cluster: set[str] = field(default_factory=set)
    """HTTP addresses of brokers that are known to belong to it."""
    is_default: bool = False
    """Whether `bootstrap` was not given."""
    is_operator: bool | None = None
    """Once known: see `names`."""
    is_operator_unknown: str = ""
    """Why no broker said, if that was so."""
    _admin: Client | None = None
    _config: dict[str, str] | None = None
    _access: Access | None = None
    _http: str | None = None

    def _context(self) -> Context | None:
        """Raises CommandFailed if there is no such context."""
        is_given = self.given_bootstrap is not None
        return context_for(self.context_name, is_bootstrap_given=is_given)

    @property
    def bootstrap(self) -> str:
        """The brokers to begin with."""
        if self.given_bootstrap is None:
            context = self._context()
            self.given_bootstrap = DEFAULT_BOOTSTRAP
            if context is not None:
                self._use(context)
                self.given_bootstrap = context.bootstrap
        return self.given_bootstrap

    def _use(self, context: Context) -> None:
        self._config = context.settings() | self.given_config
        self._http = self.given_http or context.http

    @property
    def client_config(self) -> dict[str, str]:
        """The client's settings of the context, and those given with -X, which take precedence."""
        if self._config is None:
            context = None
            if self.given_bootstrap is None:
                _ = self.bootstrap  # takes them from the context, if there is one
            elif self.context_name is not None:
                context = self._context()
            if context is not None:
                self._use(context)
        if self._config is None:
            self._config = {**helper_settings(), **self.given_config}
        return self._config

    @property
    def http(self) -> str | None:
        """The HTTP address of a broker: as given, the context's, or the one that was found."""
        _ = self.client_config  # takes the context's
        if self._http is None:
            self._http = self.given_http
        return self._http

    @http.setter
    def http(self, address: str) -> None:
        self._http = address

    @property
    def access(self) -> Access:
        """What transports other than the client library need to connect. Raises CommandFailed."""
        if self._access is None:
            try:
                self._access = access_of(self.client_config)
            except RequestInvalid as error:
                raise CommandFailed(f"{error}; nothing was sent", "", USAGE) from error
        return self._access

    def settings(self, **more: Any) -> dict[str, Any]:
        """The client's settings; those given with -X take precedence."""
        quiet = {"bootstrap.servers": self.bootstrap, "log_level": 0, "client.id": "headrace-cli"}
        named = {name.replace("_", "."): value for name, value in more.items()}
        return {**quiet, **named, **self.client_config}

    def _try_connection(self, host: str, port: int) -> None:
        """Connect, and log in if the client library does: it would try wrong credentials again
        until its timeout. Raises OSError, AuthenticationFailed."""
        access = self.access
        if access.mechanism.upper() in {PLAIN, *HASHES}:
            where = host, port
            BlockingConnection(where, self.timeout_s, b"headrace-cli", access=access).close()
        else:
            socket.create_connection((host, port), CONNECT_TIMEOUT_S).close()

    def check_reachable(self) -> None:
        """Fail immediately, with a clear message, if the bootstrap address refuses connections."""
        troubles, next_step = [], START_A_BROKER
        for address in self.bootstrap.split(","):
            host, port = host_and_port(address.strip())
            try:
                self._try_connection(host, port)
            except AuthenticationFailed as error:
                raise CommandFailed(
                    f"{address.strip()}: {str(error).rstrip('.')}; nothing was sent or changed",
                    CHECK_LOGIN,
                ) from error
            except OSError as error:
                troubles.append(f"{address.strip()} ({error.strerror or error})")
                if isinstance(error, ssl.SSLCertVerificationError):
                    next_step = CHECK_CERTIFICATE
            else:
                return
        raise CommandFailed(
            f"cannot connect to {', '.join(troubles)}: nothing was sent or changed",
            next_step,
            UNREACHABLE,
        )

    @property
    def has_connected(self) -> bool:
        """Whether the command has asked a broker: not one that reads files alone."""
        return self._admin is not None or bool(self.same_cluster)

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

    def failure(self, error: KafkaError, doing: str, *rights: Right) -> CommandFailed:
        """The failure to report for `error`, which occurred while `doing` what needs `rights`; the
        first of them stands for all where the cluster refuses."""
        failed = from_kafka(error, doing)
        kind = error.name().removesuffix("_AUTHORIZATION_FAILED").lower().replace("_", "-")
        lacking = [right for right in rights if failed.lacks_right and right.kind == kind]
        if failed.lacks_right and kind == "cluster":
            lacking += rights
        if lacking:
            failed.next_step = allowing(self.client_config, *lacking[0])
        return failed

    def answer(self, future: Future[Answer], doing: str, *rights: Right) -> Answer:
        """Wait for the end of `doing` what needs `rights`. Raises CommandFailed with a message if
        the broker returns an error."""
        try:
            return future.result(timeout=self.timeout_s + 1)
        except kafka().KafkaException as error:
            raise self.failure(error.args[0], doing, *rights) from None
        except TimeoutError:
            raise CommandFailed(
                f"{doing}: no response from {self.bootstrap} within {self.timeout_s:g} s",
                "Try again, or with a longer --timeout",
                UNREACHABLE,
            ) from None

    def describe_topics(self, names: list[str]) -> dict[str, Any]:
        """Describe the named topics. Raises CommandFailed (not found) if one does not exist."""
        names = [*dict.fromkeys(names)]
        futures = self.admin().describe_topics(
            kafka().TopicCollection(names), request_timeout=self.timeout_s
        )
        found = {}
        for name in names:
            try:
                found[name] = self.answer(
                    futures[name], f"topic {name!r}", Right("describe", "topic", name)
                )
            except CommandFailed as failure:
                if failure.exit_code == NOT_FOUND:
                    raise self.no_topic(name) from None
                raise
        return found

    def no_topic(self, name: str) -> CommandFailed:
        """The error for a topic that does not exist, with the name of one that is alike."""
        known: list[str] = []
        with suppress(CommandFailed):  # what is missing is said in any case
            known = [*self.cluster_metadata().topics]
        return no_topic(name, known)

    def no_group(self, name: str, known: Iterable[str] = ()) -> CommandFailed:
        """The error for a group that does not exist, or that the user may not describe."""
        failed = no_group(name, known)
        if user := self.client_config.get("sasl.username"):
            allowed = allowing(self.client_config, "describe", "group", name)
            failed.next_step += f". Perhaps {user} may not see it. {allowed}"
        return failed

    def identify(self) -> str:
        """The id of the cluster that `bootstrap` names, as its user sees it. Raises
        CommandFailed."""
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

    def chosen_partitions(self, names: list[str], wanted: Sequence[int]) -> dict[str, list[int]]:
        """The `wanted` partition numbers of each topic, or all. Raises CommandFailed."""
        described = self.describe_topics(names)
        chosen: dict[str, list[int]] = {}
        for name in names:
            found = {p.id for p in described[name].partitions}
            missing = sorted(set(wanted) - found)
            if missing:
                raise CommandFailed(
                    f"topic {name!r} has no partition {missing[0]}, only 0 to {max(found)}",
                    f"See: headrace topic describe {name}",
                    NOT_FOUND,
                )
            chosen[name] = sorted(set(wanted) or found)
        return chosen


def host_and_port(address: str, default_port: int = KAFKA_PORT) -> tuple[str, int]:
    """Split `HOST[:PORT]`. Raises CommandFailed (usage)."""
    found = _ADDRESS.fullmatch(address)
    if found is None:
        example = f"For example 127.0.0.1:{default_port} or [::1]:{default_port}, without a scheme"
        raise CommandFailed(f"{address!r} is not HOST:PORT; nothing was sent", example, USAGE)
    return found["host"].strip("[]"), int(found["port"] or default_port)


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
