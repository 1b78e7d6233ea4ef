"""TLS contexts of servers and clients.

Invariants: takes files, returns a context. Brokers trust only the given CA bundle, never the
system's trust store, whose CAs could issue a certificate for any host; clients verify host names.
"""

from __future__ import annotations

import contextlib
import logging
import ssl
import tempfile
import time
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from headrace.errors import RequestInvalid
from headrace.runtime.memory_file import NONE as NO_FILE
from headrace.runtime.memory_file import close_memory_file, memory_file, write_parts

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Iterator, Mapping
    from pathlib import Path
    from typing import Self


log = logging.getLogger(__name__)


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


HANDSHAKE_TIMEOUT_S: Final = 10.0
"""A client that has not finished its handshake by then is disconnected."""
SHUTDOWN_TIMEOUT_S: Final = 5.0
PEM_BYTES_MAX: Final = 4 * 1024 * 1024
"""Of one file: the CA bundle of a whole operating system has a quarter of a MiB."""
VERSIONS: Final = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}
"""By Kafka's names."""
NONE, REQUESTED, REQUIRED = "none", "requested", "required"
"""`ssl.client.auth`."""
_VERIFY: Final = {
    NONE: ssl.CERT_NONE,
    REQUESTED: ssl.CERT_OPTIONAL,
    REQUIRED: ssl.CERT_REQUIRED,
}
_CAUSES: Final = {
    "HTTP_REQUEST": "it sent HTTP without TLS: use https",
    "WRONG_VERSION_NUMBER": "it sent no TLS: set security.protocol=SSL in the client, or https",
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": "it has shown no certificate, and ssl.client.auth requires"
    " one",
    "TLSV1_ALERT_UNKNOWN_CA": "it does not trust this broker's certificate: give it the CA",
    "SSLV3_ALERT_CERTIFICATE_UNKNOWN": "it does not accept this broker's certificate: give it the"
    " CA, and check the names in the certificate",
    "SSLV3_ALERT_BAD_CERTIFICATE": "it does not accept this broker's certificate: give it the CA,"
    " and check the names in the certificate",
    "UNSUPPORTED_PROTOCOL": "it offers no TLS version of ssl.enabled.protocols",
    "NO_SHARED_CIPHER": "it offers no cipher that this broker accepts",
    "UNEXPECTED_EOF_WHILE_READING": "it closed the connection during the handshake",
}
"""Reasons of OpenSSL, by what to do about them."""


class TlsMaterial(NamedTuple):
    """What one end of TLS connections has, in PEM."""

    chain: bytes = b""
    """Its certificate, with intermediate certificates; empty: none."""
    key: bytes = b""
    """The private key of the certificate; empty: it is in `chain`."""
    password: str = ""
    """Of an encrypted private key. A secret, as the key."""
    trust: bytes = b""
    """CA certificates that the other end's certificate must descend from."""
    client_auth: str = NONE
    versions: tuple[str, ...] = tuple(VERSIONS)

    def __repr__(self) -> str:
        return "TlsMaterial(...)"  # never a key in a log


def server_context(material: TlsMaterial) -> ssl.SSLContext:
    """The context of a listener. Raises RequestInvalid."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    # A client could make the broker renegotiate without end (TLS 1.2).
    context.options |= ssl.OP_NO_RENEGOTIATION
    _load(context, material)
    context.verify_mode = _VERIFY[material.client_auth]
    if material.client_auth == NONE:
        return context
    if not material.trust:
        raise RequestInvalid(
            f"ssl.client.auth={material.client_auth} needs the CAs of the clients' certificates:"
            " set ssl.truststore.location"
        )
    # Each connection shows its certificate: no session of an earlier one replaces it.
    context.num_tickets = 0
    return context


def peer_context(material: TlsMaterial, *, trusts_system: bool = False) -> ssl.SSLContext:
    """The context of a client: verifies the server's certificate and host name.

    `trusts_system`: by the CAs of the operating system. Raises RequestInvalid.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    if trusts_system:
        context.load_default_certs()
    elif not material.trust:
        raise RequestInvalid("TLS needs the CA certificates of the servers to connect to")
    _load(context, material)
    return context


def _load(context: ssl.SSLContext, material: TlsMaterial) -> None:
    versions = [VERSIONS[one] for one in material.versions]
    context.minimum_version, context.maximum_version = min(versions), max(versions)
    if material.chain:
        pem = material.chain + b"\n" + material.key
        try:
            with _named(pem) as path:
                # With a password OpenSSL does not prompt for one on the terminal.
                context.load_cert_chain(path, password=material.password)
        except (OSError, ssl.SSLError) as error:
            raise RequestInvalid(
                "the certificate and its private key (ssl.keystore.*) cannot be used"
                f" ({_reason(error)}): they must be PEM, belong together, and the password, if the"
                " key is encrypted, must be ssl.key.password"
            ) from error
    if material.trust:
        try:
            context.load_verify_locations(cadata=material.trust.decode("ascii", "ignore"))
        except (OSError, ssl.SSLError, ValueError) as error:
            raise RequestInvalid(
                f"the trusted CA certificates (ssl.truststore.*) cannot be used ({_reason(error)}):"
                " they must be PEM"
            ) from error


def _reason(error: Exception) -> str:
    return str(getattr(error, "reason", None) or type(error).__name__)


@contextlib.contextmanager
def _named(data: bytes) -> Iterator[str]:
    """A path under which `data` can be read, which is in memory only."""
    descriptor = memory_file()
    if descriptor == NO_FILE:
        with tempfile.NamedTemporaryFile() as file:  # 0600, outside Linux
            file.write(data)
            file.flush()
            yield file.name
        return
    try:
        write_parts(descriptor, [data], 0)
        yield f"/proc/self/fd/{descriptor}"
    finally:
        close_memory_file(descriptor)


class CurrentContext(ssl.SSLContext):
    """Gives each new connection the newest of several contexts.

    Certificates change while a server listens. Contexts are replaced as a whole, because a live one
    can only add CA certificates, and would resume sessions whose certificates are no longer
    trusted.
    """

    current: ssl.SSLContext

    @classmethod
    def of(cls, context: ssl.SSLContext) -> Self:
        """One that begins with `context`."""
        made = cls(context.protocol)
        made.current = context
        return made

    def wrap_bio(self, *given: Any, **named: Any) -> ssl.SSLObject:
        return self.current.wrap_bio(*given, **named)

    def wrap_socket(self, *given: Any, **named: Any) -> ssl.SSLSocket:
        return self.current.wrap_socket(*given, **named)


def report_handshakes(context: ssl.SSLContext, listener: str) -> None:
    """Log why handshakes with clients of this listener fail: the event loop would not."""

    class Reported(ssl.SSLObject):
        def do_handshake(self) -> None:
            try:
                super().do_handshake()
                _check_resumed(self)
            except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
                raise
            except ssl.SSLError as error:
                log.warning(
                    "a client of listener %s is refused in the TLS handshake: %s",
                    listener,
                    handshake_failure(error),
                )
                raise

    context.sslobject_class = Reported


def serve_names(context: ssl.SSLContext, of_names: Mapping[str, ssl.SSLContext]) -> None:
    """Give clients the certificate of the server name that they ask for (SNI), where there is one,
    and note the name."""

    def chosen(connection: Any, name: str | None, _context: ssl.SSLContext) -> None:
        connection.asked_name = name or ""
        found = of_names.get(connection.asked_name.lower())
        if found is not None:
            connection.context = found

    context.sni_callback = chosen


def server_name_of(transport: asyncio.BaseTransport) -> str:
    """The server name that a client has asked for, if its listener serves names."""
    return getattr(transport.get_extra_info("ssl_object"), "asked_name", "")


def _check_resumed(connection: ssl.SSLObject) -> None:
    """Raise SSLError if a session was resumed (TLS 1.2) whose client certificate has expired: it
    was verified when the session began."""
    if not connection.session_reused:
        return
    ends = (connection.getpeercert() or {}).get("notAfter")
    if isinstance(ends, str) and ssl.cert_time_to_seconds(ends) <= time.time():
        raise ssl.SSLError(1, "the client's certificate has expired since its session began")


def handshake_failure(error: ssl.SSLError) -> str:
    """Why a handshake failed, in words."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not accepted ({error.verify_message})"
    # Errors that OpenSSL did not raise have none.
    reason: str | None = getattr(error, "reason", None)
    if reason is None:
        return str(error.strerror or type(error).__name__)
    return _CAUSES.get(reason, reason.lower().replace("_", " "))


def server_arguments(context: ssl.SSLContext | None) -> dict[str, Any]:
    """The arguments of `loop.create_server` for this context; none without one."""
    if context is None:
        return {}
    return {
        "ssl": context,
        "ssl_handshake_timeout": HANDSHAKE_TIMEOUT_S,
        "ssl_shutdown_timeout": SHUTDOWN_TIMEOUT_S,
    }


def certificate_of(transport: asyncio.BaseTransport) -> bytes | None:
    """The verified certificate (DER) of the other end; None if it has shown none."""
    found = transport.get_extra_info("ssl_object")
    certificate: bytes | None = None if found is None else found.getpeercert(binary_form=True)
    return certificate
