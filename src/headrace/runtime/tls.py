"""TLS contexts of servers and clients.

Invariants: takes files, returns a context. Clients trust only the given CA bundle, never the
system's trust store, whose CAs could issue a certificate for any host, and verify host names.
"""

from __future__ import annotations

import ssl
from typing import TYPE_CHECKING, Any, NamedTuple

from headrace.errors import RequestInvalid

if TYPE_CHECKING:
    import asyncio
    from pathlib import Path


class TlsFiles(NamedTuple):
    """PEM files: trusted CA bundle and client certificate."""

    authority: Path
    """The trusted CA bundle."""
    certificate: Path | None = None
    """The client certificate, with its intermediate certificates; None: no client certificate."""
    key: Path | None = None
    """The unencrypted private key; None: it is in the certificate's file."""


def client_context(files: TlsFiles) -> ssl.SSLContext:
    """A context for TLS 1.2 or newer. Raises RequestInvalid, naming the unusable file."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_verify_locations(files.authority)
    except (OSError, ssl.SSLError) as error:
        raise RequestInvalid(
            f"{files.authority} holds no CA certificates ({error}): name a PEM file"
        ) from error
    if files.certificate is not None:
        try:
            # Without this, OpenSSL would prompt for the password on the terminal.
            context.load_cert_chain(files.certificate, files.key, password="")
        except (OSError, ssl.SSLError) as error:
            raise RequestInvalid(
                f"{files.certificate} and {files.key or 'the key in it'} are not a certificate"
                f" with its key ({error}): name PEM files, the key without a password"
            ) from error
    return context


HANDSHAKE_TIMEOUT_S = 10.0
"""A client that has not finished its handshake by then is disconnected."""


def server_arguments(context: ssl.SSLContext | None) -> dict[str, Any]:
    """The arguments of `loop.create_server` for this context; none without one."""
    if context is None:
        return {}
    return {"ssl": context, "ssl_handshake_timeout": HANDSHAKE_TIMEOUT_S}


def certificate_of(transport: asyncio.BaseTransport) -> bytes | None:
    """The verified certificate (DER) of the other end; None if it has shown none."""
    found = transport.get_extra_info("ssl_object")
    certificate: bytes | None = None if found is None else found.getpeercert(binary_form=True)
    return certificate
