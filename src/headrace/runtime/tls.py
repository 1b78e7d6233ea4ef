"""TLS as a client of the cluster's own servers: ZooKeeper's and the bookies'.

Invariants: files in, a context out. Only the given authority is believed, never those of the
machine: any of these could sign for anybody. The server's name is checked against its certificate.
"""

from __future__ import annotations

import ssl
from typing import TYPE_CHECKING, NamedTuple

from headrace.errors import RequestInvalid

if TYPE_CHECKING:
    from pathlib import Path


class TlsFiles(NamedTuple):
    """PEM files: who is believed, and who this client is."""

    authority: Path
    """Certificates of the authorities that sign the servers' ones."""
    certificate: Path | None = None
    """This client's certificate, with those that lead to its authority; None: it has none."""
    key: Path | None = None
    """The key of that certificate, without a password; None: it is in the same file."""


def client_context(files: TlsFiles) -> ssl.SSLContext:
    """TLS 1.2 or newer. Raises RequestInvalid, naming the file that is of no use."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_verify_locations(files.authority)
    except (OSError, ssl.SSLError) as error:
        raise RequestInvalid(
            f"{files.authority} holds no certificates of an authority ({error}): name a file in PEM"
        ) from error
    if files.certificate is not None:
        try:
            # A password would be asked for at the terminal, where a service has none.
            context.load_cert_chain(files.certificate, files.key, password="")
        except (OSError, ssl.SSLError) as error:
            raise RequestInvalid(
                f"{files.certificate} and {files.key or 'the key in it'} are no certificate with"
                f" its key ({error}): name files in PEM, the key without a password"
            ) from error
    return context
