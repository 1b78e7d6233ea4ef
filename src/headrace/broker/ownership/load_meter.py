"""Measures this broker's load: bytes in and out of its partitions, and CPU time.

Invariants: samples the partitions' counters periodically; the hot path pays one addition per fetch.
Each new rate is averaged with the previous one, so that a burst counts little.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from headrace.metadata.load_facts import LoadFact, PartitionRate

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace.broker.topics.ownership import Ownership
    from headrace.broker.topics.topics import Topics
    from headrace.log.partition_log import PartitionLog
    from headrace.metadata.facts import PartitionKey
    from headrace.runtime.clock import Clock

NAMED_MAX = 32
"""Partitions reported by name: only the busiest are worth moving, and the fact stays small."""


class _Seen(NamedTuple):
    """A partition's counters at the previous sample."""

    log: PartitionLog
    ledger: int
    end_position: int
    fetched_bytes: int


class LoadMeter:
    """The load of one broker."""

    def __init__(
        self,
        topics: Topics,
        ownership: Ownership,
        clock: Clock,
        cpu_ns: Callable[[], int] | None = None,
    ) -> None:
        """`cpu_ns`: the CPU time used so far; None if it is not measured."""
        self._used_ns = cpu_ns or (lambda: 0)
        self._topics = topics
        self._ownership = ownership
        self._clock = clock
        self._seen: dict[PartitionKey, _Seen] = {}
        self._rates: dict[PartitionKey, tuple[int, int]] = {}
        """Bytes per second, in and out."""
        self._measured_ns = clock.now_ns()
        self._cpu_ns = 0
        self._cpu_permille = 0

    def measure(self, incarnation: str) -> LoadFact:
        """The load since the previous call, averaged with the one before."""
        now_ns, cpu_ns = self._clock.now_ns(), self._used_ns()
        elapsed_ns = max(now_ns - self._measured_ns, 1)
        permille = (cpu_ns - self._cpu_ns) * 1000 // elapsed_ns
        self._cpu_permille = (self._cpu_permille + permille) // 2
        self._measured_ns, self._cpu_ns = now_ns, cpu_ns
        seen: dict[PartitionKey, _Seen] = {}
        rates: dict[PartitionKey, tuple[int, int]] = {}
        named: list[PartitionRate] = []
        for topic in self._topics.by_id.values():
            for number, log in topic.logs:
                if not log.segments or not self._ownership.is_mine(topic, number):
                    continue
                key = topic.id, number
                last = log.segments[-1]
                seen[key] = _Seen(log, last.ledger, last.end_position, log.traffic.out_bytes)
                carried = _carried(log, self._seen.get(key))
                before = self._rates.get(key, (0, 0))
                into, out = (
                    (old + size * 10**9 // elapsed_ns) // 2
                    for old, size in zip(before, carried, strict=True)
                )
                rates[key] = into, out
                if into + out and not topic.is_internal:
                    named.append(PartitionRate(topic.id, number, into + out))
        self._seen, self._rates = seen, rates
        named.sort(key=lambda rate: (-rate.bytes_per_s, rate.topic.bytes, rate.partition))
        return LoadFact(
            incarnation,
            sum(into for into, _ in rates.values()),
            sum(out for _, out in rates.values()),
            self._cpu_permille,
            named[:NAMED_MAX],
        )


def _carried(log: PartitionLog, before: _Seen | None) -> tuple[int, int]:
    """Bytes in and out since `before`; a partition seen for the first time counts from zero."""
    if before is None or before.log is not log:
        return 0, 0
    came = 0
    for segment in reversed(log.segments):
        if segment.ledger == before.ledger:
            came += segment.end_position - before.end_position
            break
        came += segment.end_position
    else:  # retention has dropped the previous position, so the difference is unknown
        came = log.segments[-1].end_position
    return max(came, 0), log.traffic.out_bytes - before.fetched_bytes
