"""A gRPC connection that many calls share, for loads: HTTP/2 by hand on a blocking socket.

Invariants: knows no message. It costs far less than a server does: a gRPC library for Python takes
more CPU for a call than the servers that it would measure. Metadata is sent as clients send it:
fields that do not change are indexed in the server's header table, unless the server has none.
Response headers are not read: an answer without a message is a failed call.
"""

from __future__ import annotations

import select
import socket
from typing import TYPE_CHECKING, NamedTuple

from headrace.grpc import frames as http2
from headrace.grpc.hpack import encode_field
from headrace_bench.processes import SystemFailed
from headrace_bench.tools import check_server

if TYPE_CHECKING:
    from collections.abc import Iterator

_RECEIVE_BYTES = 256 * 1024
_FIRST_INDEX = 62  # of the dynamic table (RFC 7541, 2.3.3)
_NO_TABLE = b"\x20"  # a size update to 0 (RFC 7541, 6.3)
_CREDIT_BYTES = 1 << 30  # how much is received until the server may send as much again
_WAIT_S = 1.0


class Answer(NamedTuple):
    """A call that has ended."""

    stream: int
    data: bytes
    """The messages of the response, each with gRPC's prefix."""


class Connection:
    """See the module. Raises SystemFailed if the server closes it or a stream."""

    def __init__(self, port: int, metadata: dict[str, str]) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), 30.0)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._fields = {":authority": f"127.0.0.1:{port}", **metadata}
        self._blocks: dict[str, bytes] = {}
        self._inserted: list[tuple[str, str]] = []
        self._has_table = True
        self._is_settled = False
        self._out: list[bytes] = []
        self._rest = b""
        self._data: dict[int, bytes] = {}
        self._window = http2.WINDOW_DEFAULT
        self._uncredited = 0
        self._next_stream = 1
        self.open_count = 0
        """Calls in progress."""
        window = http2.window_update(0, http2.WINDOW_MAX - http2.WINDOW_DEFAULT)
        settings = http2.settings({http2.INITIAL_WINDOW_SIZE: http2.WINDOW_MAX})
        self._socket.sendall(http2.PREFACE + settings + window)
        while not self._is_settled:
            self.answers(_WAIT_S)
            check_server()

    def call(
        self, path: str, body: bytes, changing: dict[str, str], *, is_last: bool = True
    ) -> int:
        """Begin a call, sent by the next `answers`; returns its stream."""
        stream = self._next_stream
        self._next_stream += 2
        block = self._block(path) + b"".join(
            encode_field(name.encode(), value.encode()) for name, value in changing.items()
        )
        message = b"\0" + len(body).to_bytes(4, "big") + body
        flags = http2.END_STREAM if is_last else 0
        self._window -= len(message)
        self._out += (
            http2.frame(http2.HEADERS, http2.END_HEADERS, stream, block),
            http2.frame(http2.DATA, flags, stream, message),
        )
        self._data[stream] = b""
        self.open_count += 1
        return stream

    def _block(self, path: str) -> bytes:
        """The fields that do not change."""
        fields = {":method": "POST", ":scheme": "http", ":path": path, **self._fields}
        if not self._has_table:
            if path not in self._blocks:
                literals = (encode_field(n.encode(), v.encode()) for n, v in fields.items())
                self._blocks[path] = b"".join(literals)
                if len(self._blocks) == 1:
                    return _NO_TABLE + self._blocks[path]
            return self._blocks[path]
        known = len(self._inserted)
        block = b""
        if path not in self._blocks:
            for pair in fields.items():
                if pair in self._inserted:
                    block += self._index(pair)
                else:
                    self._inserted.append(pair)
                    name, value = (text.encode() for text in pair)
                    block += b"\x40%c%b%c%b" % (len(name), name, len(value), value)
        if len(self._inserted) != known:
            self._blocks.clear()  # each index has moved
            return block
        if path not in self._blocks:
            self._blocks[path] = b"".join(map(self._index, fields.items()))
        return self._blocks[path]

    def _index(self, pair: tuple[str, str]) -> bytes:
        index = _FIRST_INDEX + len(self._inserted) - 1 - self._inserted.index(pair)
        assert index < 127, "one byte holds it"
        return bytes([0x80 | index])

    def answers(self, wait_s: float) -> list[Answer]:
        """Send what was begun; returns the calls that have ended, waiting for bytes so long."""
        if self._window < 0:
            raise SystemFailed("more bytes are in progress than the server's window allows")
        if self._out:
            data, self._out = b"".join(self._out), []
            self._socket.sendall(data)
        if not select.select([self._socket], [], [], wait_s)[0]:
            check_server()
            return []
        more = self._socket.recv(_RECEIVE_BYTES)
        if not more:
            raise SystemFailed("the server closed the connection")
        self._rest += more
        return list(self._ended())

    def received(self, stream: int) -> bytes:
        """What a call in progress has received. Raises SystemFailed if it has ended."""
        if stream not in self._data:
            raise SystemFailed("the server ended a stream that clients keep open")
        return self._data[stream]

    def _ended(self) -> Iterator[Answer]:
        data, at, header = self._rest, 0, http2.HEADER_BYTES
        while len(data) - at >= header:
            word, flags, stream = http2.FRAME_HEADER.unpack_from(data, at)
            end = at + header + (word >> 8)
            if end > len(data):
                break
            kind = word & 255
            if kind == http2.DATA:
                self._data[stream] += data[at + header : end]
                self._credit(end - at - header)
            elif kind != http2.HEADERS:
                self._control(kind, flags, stream, data[at + header : end])
            at = end
            if kind in (http2.DATA, http2.HEADERS) and flags & http2.END_STREAM:
                self.open_count -= 1
                yield Answer(stream, self._data.pop(stream))
        self._rest = data[at:]

    def _credit(self, size: int) -> None:
        self._uncredited += size
        if self._uncredited >= _CREDIT_BYTES:
            self._out.append(http2.window_update(0, self._uncredited))
            self._uncredited = 0

    def _control(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        if kind == http2.SETTINGS and not flags & http2.ACK:
            settings = dict(http2.read_settings(payload))
            self._has_table = settings.get(http2.HEADER_TABLE_SIZE, 4096) > 0
            self._is_settled = True
            self._socket.sendall(http2.frame(http2.SETTINGS, http2.ACK, 0))
        elif kind == http2.PING and not flags & http2.ACK:
            self._socket.sendall(http2.frame(http2.PING, http2.ACK, 0, payload))
        elif kind == http2.WINDOW_UPDATE and stream == 0:
            self._window += int.from_bytes(payload, "big")
        elif kind in (http2.RST_STREAM, http2.GOAWAY):
            raise SystemFailed(f"the server ended a stream or the connection: {payload[-200:]!r}")

    def close(self) -> None:
        """Close it; calls in progress are given up."""
        self._socket.close()


def messages_in(data: bytes) -> Iterator[bytes]:
    """The messages of a response."""
    at = 0
    while at < len(data):
        end = at + 5 + int.from_bytes(data[at + 1 : at + 5], "big")
        yield data[at + 5 : end]
        at = end
