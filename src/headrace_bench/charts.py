"""Charts of kept results: throughput by size, latency by percentile, and series.

Invariants: measures nothing; the same results give the same bytes. matplotlib is imported only when
a chart is drawn.
"""

from __future__ import annotations

import importlib.util
from statistics import median
from typing import TYPE_CHECKING, Any

from headrace_bench.growth import SERIES
from headrace_bench.hdr import HdrHistogram
from headrace_bench.loads import FIGURES, LOADS

if TYPE_CHECKING:
    from pathlib import Path

THROUGHPUT, LATENCY, GROWTH = "throughput.svg", "latency.svg", "growth.svg"
TITLES = {
    THROUGHPUT: "MB/s by record size, all systems",
    LATENCY: "End to end latency by percentile",
    GROWTH: "Growth",
}
_SHARES = (0.0, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 0.995, 0.999, 0.9995)
_COLOURS = {
    "headrace": "#0b6e99", "kafka": "#333333", "redis": "#c0392b", "nats": "#27ae60",
    "rabbitmq": "#e67e22", "rabbitmq-classic": "#b9770e", "rocketmq": "#8e44ad",
}  # fmt: skip


def _pyplot() -> Any:
    import matplotlib as mpl

    mpl.use("Agg")
    mpl.rcParams.update({"svg.hashsalt": "headrace", "font.size": 8, "svg.fonttype": "none"})
    import matplotlib.pyplot as plt

    return plt


def draw(results: dict[str, Any], folder: Path) -> list[str]:
    """Draw the charts that results exist for; returns the names of the files in `folder`.

    Draws nothing if matplotlib is not installed.
    """
    if importlib.util.find_spec("matplotlib") is None:
        return []
    plt = _pyplot()
    folder.mkdir(parents=True, exist_ok=True)
    drawn = []
    for name, make in ((THROUGHPUT, _throughput), (LATENCY, _latency), (GROWTH, _growth)):
        figure = make(plt, results)
        if figure is not None:
            figure.savefig(folder / name, metadata={"Date": None}, bbox_inches="tight")
            plt.close(figure)
            text = (folder / name).read_text()
            (folder / name).write_text("\n".join(map(str.rstrip, text.splitlines())) + "\n")
            drawn.append(name)
    return drawn


def _title(results: dict[str, Any], key: str) -> str:
    name, _, policy = key.partition("/")
    return f"{results['systems'][name]['title']}, {policy}"


def _throughput(plt: Any, results: dict[str, Any]) -> Any:
    loads = [one for one in LOADS if one.kind == "produce" and one.name in results["loads"]]
    if not loads:
        return None
    figure, axes = plt.subplots(1, len(loads), figsize=(4 * len(loads), 3.6), squeeze=False)
    for axis, load in zip(axes[0], loads, strict=True):
        rounds = results["loads"][load.name]["rounds"]
        bars = sorted((median(r["mb_per_s"] for r in runs), key) for key, runs in rounds.items())
        names = [_title(results, key) for _, key in bars]
        colours = [_COLOURS.get(key.partition("/")[0], "#777777") for _, key in bars]
        hatches = ["" if key.endswith("/synced") else "///" for _, key in bars]
        axis.barh(names, [value for value, _ in bars], color=colours, hatch=hatches,
                  edgecolor="white")  # fmt: skip
        axis.set(title=load.title, xlabel="MB/s")
    figure.tight_layout()
    return figure


def _latency(plt: Any, results: dict[str, Any]) -> Any:
    loads = [one for one in LOADS if one.kind == "latency" and one.name in results["loads"]]
    if not loads:
        return None
    figure, axis = plt.subplots(figsize=(7, 4))
    for key, runs in results["loads"][loads[0].name]["rounds"].items():
        together = HdrHistogram()
        for run in runs:
            together.merge(HdrHistogram.from_json(run.get("histogram_ns", {})))
        if together.count:
            axis.plot(
                [1 / (1 - share) for share in _SHARES],
                [max(together.at(share), 1) / 1e6 for share in _SHARES],
                color=_COLOURS.get(key.partition("/")[0], "#777777"),
                linestyle="-" if key.endswith("/synced") else "--",
                label=_title(results, key),
            )
    axis.set(xscale="log", yscale="log", title=loads[0].title, xlabel="percentile", ylabel="ms")
    ticks = (0.5, 0.9, 0.99, 0.999)
    axis.set_xticks([1 / (1 - share) for share in ticks], [f"{share * 100:g}" for share in ticks])
    axis.grid(alpha=0.3)
    axis.legend()
    return figure


def _growth(plt: Any, results: dict[str, Any]) -> Any:
    drawn = [one for one in SERIES if results["growth"].get(one.name, {}).get("rounds")]
    if not drawn:
        return None
    rows = ("mb_per_s", "cpu_s_per_gb", "rss_mb")
    figure, axes = plt.subplots(len(rows), len(drawn), figsize=(3 * len(drawn), 6.5), squeeze=False)
    for column, series in enumerate(drawn):
        for row, name in enumerate(rows):
            axis = axes[row][column]
            for key, points in results["growth"][series.name]["rounds"].items():
                values = [value for value in series.values if points.get(str(value))]
                axis.plot(
                    values,
                    [median(run[name] for run in points[str(value)]) for value in values],
                    marker="o",
                    color=_COLOURS.get(key.partition("/")[0], "#777777"),
                    label=_title(results, key),
                )
            axis.set(xscale="symlog" if 0 in series.values else "log", ylim=(0, None))
            axis.grid(alpha=0.3)
            if row == 0:
                axis.set_title(series.title, fontsize=7)
            if row == len(rows) - 1:
                axis.set_xlabel(series.axis)
            if column == 0:
                axis.set_ylabel(FIGURES[name][0])
    axes[0][0].legend()
    figure.tight_layout()
    return figure
