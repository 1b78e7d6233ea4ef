"""TLS within one connection, begun when its first byte says so.

Invariants: bytes in, bytes out, no sockets. A listener can thereby serve encrypted and plain
clients at one port, and tell them apart without waiting: a TLS record of a handshake begins with
0x16, the preface of HTTP/2 with "P".
"""

from __future__ import annotations

import ssl
from typing import Final

from headrace.runtime.tls import CurrentContext

HANDSHAKE_BYTE: Final = 0x16
"""The content type of a handshake record (RFC 8446, 5.1)."""
PROTOCOLS: Final = ("h2",)
"""For ALPN (RFC 9113, 3.2): clients of gRPC require it."""
_READ_BYTES: Final = 256 * 1024


class TlsTunnel:
    """The server's end of one TLS connection."""

    def __init__(self, context: ssl.SSLContext) -> None:
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._session = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self.is_open = False
        """Whether the handshake is done."""
        self.has_ended = False
        """Whether the client has ended it."""

    @property
    def certificate(self) -> bytes | None:
        """The client's verified certificate (DER); None if it has shown none."""
        return self._session.getpeercert(binary_form=True)

    def receive(self, data: bytes) -> bytes:
        """Decrypt; what is to be answered is then in `outgoing`. Raises ssl.SSLError."""
        self._incoming.write(data)
        if not self.is_open:
            try:
                self._session.do_handshake()
            except ssl.SSLWantReadError:
                return b""
            self.is_open = True
        parts = []
        try:
            while part := self._session.read(_READ_BYTES):
                parts.append(part)
            self.has_ended = True
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLZeroReturnError:
            self.has_ended = True
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def encrypt(self, data: bytes) -> bytes:
        """The records that hold these bytes, with what else is to be sent. Raises ssl.SSLError."""
        self._session.write(data)
        return self._outgoing.read()

    def outgoing(self) -> bytes:
        """What the handshake or an alert has to send."""
        return self._outgoing.read()

    def end(self) -> bytes:
        """What tells the client that nothing follows."""
        try:
            self._session.unwrap()
        except ssl.SSLError:
            pass  # the client has yet to say so, too, or is in the midst of its handshake
        return self._outgoing.read()


class ContextOfListener:
    """The TLS context of a listener, which offers HTTP/2 whenever it is replaced."""

    def __init__(self, context: ssl.SSLContext) -> None:
        """`context`: the listener's own; a CurrentContext may be replaced at any time."""
        self._context = context
        self._prepared: ssl.SSLContext | None = None

    def tunnel(self) -> TlsTunnel:
        """For a new connection."""
        context = self._context
        current = context.current if isinstance(context, CurrentContext) else context
        if current is not self._prepared:
            current.set_alpn_protocols(PROTOCOLS)
            self._prepared = current
        return TlsTunnel(context)
