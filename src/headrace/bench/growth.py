"""How throughput, CPU and memory change as one thing grows: partitions, connections, consumers, ...

Rules of the room: Headrace and Apache Kafka, for both take the same clients; nothing is synced on
either, so that what grows is seen and not the disk. One thing grows at a time. Series are data;
each kind of point has one function.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rich.console import Console

from headrace.bench import java_tools, raw_client
from headrace.bench.figures import Figures, figures_of, shown
from headrace.bench.measures import open_idle
from headrace.bench.peers import raise_file_limit
from headrace.bench.processes import Usage, usage_of
from headrace.bench.workloads import UNSYNCED

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from headrace.bench.systems.kafka_protocol import KafkaProtocolSide

CONSOLE = Console(stderr=True, soft_wrap=True)
SIDES = ("headrace", "kafka")
_FETCH_BYTES = 1 << 20
_FILL_BYTES = 1024


@dataclass(frozen=True, slots=True)
class Series:
    """One thing that grows."""

    name: str
    title: str
    axis: str
    values: tuple[int, ...]
    figure: str = "mb_per_s"
    """What the chart shows beside CPU and memory."""


SERIES: tuple[Series, ...] = (
    Series("growth-partitions", "Produce 1 KiB records to more partitions", "partitions",
           (1, 10, 100, 1000)),
    Series("growth-size", "Produce larger records", "record size, bytes",
           (100, 1024, 10_240, 102_400, 900_000)),
    Series("growth-connections", "Produce 1 KiB records beside idle connections",
           "idle connections", (1, 1000, 5000)),
    Series("growth-consumers", "Fetch the same records by more consumers", "consumers",
           (1, 4, 16)),
    Series("growth-backlog", "Read a longer backlog from its beginning", "backlog, MB",
           (10, 100, 500)),
)  # fmt: skip
PRODUCE_BYTES = {100: 20_000_000, 1024: 60_000_000}
"""Record size -> how much is written; of larger ones as much as of the largest here."""


class Growth:
    """Runs series on sides that are started already."""

    def __init__(self, sides: Sequence[KafkaProtocolSide], rounds: int, length: float) -> None:
        self._sides = sides
        self._rounds = rounds
        self._length = length
        self._numbers = iter(range(1, 1_000_000))
        self._kinds: dict[str, Callable[[KafkaProtocolSide, int], Figures]] = {
            "growth-partitions": lambda side, value: self._produce(side, 1024, value),
            "growth-size": lambda side, value: self._produce(side, value, 1),
            "growth-connections": self._connections,
            "growth-consumers": self._consumers,
            "growth-backlog": lambda side, value: self._read(side, value * 1_000_000, 1),
        }

    def run(self, series: Series) -> dict[str, Any]:
        """All points of a series: `<system>/unsynced` -> value -> figures, one a round."""
        entry: dict[str, Any] = {"rounds": {}, "failures": []}
        for value in series.values:
            for _ in range(self._rounds):
                for side in self._sides:
                    key = f"{side.name}/{side.policy}"
                    try:
                        figures = self._kinds[series.name](side, value)
                    except Exception as error:
                        said = str(error) or type(error).__name__
                        entry["failures"].append(f"{key} at {value}: {said}"[:300])
                        CONSOLE.print(f"[red]{series.name} {key} {value}[/red]: {said}")
                        continue
                    CONSOLE.print(f"  {series.name} {value}: {key}: {shown(figures)}")
                    points = entry["rounds"].setdefault(key, {})
                    points.setdefault(str(value), []).append(figures)
        return entry

    def _name(self) -> str:
        return f"growth-{next(self._numbers):06d}"

    def _produce(self, side: KafkaProtocolSide, record_bytes: int, partitions: int) -> Figures:
        size = PRODUCE_BYTES.get(record_bytes, PRODUCE_BYTES[1024]) * self._length
        records = max(200, int(size / record_bytes))
        name = self._name()
        side.create(name, partitions)
        try:
            before = usage_of(side.pids)
            done = java_tools.producer_performance(
                side.peer.bootstrap, name, records, record_bytes, records // 4
            )
            used = usage_of(side.pids).since(before)
        finally:
            side.drop(name)
        return figures_of(records + records // 4, record_bytes, done.records_per_s, used)

    def _connections(self, side: KafkaProtocolSide, count: int) -> Figures:
        raise_file_limit(count + 1000)
        opened = open_idle(side.peer, count)
        try:
            return self._produce(side, 1024, 1)
        finally:
            for connection in opened:
                connection.close()

    def _consumers(self, side: KafkaProtocolSide, count: int) -> Figures:
        return self._read(side, 60_000_000, count)

    def _read(self, side: KafkaProtocolSide, size_bytes: int, consumers: int) -> Figures:
        """Fill a topic, then read it from its beginning by so many connections at once."""
        records = max(1_000, int(size_bytes * self._length) // _FILL_BYTES)
        name = self._name()
        side.create(name)
        try:
            java_tools.producer_performance(side.peer.bootstrap, name, records, _FILL_BYTES, 0)
            before = usage_of(side.pids)
            with ThreadPoolExecutor(consumers) as pool:
                reads = [
                    pool.submit(
                        raw_client.fetch_all, side.peer.bootstrap, name, records, _FETCH_BYTES
                    )
                    for _ in range(consumers)
                ]
                seconds = max(read.result()[1] for read in reads)
            used: Usage = usage_of(side.pids).since(before)
        finally:
            side.drop(name)
        total = records * consumers
        return figures_of(total, _FILL_BYTES, total / seconds, used)


def of_sides(sides: Sequence[Any]) -> list[KafkaProtocolSide]:
    """Those of the started sides that the series are for."""
    return [side for side in sides if side.name in SIDES and side.policy == UNSYNCED]
