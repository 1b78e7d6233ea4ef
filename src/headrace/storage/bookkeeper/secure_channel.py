"""Opens a connection to a bookie: plaintext, or TLS after START_TLS, and logs in if it is to.

Invariants: opens a connection for a protocol that is unaware of TLS and logins. Bookies listen on
one port: a client requests TLS there, in a message of protocol version 3, and then uses any version
inside it. Whether a bookie serves plaintext clients, or ones without a login, is the bookie's
setting. Credentials are never logged.
Source: `BookieRequestProcessor`, `AuthHandler` and `BookieAuthZFactory` of BookKeeper 4.17.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, cast

from headrace.errors import RequestInvalid
from headrace.runtime.randomness import SystemRandomness
from headrace.storage.bookkeeper.digest_login import (
    DigestLogin,
    auth_frame,
    auth_payload,
    is_auth,
)
from headrace.storage.bookkeeper.wire import (
    START_TLS_FRAME,
    STATUS_OK,
    MalformedFrame,
    read_frame,
    start_tls_status,
)

if TYPE_CHECKING:
    import ssl

ANSWER_BYTES_MAX = 4096
"""A challenge has at most 2048 bytes (RFC 2831)."""
_PROBE: Final = read_frame((1 << 63) - 1, 0)
"""A bookie does not answer a login that it refuses, but whatever follows it: an entry that does not
exist is asked for."""


class LoginRefused(ConnectionRefusedError):
    """A bookie and this client do not accept each other's credential."""


class _Handshake(asyncio.Protocol):
    """Sends requests, and waits for the responses one by one."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport | None = None
        self._data = b""
        self._lost: str | None = None
        self._waiter: asyncio.Future[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        self.transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        """Keep what the bookie sends; more than a response is noticed by who waits."""
        self._data += data
        self._notify()

    def connection_lost(self, exc: Exception | None) -> None:
        """There will be no more responses."""
        self._lost = str(exc or "by the bookie")
        self._notify()

    def _notify(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def send(self, frames: bytes) -> None:
        """Send requests."""
        assert self.transport is not None, "the connection was made"
        self.transport.write(frames)

    async def response(self, what: str) -> bytes:
        """The next response, without its length. Raises ConnectionError."""
        while True:
            size = 4 + int.from_bytes(self._data[:4])
            if len(self._data) >= 4 and size > ANSWER_BYTES_MAX:
                raise ConnectionError(f"an invalid response to {what}")
            if len(self._data) >= size:
                frame, self._data = self._data[4:size], self._data[size:]
                return frame
            if self._lost is not None:
                raise ConnectionError(f"connection closed during {what}: {self._lost}")
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter

    def check_end(self, what: str) -> None:
        """Raise ConnectionError if the bookie has sent more than its responses: somebody else may
        have, before the connection was encrypted."""
        if self._data:
            raise ConnectionError(f"an invalid response to {what}")


async def open_channel(
    protocol: asyncio.Protocol,
    host: str,
    port: int,
    tls: ssl.SSLContext | None,
    credential: str | None = None,
) -> None:
    """Connect `protocol` and call its `connection_made`; log in if there is a `credential`
    (USER:PASSWORD). Raises OSError, ssl.SSLError."""
    loop = asyncio.get_running_loop()
    if tls is None and credential is None:
        await loop.create_connection(lambda: protocol, host, port)
        return
    transport, handshake = await loop.create_connection(_Handshake, host, port)
    try:
        if tls is not None:
            await _start_tls(handshake)
            secured = await loop.start_tls(transport, handshake, tls, server_hostname=host)
            assert secured is not None, "start_tls raises on failure"
            handshake.transport = secured
        if credential is not None:
            await _log_in(handshake, credential)
    except MalformedFrame as error:
        transport.abort()
        raise ConnectionError(str(error)) from error
    except BaseException:
        transport.abort()
        raise
    assert handshake.transport is not None, "the connection was made"
    handshake.transport.set_protocol(protocol)
    protocol.connection_made(handshake.transport)


async def _start_tls(handshake: _Handshake) -> None:
    handshake.send(START_TLS_FRAME)
    status = start_tls_status(memoryview(await handshake.response("START_TLS")))
    handshake.check_end("START_TLS")
    if status != STATUS_OK:
        raise ConnectionRefusedError(
            f"the bookie does not support TLS (status {status}): set tlsProviderFactoryClass"
        )


async def _log_in(handshake: _Handshake, credential: str) -> None:
    """Raises MalformedFrame, LoginRefused, OSError."""
    try:
        login = DigestLogin(credential, SystemRandomness().uuid().hex)
    except RequestInvalid as error:
        raise LoginRefused(str(error)) from error
    handshake.send(auth_frame(b""))
    first = await handshake.response("its login")
    if not is_auth(first):
        # After a TLS handshake, a bookie says that this client has not logged in yet.
        start_tls_status(memoryview(first))
        first = await handshake.response("its login")
    challenge = auth_payload(first)
    if challenge is not None:  # else the bookie requires no login, as before it is configured
        handshake.send(auth_frame(login.answer(challenge)) + _PROBE)
        first = await handshake.response("its login")
        if not is_auth(first):
            raise LoginRefused(
                f"the bookie refused the user {login.user!r} or the password: compare"
                " headrace.bookie.credential.file with the section Bookie of its JAAS file and with"
                " its saslJaasClientAllowedIds"
            )
        if not login.is_proven(auth_payload(first) or b""):
            raise LoginRefused(
                "the bookie did not prove that it knows the password of"
                f" {login.user!r}: it may be another server"
            )
        await handshake.response("a read after its login")
    handshake.check_end("its login")
