"""Which cluster a broker joins or a command works on."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from headrace.runtime.tls import TlsFiles, client_context

if TYPE_CHECKING:
    import ssl


@dataclass(frozen=True, slots=True)
class ClusterSettings:
    """The cluster that a broker joins: ZooKeeper, and BookKeeper through it."""

    zookeeper: str
    """HOST:PORT[,HOST:PORT...]"""
    session_timeout_ms: int = 6_000
    """How long after a broker's last heartbeat other brokers take over its partitions."""
    root: str = "/headrace"
    """The ZooKeeper path of this cluster's facts."""
    ledgers_root: str = "/ledgers"
    """The ZooKeeper path of BookKeeper's metadata."""
    ensemble: int = 3
    write_quorum: int = 3
    ack_quorum: int = 2
    credential: str | None = field(default=None, repr=False)
    """`user:password` for ZooKeeper; a secret."""
    tls: TlsFiles | None = None
    """Trusted CA bundle and client certificate for TLS to the cluster's servers."""
    is_zookeeper_tls: bool = False
    is_bookie_tls: bool = False
    bookie_credential: str | None = field(default=None, repr=False)
    """`user:password` for bookies; a secret."""

    def zookeeper_context(self) -> ssl.SSLContext | None:
        """The TLS context for ZooKeeper. Raises RequestInvalid."""
        return client_context(self.tls) if self.tls and self.is_zookeeper_tls else None

    def bookie_context(self) -> ssl.SSLContext | None:
        """The TLS context for bookies. Raises RequestInvalid."""
        return client_context(self.tls) if self.tls and self.is_bookie_tls else None
