"""TLS client contexts for ZooKeeper and the bookies.

Invariants: takes files, returns a context. Only the given CA bundle is trusted, never the
system's trust store, whose CAs could issue a certificate for any host. Host names are verified.
"""

from __future__ import annotations

import ssl
from typing import TYPE_CHECKING, NamedTuple

from headrace.errors import RequestInvalid

if TYPE_CHECKING:
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
