"""How one listener is secured, by Kafka's names.

Invariants: a value that a face gets when it starts to listen. It knows no sockets; TLS handshakes
are made by the event loop with `tls`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from headrace.broker.security.principal import ANONYMOUS, Principal
from headrace.metadata.endpoints import PLAINTEXT, SASL_PLAINTEXT, SASL_SSL, SSL

if TYPE_CHECKING:
    import ssl

PROTOCOLS: Final = (PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL)
"""Kafka's `security.protocol` of a listener."""
NONE, REQUESTED, REQUIRED = "none", "requested", "required"
"""`ssl.client.auth`."""


class ListenerSecurity:
    """The security of one listener."""

    __slots__ = ("client_auth", "name", "protocol", "tls")

    def __init__(
        self,
        name: str,
        protocol: str = PLAINTEXT,
        tls: ssl.SSLContext | None = None,
        client_auth: str = NONE,
    ) -> None:
        assert protocol in PROTOCOLS, protocol
        assert (tls is not None) == (protocol in {SSL, SASL_SSL}), "TLS needs a certificate"
        self.name = name
        """The listener's name, as in the settings."""
        self.protocol = protocol
        """One of PROTOCOLS."""
        self.tls = tls
        """For the handshakes of its connections; None: not encrypted."""
        self.client_auth = client_auth
        """`ssl.client.auth`: whether clients must show a certificate."""

    @property
    def is_sasl(self) -> bool:
        """Whether clients must authenticate by SASL."""
        return self.protocol in {SASL_PLAINTEXT, SASL_SSL}

    def principal_of(self, certificate: bytes | None) -> Principal:
        """The principal of a client with this certificate (DER), which the handshake has verified.

        Without one: Kafka's anonymous principal. Raises AuthenticationFailed.
        """
        return ANONYMOUS


OPEN: Final = ListenerSecurity(PLAINTEXT)
"""A listener without any security."""
