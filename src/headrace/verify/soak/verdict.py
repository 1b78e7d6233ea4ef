"""What must hold of a broker that has been under load for long, from the looks at it.

Rules of the room: pure: samples in, words out. A figure may grow by its limit per hour, or by its
floor within the run, whichever is more: what a process takes once is no leak. Latency is judged
against its own beginning and against a control, which knows no broker: a machine that has become
slow is not the broker's fault.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

from headrace.verify.soak.trend import trend

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from headrace.verify.soak.samples import Sample
    from headrace.verify.soak.trend import Trend

MIB = 1 << 20
RSS_BYTES_MAX = 768 * MIB
"""At any moment."""
LATENCY_TIMES_MAX, LATENCY_FLOOR_MS, CONTROL_TIMES = 2, 40, 3
"""The last third's median is at most so many times the first one's and so much more, and what the
control has grown by, times three: a request waits for the machine more than once."""
NOISY_S = 60
"""In a run shorter than this, the floors of latency and CPU are so much higher: a machine's own ups
and downs last for seconds."""
CPU_TIMES_MAX, CPU_FLOOR = 2, 0.3
"""Likewise, of the broker's share of a core: the load is the same all the time."""
SHARE_OF_WARM_UP, WARM_UP_S_MAX = 0.3, 180


class Limit(NamedTuple):
    """How much a figure may grow."""

    name: str
    figure: Callable[[Sample], float | None]
    floor: float
    """Within the run."""
    per_hour: float


class Return(NamedTuple):
    """How much more than before the load may be there after it."""

    name: str
    figure: Callable[[Sample], float | None]
    more_max: float


def overhead_bytes(sample: Sample) -> float:
    """What lies in the folder beyond what logs keep."""
    return sample.folder_bytes - sum(sample.log_bytes.values())


def bounded_bytes(endless: str) -> Callable[[Sample], float]:
    """What the topics keep whose size is bounded; `endless` alone keeps everything."""
    return lambda sample: sum(size for topic, size in sample.log_bytes.items() if topic != endless)


def limits(endless: str) -> tuple[Limit, ...]:
    """Of every figure that must not grow."""
    return (
        Limit("memory, bytes", lambda one: one.rss_bytes, 24 * MIB, 24 * MIB),
        Limit("sockets", lambda one: one.sockets, 30, 30),
        Limit("open files", lambda one: one.files, 40, 60),
        Limit("threads", lambda one: one.threads, 8, 4),
        Limit("tasks", lambda one: one.tasks, 40, 40),
        # The write-ahead log: four files of 32 MiB to a checkpoint, and those kept for reuse.
        Limit("folder beyond the logs, bytes", overhead_bytes, 256 * MIB, 64 * MIB),
        # Groups' progress is cut at 16 MiB a partition.
        Limit("logs that are bounded, bytes", bounded_bytes(endless), 24 * MIB, 48 * MIB),
    )


RETURNS = (
    # Much less than a leak leaves in hours, much more than allocators keep for themselves.
    Return("memory, bytes", lambda one: one.rss_bytes, 128 * MIB),
    Return("sockets", lambda one: one.sockets, 4),
    Return("open files", lambda one: one.files, 64),
    Return("threads", lambda one: one.threads, 16),
    Return("tasks", lambda one: one.tasks, 8),
    Return("connections", lambda one: one.connections, 0),
)


def warm_up_s(seconds: float) -> float:
    """How long the beginning of a run counts for nothing."""
    return min(WARM_UP_S_MAX, seconds * SHARE_OF_WARM_UP)


def judge(
    samples: Sequence[Sample], endless: str, retained: Mapping[str, int]
) -> tuple[list[str], dict[str, Any]]:
    """(what does not hold, figures) of the samples behind the warm-up, under load.

    `endless` is the topic that keeps everything, `retained` says what others may keep, in bytes.
    """
    wrong: list[str] = []
    figures: dict[str, Any] = {}
    for limit in limits(endless):
        found = _trend(samples, limit.figure)
        if found is None:
            continue
        figures[limit.name] = _rounded(found)
        if found.grown > limit.floor and found.per_hour > limit.per_hour:
            wrong.append(
                f"{limit.name}: grows by {found.per_hour:,.0f} an hour, from {found.first:,.0f} to"
                f" {found.last:,.0f} (at most {limit.per_hour:,.0f} an hour, and {limit.floor:,.0f}"
                " within a run)"
            )
    most = max((one.rss_bytes for one in samples if one.rss_bytes is not None), default=0)
    if most > RSS_BYTES_MAX:
        wrong.append(
            f"memory: {most // MIB} MiB at the worst moment, at most {RSS_BYTES_MAX // MIB}"
        )
    for topic, bytes_max in retained.items():
        kept = _trend(samples, lambda one, topic=topic: one.log_bytes.get(topic))  # type: ignore[misc]
        if kept is not None and kept.last > bytes_max:
            wrong.append(f"{topic}: retention keeps {kept.last:,.0f} bytes, at most {bytes_max:,}")
    wrong += _latency_violations(samples, figures) + _cpu_violations(samples, figures)
    return wrong, figures


def judge_return(before: Sample, after: Sample) -> list[str]:
    """What is not given back when the load is over."""
    wrong = []
    for one in RETURNS:
        was, now = one.figure(before), one.figure(after)
        if was is not None and now is not None and now > was + one.more_max:
            wrong.append(f"{one.name}: {now:.0f} when the load is over, {was:.0f} before it")
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
        return ["nobody has looked behind the warm-up"]
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
            wrong.append(f"the probe has too few figures of {name}")
            continue
        figures[name.replace("_", " ").replace(" ms", ", ms")] = _rounded(found)
        most = found.first * LATENCY_TIMES_MAX + floor_ms + slower_ms * CONTROL_TIMES
        # The 99th percentile of a short look is its worst round: drawn, not judged.
        if "p50" in name and found.last > most:
            wrong.append(
                f"the probe's {name}: {found.first:.1f} in the first third, {found.last:.1f} in the"
                f" last (at most {most:.1f}; without the broker {slower_ms:.1f} more)"
            )
    return wrong


def _cpu_violations(samples: Sequence[Sample], figures: dict[str, Any]) -> list[str]:
    shares = [
        (after.at_s, (after.cpu_s - before.cpu_s) / (after.at_s - before.at_s))
        for before, after in pairwise(samples)
        if before.cpu_s is not None and after.cpu_s is not None and after.at_s > before.at_s
    ]
    found = trend(shares)
    if found is None:
        return []
    figures["share of a core"] = _rounded(found)
    if found.last > found.first * CPU_TIMES_MAX + CPU_FLOOR * _noise(samples):
        return [
            f"share of a core: {found.first:.2f} in the first third, {found.last:.2f} in the last"
        ]
    return []
