"""A gRPC server on loopback, in a thread of its own, and services for clients to call."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from typing import TYPE_CHECKING, Self

import uvloop
from tests.unit.grpc.http2_peer import ACK, GOOD, Frame, block, headers

from headrace.grpc import frames
from headrace.grpc.server import DEFAULTS, GrpcServer
from headrace.grpc.service import CallRefused, Method, Status, services_of

if TYPE_CHECKING:
    from collections.abc import Iterator

GRPC = {**GOOD, "content-type": "application/grpc", "te": "trailers"}


class Served:
    """The server, with what its services have seen."""

    server: GrpcServer
    address: tuple[str, int]
    loop: asyncio.AbstractEventLoop

    def __init__(self) -> None:
        self.calls = []
        self.cancelled: list[str] = []
        self.was_cancelled = threading.Event()

    def methods(self) -> list[Method]:
        return [
            Method("/t/echo", self.echo),
            Method("/t/length", lambda call, body: call.respond(b"%d" % len(body))),
            Method("/t/small", self.echo, request_bytes_max=100),
            Method("/t/refuse", self.refuse),
            Method("/t/fail", self.fail),
            Method("/t/count", self.count),
            Method("/t/never", self.never),
            Method("/t/later", self.later),
            Method("/t/many", self.many),
            Method("/t/whole", self.whole),
            Method("/t/chat", lambda call: Chat(self, call), streams_requests=True),
            Method("/t/collect", Collect, streams_requests=True),
        ]

    def seen(self, call) -> None:
        self.calls.append(call)
        call.on_cancel(lambda: self.gone(call.path))

    def gone(self, path: str) -> None:
        self.cancelled.append(path)
        self.was_cancelled.set()

    def echo(self, call, body: bytes) -> None:
        self.seen(call)
        call.respond(body)
        call.respond(b"ignored")
        call.finish(Status.INTERNAL, "ignored")

    def refuse(self, call, body: bytes) -> None:
        raise CallRefused(Status.NOT_FOUND, body.decode())

    def fail(self, call, body: bytes) -> None:
        raise ValueError(body)

    def count(self, call, body: bytes) -> None:
        for number in range(int(body)):
            call.send(b"%d" % number)
        call.finish(trailers=[(b"x-count", body)])

    def never(self, call, _body: bytes) -> None:
        self.seen(call)

    def later(self, call, body: bytes) -> None:
        self.loop.call_later(0.02, call.respond, body)

    def whole(self, call, body: bytes) -> None:
        """Sends as many KiB as asked, and finishes when they have left."""

        async def send() -> None:
            call.send(bytes(int(body) << 10))
            await call.drained(0)
            call.finish()

        self.seen(call)
        self.task = self.loop.create_task(send())

    def many(self, call, body: bytes) -> None:
        """Sends as many MiB as asked, as fast as the client reads."""

        async def send() -> None:
            for _ in range(int(body)):
                await call.drained()
                call.send(bytes(1 << 20))
            call.finish()

        self.seen(call)
        self.task = self.loop.create_task(send())

    def call(self, function, *given):
        """Call something on the server's loop; returns what it returns."""

        async def called():
            return function(*given)

        return asyncio.run_coroutine_threadsafe(called(), self.loop).result(30)

    def close(self, grace_s: float) -> None:
        asyncio.run_coroutine_threadsafe(self.server.close(grace_s), self.loop).result(60)


class Chat:
    """Answers each message at once."""

    def __init__(self, served: Served, call) -> None:
        served.seen(call)
        self._call = call

    def message(self, body: bytes) -> None:
        if body == b"fail":
            raise ValueError
        self._call.send(body.upper())

    def ended(self) -> None:
        self._call.finish()


class Collect:
    """Answers when the client has ended."""

    def __init__(self, call) -> None:
        self._call = call
        self._bodies: list[bytes] = []

    def message(self, body: bytes) -> None:
        self._bodies.append(body)

    def ended(self) -> None:
        self._call.respond(b" ".join(self._bodies))


class NetworkServer(GrpcServer):
    """Takes the addresses of a network, such as 127.0.0.*, as one client."""

    def address(self, connection) -> str:
        return connection.peer.rpartition(".")[0]


@contextlib.contextmanager
def served(limits=DEFAULTS, methods=(), **options) -> Iterator[Served]:
    made = Served()
    loop = made.loop = uvloop.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()

    async def start() -> None:
        services = services_of([*made.methods(), *methods])
        made.server = NetworkServer(services, limits, **options)
        made.address = await made.server.listen("127.0.0.1", 0)

    try:
        asyncio.run_coroutine_threadsafe(start(), loop).result(30)
        yield made
    finally:
        made.close(0)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
    assert made.server.connection_count == 0
    assert made.server.held_bytes == 0


class RawClient:
    """A client that sends frames of its own making over a socket."""

    def __init__(
        self, address, *, begins: bool = True, buffer_bytes: int = 0, source: str = ""
    ) -> None:
        self.socket = socket.socket()
        if buffer_bytes:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer_bytes)
        self.socket.settimeout(20)
        if source:
            self.socket.bind((source, 0))
        self.socket.connect(address)
        self._received = b""
        if begins:
            self.send(frames.PREFACE, frames.settings({}), ACK)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def send(self, *parts: bytes) -> None:
        self.socket.sendall(b"".join(parts))

    def call(self, stream_id: int, path: str, body: bytes | None, **more: str) -> None:
        """A unary call; without body only its header list, and the stream stays open."""
        fields = {**GRPC, ":path": path, **{k.replace("_", "-"): v for k, v in more.items()}}
        if body is None:
            self.send(headers(stream_id, block(fields), 4))
        else:
            message = b"\0" + len(body).to_bytes(4) + body
            self.send(
                headers(stream_id, block(fields), 4),
                frames.frame(frames.DATA, 1, stream_id, message),
            )

    def frame(self) -> Frame | None:
        """The next frame; None at the end of the connection."""
        while len(self._received) < 9 or len(self._received) < self._need():
            try:
                part = self.socket.recv(1 << 20)
            except ConnectionResetError:
                return None
            if not part:
                return None
            self._received += part
        end = self._need()
        data, self._received = self._received[:end], self._received[end:]
        return Frame(data[3], data[4], int.from_bytes(data[5:9]) & frames.ID_MASK, data[9:])

    def _need(self) -> int:
        return 9 + int.from_bytes(self._received[:3])

    def next(self, kind: int) -> Frame:
        """The next frame of this kind."""
        while (found := self.frame()) is not None:
            if found.kind == kind:
                return found
        raise AssertionError("the connection has ended")

    def rest(self) -> list[Frame]:
        """All frames until the end of the connection."""
        found = []
        while (one := self.frame()) is not None:
            found.append(one)
        return found

    def status(self, stream_id: int) -> bytes:
        """The status that a call ends with."""
        while (found := self.frame()) is not None:
            if found.stream_id == stream_id and found.kind == frames.HEADERS and found.flags & 1:
                at = found.payload.index(b"grpc-status") + len(b"grpc-status")
                return found.payload[at + 1 : at + 1 + found.payload[at]]
        raise AssertionError("the connection has ended")
