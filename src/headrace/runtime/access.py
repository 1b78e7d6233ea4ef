"""How to reach the listeners of a cluster: one value for all transports.

Invariants: the settings are librdkafka's, since users give those with `-X` and in contexts; what a
transport does with them is derived here once. Secrets appear in no text.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from headrace.errors import RequestInvalid
from headrace.runtime.security_protocols import PLAINTEXT, SASL_PLAINTEXT, SASL_SSL, SSL
from headrace.runtime.tls import TlsMaterial, peer_context

if TYPE_CHECKING:
    import ssl
    from collections.abc import Iterable, Mapping

PROTOCOL: Final = "security.protocol"
CA, CERTIFICATE, KEY = "ssl.ca", "ssl.certificate", "ssl.key"
"""Each with `.location`, the name of a file, or `.pem`, its contents."""
KEY_PASSWORD: Final = "ssl.key.password"  # noqa: S105 - the setting's name
USER, PASSWORD, MECHANISM = "sasl.username", "sasl.password", "sasl.mechanism"
_VERIFICATION: Final = "enable.ssl.certificate.verification"
_HOST_NAMES: Final = "ssl.endpoint.identification.algorithm"


@dataclass(frozen=True, slots=True)
class Access:
    """What a client needs to connect and to show who it is."""

    tls: ssl.SSLContext | None = None
    """Verifies servers and shows the client's certificate; None: connections are not encrypted."""
    mechanism: str = ""
    """The SASL mechanism; "": no login."""
    user: str = ""
    password: str = field(default="", repr=False)

    def arguments(self, host: str) -> dict[str, Any]:
        """The arguments of `loop.create_connection` for a server that is called `host`."""
        return {} if self.tls is None else {"ssl": self.tls, "server_hostname": host}


OPEN: Final = Access()
"""To listeners without any security."""


OF_TENANTS: Final = "operators write TENANT/NAME for what a tenant has, its own users included"
"""A client does not know of which tenant it is."""


def acl_command(
    settings: Mapping[str, str],
    operations: Iterable[str],
    kind: str,
    names: Iterable[str],
    *,
    is_prefix: bool = False,
) -> str:
    """What gives a client with these settings rights to resources."""
    words = ["headrace acl add --principal", quote(f"User:{settings.get(USER, 'NAME')}")]
    words += [f"--operation {operation}" for operation in operations]
    words += [f"--{kind}" + f" {quote(name)}" * bool(name) for name in names]
    return " ".join(words + ["--prefix"] * is_prefix)


class Right(NamedTuple):
    """What a client may lack: an operation on a topic, group, transactional-id or the cluster,
    which has no name."""

    operation: str
    kind: str
    name: str = ""


def allowing(
    settings: Mapping[str, str], operation: str, kind: str, name: str, *, is_prefix: bool = False
) -> str:
    """The next step for a client with these settings that lacks a right: who is to run what."""
    command = acl_command(settings, (operation,), kind, (name,), is_prefix=is_prefix)
    return f"An administrator can allow it: {command}; {OF_TENANTS}"


def access_of(settings: Mapping[str, str]) -> Access:
    """The access that a client with these settings of librdkafka has. Raises RequestInvalid."""
    protocol = settings.get(PROTOCOL, PLAINTEXT).upper()
    if protocol not in {PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL}:
        raise RequestInvalid(
            f"{PROTOCOL}={protocol[:50]!r} is not known: use PLAINTEXT, SSL, SASL_PLAINTEXT or"
            " SASL_SSL"
        )
    tls = tls_context(settings) if protocol in {SSL, SASL_SSL} else None
    if protocol in {PLAINTEXT, SSL}:
        return Access(tls)
    mechanism = settings.get(MECHANISM) or settings.get("sasl.mechanisms") or ""
    return Access(tls, mechanism, settings.get(USER, ""), settings.get(PASSWORD, ""))


def tls_context(settings: Mapping[str, str]) -> ssl.SSLContext:
    """Verifies servers, and shows the client's certificate, as these settings of librdkafka say.
    Raises RequestInvalid."""
    import ssl

    material = TlsMaterial(
        _pem(settings, CERTIFICATE),
        _pem(settings, KEY),
        settings.get(KEY_PASSWORD, ""),
        _pem(settings, CA),
    )
    if material.trust:
        context = peer_context(material)
    else:
        # As librdkafka: the CAs of the operating system.
        context = peer_context(material, trusts_system=True)
    if settings.get(_HOST_NAMES) == "none":
        context.check_hostname = False
    if settings.get(_VERIFICATION) == "false":
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def _pem(settings: Mapping[str, str], name: str) -> bytes:
    path = settings.get(f"{name}.location")
    if path is None:
        return settings.get(f"{name}.pem", "").encode()
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise RequestInvalid(f"{name}.location={path} cannot be read ({error.strerror})") from error
