"""The measured client: `python -m headrace_verify.soak.probe KAFKA TOPIC FILE`.

Invariants: a separate process, unaffected by the load's threads. Each round writes one record with
acks=all and reads it back, in alternating partitions: each broker has one. Every fifth round is
followed by a control measurement without a broker: a wake-up and a synced write. Prints a line per
round: its end in monotonic ns, produce, fetch and control in microseconds (-1: no control). Exits
when its input is closed.
"""

from __future__ import annotations

import os
import select
import sys
from pathlib import Path
from typing import NamedTuple

from headrace.records.codec import Record, encode_batch, iterate_records
from headrace.runtime.clock import SystemClock
from headrace_verify.blackbox.routing import Place
from headrace_verify.real_broker import addresses_in
from headrace_verify.soak.worker import Asking

PAUSE_S = 0.02
CONTROL_EVERY = 5
CONTROL_PAUSE_S = 0.001
NO_CONTROL = -1


class Round(NamedTuple):
    """One line."""

    at_ns: int
    produce_us: int
    fetch_us: int
    control_us: int


def main(kafka: str, topic: str, path: str) -> None:
    """Measure until the input is closed."""
    addresses = addresses_in(kafka)
    number = 0
    control = os.open(f"{path}.control", os.O_CREAT | os.O_WRONLY)
    with Path(path).open("w", buffering=1) as out:
        try:
            asking = Asking(addresses)
            while not select.select([sys.stdin], [], [], PAUSE_S)[0]:
                place = Place(topic, number % len(addresses))
                done = _round(asking, place, number, control)
                out.write(" ".join(map(str, done)) + "\n")
                number += 1
        except OSError as error:
            out.write(f"failed {type(error).__name__}: {error}\n")


def _round(asking: Asking, place: Place, number: int, control: int) -> Round:
    clock = SystemClock()
    value = b"probe %d " % number * 8
    batch = encode_batch([Record(0, clock.now_ms(), None, value)])
    begun_ns = clock.now_ns()
    offset = asking.ask(lambda wire: wire.produce(*place, batch), place)
    written_ns = clock.now_ns()
    data, _ = asking.ask(lambda wire: wire.fetch(*place, offset), place)
    end_ns = clock.now_ns()
    found = [record.value for record in iterate_records(data) if record.offset == offset]
    if found != [value]:
        raise ConnectionError(f"offset {offset} was acknowledged, but holds other data")
    control_us = NO_CONTROL
    if number % CONTROL_EVERY == 0:
        control_us = _control_us(control)
    return Round(end_ns, (written_ns - begun_ns) // 1000, (end_ns - written_ns) // 1000, control_us)


def _control_us(file: int) -> int:
    clock = SystemClock()
    begun_ns = clock.now_ns()
    select.select([], [], [], CONTROL_PAUSE_S)
    os.pwrite(file, b"control" * 20, 0)
    os.fdatasync(file)
    return (clock.now_ns() - begun_ns) // 1000


class Probed:
    """The rounds written so far, read while the file grows."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._at = 0
        self.rounds = 0
        self.failure = ""

    def new(self) -> list[Round]:
        """The rounds since the last call."""
        if not self._path.exists():
            return []
        with self._path.open("rb") as file:
            file.seek(self._at)
            found = file.read()
        whole = found[: found.rfind(b"\n") + 1]
        self._at += len(whole)
        rounds = []
        for line in whole.decode().splitlines():
            if line.startswith("failed"):
                self.failure = line
            else:
                rounds.append(Round(*map(int, line.split())))
        self.rounds += len(rounds)
        return rounds


if __name__ == "__main__":
    main(*sys.argv[1:])
