"""CPU of one server for unary calls: ours beside grpc.aio, in alternating rounds.

    python benchmarks/grpc_calls.py [--rounds 3] [--seconds 4] [--outstanding 64]

Each server parses a protobuf message of 128 bytes and sends it back. The client, which is the same
for both, sends 16 fields of metadata with each call, three of which change. `make fast` first: the
hot modules are compiled in brokers.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import socket
import statistics
import struct
import subprocess
import sys
import time
from typing import TYPE_CHECKING, NamedTuple

import grpc
import psutil
import uvloop
from google.protobuf.wrappers_pb2 import BytesValue

from headrace.runtime import compiled

if TYPE_CHECKING:
    from collections.abc import Iterator

BODY = BytesValue(value=b"x" * 128).SerializeToString()
MESSAGE = b"\0" + struct.pack(">I", len(BODY)) + BODY
METADATA = {
    ":method": "POST", ":scheme": "http", ":path": "/t/echo", ":authority": "127.0.0.1:8081",
    "content-type": "application/grpc", "te": "trailers", "user-agent": "grpc-java-netty/1.50",
    "x-mq-client-id": "host@1234@0@abcdefg", "x-mq-language": "JAVA", "x-mq-protocol": "v2",
    "x-mq-client-version": "5.2.0", "x-mq-namespace": "ns", "grpc-accept-encoding": "gzip",
}  # fmt: skip
FRAME = struct.Struct(">IBI")
HEADERS, DATA, SETTINGS, PING, WINDOW_UPDATE = 1, 0, 4, 6, 8


class Round(NamedTuple):
    """What one round measured."""

    rate_per_s: float
    cpu_us: float


async def serve_ours() -> None:
    """Our server."""
    from headrace.grpc.server import GrpcServer
    from headrace.grpc.service import Call, Method, services_of

    def echo(call: Call, body: bytes) -> None:
        call.respond(BytesValue.FromString(body).SerializeToString())

    server = GrpcServer(services_of([Method("/t/echo", echo)]))
    print((await server.listen("127.0.0.1", 0))[1], flush=True)
    gc.collect()
    gc.freeze()
    await asyncio.Event().wait()


async def serve_aio() -> None:
    """The server of grpcio."""

    async def echo(request: BytesValue, _context: object) -> BytesValue:
        return request

    server = grpc.aio.server()
    handler = grpc.unary_unary_rpc_method_handler(
        echo, BytesValue.FromString, BytesValue.SerializeToString
    )
    service = grpc.method_handlers_generic_handler("t", {"echo": handler})
    server.add_generic_rpc_handlers((service,))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    print(port, flush=True)
    await server.wait_for_termination()


def frame(kind: int, flags: int, stream_id: int, payload: bytes = b"") -> bytes:
    """A whole frame."""
    return FRAME.pack(len(payload) << 8 | kind, flags, stream_id) + payload


def literal(name: str, value: str) -> bytes:
    """A header field without compression."""
    return b"\0%c%b%c%b" % (len(name), name.encode(), len(value), value.encode())


def calls(first: int) -> Iterator[bytes]:
    """One call after another."""
    constant = b"".join(literal(*pair) for pair in METADATA.items())
    stream_id = first
    while True:
        changing = {
            "x-mq-date-time": f"20261127T{stream_id % 1_000_000:06}Z",
            "x-mq-request-id": f"6f1ed002-ab25-4fcf-{stream_id:016}",
            "grpc-timeout": f"{2_999_000 + stream_id % 1000}u",
        }
        block = constant + b"".join(literal(*pair) for pair in changing.items())
        yield frame(HEADERS, 4, stream_id, block) + frame(DATA, 1, stream_id, MESSAGE)
        stream_id += 2


def ended(data: bytes, connection: socket.socket) -> tuple[int, bytes]:
    """How many calls have ended in the frames of `data`, and what is left of it."""
    at = count = 0
    while len(data) - at >= FRAME.size:
        word, flags, _stream = FRAME.unpack_from(data, at)
        end = at + FRAME.size + (word >> 8)
        if end > len(data):
            break
        if word & 255 == HEADERS and flags & 1:
            count += 1
        elif word & 255 == PING and not flags & 1:
            connection.sendall(frame(PING, 1, 0, data[at + FRAME.size : end]))
        at = end
    return count, data[at:]


def measured(process: psutil.Process, port: int, seconds: float, outstanding: int) -> Round:
    """One round, after a second to warm up."""
    with contextlib.closing(socket.create_connection(("127.0.0.1", port))) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        window = struct.pack(">I", 2**31 - 1 - 65_535)
        settings = frame(SETTINGS, 0, 0, struct.pack(">HI", 4, 2**31 - 1)) + frame(SETTINGS, 1, 0)
        connection.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + settings)
        connection.sendall(frame(WINDOW_UPDATE, 0, 0, window))
        more = calls(1)
        connection.sendall(b"".join(next(more) for _ in range(outstanding)))
        begin_s, count, rest, cpu = 0.0, 0, b"", process.cpu_times()
        warm_s = time.perf_counter() + 1
        while not begin_s or time.perf_counter() < begin_s + seconds:
            done, rest = ended(rest + connection.recv(1 << 18), connection)
            connection.sendall(b"".join(next(more) for _ in range(done)))
            count += done
            if not begin_s and time.perf_counter() > warm_s:
                begin_s, count, cpu = time.perf_counter(), 0, process.cpu_times()
        now = process.cpu_times()
        taken_s = time.perf_counter() - begin_s
    cpu_s = now.user + now.system - cpu.user - cpu.system
    return Round(count / taken_s, cpu_s / count * 1e6)


def run(name: str, options: argparse.Namespace) -> Round:
    """One round with a server of its own."""
    command = [sys.executable, __file__, "--serve", name]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        port = int(server.stdout.readline())
        process = psutil.Process(server.pid)
        return measured(process, port, options.seconds, options.outstanding)
    finally:
        server.kill()
        server.wait()


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=4)
    parser.add_argument("--outstanding", type=int, default=64)
    parser.add_argument("--serve", choices=("ours", "aio"))
    options = parser.parse_args()
    core = compiled.use()
    if options.serve == "ours":
        uvloop.run(serve_ours())
    elif options.serve == "aio":
        asyncio.run(serve_aio())
    else:
        print(f"ours: {core}")
        rounds: dict[str, list[Round]] = {"ours": [], "aio": []}
        for _ in range(options.rounds):
            for name, found in rounds.items():
                found.append(run(name, options))
        for name, found in rounds.items():
            cpu_us = statistics.median(one.cpu_us for one in found)
            rate_per_s = statistics.median(one.rate_per_s for one in found)
            print(f"{name:5}{rate_per_s:9.0f} calls/s {cpu_us:8.1f} us of CPU per call")


if __name__ == "__main__":
    main()
