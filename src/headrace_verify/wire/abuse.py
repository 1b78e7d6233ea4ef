"""The environment of an abuse case: hostile connections, seeded randomness, and what it sent.

Invariants: blocking sockets. Nothing that the broker does to us is an error here: a closed or
stalled connection is a result. Responses are kept, to be searched for what they must not contain;
requests are kept up to 4 KiB, to be replayed.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import struct
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from headrace.runtime.clock import SystemClock
from headrace_verify.rng import seeded

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Self

    from headrace_verify.real_broker import RealBroker

SENT_KEPT_BYTES = 4096
RECEIVED_KEPT_BYTES = 8 << 20
AT_ONCE = 64
"""Connections of one round of `Abuse.each`."""
PATIENCE_S = 10
"""For an expected response or close, also on a busy machine."""
_CLOCK = SystemClock()


class Case(NamedTuple):
    """One kind of abuse."""

    listener: str
    """`kafka`, `http` or `rocketmq`."""
    run: Callable[[Abuse], None]
    share: int = 0
    """Its share of the remaining time; 0 if it has a fixed length."""
    is_long: bool = False
    """Excluded from the quick profile."""

    @property
    def name(self) -> str:
        """What is done, and the required result."""
        return self.run.__name__.replace("_", " ").strip()


class Peer:
    """One hostile connection."""

    def __init__(self, abuse: Abuse, address: tuple[str, int], source: str = "") -> None:
        """`source`: the address from which it comes; "": any."""
        self._abuse = abuse
        self.socket = socket.create_connection(address, 10, (source, 0))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close it."""
        self.socket.close()

    def send(self, data: bytes, timeout_s: float = 5) -> int:
        """Send as much as is accepted within the time; returns the number of bytes."""
        self._abuse.note(data)
        self.socket.settimeout(0.1)
        view, sent = memoryview(data), 0
        end_ns = _CLOCK.now_ns() + int(timeout_s * 1e9)
        while sent < len(data) and _CLOCK.now_ns() < end_ns:
            try:
                sent += self.socket.send(view[sent : sent + (1 << 20)])
            except TimeoutError:
                continue
            except OSError:
                break
        return sent

    def end_sending(self) -> None:
        """Half-close."""
        with contextlib.suppress(OSError):
            self.socket.shutdown(socket.SHUT_WR)

    def receive(self, size: int, timeout_s: float = PATIENCE_S) -> bytes:
        """Receive `size` bytes, or fewer if it is closed or time is over."""
        received = bytearray()
        end_ns = _CLOCK.now_ns() + int(timeout_s * 1e9)
        while len(received) < size:
            left_s = (end_ns - _CLOCK.now_ns()) / 1e9
            if left_s <= 0:
                break
            self.socket.settimeout(left_s)
            try:
                part = self.socket.recv(min(size - len(received), 1 << 18))
            except OSError:
                break
            if not part:
                break
            received += part
        self._abuse.record_received(received)
        return bytes(received)

    def answer(self, timeout_s: float = PATIENCE_S) -> bytes | None:
        """Receive one response of the Kafka port without its size; None if there is none."""
        size = self.receive(4, timeout_s)
        if len(size) < 4:
            return None
        (length,) = struct.unpack(">i", size)
        body = self.receive(length, timeout_s)
        return body if len(body) == length else None

    def is_closed(self, timeout_s: float = PATIENCE_S) -> bool:
        """Whether the broker closes it within the time, whatever it sends before."""
        end_ns = _CLOCK.now_ns() + int(timeout_s * 1e9)
        while (left_s := (end_ns - _CLOCK.now_ns()) / 1e9) > 0:
            self.socket.settimeout(left_s)
            try:
                part = self.socket.recv(1 << 18)
            except TimeoutError:
                return False
            except OSError:
                return True
            if not part:
                return True
            self._abuse.record_received(part)
        return False


class Abuse:
    """One running case."""

    def __init__(self, broker: RealBroker, seed: int | str, seconds: float) -> None:
        self.broker = broker
        self.kafka = broker.address
        self.http = broker.http_address
        self.rng = seeded(seed)
        self.seconds = seconds
        """For a case that may use all the remaining time."""
        self.is_long = seconds >= 5
        self.sent = bytearray()
        self.sent_bytes = 0
        self.received = bytearray()
        self.faults: list[str] = []
        self.skipped: list[str] = []
        self.checked = 0
        self._peers: list[Peer] = []
        self._end_ns = _CLOCK.now_ns() + int(seconds * 1e9)

    @property
    def has_time(self) -> bool:
        """Whether there is time for more."""
        return _CLOCK.now_ns() < self._end_ns

    def open(self, *, is_http: bool = False, is_rocketmq: bool = False) -> Peer:
        """Open a connection; it is closed at the end of the case at the latest. Raises OSError."""
        address = self.http if is_http else self.kafka
        if is_rocketmq:
            address = self.broker.rocketmq_addresses[0]
        peer = Peer(self, address)
        self._peers.append(peer)
        return peer

    def close(self) -> None:
        """Close all connections."""
        for peer in self._peers:
            peer.close()
        self._peers.clear()

    def note(self, data: bytes) -> None:
        """Record sent bytes."""
        self.sent_bytes += len(data)
        self.sent += data[: max(0, SENT_KEPT_BYTES - len(self.sent))]

    def record_received(self, data: bytes | bytearray) -> None:
        """Record received bytes."""
        self.received += data[: max(0, RECEIVED_KEPT_BYTES - len(self.received))]

    def expect(self, is_so: bool, otherwise: str) -> None:
        """Check the case's own guarantee."""
        self.checked += 1
        if not is_so and len(self.faults) < 20:
            self.faults.append(otherwise)

    def must_close(self, data: bytes, what: str, *, is_http: bool = False) -> None:
        """Check that these bytes end the connection."""
        with self.open(is_http=is_http) as peer:
            peer.send(data)
            # One violation is enough: end the run.
            timeout_s = 0.2 if self.faults else PATIENCE_S
            self.expect(peer.is_closed(timeout_s), f"{what}: the connection stays open")

    def each(self, requests: Iterable[bytes], *, is_http: bool = False, wait_s: float = 0.3) -> int:
        """Send each on a separate half-closed connection, while there is time; returns their
        number."""
        waiting = iter(requests)
        count = 0
        while (self.has_time or not count) and (group := list(islice(waiting, AT_ONCE))):
            selector = selectors.DefaultSelector()
            for data in group:
                peer = self.open(is_http=is_http)
                peer.send(data, 1)
                peer.end_sending()
                peer.socket.setblocking(False)
                selector.register(peer.socket, selectors.EVENT_READ)
            self._receive_all(selector, wait_s)
            selector.close()
            self.close()
            count += len(group)
        self.checked += count
        return count

    def _receive_all(self, selector: selectors.BaseSelector, wait_s: float) -> None:
        end_ns = _CLOCK.now_ns() + int(wait_s * 1e9)
        while selector.get_map() and (left_s := (end_ns - _CLOCK.now_ns()) / 1e9) > 0:
            for key, _ in selector.select(left_s):
                peer = key.fileobj
                assert isinstance(peer, socket.socket)
                try:
                    part = peer.recv(1 << 18)
                except BlockingIOError:
                    continue
                except OSError:
                    part = b""
                self.record_received(part)
                if not part:
                    selector.unregister(peer)

    def pause(self, seconds: float) -> None:
        """Wait."""
        pause(seconds)


def pause(seconds: float) -> None:
    """Wait."""
    left, right = socket.socketpair()
    with left, right:
        left.settimeout(seconds)
        with contextlib.suppress(TimeoutError):
            left.recv(1)
