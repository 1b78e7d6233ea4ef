"""Abuse of the RocketMQ port: HTTP/2 frames that lie, floods, streams by the thousand, readers that
do not read.

Invariants: as in `frames`. Frames are written by hand, so that they can be wrong. What must hold
beside the checks of every case: another client of the port gets its response.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.grpc import frames as http2
from headrace.grpc.hpack import encode_field
from headrace_verify.wire.abuse import Case

if TYPE_CHECKING:
    from headrace_verify.wire.abuse import Abuse

LISTENER = "rocketmq"
DATA, HEADERS, CONTINUATION = 0, 1, 9
END_STREAM, END_HEADERS, PADDED = 1, 4, 8
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + http2.settings({})
SERVICE = b"/apache.rocketmq.v2.MessagingService/"
HEALTH = b"/grpc.health.v1.Health/Check"
REFLECTION = b"/grpc.reflection.v1.ServerReflection/ServerReflectionInfo"
SERVING = b"\0\0\0\0\2\x08\1"
"""The message of a HealthCheckResponse."""
EMPTY = bytes(5)
"""A message without fields."""
STREAM_COUNT = 10_000
FLOOD_COUNT = 30_000
STALLED_COUNT, STALLED_BYTES, CLAIMED_BYTES = 200, 48 << 10, 15 << 20
"""Together they claim 3 GB, and stay within the windows that they are given."""
DEAF_COUNT, DEAF_QUESTIONS = 80, 1_170
"""Together they ask for 1 GB: each question gets a description of 12 KB."""
PATIENCE_S = 30


def _headers(stream: int, path: bytes, flags: int = END_HEADERS) -> bytes:
    fields = (
        (b":method", b"POST"),
        (b":scheme", b"http"),
        (b":path", path),
        (b":authority", b"localhost"),
        (b"te", b"trailers"),
        (b"content-type", b"application/grpc"),
        (b"x-mq-client-id", b"abuse"),
    )
    block = b"".join(encode_field(name, value) for name, value in fields)
    return http2.frame(HEADERS, flags, stream, block)


def _call(stream: int, path: bytes) -> bytes:
    return _headers(stream, path) + http2.frame(DATA, END_STREAM, stream, EMPTY)


def _is_served(abuse: Abuse, beside: str) -> None:
    with abuse.open(is_rocketmq=True) as peer:
        peer.send(PREFACE + _call(1, HEALTH))
        found = b""
        for _ in range(PATIENCE_S * 10):
            found += peer.receive(4096, 0.1)
            if SERVING in found:
                break
        abuse.expect(SERVING in found, f"a client beside {beside} gets no response")


def _must_all_close(abuse: Abuse, attacks: dict[str, bytes]) -> None:
    """Each on a connection of its own, at once: the broker gives a client time to read why."""
    peers = {what: abuse.open(is_rocketmq=True) for what in attacks}
    for what, data in attacks.items():
        peers[what].send(PREFACE + data)
    for what, peer in peers.items():
        abuse.expect(peer.is_closed(), f"{what}: the connection stays open")
    _is_served(abuse, "them")


def http2_frames_that_lie_end_their_connection(abuse: Abuse) -> None:
    telemetry = _headers(1, SERVICE + b"Telemetry")
    attacks = {
        "a frame of 16 MiB": b"\xff\xff\xff\0\0\0\0\0\1" + bytes(65_536),
        "DATA of no stream": http2.frame(DATA, 0, 0, b"x"),
        "DATA of a stream that was never opened": http2.frame(DATA, 0, 7, b"x"),
        "SETTINGS of 5 bytes": http2.frame(http2.SETTINGS, 0, 0, bytes(5)),
        "a stream with an even number": _headers(2, HEALTH),
        "more padding than payload": telemetry + http2.frame(DATA, PADDED, 1, b"\xff"),
        "CONTINUATION of nothing": http2.frame(CONTINUATION, END_HEADERS, 1, b""),
        "a header block that cannot be decoded": http2.frame(HEADERS, END_HEADERS, 1, b"\xff" * 64),
    }
    _must_all_close(abuse, attacks)


def http2_floods_end_their_connection(abuse: Abuse) -> None:
    odd = range(1, 2 * FLOOD_COUNT, 2)
    attacks = {
        "rapid reset": b"".join(
            _headers(one, HEALTH) + http2.rst_stream(one, http2.CANCEL) for one in odd
        ),
        "PING": http2.frame(http2.PING, 0, 0, bytes(8)) * FLOOD_COUNT,
        "SETTINGS": http2.settings({}) * FLOOD_COUNT,
        "empty DATA": _headers(1, HEALTH) + http2.frame(DATA, 0, 1, b"") * FLOOD_COUNT,
        "CONTINUATION": _headers(1, HEALTH, 0)
        + http2.frame(CONTINUATION, 0, 1, encode_field(b"x", b"y" * 1_000)) * 1_000,
    }
    _must_all_close(abuse, attacks)


def ten_thousand_streams_of_one_client_are_refused(abuse: Abuse) -> None:
    opened = b"".join(
        _headers(stream, SERVICE + b"Telemetry") for stream in range(1, 2 * STREAM_COUNT, 2)
    )
    _must_all_close(abuse, {f"{STREAM_COUNT} streams": opened})


def streams_that_stop_within_a_message_take_bounded_memory(abuse: Abuse) -> None:
    claimed = b"\0" + CLAIMED_BYTES.to_bytes(4, "big") + bytes(STALLED_BYTES)
    parts = [claimed[at : at + 16_384] for at in range(0, len(claimed), 16_384)]
    begun = b"".join(http2.frame(DATA, 0, 1, part) for part in parts)
    for number in range(STALLED_COUNT):
        peer = abuse.open(is_rocketmq=True)
        peer.send(PREFACE + _headers(1, SERVICE + b"SendMessage") + begun, 1)
        if number % 3 == 0:
            peer.end_sending()
    _is_served(abuse, f"{STALLED_COUNT} that stop within a message")


def grpc_clients_that_read_nothing_take_bounded_memory(abuse: Abuse) -> None:
    """Some leave the sockets full, others keep their windows closed."""
    symbol = SERVICE.strip(b"/")
    question = b"\x22" + bytes([len(symbol)]) + symbol
    message = b"\0" + len(question).to_bytes(4, "big") + question
    at_once = http2.PAYLOAD_BYTES_MAX // len(message)
    asked = http2.frame(DATA, 0, 1, message * at_once) * (DEAF_QUESTIONS // at_once)
    all_windows = http2.settings({http2.INITIAL_WINDOW_SIZE: http2.WINDOW_MAX})
    all_windows += http2.window_update(0, http2.WINDOW_MAX - http2.WINDOW_DEFAULT)
    for number in range(DEAF_COUNT):
        windows = all_windows if number % 2 else b""
        abuse.open(is_rocketmq=True).send(PREFACE + windows + _headers(1, REFLECTION) + asked, 2)
    _is_served(abuse, f"{DEAF_COUNT} that read nothing")


CASES = (
    Case(LISTENER, http2_frames_that_lie_end_their_connection),
    Case(LISTENER, http2_floods_end_their_connection),
    Case(LISTENER, ten_thousand_streams_of_one_client_are_refused),
    Case(LISTENER, streams_that_stop_within_a_message_take_bounded_memory),
    Case(LISTENER, grpc_clients_that_read_nothing_take_bounded_memory),
)
