"""Who is at the other end of a connection, and whether its requests are admitted.

Invariants: no I/O, no protocol. A face opens a session for each connection and asks `admits` before
a request reaches its handler, until the session is authenticated: the one place where
authentication stands. What a principal may do with a topic or group is for services to ask.
"""

from __future__ import annotations

from typing import Final, Protocol

ANONYMOUS: Final = "User:ANONYMOUS"
"""Kafka's principal of a client that was not authenticated."""


class Session:
    """One connection of a client."""

    __slots__ = (
        "client_host",
        "client_id",
        "listener",
        "principal",
        "software_name",
        "software_version",
    )

    def __init__(self, listener: str, client_host: str, principal: str | None = None) -> None:
        self.listener = listener
        """The name of the listener that it came through: its metadata names the same one."""
        self.client_host = client_host
        self.principal = principal
        """None: not authenticated yet."""
        self.client_id = ""
        self.software_name = ""
        self.software_version = ""
        """What the client says of itself (KIP-511); for people, never for decisions."""

    @property
    def is_authenticated(self) -> bool:
        """Whether every request is admitted from now on."""
        return self.principal is not None


class Admission(Protocol):
    """Decides about the requests of sessions that are not authenticated."""

    def open(self, listener: str, client_host: str) -> Session:
        """The session of a new connection."""
        ...

    def admits(self, session: Session, api_key: int) -> bool:
        """Whether the request may reach its handler. Asked until the session is authenticated."""
        ...


class Anonymous:
    """Admits every client, under Kafka's anonymous principal.

    Safe because listeners are on loopback, unless an operator has opened them to the network
    (`headrace.open.to.network`).
    """

    def open(self, listener: str, client_host: str) -> Session:
        """See Admission."""
        return Session(listener, client_host, ANONYMOUS)

    def admits(self, session: Session, api_key: int) -> bool:
        """See Admission."""
        return True


class Quotas(Protocol):
    """Decides how long a client is throttled."""

    is_active: bool
    """Whether any client may be throttled: else nothing is charged."""

    def charge(self, session: Session, api_key: int, size_bytes: int) -> int:
        """Charge a request; for how many milliseconds its connection is muted after the answer,
        which says so."""
        ...

    def spent(self, session: Session, api_key: int, time_ns: int) -> int:
        """Charge the time that a request took on the broker's loop; as `charge`."""
        ...
