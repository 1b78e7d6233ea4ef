"""Looks: one HTML page with charts, and each chart as PNG, from the results of jobs.

Invariants: knows the jobs' documents, not Spark. The page needs no network and no script: pictures
are embedded. All text of messages is escaped. Charts are matplotlib's, which the demo uses, too.
"""

from __future__ import annotations

import base64
import html
import warnings
from datetime import UTC, datetime
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

_INK, _QUIET, _BLUE, _RED, _GREEN = "#1d2433", "#6b7280", "#2f6fde", "#c2410c", "#15803d"
_ROWS_MAX: Final = 200
_LABEL_MAX: Final = 32
"""Characters of a name beside a chart, which a longer one would fill."""
_TICKS_MAX: Final = 8
_HOUR_MS: Final = 3_600_000
_HOURS_MAX: Final = 24 * 92
_STYLE: Final = """
body { font: 15px/1.5 system-ui, sans-serif; color: #1d2433; max-width: 960px; margin: 2rem auto;
       padding: 0 1rem; overflow-wrap: anywhere }
h1 { font-size: 1.6rem } h2 { font-size: 1.15rem; margin-top: 2.2rem }
img { max-width: 100% } table { border-collapse: collapse; margin: .6rem 0 }
td, th { padding: .2rem .8rem .2rem 0; text-align: left; vertical-align: top }
th { color: #6b7280; font-weight: 600 }
.n { text-align: right; font-variant-numeric: tabular-nums }
td.n { white-space: nowrap } th.n { min-width: 5.6rem } .t { min-width: 6.8rem }
.proven { color: #15803d } .failed { color: #c2410c } .quiet { color: #6b7280 }
"""


def write_page(
    folder: Path,
    title: str,
    *,
    proof: Mapping[str, Any] | None = None,
    backlogs: list[dict[str, Any]] | None = None,
    trace: Mapping[str, Any] | None = None,
) -> list[Path]:
    """Write index.html and its charts; returns their paths, the page first."""
    folder.mkdir(parents=True, exist_ok=True)
    charts: list[Path] = []
    parts = [f"<h1>{html.escape(title)}</h1>"]

    def chart(name: str, draw: Callable[[Any], None], height: float = 3.2) -> str:
        path = folder / f"{name}.png"
        _draw(path, draw, height)
        charts.append(path)
        data = base64.b64encode(path.read_bytes()).decode()
        return f'<img alt="{html.escape(name)}" src="data:image/png;base64,{data}">'

    if proof is not None:
        parts += _proof(proof, chart)
    for index, one in enumerate(backlogs or []):
        parts += _backlog(one, chart, index)
    if trace is not None:
        parts += _trace(trace, chart)
    made = datetime.now(UTC).isoformat(timespec="seconds")
    page = folder / "index.html"
    page.write_text(
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{html.escape(title)}</title>'
        f"<style>{_STYLE}</style>{''.join(parts)}"
        f'<p class="quiet">Made {made} by headrace pipeline page.</p></html>\n'
    )
    return [page, *charts]


def _draw(path: Path, draw: Callable[[Any], None], height: float) -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(9.6, height), dpi=120)
    try:
        draw(axes)
        axes.tick_params(colors=_QUIET, labelsize=8.5)
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)
        with warnings.catch_warnings():
            # Signs that the font lacks are boxes in the picture; the page itself has them.
            warnings.filterwarnings("ignore", message="Glyph .* missing from font")
            figure.tight_layout()
            figure.savefig(path)
    finally:
        plt.close(figure)


def _table(columns: list[str], rows: list[list[Any]], empty: str = "") -> str:
    """A table, or without rows the text `empty`."""
    if not rows:
        return f'<p class="quiet">{html.escape(empty)}</p>' * bool(empty)
    numeric = [
        all(isinstance(row[index], (int, float, type(None))) for row in rows)
        for index in range(len(columns))
    ]
    kinds = ["n" if each else "t" for each in numeric]
    head = "".join(
        f"<th class={kind}>{html.escape(name)}</th>"
        for name, kind in zip(columns, kinds, strict=True)
    )
    body = "".join(
        "<tr>"
        + "".join(
            f"<td class={kind}>{html.escape(_text(cell))}</td>"
            for cell, kind in zip(row, kinds, strict=True)
        )
        + "</tr>"
        for row in rows[:_ROWS_MAX]
    )
    more = f'<p class="quiet">{len(rows) - _ROWS_MAX:,} more rows.</p>' * (len(rows) > _ROWS_MAX)
    return f"<table><tr>{head}</tr>{body}</table>{more}"


def _text(cell: Any) -> str:
    if isinstance(cell, float):
        return f"{cell:,.1f}"
    if isinstance(cell, int):
        return f"{cell:,}"
    return "-" if cell is None else str(cell)


def _label(name: str) -> str:
    """A name of which begin and end stand for the whole, if it is long."""
    if len(name) <= _LABEL_MAX:
        return name
    half = _LABEL_MAX // 2
    return f"{name[:half]}…{name[1 - half :]}"


def _count_axis(axis: Any) -> None:
    """Label an axis of counts by whole numbers with thousands separators."""
    from matplotlib.ticker import MaxNLocator, StrMethodFormatter

    axis.set_major_locator(MaxNLocator(nbins=6, integer=True))
    axis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))


def _listed(lines: list[str]) -> str:
    items = "".join(f"<li>{html.escape(line)}</li>" for line in lines[:_ROWS_MAX])
    return f"<ul>{items}</ul>" if items else ""


# --- proof ---------------------------------------------------------------------------------------


def _proof(found: Mapping[str, Any], chart: Callable[..., str]) -> list[str]:
    kind = {"proven": "proven", "failed": "failed"}.get(found["verdict"], "quiet")
    names = [group["group"] for group in found["groups"]]
    rows = [
        [
            one["producer"], one["sent"], one["distinct"], one["missing"], one["duplicates"],
            *(one["acknowledged"][name] for name in names),
        ]
        for one in found["producers"]
    ]  # fmt: skip
    columns = ["producer", "sent", "stored", "missing", "duplicates", *names]
    reached = stages(found)
    return [
        f"<h2>Delivery of {html.escape(found['topic'])}: "
        f'<span class="{kind}">{html.escape(found["verdict"])}</span></h2>',
        chart("flow", lambda axes: _draw_flow(axes, found), 0.8 + 0.4 * len(reached))
        if any(count for _, count in reached)
        else '<p class="quiet">There are no records.</p>',
        _table(columns, rows),
        _listed([*found["problems"], *(f"not proven: {line}" for line in found["not_proven"])]),
        f'<p class="quiet">SHA-256 of the certificate: {html.escape(found["sha256"])}</p>',
    ]


def stages(found: Mapping[str, Any]) -> list[tuple[str, int]]:
    """How many records reached each stage: sent, stored, archived, acknowledged by each group."""
    producers = found["producers"]
    reached = []
    if producers and all(one["sent"] is not None for one in producers):
        reached.append(("sent", sum(one["sent"] for one in producers)))
    reached.append(("stored", sum(side["distinct"] for side in found["stored"].values())))
    if found["archived"] is not None:
        sides = found["archived"]["partitions"].values()
        reached.append(("archived", sum(side["distinct"] for side in sides)))
    reached += [(f"acknowledged: {one['group']}", one["acknowledged"]) for one in found["groups"]]
    return reached


def _draw_flow(axes: Any, found: Mapping[str, Any]) -> None:
    reached = stages(found)
    most = max((count for _, count in reached), default=0)
    colours = [_GREEN if count == most else _RED for _, count in reached]
    places = range(len(reached))
    bars = axes.barh(places, [count for _, count in reached], color=colours)
    axes.set_yticks(places, [_label(name) for name, _ in reached], parse_math=False)
    _count_axis(axes.xaxis)
    axes.bar_label(bars, [f"{count:,}" for _, count in reached], padding=4, color=_INK, fontsize=9)
    axes.invert_yaxis()
    axes.set_xlim(0, most * 1.15 or 1)


# --- backlog -------------------------------------------------------------------------------------


def _backlog(found: Mapping[str, Any], chart: Callable[..., str], index: int) -> list[str]:
    forecast = found["forecast"]
    verdict = forecast["verdict"]
    if forecast["empty_at_ms"] is not None and found["lag"]:
        verdict = f"empty at {_moment(forecast['empty_at_ms']):%Y-%m-%d %H:%M:%S} UTC"
    group = html.escape(found["group"])
    size = f"{found['lag']:,} record{'s' * (found['lag'] != 1)}"
    title = f"Backlog of {group} on {html.escape(found['topic'])}: {size}"
    return [
        f"<h2>{title}</h2><p>Forecast: {html.escape(verdict)}</p>",
        chart(f"lag-{index}", lambda axes: _draw_lag(axes, found))
        if found["arrivals"] or any(lag for _, lag in found["samples"])
        else '<p class="quiet">Nothing arrived in this time, and nothing is unread.</p>',
        _listed(found["advice"]),
        _table(
            ["key", "unread records", "share %"],
            [[one["key"], one["records"], one["share"] * 100] for one in found["hot_keys"]],
        ),
    ]


def _moment(at_ms: int) -> datetime:
    return datetime.fromtimestamp(at_ms / 1000, UTC)


def outline(arrivals: list[list[int]], bucket_ms: int) -> list[tuple[int, float]]:
    """The steps of arrivals per second over time: (from when, how many). Buckets in which nothing
    arrived are not listed in `arrivals`, and are zero."""
    steps: list[tuple[int, float]] = []
    for begin_ms, count, *_ in arrivals:
        if steps and steps[-1][0] == begin_ms:
            steps.pop()
        steps += [(begin_ms, count * 1000 / bucket_ms), (begin_ms + bucket_ms, 0.0)]
    return steps


def _draw_lag(axes: Any, found: Mapping[str, Any]) -> None:
    dates: Any = import_module("matplotlib.dates")  # of which nothing is typed
    steps = outline(found["arrivals"], found["bucket_ms"])
    axes.fill_between(
        [_moment(begin) for begin, _ in steps], [rate for _, rate in steps],
        color=_BLUE, alpha=0.25, step="post", linewidth=1,
    )  # fmt: skip
    axes.set_ylabel("arrivals per second", color=_BLUE, fontsize=9)
    axes.set_ylim(bottom=0, top=None if steps else 1)
    right = axes.twinx()
    samples = found["samples"]
    right.plot([_moment(at) for at, _ in samples], [lag for _, lag in samples],
               color=_RED, marker="o", markersize=3)  # fmt: skip
    right.set_ylabel("lag, records", color=_RED, fontsize=9)
    right.set_ylim(bottom=0, top=None if any(lag for _, lag in samples) else 1)
    right.tick_params(colors=_QUIET, labelsize=8.5)
    right.spines["top"].set_visible(False)
    _count_axis(right.yaxis)
    locator = dates.AutoDateLocator(minticks=3, maxticks=_TICKS_MAX)
    axes.xaxis.set_major_locator(locator)
    axes.xaxis.set_major_formatter(dates.ConciseDateFormatter(locator))
    axes.set_xlabel("UTC", color=_QUIET, fontsize=9)


# --- trace ---------------------------------------------------------------------------------------


def _trace(found: Mapping[str, Any], chart: Callable[..., str]) -> list[str]:
    rows = [
        [one["event"], one["topic"], one["group"], f"{_moment(one['hour_ms']):%Y-%m-%d %H:00}",
         one["count"], one["p50_ms"], one["p95_ms"], one["p99_ms"], one["slowest_ms"]]
        for one in found["latencies"]
    ]  # fmt: skip
    slow = [
        [one["message"], one["event"], one["topic"], one["group_name"], one["latency_ms"]]
        for one in found["slow"]
    ]
    columns = ["event", "topic", "group", "hour", "count", "p50 ms", "p95", "p99", "slowest"]
    parts = [f"<h2>Latencies from {html.escape(found['topic'])}</h2>"]
    if rows:
        height = 1.6 + 0.4 * min(_ROWS_MAX, len({_row_of(one) for one in found["latencies"]}))
        parts.append(chart("latency", lambda axes: _draw_latency(axes, found), height))
    return [
        *parts,
        _table(columns, rows, _NO_EVENTS),
        "<h2>Slowest messages</h2>" * bool(slow),
        _table(["message", "event", "topic", "group", "ms"], slow),
    ]


_NO_EVENTS: Final = (
    "Nothing is known of what became of these messages. --through names other topics that they"
    " pass; --messages-max asks the brokers what share groups did with some of them."
)


def _row_of(one: Mapping[str, Any]) -> str:
    return f"{one['event']} {one['group'] or one['topic']}"


def heat(latencies: list[dict[str, Any]]) -> tuple[list[str], Sequence[int], list[list[float]]]:
    """The 95th percentile in ms by what happened and by hour: names, hours, and a row for each
    name. NaN where nothing happened; at least 1, as the scale is logarithmic. Of what a group did
    with several topics, the slowest."""
    names = sorted({_row_of(one) for one in latencies})[:_ROWS_MAX]
    begins = [one["hour_ms"] for one in latencies]
    hours: Sequence[int] = range(min(begins), max(begins) + 1, _HOUR_MS)
    if len(hours) > _HOURS_MAX:  # those in which nothing happened are left out
        hours = sorted(set(begins))
    cells: dict[tuple[str, int], float] = {}
    for one in latencies:
        at = _row_of(one), one["hour_ms"]
        cells[at] = max(one["p95_ms"], cells.get(at, 1.0))
    missing = float("nan")
    return names, hours, [[cells.get((name, hour), missing) for hour in hours] for name in names]


def _draw_latency(axes: Any, found: Mapping[str, Any]) -> None:
    """A heat map, white where nothing happened."""
    from matplotlib.colors import LogNorm
    from matplotlib.ticker import FuncFormatter

    names, hours, grid = heat(found["latencies"])
    slowest = max(one["p95_ms"] for one in found["latencies"])
    image = axes.imshow(
        grid, aspect="auto", cmap="YlOrRd", norm=LogNorm(1, max(10.0, slowest)),
        interpolation="none",
    )  # fmt: skip
    axes.set_yticks(range(len(names)), [_label(name) for name in names], parse_math=False)
    shown = range(0, len(hours), -(-len(hours) // 6))
    axes.set_xticks(list(shown), [f"{_moment(hours[i]):%m-%d %H:00}" for i in shown])
    axes.set_xlabel("UTC", color=_QUIET, fontsize=9)
    bar = axes.figure.colorbar(image, ax=axes, format=FuncFormatter(_duration))
    bar.ax.tick_params(colors=_QUIET, labelsize=8.5)
    bar.set_label("95th percentile", color=_QUIET, fontsize=9)


def _duration(ms: float, _position: int | None = None) -> str:
    return f"{ms:g} ms" if ms < 1000 else f"{ms / 1000:,g} s"
