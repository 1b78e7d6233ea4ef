"""How throughput, CPU and memory change with one variable: partitions, connections, consumers, ...

Invariants: only Headrace and Apache Kafka, which support the same clients; unsynced on both sides,
so that the disk does not dominate. One variable changes at a time. Series are data; each kind of
point has one function.
"""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from headrace_bench import java_tools, raw_client
from headrace_bench.figures import Figures, figures_of
from headrace_bench.measures import open_idle
from headrace_bench.peers import raise_file_limit
from headrace_bench.processes import SystemFailed, usage_of
from headrace_bench.tools import Steady, Window

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace_bench.systems.kafka_protocol import KafkaProtocolSide

SIDES = ("headrace", "kafka")
WINDOW = Window(1.5, 3.0)
"""For each point of writing: the broker is warm by then, the tool is new."""
READ_S = 1.5
"""Each point of reading starts at the beginning again until this much time has passed."""
_FETCH_BYTES = 1 << 20
_FILL_BYTES = 1024
_CONSUMED_BYTES = 100_000_000


@dataclass(frozen=True, slots=True)
class Series:
    """A series: one variable."""

    name: str
    title: str
    axis: str
    values: tuple[int, ...]
    figure: str = "mb_per_s"
    """What the chart shows in addition to CPU and memory."""
    every: int = 2
    """Run in every nth round, starting with the first."""

    def is_in(self, number: int) -> bool:
        """Whether round `number` (from 1) includes it."""
        return (number - 1) % self.every == 0


SERIES: tuple[Series, ...] = (
    Series("growth-partitions", "Produce 1 KiB records, by partitions", "partitions",
           (1, 10, 100, 1000)),
    Series("growth-size", "Produce, by record size", "record size, bytes",
           (100, 1024, 10_240, 102_400, 900_000)),
    Series("growth-connections", "Produce 1 KiB records, by idle connections",
           "idle connections", (0, 1000, 5000)),
    Series("growth-consumers", "Fetch, by number of consumers", "consumers",
           (1, 4, 16)),
    Series("growth-backlog", "Read a backlog, by its size", "backlog, MB",
           (10, 100, 500)),
)  # fmt: skip
FILLED_BYTES = max(SERIES[-1].values) * 1_000_000


class Producing(NamedTuple):
    """Writing to one topic, next to idle connections."""

    record_bytes: int
    partitions: int
    connections: int


class Fetching(NamedTuple):
    """Reading the beginning of one topic, by several consumers concurrently."""

    size_bytes: int
    consumers: int


Work = Producing | Fetching


def work_of(series: Series, value: int) -> Work:
    """The parameters of one point; points of several series may be equal."""
    if series.name == "growth-partitions":
        return Producing(1024, value, 0)
    if series.name == "growth-size":
        return Producing(value, 1, 0)
    if series.name == "growth-connections":
        return Producing(1024, 1, value)
    if series.name == "growth-consumers":
        return Fetching(_CONSUMED_BYTES, value)
    return Fetching(value * 1_000_000, 1)


class Filled(NamedTuple):
    """A topic of one partition that holds at least this many records of 1 KiB."""

    name: str
    records: int


class Growth:
    """Runs the points of all series on one started side; a point of two series is run once."""

    def __init__(self, side: KafkaProtocolSide, length: float, names: Callable[[], str]) -> None:
        self._side = side
        self._length = length
        self._name = names
        self._done: dict[Work, Figures] = {}
        self.filled: Filled | None = None
        """An existing topic to read from."""

    def learn(self, record_bytes: int, figures: Figures) -> None:
        """What was already measured on this side: one partition, no idle connections."""
        self._done[Producing(record_bytes, 1, 0)] = figures

    def point(self, series: Series, value: int) -> Figures:
        """One point of one series. Raises the errors of the tools and the broker."""
        work = work_of(series, value)
        if work not in self._done:
            doing = self._produce if isinstance(work, Producing) else self._fetch
            self._done[work] = doing(*work)
        return self._done[work]

    def _produce(self, record_bytes: int, partitions: int, connections: int) -> Figures:
        raise_file_limit(connections + 1000)
        opened = open_idle(self._side.peer, connections)
        name = self._name()
        window = WINDOW.times(self._length)
        try:
            done = self._side.produce(name, record_bytes, window, partitions)
        finally:
            for connection in opened:
                connection.close()
            self._side.drop(name)
        return figures_of(done, record_bytes)

    def _fetch(self, size_bytes: int, consumers: int) -> Figures:
        """Read the topic's beginning with this many connections concurrently, for a while."""
        filled = self._fill()
        wanted = int(size_bytes * self._length) // _FILL_BYTES
        if filled.records < wanted:
            raise SystemFailed(f"the topic holds only {filled.records:,} of {wanted:,} records")
        return figures_of(self._fetched(filled.name, wanted, consumers), _FILL_BYTES)

    def _fetched(self, name: str, records: int, consumers: int) -> Steady:
        bootstrap, seconds, passes = self._side.peer.bootstrap, 0.0, 0
        before, deadline = usage_of(self._side.pids), time.monotonic() + READ_S * self._length
        with ThreadPoolExecutor(consumers) as pool:
            while not passes or time.monotonic() < deadline:
                reads = [
                    pool.submit(raw_client.fetch_all, bootstrap, name, records, _FETCH_BYTES)
                    for _ in range(consumers)
                ]
                seconds += max(read.result()[1] for read in reads)
                passes += 1
        used = usage_of(self._side.pids).since(before)
        total = float(records * consumers * passes)
        return Steady(total, seconds, used, total)

    def _fill(self) -> Filled:
        wanted = int(FILLED_BYTES * self._length) // _FILL_BYTES
        if self.filled is None or self.filled.records < wanted:
            name = self._name()
            self._side.create(name)
            bootstrap = self._side.peer.bootstrap
            java_tools.producer_performance(bootstrap, name, wanted, _FILL_BYTES, 0)
            self.filled = Filled(name, wanted)
        return self.filled
