"""Messages at a steady rate through a plain socket: one process sends, one receives.

Invariants: the system's protocol is a `Channel`; this module has the clock and the rate. A
message's time starts when it was due if the sender was held up, and when it was sent if the sender
woke up late, as in `headrace_bench.latency`. Run as a program, this is the sending process.
"""

from __future__ import annotations

import importlib
import struct
import sys
import time
from typing import Protocol

from headrace_bench.hdr import HdrHistogram
from headrace_bench.latency import LATE_MAX_S, VALUE_BYTES, WARMUP_S, precise_sleep
from headrace_bench.processes import SystemFailed
from headrace_bench.systems.system import Latency
from headrace_bench.tools import check_server, tool

_LEAD_S = 0.3  # the receiver is ready before the first message is due


class Channel(Protocol):
    """A connection to one stream of a system."""

    def send(self, value: bytes) -> None:
        """Pass one message to the system; may wait if it cannot keep up."""
        ...

    def finish(self) -> None:
        """Return when all sent messages are acknowledged."""
        ...

    def receive(self) -> list[bytes]:
        """The next messages; empty if none arrived within a second."""
        ...


def _open(module: str, port: int, name: str) -> Channel:
    channel: Channel = importlib.import_module(module).open_channel(port, name)
    return channel


def send(channel: Channel, rate_per_s: int, seconds: float) -> None:
    """Send at a steady rate, each message when it is due."""
    precise_sleep()
    clock, pack = time.perf_counter_ns, struct.pack
    interval_ns = 1_000_000_000 // rate_per_s
    padding = b"x" * (VALUE_BYTES - 8)
    due_ns = free_ns = clock() + int(_LEAD_S * 1e9)
    for _ in range(int(rate_per_s * seconds)):
        wait_ns = due_ns - clock()
        if wait_ns > 0:
            time.sleep(wait_ns / 1e9)
        begin_ns = clock()
        start_ns = due_ns if free_ns > due_ns else begin_ns
        channel.send(pack(">q", start_ns) + padding)
        free_ns = clock()
        due_ns += interval_ns
    channel.finish()


def measure(module: str, port: int, name: str, rate_per_s: int, seconds: float) -> Latency:
    """Start the sender, receive everything. Raises SystemFailed if messages are missing."""
    precise_sleep()
    channel = _open(module, port, name)
    total = int(rate_per_s * (seconds + WARMUP_S))
    skip = int(rate_per_s * WARMUP_S)
    command = [sys.executable, "-m", __name__, module, str(port), name]
    command += [str(rate_per_s), str(seconds + WARMUP_S)]
    histogram = HdrHistogram()
    with tool(command) as sender:
        seen, last_ns = 0, time.perf_counter_ns()
        while seen < total:
            values = channel.receive()
            now_ns = time.perf_counter_ns()
            if not values:
                check_server()
                if now_ns - last_ns > LATE_MAX_S * 1e9 or sender.poll():
                    break
            for value in values:
                last_ns = now_ns
                seen += 1
                if seen > skip:
                    histogram.add(now_ns - struct.unpack_from(">q", value)[0])
        if seen < total and sender.poll() is None:
            sender.kill()
        _, output = sender.communicate(timeout=LATE_MAX_S)
    if sender.returncode or seen < total:
        words = output.decode(errors="replace")[-800:]
        raise SystemFailed(f"{total - seen} of {total} messages did not arrive; {words}")
    return Latency(histogram, {})


def _main() -> None:
    module, port, name, rate_per_s, seconds = sys.argv[1:]
    send(_open(module, int(port), name), int(rate_per_s), float(seconds))


if __name__ == "__main__":
    _main()
