"""The figures of one run, from a tool's output and the resources used by the system's processes.

Invariants: pure arithmetic, and one line of text.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headrace_bench.loads import SHARES

if TYPE_CHECKING:
    from headrace_bench.tools import Steady

Figures = dict[str, Any]


def figures_of(done: Steady, record_bytes: int) -> Figures:
    """The figures of one window of writing or reading."""
    size = done.records * record_bytes
    return {
        "records": round(done.records),
        "seconds": done.seconds,
        "records_per_s": done.records_per_s,
        "mb_per_s": done.records_per_s * record_bytes / 1e6,
        "cpu_s_per_million": done.used.cpu_s / done.records * 1e6,
        "cpu_s_per_gb": done.used.cpu_s / size * 1e9,
        "written_per_byte": done.used.written_bytes / size,
        "rss_mb": done.used.rss_bytes / 1e6,
    }


def shown(figures: Figures) -> str:
    """One run as one line of text."""
    if "p50" in figures:
        return ", ".join(f"{name} {figures[name]:,.3f} ms" for name in SHARES if name in figures)
    if "cpu_percent" in figures:
        return f"{figures['cpu_percent']:.2f} % of a core, {figures['rss_mb']:,.0f} MB"
    return (
        f"{figures['records_per_s']:,.0f} records/s, {figures['mb_per_s']:,.1f} MB/s, "
        f"{figures['cpu_s_per_million']:,.2f} CPU s a million, "
        f"{figures['written_per_byte']:.2f} bytes to disk a byte"
    )
