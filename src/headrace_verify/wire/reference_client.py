"""The well-behaved client: `python -m headrace_verify.wire.reference_client HOST PORT TOPIC FILE`.

Invariants: a separate process, so that it measures the broker and not the abuse. It writes one
record at a time with acks=all and records each acknowledgement in a file: number, offset, latency
in microseconds, end in monotonic ns. It exits when its input is closed. Any error or broken
connection is recorded, because it has given no reason for one.
"""

from __future__ import annotations

import select
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from headrace.records.codec import Record, encode_batch, iterate_records
from headrace.runtime.clock import SystemClock
from headrace_verify.kafka_wire import KafkaWire

if TYPE_CHECKING:
    from collections.abc import Sequence

PAUSE_S = 0.004
TIMEOUT_S = 90


class Write(NamedTuple):
    """An acknowledged write."""

    number: int
    offset: int
    latency_us: int
    at_ns: int


def value_of(number: int) -> bytes:
    """The bytes of a record."""
    return b"good %d " % number * 8


def _write(wire: KafkaWire, topic: str, number: int) -> Write:
    clock = SystemClock()
    batch = encode_batch([Record(0, clock.now_ms(), None, value_of(number))])
    begun_ns = clock.now_ns()
    offset = wire.produce(topic, 0, batch)
    end_ns = clock.now_ns()
    return Write(number, offset, (end_ns - begun_ns) // 1000, end_ns)


def main(host: str, port: str, topic: str, path: str) -> None:
    """Write until the input is closed."""
    number = 0
    with Path(path).open("w", buffering=1) as out:
        try:
            wire = KafkaWire((host, int(port)), TIMEOUT_S)
            while not select.select([sys.stdin], [], [], PAUSE_S)[0]:
                done = _write(wire, topic, number)
                out.write(" ".join(map(str, done)) + "\n")
                number += 1
        except OSError as error:
            out.write(f"failed {type(error).__name__}: {error}\n")


class ReferenceWrites:
    """The acknowledgements written so far, read while the file grows."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._at = 0
        self.writes: list[Write] = []
        self.failure = ""

    def read_new(self) -> None:
        """Read what was added."""
        if not self._path.exists():
            return
        with self._path.open("rb") as file:
            file.seek(self._at)
            new = file.read()
        whole = new[: new.rfind(b"\n") + 1]
        self._at += len(whole)
        for line in whole.decode().splitlines():
            if line.startswith("failed"):
                self.failure = line
            else:
                self.writes.append(Write(*map(int, line.split())))

    def since(self, at_ns: int) -> list[Write]:
        """Those that ended after `at_ns`."""
        self.read_new()
        first = len(self.writes)
        while first and self.writes[first - 1].at_ns > at_ns:
            first -= 1
        return self.writes[first:]


def percentile_ms(writes: Sequence[Write], part: float) -> float:
    """Latency in ms; -1 without any."""
    found = sorted(write.latency_us for write in writes)
    return found[min(len(found) - 1, int(len(found) * part))] / 1000 if found else -1.0


def find_lost(address: tuple[str, int], topic: str, writes: Sequence[Write]) -> list[str]:
    """Compare all acknowledged records with those stored."""
    wire = KafkaWire(address, TIMEOUT_S)
    stored: dict[int, bytes | None] = {}
    offset, end = 0, 1
    while offset < end:
        data, end = wire.fetch(topic, 0, offset)
        found = list(iterate_records(data))
        if not found:
            break
        stored.update((record.offset, record.value) for record in found)
        offset = found[-1].offset + 1
    wire.close()
    lost = [one for one in writes if stored.get(one.offset) != value_of(one.number)]
    return [
        f"record {one.number} was acknowledged at {one.offset}, but is missing" for one in lost[:5]
    ]


if __name__ == "__main__":
    main(*sys.argv[1:])
