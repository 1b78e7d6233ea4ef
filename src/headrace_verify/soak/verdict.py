"""What must hold for brokers under long load, derived from their samples.

Invariants: pure: samples in, text out. A figure may grow by its limit per hour, or by its floor
within the run, whichever is larger: a one-time allocation is not a leak. Each process is judged
separately. Latency is compared with its own beginning and with a control measurement without a
broker: a slower machine is not the broker's fault.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

from headrace_verify.soak.trend import trend

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from headrace_verify.soak.samples import Process, Sample, Shared
    from headrace_verify.soak.trend import Trend

MIB = 1 << 20
RSS_BYTES_MAX = 768 * MIB
"""At any time."""
LATENCY_TIMES_MAX, LATENCY_FLOOR_MS, CONTROL_TIMES = 2, 40, 3
"""The maximum of the last third's median: the first third's times this factor, plus this constant,
plus three times the control's growth, because a request waits for the machine more than once."""
NOISY_S = 60
"""In a run shorter than this, the floors of latency and CPU are this much higher: fluctuations of a
machine last for seconds."""
CPU_TIMES_MAX, CPU_FLOOR = 2, 0.3
"""Likewise, of the broker's share of a core: the load is constant."""
SHARE_OF_WARM_UP, WARM_UP_S_MAX = 0.3, 180


SWEEP_INTERVAL_MS, SWEEP_GRACE_MS = 3_000, 20_000
"""The garbage collection settings of a soaked cluster's brokers."""
LEFT_S_MAX = 60
"""The maximum age of leftovers: the grace period, two rounds of the collector, and a slow
machine."""
PEER_POOLS = 3
"""A broker may keep that many connections to each other one: for what it asks again and again, such
as lag, which may begin after the load."""


class Limit(NamedTuple):
    """The maximum growth of a figure."""

    name: str
    figure: Callable[[Sample], float | None]
    floor: float
    """Within the run."""
    per_hour: float


class Return(NamedTuple):
    """The maximum difference between before and after the load."""

    name: str
    figure: Callable[[Sample], float | None]
    more_max: float


def memory_bytes(process: Process) -> float | None:
    """Resident memory, except caches."""
    return None if process.rss_bytes is None else process.rss_bytes - process.cache_bytes


OF_PROCESS: tuple[tuple[str, Callable[[Process], float | None], float, float, float], ...] = (
    # Maximum growth within a run, within an hour, and after the load. The last is much less than a
    # leak leaves in hours, and much more than allocators retain.
    ("memory, bytes", memory_bytes, 24 * MIB, 24 * MIB, 128 * MIB),
    ("sockets", lambda one: one.sockets, 30, 30, 4),
    ("open files", lambda one: one.files, 40, 60, 64),
    ("threads", lambda one: one.threads, 8, 4, 16),
    ("tasks", lambda one: one.tasks, 40, 40, 8),
)


def overhead_bytes(sample: Sample) -> float:
    """Disk usage in addition to the logs."""
    return sample.folder_bytes - sample.copies * sum(sample.log_bytes.values())


def bounded_bytes(endless: str) -> Callable[[Sample], float]:
    """The size of the bounded topics; only `endless` keeps everything."""
    return lambda sample: sum(size for topic, size in sample.log_bytes.items() if topic != endless)


def _shared(figure: Callable[[Shared], float]) -> Callable[[Sample], float | None]:
    return lambda sample: None if sample.shared is None else figure(sample.shared)


def _of(
    process: str, figure: Callable[[Process], float | None]
) -> Callable[[Sample], float | None]:
    def found(sample: Sample) -> float | None:
        return figure(sample.processes[process]) if process in sample.processes else None

    return found


def named(figure: str, process: str) -> str:
    """The name of a process's figure; a single process needs no name."""
    return f"{figure}, {process}" if process else figure


def limits(endless: str, processes: Sequence[str] = ("",), disks: int = 1) -> tuple[Limit, ...]:
    """Of every figure that must not grow; `disks`: the number of journals."""
    of_processes = [
        Limit(named(name, process), _of(process, figure), floor, per_hour)
        for process in processes
        for name, figure, floor, per_hour, _ in OF_PROCESS
    ]
    return (
        *of_processes,
        # The write-ahead log: four files of 32 MiB per checkpoint, and recycled ones. Of bookies:
        # journals, and data not yet collected.
        Limit("disks beyond the logs, bytes", overhead_bytes, disks * 256 * MIB, 64 * MIB),
        # Committed offsets are compacted at 16 MiB per partition.
        Limit("logs that are bounded, bytes", bounded_bytes(endless), 24 * MIB, 48 * MIB),
        # Deleted topics and trimmed ledgers are collected, each a minute after the other.
        Limit("ledgers", _shared(lambda one: one.ledgers), 300, 300),
        Limit("nodes in ZooKeeper", _shared(lambda one: one.znodes), 1_500, 600),
        Limit("watches in ZooKeeper", _shared(lambda one: one.watches), 300, 300),
    )


def returns(processes: Sequence[str] = ("",)) -> tuple[Return, ...]:
    """Of every figure that must return to its value before the load."""
    calls = PEER_POOLS * (len(processes) - 1)
    may_stay = {"sockets": 2 * calls}  # those that it has opened, and those that it has accepted
    return (
        *(
            Return(named(name, process), _of(process, figure), more_max + may_stay.get(name, 0))
            for process in processes
            for name, figure, _, _, more_max in OF_PROCESS
        ),
        *(
            Return(named("connections", process), _of(process, lambda one: one.connections), calls)
            for process in processes
        ),
        Return("ledgers that no chain names", _shared(lambda one: one.orphans), 0),
        Return("deleted partitions with facts", _shared(lambda one: one.stale), 0),
    )


def warm_up_s(seconds: float) -> float:
    """The length of the warm-up, which is ignored."""
    return min(WARM_UP_S_MAX, seconds * SHARE_OF_WARM_UP)


def judge(
    samples: Sequence[Sample], endless: str, retained: Mapping[str, int]
) -> tuple[list[str], dict[str, Any]]:
    """(violations, figures) of the samples after the warm-up, under load.

    `endless` is the topic that keeps everything, `retained` is what others may keep, in bytes.
    """
    wrong: list[str] = []
    figures: dict[str, Any] = {}
    processes = _processes(samples)
    for limit in limits(endless, processes, _disks(samples)):
        found = _trend(samples, limit.figure)
        if found is None:
            continue
        figures[limit.name] = _rounded(found)
        if found.grown > limit.floor and found.per_hour > limit.per_hour:
            wrong.append(
                f"{limit.name}: grows by {found.per_hour:,.0f} an hour, from"
                f" {found.first:,.0f} to {found.last:,.0f} (at most {limit.per_hour:,.0f} an"
                f" hour, and {limit.floor:,.0f} within a run)"
            )
    for process in processes:
        rss = _of(process, lambda one: one.rss_bytes)
        most = max((value for one in samples if (value := rss(one)) is not None), default=0)
        if most > RSS_BYTES_MAX:
            wrong.append(
                f"{named('memory', process)}: {most // MIB:.0f} MiB at its peak, at most"
                f" {RSS_BYTES_MAX // MIB}"
            )
    for topic, bytes_max in retained.items():
        kept = _trend(samples, lambda one, topic=topic: one.log_bytes.get(topic))  # type: ignore[misc]
        if kept is not None and kept.last > bytes_max:
            wrong.append(f"{topic}: retention keeps {kept.last:,.0f} bytes, at most {bytes_max:,}")
    wrong += _left_over(samples, figures) + _latency_violations(samples, figures)
    for process in processes:
        wrong += _cpu_violations(samples, process, figures)
    return wrong, figures


def _processes(samples: Sequence[Sample]) -> list[str]:
    return list(samples[-1].processes) if samples else []


def _disks(samples: Sequence[Sample]) -> int:
    """The number of write-ahead logs: one per broker, if they share nothing."""
    if not samples or any(one.shared is not None for one in samples):
        return 1
    return sum(one.tasks is not None for one in samples[-1].processes.values())


def _left_over(samples: Sequence[Sample], figures: dict[str, Any]) -> list[str]:
    """Leftovers that should have been collected."""
    wrong = []
    shared = [one.shared for one in samples if one.shared is not None]
    for name, ages in (
        ("a ledger that no chain names", [one.orphan_s for one in shared]),
        ("a fact of a deleted partition", [one.stale_s for one in shared]),
    ):
        if ages and max(ages) > LEFT_S_MAX:
            wrong.append(f"{name} has existed for {max(ages):.0f} s, at most {LEFT_S_MAX}")
    for name, figure in (
        ("ledgers that no chain names", _shared(lambda one: one.orphans)),
        ("the oldest of them, s", _shared(lambda one: one.orphan_s)),
        ("deleted partitions with facts", _shared(lambda one: one.stale)),
        ("the oldest of these, s", _shared(lambda one: one.stale_s)),
    ):
        found = _trend(samples, figure)
        if found is not None:
            figures[name] = _rounded(found)
    return wrong


def judge_return(before: Sample, after: Sample) -> list[str]:
    """What is not released after the load."""
    wrong = []
    for one in returns(list(before.processes)):
        was, now = one.figure(before), one.figure(after)
        if was is not None and now is not None and now > was + one.more_max:
            wrong.append(f"{one.name}: {now:.0f} after the load, {was:.0f} before it")
    return wrong


def _trend(samples: Sequence[Sample], figure: Callable[[Sample], float | None]) -> Trend | None:
    points = [(one.at_s, value) for one in samples if (value := figure(one)) is not None]
    return trend(points)


def _noise(samples: Sequence[Sample]) -> float:
    return max(1.0, NOISY_S / max(1.0, samples[-1].at_s - samples[0].at_s))


def _rounded(found: Trend) -> dict[str, float]:
    return {name: round(value, 3) for name, value in found._asdict().items()}


def _latency_violations(samples: Sequence[Sample], figures: dict[str, Any]) -> list[str]:
    if not samples:
        return ["no samples after the warm-up"]
    floor_ms = LATENCY_FLOOR_MS * _noise(samples)
    control = _trend(samples, lambda one: one.control_p50_ms)
    slower_ms = 0.0
    if control is not None:
        figures["control p50, ms"] = _rounded(control)
        slower_ms = max(0.0, control.last - control.first)
    wrong = []
    for name in ("produce_p50_ms", "fetch_p50_ms", "produce_p99_ms", "fetch_p99_ms"):
        found = _trend(samples, lambda one, name=name: getattr(one, name))  # type: ignore[misc]
        if found is None:
            wrong.append(f"the probe has too few measurements of {name}")
            continue
        figures[name.replace("_", " ").replace(" ms", ", ms")] = _rounded(found)
        most = found.first * LATENCY_TIMES_MAX + floor_ms + slower_ms * CONTROL_TIMES
        # The 99th percentile of a short sample is its worst round: drawn, not checked.
        if "p50" in name and found.last > most:
            wrong.append(
                f"the probe's {name}: {found.first:.1f} in the first third, {found.last:.1f} in the"
                f" last (at most {most:.1f}; without the broker {slower_ms:.1f} more)"
            )
    return wrong


def _cpu_violations(samples: Sequence[Sample], process: str, figures: dict[str, Any]) -> list[str]:
    name = named("share of a core", process)
    used = _of(process, lambda one: one.cpu_s)
    points = [(one.at_s, cpu_s) for one in samples if (cpu_s := used(one)) is not None]
    shares = [
        (at_s, (cpu_s - before) / (at_s - before_s))
        for (before_s, before), (at_s, cpu_s) in pairwise(points)
        if at_s > before_s
    ]
    found = trend(shares)
    if found is None:
        return []
    figures[name] = _rounded(found)
    if found.last > found.first * CPU_TIMES_MAX + CPU_FLOOR * _noise(samples):
        return [f"{name}: {found.first:.2f} in the first third, {found.last:.2f} in the last"]
    return []
