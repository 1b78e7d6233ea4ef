"""A histogram of durations with fixed buckets: cheap to update, in Prometheus' format."""

from __future__ import annotations

from bisect import bisect_left

BOUNDS_NS = tuple(
    round(value * 1_000)
    for value in (
        50, 100, 200, 400, 800, 1_500, 3_000, 6_000, 12_500, 25_000, 50_000, 100_000, 250_000,
        500_000, 1_000_000, 5_000_000,
    )
)  # fmt: skip
"""Upper bounds: 50 us to 5 s."""


class Histogram:
    """Counts of durations per bucket."""

    __slots__ = ("counts", "exemplars", "sum_ns")

    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS_NS) + 1)
        self.sum_ns = 0
        self.exemplars: dict[int, tuple[str, float]] = {}
        """By bucket: (trace id, duration in seconds) of the last request that was traced."""

    def add(self, duration_ns: int) -> None:
        """Count one duration."""
        self.counts[bisect_left(BOUNDS_NS, duration_ns)] += 1
        self.sum_ns += duration_ns

    def exemplify(self, duration_ns: int, trace_id: str) -> None:
        """A duration that was added belongs to this trace."""
        self.exemplars[bisect_left(BOUNDS_NS, duration_ns)] = trace_id, duration_ns / 1e9

    @property
    def sum_s(self) -> float:
        """The sum of all durations, in seconds."""
        return self.sum_ns / 1e9

    def cumulative(self) -> list[tuple[str, float]]:
        """(upper bound in seconds, durations up to it); the last bound is `+Inf`."""
        buckets: list[tuple[str, float]] = []
        total = 0
        for bound_ns, count in zip(BOUNDS_NS, self.counts, strict=False):
            total += count
            buckets.append((str(bound_ns / 1e9), total))
        buckets.append(("+Inf", total + self.counts[-1]))
        return buckets
