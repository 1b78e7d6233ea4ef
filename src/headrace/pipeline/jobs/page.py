"""Looks: one HTML page with charts, and each chart as PNG, from the results of jobs.

Invariants: knows the jobs' documents, not Spark. The page needs no network and no script: pictures
are embedded. All text of messages is escaped. Charts are matplotlib's, which the demo uses, too.
"""

from __future__ import annotations

import base64
import html
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

_INK, _QUIET, _BLUE, _RED, _GREEN = "#1d2433", "#6b7280", "#2f6fde", "#c2410c", "#15803d"
_ROWS_MAX: Final = 200
_STYLE: Final = """
body { font: 15px/1.5 system-ui, sans-serif; color: #1d2433; max-width: 960px; margin: 2rem auto;
       padding: 0 1rem }
h1 { font-size: 1.6rem } h2 { font-size: 1.15rem; margin-top: 2.2rem }
img { max-width: 100% } table { border-collapse: collapse; margin: .6rem 0 }
td, th { padding: .2rem .8rem .2rem 0; text-align: left; vertical-align: top }
th { color: #6b7280; font-weight: 600 }
td.n { text-align: right; font-variant-numeric: tabular-nums }
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
        figure.tight_layout()
        figure.savefig(path)
    finally:
        plt.close(figure)


def _table(columns: list[str], rows: list[list[Any]]) -> str:
    head = "".join(f"<th>{html.escape(name)}</th>" for name in columns)
    body = "".join(
        "<tr>" + "".join(_cell(cell) for cell in row) + "</tr>" for row in rows[:_ROWS_MAX]
    )
    more = f'<p class="quiet">{len(rows) - _ROWS_MAX:,} more rows.</p>' * (len(rows) > _ROWS_MAX)
    return f"<table><tr>{head}</tr>{body}</table>{more}"


def _cell(cell: Any) -> str:
    if isinstance(cell, float):
        cell = f"{cell:,.1f}"
    if isinstance(cell, int):
        cell = f"{cell:,}"
    elif cell is None:
        cell = "-"
    else:
        is_number = str(cell).replace(",", "").replace(".", "", 1).isdigit()
        return f"<td{' class=n' * is_number}>{html.escape(str(cell))}</td>"
    return f'<td class="n">{cell}</td>'


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
    return [
        f"<h2>Delivery of {html.escape(found['topic'])}: "
        f'<span class="{kind}">{html.escape(found["verdict"])}</span></h2>',
        chart("flow", lambda axes: _draw_flow(axes, found), 2.4),
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
    bars = axes.barh([name for name, _ in reached], [n for _, n in reached], color=colours)
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
    title = f"Backlog of {group} on {html.escape(found['topic'])}: {found['lag']:,} records"
    return [
        f"<h2>{title}</h2><p>{html.escape(verdict)}</p>",
        chart(f"lag-{index}", lambda axes: _draw_lag(axes, found)),
        _listed(found["advice"]),
        _table(
            ["key", "unread records", "share %"],
            [[one["key"], one["records"], one["share"] * 100] for one in found["hot_keys"]],
        ),
    ]


def _moment(at_ms: int) -> datetime:
    return datetime.fromtimestamp(at_ms / 1000, UTC)


def _draw_lag(axes: Any, found: Mapping[str, Any]) -> None:
    arrivals = found["arrivals"]
    width_s = found["bucket_ms"] / 1000
    axes.fill_between(
        [_moment(begin) for begin, *_ in arrivals],
        [count / width_s for _, count, _ in arrivals],
        color=_BLUE, alpha=0.25, step="post", label="arrivals per second",
    )  # fmt: skip
    axes.set_ylabel("records per second", color=_QUIET, fontsize=9)
    right = axes.twinx()
    samples = found["samples"]
    right.plot([_moment(at) for at, _ in samples], [lag for _, lag in samples],
               color=_RED, marker="o", markersize=3, label="lag")  # fmt: skip
    right.set_ylabel("lag, records", color=_RED, fontsize=9)
    right.set_ylim(bottom=0)
    right.tick_params(labelsize=8.5)
    axes.set_ylim(bottom=0)
    axes.figure.autofmt_xdate(rotation=0, ha="center")


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
        parts.append(chart("latency", lambda axes: _draw_latency(axes, found), 3.6))
    return [
        *parts,
        _table(columns, rows),
        "<h2>Slowest messages</h2>",
        _table(["message", "event", "topic", "group", "ms"], slow),
    ]


def _draw_latency(axes: Any, found: Mapping[str, Any]) -> None:
    """A heat map: the 95th percentile by hour and by what happened."""
    import math

    def name_of(one: Mapping[str, Any]) -> str:
        return f"{one['event']} {one['group'] or one['topic']}"

    names = sorted({name_of(one) for one in found["latencies"]})
    hours = sorted({one["hour_ms"] for one in found["latencies"]})
    cells = {(name_of(one), one["hour_ms"]): one["p95_ms"] for one in found["latencies"]}
    grid = [
        [math.log10(max(1.0, cells.get((name, hour), float("nan")))) for hour in hours]
        for name in names
    ]
    image = axes.imshow(grid, aspect="auto", cmap="YlOrRd", vmin=0)
    axes.set_yticks(range(len(names)), names)
    step = max(1, len(hours) // 12)
    shown = range(0, len(hours), step)
    axes.set_xticks(list(shown), [f"{_moment(hours[i]):%d %H:00}" for i in shown])
    bar = axes.figure.colorbar(image, ax=axes)
    bar.set_label("95th percentile, log10 ms", color=_QUIET, fontsize=9)
