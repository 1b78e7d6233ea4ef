"""How many connections clients may have, and how fast they may open them (KIP-308, 402, 612).

Invariants: no I/O. One set of counts for the listeners of all protocols. Kafka's settings and
meanings, but for two points: where Kafka's acceptor stops to accept, which lets clients wait until
they time out, a connection over a limit is closed at once; and where no limit of an address is set,
one of another machine has that of `ADDRESS_MAX`. A client with IPv6 is its /64.
"""

from __future__ import annotations

import ipaddress
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, TypeAlias, TypeVar

from headrace.broker.security.client_addresses import client_address, is_local
from headrace.coordination.quotas.token_bucket import TokenBucket
from headrace.errors import PolicyViolation

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from headrace.broker.security.listener import TenantPlace
    from headrace.broker.security.sessions import ClientSession

Key = TypeVar("Key")
Client: TypeAlias = "tuple[str, TenantPlace | None]"
"""A principal, and the tenant that its connection is for: both say of which tenant it is."""

UNLIMITED: Final = 2_147_483_647
"""Kafka's default of its connection limits."""
ADDRESS_MAX: Final = 8_192
"""Of connections from one address beyond loopback, unless a limit is set: more than a machine of
clients opens, and few enough that the descriptors and the memory suffice for others."""
_ALL: Final = ""


class BrokerLimits(Protocol):
    """The limits of a whole broker: a part of its configuration."""

    connections_max: int
    connections_per_ip_max: int
    connections_per_ip_overrides: str
    connections_per_user_max: int
    connection_rate_max: int


class TenantConnections(Protocol):
    """Counts the connections of tenants."""

    def tenant(self, session: ClientSession) -> str:
        """The tenant of a client."""

    def check_connection(self, tenant: str) -> None:
        """Count one more. Raises PolicyViolation if the tenant has as many as it may."""

    def end_connection(self, tenant: str) -> None:
        """One that was counted is the tenant's no more."""


class ListenerLimits(NamedTuple):
    """The limits of one listener."""

    connections_max: int = UNLIMITED
    """`listener.name.<name>.max.connections`"""
    rate_max: int = UNLIMITED
    """`listener.name.<name>.max.connection.creation.rate`, per second"""


class _Counted:
    """One connection."""

    __slots__ = ("client", "host", "listener", "tenant", "user")

    def __init__(self, listener: str, host: str) -> None:
        self.listener = listener
        self.host = host
        self.user = ""
        self.client: Client | None = None
        self.tenant: str | None = None
        """For which it is counted."""


def parse_overrides(text: str) -> Mapping[str, int]:
    """The limits in `max.connections.per.ip.overrides`: `127.0.0.1:200,::1:100`. Raises
    ValueError."""
    found: dict[str, int] = {}
    for part in filter(None, (one.strip() for one in text.split(","))):
        host, colon, count = part.rpartition(":")
        if not (colon and count.isascii() and count.isdigit()):
            raise ValueError(part)
        found[str(ipaddress.ip_address(host.strip("[]")))] = int(count)
    return found


class ConnectionLimits:
    """See the module."""

    def __init__(
        self,
        config: BrokerLimits,
        now_ns: Callable[[], int],
        tenants: TenantConnections | None = None,
        descriptors: int = UNLIMITED,
    ) -> None:
        """`config` may change: each new connection is compared with its values of that time.
        `descriptors`: how many this process may open; one address never has more than a quarter,
        unless its limit is set."""
        self._address_max = min(ADDRESS_MAX, descriptors // 4)
        self._config = config
        self._now_ns = now_ns
        self.of_listeners: dict[str, ListenerLimits] = {}
        self.protected_listener = ""
        """Brokers reach each other here: the limit of the whole broker does not apply."""
        self._open: dict[object, _Counted] = {}
        self._of_hosts: dict[str, int] = {}
        self._of_listeners: dict[str, int] = {}
        self._of_users: dict[str, int] = {}
        self._buckets: dict[str, TokenBucket] = {}
        self._overrides: tuple[str, Mapping[str, int]] = ("", {})
        self.of_clients: dict[Client, int] = {}
        """How many connections those that `join` have."""
        self.refused_total = 0
        self._tenants = tenants

    def __len__(self) -> int:
        return len(self._open)

    def open(self, connection: object, listener: str, host: str) -> str:
        """A client has connected. Returns the limit that it exceeds; "": it is counted until
        `close`."""
        config = self._config
        limits = self.of_listeners.get(listener, ListenerLimits())
        exceeded = ""
        client, most = self._limited(host)
        if self._of_hosts.get(client, 0) >= most:
            exceeded = f"max.connections.per.ip, {most} for {client}"
        elif self._of_listeners.get(listener, 0) >= limits.connections_max:
            name = f"listener.name.{listener.lower()}.max.connections"
            exceeded = f"{name}, {limits.connections_max}"
        elif len(self._open) >= config.connections_max and listener != self.protected_listener:
            exceeded = f"max.connections, {config.connections_max}"
        if exceeded:
            self.refused_total += 1
            return exceeded
        self._open[connection] = _Counted(listener, client)
        _add(self._of_hosts, client, 1)
        _add(self._of_listeners, listener, 1)
        return ""

    def _limited(self, host: str) -> tuple[str, int]:
        """(what is counted, its limit): an address with a limit of its own is counted by itself."""
        config = self._config
        text = config.connections_per_ip_overrides
        if text != self._overrides[0]:
            self._overrides = text, parse_overrides(text)
        if (most := self._overrides[1].get(host)) is not None:
            return host, most
        most = config.connections_per_ip_max
        if most == UNLIMITED and not is_local(host):
            most = self._address_max
        return client_address(host), most

    def delay_ms(self, listener: str) -> int:
        """Charge a new connection to the rates of its listener and of the broker; returns for how
        long it is not served."""
        limits = self.of_listeners.get(listener, ListenerLimits())
        delay_ms = self._charge(listener, limits.rate_max)
        if listener != self.protected_listener:
            delay_ms = max(delay_ms, self._charge(_ALL, self._config.connection_rate_max))
        return delay_ms

    def _charge(self, key: str, rate_per_s: int) -> int:
        if rate_per_s == UNLIMITED:
            self._buckets.pop(key, None)
            return 0
        bucket = self._buckets.get(key)
        if bucket is None or bucket.rate_per_s != rate_per_s:
            bucket = self._buckets[key] = TokenBucket(rate_per_s, rate_per_s, self._now_ns())
        return bucket.charge(1, self._now_ns())

    def identify(self, connection: object, user: str) -> str:
        """A connection has authenticated. Returns the limit that its user exceeds, or ""."""
        counted = self._open.get(connection)
        if counted is None or counted.user == user:
            return ""
        self._leave_user(counted)
        most = self._config.connections_per_user_max
        if self._of_users.get(user, 0) >= most:
            self.refused_total += 1
            return f"headrace.max.connections.per.user, {most}"
        counted.user = user
        _add(self._of_users, user, 1)
        return ""

    def join(self, connection: object, session: ClientSession) -> None:
        """A connection is this client's from now on, and counts for its tenant. Raises
        PolicyViolation if the tenant has as many as it may: the client must not be served."""
        client = str(session.principal), session.place
        counted = self._open.get(connection)
        if counted is None or counted.client == client:
            return
        if self._tenants is not None:
            self._join_tenant(counted, self._tenants, session)
        self._leave_client(counted)
        counted.client = client
        _add(self.of_clients, client, 1)

    def _join_tenant(
        self, counted: _Counted, tenants: TenantConnections, session: ClientSession
    ) -> None:
        tenant = tenants.tenant(session)
        if tenant == counted.tenant:
            return
        try:
            tenants.check_connection(tenant)
        except PolicyViolation:
            self.refused_total += 1
            raise
        if counted.tenant is not None:
            tenants.end_connection(counted.tenant)
        counted.tenant = tenant

    def close(self, connection: object) -> None:
        """A connection has ended; it need not have been counted."""
        counted = self._open.pop(connection, None)
        if counted is not None:
            _add(self._of_hosts, counted.host, -1)
            _add(self._of_listeners, counted.listener, -1)
            self._leave_user(counted)
            self._leave_client(counted)
            if self._tenants is not None and counted.tenant is not None:
                self._tenants.end_connection(counted.tenant)

    def _leave_client(self, counted: _Counted) -> None:
        if counted.client is not None:
            _add(self.of_clients, counted.client, -1)

    def _leave_user(self, counted: _Counted) -> None:
        if counted.user:
            _add(self._of_users, counted.user, -1)
            counted.user = ""


def _add(counts: dict[Key, int], key: Key, change: int) -> None:
    count = counts.get(key, 0) + change
    assert count >= 0, "each connection is counted once"
    if count:
        counts[key] = count
    else:
        del counts[key]
