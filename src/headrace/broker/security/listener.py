"""How one listener is secured, by Kafka's names.

Invariants: a value that a face gets when it starts to listen. It knows no sockets; TLS handshakes
are made by the event loop with `tls`.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Final, NamedTuple

from headrace.broker.security.principal import ANONYMOUS, Principal
from headrace.broker.security.principal_rules import mapped_name
from headrace.broker.security.tenant_ownership import NOBODY
from headrace.errors import AuthenticationFailed
from headrace.records.tenant_names import tenant_of
from headrace.runtime.security_protocols import PLAINTEXT, SASL_PLAINTEXT, SASL_SSL, SSL

if TYPE_CHECKING:
    import ssl
    from collections.abc import Mapping, Sequence

    from headrace.broker.security.principal_rules import PrincipalRule

PROTOCOLS: Final = (PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL)
"""Kafka's `security.protocol` of a listener."""


class TenantPlace(NamedTuple):
    """The tenant that a connection is for."""

    tenant: str
    is_given: bool
    """Whether principals of no tenant are of this one there. Those of another have no rights."""


class ListenerSecurity:
    """The security of one listener."""

    __slots__ = ("name", "name_tenants", "protocol", "rules", "tenant", "tls")

    def __init__(
        self,
        name: str,
        protocol: str = PLAINTEXT,
        tls: ssl.SSLContext | None = None,
        rules: Sequence[PrincipalRule] = (),
        tenant: str = "",
        name_tenants: Mapping[str, str] = MappingProxyType({}),
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
        self.tenant = tenant
        """Whose clients it is for; empty: those of all."""
        self.name_tenants = name_tenants
        """Whose clients connections are for, by the server name that clients ask for (TLS)."""

    @property
    def is_sasl(self) -> bool:
        """Whether clients must authenticate by SASL."""
        return self.protocol in {SASL_PLAINTEXT, SASL_SSL}

    def place_of(self, server_name: str) -> TenantPlace | None:
        """Which tenant a connection is for; None: any.

        A principal of no tenant is one of the listener's where there are no logins: what a client
        shows there, the listener's CAs or the network have vouched for. A server name is what a
        client has written, and gives it nothing.
        """
        by_name = self.name_tenants.get(server_name.lower(), "")
        if self.tenant and by_name not in {"", self.tenant}:
            return TenantPlace(NOBODY, is_given=False)
        if self.tenant:
            return TenantPlace(self.tenant, is_given=not self.is_sasl)
        return TenantPlace(by_name, is_given=False) if by_name else None

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
        if tenant_of(mapped):
            raise AuthenticationFailed(f"its certificate names a tenant's own user, {mapped!r}")
        return Principal(mapped, mechanism=SSL)


OPEN: Final = ListenerSecurity(PLAINTEXT)
"""A listener without any security."""
