"""How one listener is secured, by Kafka's names.

Invariants: a value that a face gets when it starts to listen. It knows no sockets; TLS handshakes
are made by the event loop with `tls`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from headrace.broker.security.principal import ANONYMOUS, Principal
from headrace.broker.security.principal_rules import mapped_name
from headrace.errors import AuthenticationFailed
from headrace.runtime.security_protocols import PLAINTEXT, SASL_PLAINTEXT, SASL_SSL, SSL

if TYPE_CHECKING:
    import ssl
    from collections.abc import Sequence

    from headrace.broker.security.principal_rules import PrincipalRule

PROTOCOLS: Final = (PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL)
"""Kafka's `security.protocol` of a listener."""


class ListenerSecurity:
    """The security of one listener."""

    __slots__ = ("name", "protocol", "rules", "tls")

    def __init__(
        self,
        name: str,
        protocol: str = PLAINTEXT,
        tls: ssl.SSLContext | None = None,
        rules: Sequence[PrincipalRule] = (),
    ) -> None:
        assert protocol in PROTOCOLS, protocol
        assert (tls is not None) == (protocol in {SSL, SASL_SSL}), "TLS needs a certificate"
        self.name = name
        """The listener's name, as in the settings."""
        self.protocol = protocol
        """One of PROTOCOLS."""
        self.tls = tls
        """For the handshakes of its connections; None: not encrypted."""
        self.rules = rules
        """`ssl.principal.mapping.rules`."""

    @property
    def is_sasl(self) -> bool:
        """Whether clients must authenticate by SASL."""
        return self.protocol in {SASL_PLAINTEXT, SASL_SSL}

    def principal_of(self, certificate: bytes | None) -> Principal:
        """The principal of a client with this certificate (DER), which the handshake has verified.

        Without one: Kafka's anonymous principal. Raises AuthenticationFailed.
        """
        if certificate is None:
            return ANONYMOUS
        from headrace.runtime.certificates import distinguished_name

        try:
            name = distinguished_name(certificate)
        except ValueError as error:
            raise AuthenticationFailed(f"its certificate cannot be read ({error})") from error
        mapped = mapped_name(self.rules, name)
        if not mapped:
            raise AuthenticationFailed(
                f"no rule of ssl.principal.mapping.rules fits the name of its certificate, {name!r}"
            )
        return Principal(mapped, mechanism=SSL)


OPEN: Final = ListenerSecurity(PLAINTEXT)
"""A listener without any security."""
