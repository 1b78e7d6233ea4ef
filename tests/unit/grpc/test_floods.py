"""Attacks on an HTTP/2 connection: each is ended early, and takes little memory meanwhile."""

from __future__ import annotations

import itertools
import tracemalloc

import pytest
from tests.unit.grpc.http2_peer import DEFAULTS, Peer, block, continuation, data, headers, priority

from headrace.grpc import frames
from headrace.grpc.frames import ENHANCE_YOUR_CALM
from headrace.grpc.hpack import encode_field

FRAMES_MAX = 2 * DEFAULTS.idle_frames_burst
MEMORY_BYTES_MAX = 4 << 20
"""Of one connection under any of these attacks; measured: see docs/decisions."""
ATTACK_BYTES_MAX = 64 << 20


def odd():
    return itertools.count(1, 2)


def rapid_reset():
    """CVE-2023-44487."""
    for number in odd():
        yield headers(number, flags=4) + frames.rst_stream(number, frames.CANCEL)


def made_you_reset(fault):
    """CVE-2025-8671: the server resets streams because of the client's faults."""

    def attack():
        for number in odd():
            yield headers(number) + fault(number)

    return attack


def malformed_requests():
    for number in odd():
        yield headers(number, b"\x88" + block())


def endless_continuation():
    """CVE-2024-27316."""
    yield headers(1, flags=0)
    yield from itertools.repeat(continuation(1, encode_field(b"x", b"y" * 1000), 0))


def empty_continuation():
    yield headers(1, flags=0)
    yield from itertools.repeat(continuation(1, b"", 0))


def header_bomb():
    """A large field in the table, and many references to it in each block."""
    yield headers(1, block() + b"\x40\1a\x7f\xa1\x1e" + b"v" * 4000)
    for number in itertools.count(3, 2):
        yield headers(number, block() + b"\xbe" * 15_000)


def table_changes():
    """Insertions that evict each other."""
    for number in odd():
        yield headers(
            number, block() + b"".join(b"\x40\1a\x7f\x01" + b"v" * 128 for _ in range(90))
        )


def repeated(frame: bytes, before: bytes = b""):
    def attack():
        yield before
        yield from itertools.repeat(frame)

    return attack


OPEN = headers(1, flags=4)
MANY_SETTINGS = frames.frame(frames.SETTINGS, 0, 0, b"\0\4\0\0\0\1" * 2000)
ATTACKS = {
    "rapid reset": rapid_reset,
    "made you reset: window update of 0": made_you_reset(lambda one: frames.window_update(one, 0)),
    "made you reset: window above the maximum": made_you_reset(
        lambda one: frames.window_update(one, 2**31 - 1)
    ),
    "made you reset: DATA after the end": made_you_reset(lambda one: data(one, b"x")),
    "made you reset: HEADERS after the end": made_you_reset(lambda one: headers(one)),
    "made you reset: PRIORITY of a wrong size": made_you_reset(
        lambda one: frames.frame(frames.PRIORITY, 0, one, bytes(4))
    ),
    "malformed requests": malformed_requests,
    "CONTINUATION": endless_continuation,
    "empty CONTINUATION": empty_continuation,
    "header bomb": header_bomb,
    "PING": repeated(frames.frame(frames.PING, 0, 0, bytes(8))),
    "SETTINGS": repeated(frames.settings({})),
    "SETTINGS with many values": repeated(MANY_SETTINGS, OPEN),
    "SETTINGS acknowledgements": repeated(frames.frame(frames.SETTINGS, 1, 0)),
    "PRIORITY": repeated(priority(3, 1)),
    "empty DATA": repeated(data(1, b""), OPEN),
    "padding": repeated(data(1, b"\xff" + bytes(255), 8), OPEN),
    "WINDOW_UPDATE": repeated(frames.window_update(0, 1)),
    "WINDOW_UPDATE of a stream": repeated(frames.window_update(1, 1), OPEN),
    "unknown frames": repeated(frames.frame(0x42, 0, 0, b"x" * 100)),
    "GOAWAY": repeated(frames.goaway(0, 0, "x" * 100)),
}


@pytest.mark.parametrize("name", ATTACKS)
def test_a_flood_ends_the_connection(name):
    peer = Peer()
    sent = 0
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for count, part in enumerate(ATTACKS[name]()):
            sent += len(part)
            peer.machine.receive(part)
            if peer.machine.failure is not None:
                break
            if count % 16 == 15:
                peer.machine.outflow.take()
            assert count <= FRAMES_MAX, "the attack goes on"
        peak = tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()
    assert peer.machine.failure.code == ENHANCE_YOUR_CALM
    assert peak < MEMORY_BYTES_MAX, f"{peak} bytes after {sent}"
    assert not peer.machine.streams
    assert peer.machine.held_bytes == 0


def test_a_table_that_changes_stays_within_its_size():
    peer = Peer(begins=False)
    peer.machine.begin()
    peer.machine.receive(frames.PREFACE + frames.settings({}))
    for part in itertools.islice(table_changes(), 100):
        peer.machine.receive(part)
        assert peer.machine._reader.decoder.table_bytes <= 4096


def test_windows_above_what_is_allowed_end_the_connection():
    peer = Peer()
    sizes = itertools.repeat(data(1, bytes(16_384)))
    peer.machine.receive(OPEN)
    for part in itertools.islice(sizes, 1000):  # windows are given back as long as DATA is taken
        peer.machine.receive(part)
    assert peer.machine.failure is None
    assert peer.machine._window <= DEFAULTS.connection_window_bytes


def test_10_000_streams_at_once_are_refused_beyond_the_limit_and_cost_little():
    peer = Peer()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for number in itertools.islice(odd(), 10_000):
            peer.machine.receive(headers(number, flags=4))
            peer.machine.outflow.take()
        peak = tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()
    assert len(peer.streams) == DEFAULTS.streams_max
    assert peak < MEMORY_BYTES_MAX
    assert peer.machine.failure.code == ENHANCE_YOUR_CALM


def test_budgets_refill_so_that_busy_clients_are_served():
    peer = Peer()
    for _ in range(20):
        for _ in range(900):
            peer.send(frames.frame(frames.PING, 0, 0, bytes(8)))
        for number in range(90):
            first = peer.machine.last_stream_id + 2 - (peer.machine.last_stream_id == 0)
            assert peer.send(headers(first, flags=4), frames.rst_stream(first, 8)) == [], number
        peer.now += 1
    assert peer.machine.failure is None


def test_calls_and_sent_data_earn_what_their_client_sends_beside_them():
    peer = Peer()
    peer.send(frames.settings({4: 2**31 - 1}), frames.window_update(0, 1 << 20))
    for number in itertools.islice(odd(), 20_000):
        peer.machine.receive(headers(number))
        stream = peer.live.pop(number)
        peer.machine.outflow.head(stream, block({":status": "200"}), is_last=True)
        peer.machine.receive(frames.window_update(0, 1))
        peer.machine.receive(frames.frame(frames.PING, 0, 0, bytes(8)))
        peer.machine.outflow.take()
        peer.streams.clear()
    assert peer.machine.failure is None
