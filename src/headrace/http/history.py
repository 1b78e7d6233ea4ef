"""An hour of the broker's own figures: sampled at a fixed interval into bounded memory.

Invariants: one sample reads plain integers and the state of the disk, whatever the number of
topics, partitions, groups and clients; nothing is kept for each of them. Counters are kept as they
are, so that rates over any span are exact.
"""

from __future__ import annotations

import asyncio
import logging
from array import array
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from headrace.runtime.clock import process_cpu_ns
from headrace.runtime.process_memory import process_memory

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace.broker.services.services import Services
    from headrace.runtime.clock import Clock

log = logging.getLogger(__name__)

INTERVAL_S: Final = 5
SAMPLES_MAX: Final = 3_600 // INTERVAL_S
Json = dict[str, Any]


class KafkaFigures(Protocol):
    """What the Kafka face counts."""

    connections: Any
    produce: Any
    fetch: Any


class Sample(NamedTuple):
    """What is read at one time: counters since the broker's start, then gauges."""

    records_in: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    """To consumers by Kafka's Fetch and ShareFetch."""
    refused_batches: int = 0
    dead_letters: int = 0
    cpu_us: int = 0
    connections: int = 0
    memory_bytes: int = 0
    disk_free_bytes: int = -1
    """-1: the ledgers are not on this machine, or the disk does not answer."""


COUNTERS: Final = Sample._fields[:6]
GAUGES: Final = Sample._fields[6:]


class History:
    """The samples, and a wait for the next one."""

    def __init__(self, clock: Clock, read: Callable[[], Sample]) -> None:
        self._clock = clock
        self._read = read
        self.started_ms = clock.now_ms()
        self.taken = 0
        """Samples since the broker's start. The last one has the number `taken` - 1."""
        self._at_ms = array("q", bytes(8 * SAMPLES_MAX))
        self._columns = [array("q", bytes(8 * SAMPLES_MAX)) for _ in Sample._fields]
        self._next = asyncio.Event()

    async def run(self) -> None:
        """Take a sample at each interval, until cancelled."""
        while True:
            self.take()
            await asyncio.sleep(INTERVAL_S)

    def take(self) -> None:
        """Take a sample, and wake those that wait for it."""
        place = self.taken % SAMPLES_MAX
        self._at_ms[place] = self._clock.now_ms()
        for column, value in zip(self._columns, self._read(), strict=True):
            column[place] = value
        self.taken += 1
        self._next.set()
        self._next = asyncio.Event()

    async def wait_next(self) -> None:
        """Return when another sample was taken."""
        await self._next.wait()

    @property
    def first(self) -> int:
        """The number of the oldest sample that is kept."""
        return max(0, self.taken - SAMPLES_MAX)

    def sample(self, number: int) -> tuple[int, Sample]:
        """(its time in ms since 1970, the sample)."""
        assert self.first <= number < self.taken, number
        place = number % SAMPLES_MAX
        return self._at_ms[place], Sample(*(column[place] for column in self._columns))

    def point(self, number: int, before: int) -> Json:
        """A sample for display: gauges, and rates since the sample `before`, an earlier one."""
        (at_ms, now), (then_ms, then) = self.sample(number), self.sample(before)
        span_ms = max(at_ms - then_ms, 1)  # the system clock may have been set back
        found: Json = {"at_ms": at_ms}
        for name in COUNTERS:
            grown = getattr(now, name) - getattr(then, name)
            found[f"{name}_per_s"] = round(max(grown, 0) * 1000 / span_ms, 1)
        # Microseconds a second are millionths of a core.
        found["cpu_percent"] = round(found.pop("cpu_us_per_s") / 10_000, 1)
        return found | {name: getattr(now, name) for name in GAUGES}

    def spans(self, width_ms: int) -> list[tuple[int, Json]]:
        """(the number of a span since 1970, its point), of each span that is over, so that those of
        several brokers can be added; a span without a sample has the point of the one before."""
        found: list[tuple[int, Json]] = []
        before, span = -1, -1
        for number in range(self.first, self.taken):
            now = self._at_ms[number % SAMPLES_MAX] // width_ms
            if now == span:
                continue
            if before >= 0:
                point = self.point(number, before)
                found += [(each, point) for each in range(span, min(now, span + SAMPLES_MAX))]
            before, span = number, now
        return found

    def points(self, count_max: int) -> list[Json]:
        """At most so many points over all samples, each the mean since the one before it."""
        first, last = self.first, self.taken - 1
        step = max(1, -(-(last - first) // count_max))
        numbers = range(last, first, -step)
        return [self.point(number, max(number - step, first)) for number in reversed(numbers)]


def reader(services: Services, kafka: KafkaFigures) -> Callable[[], Sample]:
    """What reads a sample of a broker."""

    def read() -> Sample:
        appends, disk = services.appends, services.topics.disk
        free_bytes = -1
        if disk is not None:
            try:
                free_bytes = disk.space().free_bytes
            except OSError as error:
                log.debug("how much of the disk is free cannot be read: %s", error)
        return Sample(
            records_in=appends.records_total,
            bytes_in=appends.bytes_total,
            bytes_out=kafka.fetch.bytes_total,
            refused_batches=kafka.produce.errors_total,
            dead_letters=services.dead_letters.copied_total,
            cpu_us=process_cpu_ns() // 1_000,
            connections=len(kafka.connections),
            memory_bytes=process_memory().now_bytes,
            disk_free_bytes=free_bytes,
        )

    return read
