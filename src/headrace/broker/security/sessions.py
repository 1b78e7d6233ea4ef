"""The client at the other end of a connection, and whether its requests are admitted.

Invariants: no I/O, no protocol. A face opens a session for each connection and calls `admits`
before a request reaches its handler, until the session is authenticated: authentication happens
nowhere else. What a principal may do is in `access` and `authorizer`; faces ask before a handler.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Protocol

if TYPE_CHECKING:
    from headrace.broker.security.api_keys import Scope
    from headrace.broker.security.listener import ListenerSecurity, TenantPlace
    from headrace.broker.security.logins import Identity, Login
    from headrace.broker.security.principal import Principal

GRANTED_MAX: Final = 10_000
"""Keys that a session remembers as allowed; then it starts over."""
REMEMBERED_LENGTH_MAX: Final = 300
"""Of a name for which a session remembers anything. No topic's key is longer, and a request may
have 256 names of 32 KiB: a session that remembered them would take 300 MB."""


class ClientSession:
    """One client connection."""

    __slots__ = (
        "client_host",
        "client_id",
        "granted",
        "has_failed",
        "has_raw_tokens",
        "identity",
        "is_expired",
        "key_prefix",
        "key_principal",
        "key_version",
        "lifetime_ms",
        "listener",
        "login",
        "place",
        "principal",
        "reauthenticated_ns",
        "rights",
        "rights_principal",
        "rights_version",
        "scope",
        "software_name",
        "software_version",
        "throttled_ms",
    )

    def __init__(self, listener: str, client_host: str, principal: Principal | None = None) -> None:
        self.listener = listener
        """the listener that accepted it, which metadata responses describe"""
        self.place: TenantPlace | None = None
        """Which tenant the connection is for, as of its listener or server name; None: any."""
        self.client_host = client_host
        self.principal = principal
        """None: not authenticated yet"""
        self.client_id = ""
        self.software_name = ""
        self.software_version = ""
        """As reported by the client (KIP-511): for display, never for decisions."""
        self.throttled_ms = 0
        """For how long quotas have throttled it."""
        self.rights: dict[tuple[int, str], int] = {}
        """What the authorizer has decided, by resource, and `granted`, which of their own keys
        handlers have found allowed: both as of a version of the rules, and for one principal."""
        self.granted: set[Any] = set()
        self.rights_version = -1
        self.rights_principal: Principal | None = None
        self.key_prefix = b""
        self.key_principal: Principal | None = None
        self.key_version = -1
        """What precedes names in the keys of the tenant of a principal; which principal that is,
        and as of which version of the rules: see `kafka/tenancy`."""
        self.login: Login | None = None
        """A login in progress, also of a session that is authenticated (KIP-368)."""
        self.identity: Identity | None = None
        """The outcome of the last login; None: the principal, if any, was given otherwise."""
        self.has_raw_tokens = False
        """Whether the next message is a SASL token without a request around it."""
        self.has_failed = False
        """Whether a login failed: nothing more is admitted."""
        self.is_expired = False
        """Whether the client has to authenticate again before its next request."""
        self.lifetime_ms = 0
        """For how long the last login holds; 0: for ever."""
        self.scope: Scope | None = None
        """What the client's API key is limited to; None: only by its principal's rights. Faces
        whose clients have keys apply it."""
        self.reauthenticated_ns = 0
        """When the last re-authentication began."""

    def grant(self, key: Any) -> None:
        """Remember that a handler's key was found allowed."""
        if len(self.granted) >= GRANTED_MAX:
            self.granted.clear()
        self.granted.add(key)

    @property
    def is_authenticated(self) -> bool:
        """Whether all further requests are admitted."""
        return self.principal is not None

    @property
    def must_be_admitted(self) -> bool:
        """Whether the next request has to be checked by `Admission.admits`."""
        return (
            self.principal is None or self.login is not None or self.is_expired or self.has_failed
        )


class Admission(Protocol):
    """Decides about the requests of sessions that are not authenticated."""

    def open(
        self, listener: ListenerSecurity, client_host: str, certified: Principal
    ) -> ClientSession:
        """Create the session of a new connection.

        `certified`: the principal of the client's certificate, verified by the TLS handshake;
        anonymous without one.
        """
        ...

    def admits(self, session: ClientSession, api_key: int) -> bool:
        """Whether the request may reach its handler. Called until the session is authenticated."""
        ...


class Quotas(Protocol):
    """Decides how long a client is throttled."""

    is_active: bool
    """Whether any client may be throttled; if not, nothing is charged."""

    def charge(self, session: ClientSession, api_key: int, size_bytes: int) -> int:
        """Charge a request. Returns for how many milliseconds the connection is muted after its
        response, which reports the same number."""
        ...

    def spent(self, session: ClientSession, api_key: int, time_ns: int) -> int:
        """Charge the time that a request took on the broker's event loop; returns as `charge`."""
        ...
