"""A client that says to an HTTP/2 machine whatever a test wants, frame by frame."""

from __future__ import annotations

import struct
from typing import NamedTuple

from headrace.grpc import frames
from headrace.grpc.connection import Http2Connection
from headrace.grpc.hpack import encode_field
from headrace.grpc.limits import Limits

DEFAULTS = Limits()
GOOD = {":method": "POST", ":scheme": "http", ":path": "/t/echo", ":authority": "localhost:1"}


class Frame(NamedTuple):
    kind: int
    flags: int
    stream_id: int
    payload: bytes

    @property
    def code(self) -> int:
        """Of GOAWAY or RST_STREAM."""
        return int.from_bytes(self.payload[4:8] if self.kind == frames.GOAWAY else self.payload)


def parsed(data: bytes) -> list[Frame]:
    found, at = [], 0
    while at < len(data):
        word, flags, stream_id = struct.unpack_from(">IBI", data, at)
        end = at + 9 + (word >> 8)
        found.append(Frame(word & 255, flags, stream_id, data[at + 9 : end]))
        at = end
    assert at == len(data)
    return found


def block(fields: dict[str, str] | list[tuple[str, str]] = GOOD, **more: str) -> bytes:
    pairs = list(fields.items() if isinstance(fields, dict) else fields)
    pairs += [(name.replace("_", "-"), value) for name, value in more.items()]
    return b"".join(encode_field(name.encode(), value.encode()) for name, value in pairs)


def headers(stream_id: int, payload: bytes | None = None, flags: int = 5) -> bytes:
    """By default a whole request without body."""
    return frames.frame(frames.HEADERS, flags, stream_id, block() if payload is None else payload)


def data(stream_id: int, payload: bytes, flags: int = 0) -> bytes:
    return frames.frame(frames.DATA, flags, stream_id, payload)


def continuation(stream_id: int, payload: bytes, flags: int = 4) -> bytes:
    return frames.frame(frames.CONTINUATION, flags, stream_id, payload)


def priority(stream_id: int, on: int) -> bytes:
    return frames.frame(frames.PRIORITY, 0, stream_id, struct.pack(">IB", on, 16))


ACK = frames.frame(frames.SETTINGS, frames.ACK, 0)


class Recorded:
    """What has arrived on one stream."""

    def __init__(self, fields) -> None:
        self.fields = [(name, value) for name, value, _kind, _size in fields]
        self.body = bytearray()
        self.has_ended = False
        self.was_reset = False

    def receive(self, data: bytes, at: int, end: int, *, is_last: bool) -> None:
        self.body += data[at:end]
        self.has_ended = is_last

    def reset(self) -> None:
        assert not self.was_reset
        self.was_reset = True

    def writable(self) -> None:
        pass


class Peer:
    """Holds the machine, and is what takes its requests."""

    def __init__(self, limits: Limits = DEFAULTS, *, begins: bool = True) -> None:
        self.now = 0.0
        self.machine = Http2Connection(self, limits, lambda: self.now)
        self.streams: dict[int, Recorded] = {}
        self.live = {}
        self.pongs = 0
        if begins:
            self.machine.begin()
            self.send(frames.PREFACE, frames.settings({}), ACK)
            assert self.machine.failure is None

    def send(self, *parts: bytes) -> list[Frame]:
        """What the machine answers to these bytes."""
        self.machine.receive(b"".join(parts))
        return self.taken()

    def taken(self) -> list[Frame]:
        return parsed(self.machine.outflow.take())

    def error(self, *parts: bytes) -> tuple[str, int] | None:
        """The first error that the bytes cause: `("goaway" or "rst", code)`."""
        for frame in self.send(*parts):
            if frame.kind == frames.GOAWAY:
                return "goaway", frame.code
            if frame.kind == frames.RST_STREAM:
                return "rst", frame.code
        return None

    # --- connection.Requests

    def opened(self, stream, request) -> None:
        self.streams[stream.id] = stream.exchange = Recorded(request.fields)
        self.live[stream.id] = stream

    def has_output(self) -> None:
        pass

    def dropped_output(self) -> None:
        pass

    def ponged(self) -> None:
        self.pongs += 1
