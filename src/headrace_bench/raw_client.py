"""A client that uses less CPU than any broker: requests encoded once, responses only counted.

Invariants: plain sockets, hand-written Kafka protocol (do not change: protocol). One thread drives
every connection; each keeps a fixed number of requests in flight. Every response's error code is
checked: a broker gains nothing by rejecting quickly.
"""

from __future__ import annotations

import selectors
import socket
import struct
import time
from typing import NamedTuple

import crc32c

from headrace.kafka.client.blocking import BlockingConnection
from headrace.kafka.client.exchange import API_VERSIONS, request_frame

PRODUCE, FETCH = 0, 1
CLIENT_ID = b"headrace-bench"
_CORRELATION_ID = 7


def _frame(api: int, version: int, body: bytes) -> bytes:
    return request_frame(CLIENT_ID, api, version, _CORRELATION_ID, body, is_flexible=False)


def answers_api_versions(host: str, port: int) -> bool:
    """Whether a broker at this address responds to a request."""
    try:
        with BlockingConnection((host, port), 1.0, CLIENT_ID) as connection:
            return len(connection.call(API_VERSIONS, 0, b"", is_flexible=False)) > 0
    except OSError:
        return False


def _varint(value: int) -> bytes:
    value = (value << 1) ^ (value >> 63)
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def single_record_batch(value: bytes, timestamp_ms: int) -> bytes:
    """A record batch v2 with one record, no key, no headers, no compression."""
    record = b"\x00" + _varint(0) + _varint(0) + _varint(-1) + _varint(len(value)) + value + b"\x00"
    record = _varint(len(record)) + record
    tail = struct.pack(">hiqqqhii", 0, 0, timestamp_ms, timestamp_ms, -1, -1, -1, 1) + record
    head = struct.pack(">qiibI", 0, 4 + 1 + 4 + len(tail), 0, 2, crc32c.crc32c(tail))
    return head + tail


def produce_request(topic: str, partition: int, batch: bytes) -> bytes:
    """Produce v7 with one batch, acks=all."""
    name = topic.encode()
    body = struct.pack(">hhiih", -1, -1, 30_000, 1, len(name)) + name
    body += struct.pack(">iii", 1, partition, len(batch)) + batch
    return _frame(PRODUCE, 7, body)


class Counted(NamedTuple):
    """The result of a run of requests. `latencies_us` is sorted, of one-at-a-time runs only."""

    requests: int
    seconds: float
    latencies_us: list[float]


class _Connection:
    """One socket with a fixed number of Produce requests in flight."""

    def __init__(self, address: tuple[str, int], topic: str, in_flight: int) -> None:
        self.socket = BlockingConnection(address, 10.0, CLIENT_ID).socket
        batch = single_record_batch(b"x" * 100, time.time_ns() // 1_000_000)
        request = produce_request(topic, 0, batch)
        self.request_size = len(request)
        self.window = memoryview(request * in_flight)
        self.in_flight = in_flight
        # size, correlation, topics, name, partitions, index, error: all of fixed length.
        self.error_at = 4 + 4 + 4 + 2 + len(topic) + 4 + 4
        self.answer_size = self.error_at + 2 + 8 + 8 + 8 + 4
        self.rest = b""
        self.answers = 0

    def send(self, count: int) -> None:
        """Send this many requests in one call."""
        self.socket.sendall(self.window[: count * self.request_size])

    def wait_accepted(self) -> None:
        """Send single requests until one is stored: electing a new topic's leader may take a
        moment."""
        deadline = time.monotonic() + 10.0
        while True:
            self.send(1)
            try:
                while self.receive() == 0:
                    pass
            except RuntimeError:
                if time.monotonic() > deadline:
                    raise
                self.rest = b""
                time.sleep(0.05)
            else:
                self.answers = 0
                return

    def receive(self) -> int:
        """Count complete responses. Raises RuntimeError if the broker rejected one."""
        data = self.socket.recv(262_144)
        if not data:
            raise ConnectionError("the broker closed the connection")
        data = self.rest + data
        count = len(data) // self.answer_size
        end = count * self.answer_size
        high, low = self.error_at, self.error_at + 1
        if any(data[high : end : self.answer_size]) or any(data[low : end : self.answer_size]):
            code = struct.unpack_from(">h", data, self.error_at)[0]
            raise RuntimeError(f"the broker rejected a Produce request with error code {code}")
        self.rest = data[end:]
        self.answers += count
        return count


def produce_single_records(
    bootstrap: str, topic: str, connections: int, in_flight: int, seconds: float
) -> Counted:
    """Send single-record requests for `seconds`, `in_flight` at a time on each connection."""
    host, _, port = bootstrap.rpartition(":")
    open_ = [_Connection((host, int(port)), topic, in_flight) for _ in range(connections)]
    try:
        open_[0].wait_accepted()
        if connections == 1 and in_flight == 1:
            return _one_at_a_time(open_[0], seconds)
        return _pipelined(open_, seconds)
    finally:
        for connection in open_:
            connection.socket.close()


def _one_at_a_time(connection: _Connection, seconds: float) -> Counted:
    latencies = []
    started = time.perf_counter()
    deadline = started + seconds
    now = started
    while now < deadline:
        connection.send(1)
        while connection.receive() == 0:
            pass
        after = time.perf_counter()
        latencies.append((after - now) * 1e6)
        now = after
    return Counted(len(latencies), now - started, sorted(latencies))


def _pipelined(connections: list[_Connection], seconds: float) -> Counted:
    with selectors.DefaultSelector() as selector:
        for connection in connections:
            selector.register(connection.socket, selectors.EVENT_READ, connection)
        started = time.perf_counter()
        for connection in connections:
            connection.send(connection.in_flight)
        deadline = started + seconds
        while time.perf_counter() < deadline:
            for key, _ in selector.select(1.0):
                connection = key.data
                connection.send(connection.receive())
        elapsed = time.perf_counter() - started
        counted = sum(connection.answers for connection in connections)
        for connection in connections:  # let the last window complete
            while connection.answers % connection.in_flight and connection.receive() < 0:
                pass
    return Counted(counted, elapsed, [])


def fetch_request(
    topic: str, partition: int, offset: int, size_bytes: int, isolation: int = 0
) -> bytes:
    """Fetch v4 without a session; isolation 1 is read_committed."""
    name = topic.encode()
    body = struct.pack(">iiiibih", -1, 500, 1, size_bytes, isolation, 1, len(name)) + name
    body += struct.pack(">iiqi", 1, partition, offset, size_bytes)
    return _frame(FETCH, 4, body)


def fetch_all(
    bootstrap: str, topic: str, end: int, size_bytes: int, isolation: int = 0
) -> tuple[int, float]:
    """Read partition 0 up to offset `end`, one fetch at a time; returns (bytes of records,
    seconds)."""
    host, _, port = bootstrap.rpartition(":")
    # correlation, throttle, topics, name, partitions; then the partition's own fields.
    at = 4 + 4 + 4 + 2 + len(topic) + 4
    offset, total = 0, 0
    buffer = bytearray(size_bytes * 2 + 65_536)
    with BlockingConnection((host, int(port)), 30.0, CLIENT_ID) as connection:
        connection.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2_097_152)
        started = time.perf_counter()
        while offset < end:
            connection.send(fetch_request(topic, 0, offset, size_bytes, isolation))
            answer = connection.receive_into(buffer)
            _, error, _, _, aborted = struct.unpack_from(">ihqqi", answer, at)
            if error:
                raise RuntimeError(f"the broker rejected a Fetch with error code {error}")
            place = at + 26 + max(aborted, 0) * 16
            (size,) = struct.unpack_from(">i", answer, place)
            offset = _next_offset(answer[place + 4 : place + 4 + size], offset)
            total += size
        return total, time.perf_counter() - started


def _next_offset(batches: memoryview, offset: int) -> int:
    """The end of the last complete batch (the last one may be truncated)."""
    place = 0
    while place + 61 <= len(batches):
        base, length = struct.unpack_from(">qi", batches, place)
        if place + 12 + length > len(batches):
            break
        offset = base + struct.unpack_from(">i", batches, place + 23)[0] + 1
        place += 12 + length
    return offset
