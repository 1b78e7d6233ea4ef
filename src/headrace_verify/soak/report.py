"""The report of a soak: the verdicts, every sample, and a chart over time.

Invariants: `report.json` says what was found and on what machine; `samples.jsonl` has a line per
sample. The chart needs matplotlib; without it, the report says so.
"""

from __future__ import annotations

import json
from functools import partial
from typing import TYPE_CHECKING, Any

from headrace_verify.report import add_chart, head, write_json
from headrace_verify.soak import load
from headrace_verify.soak.verdict import bounded_bytes, named, overhead_bytes, warm_up_s

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from headrace_verify.soak.run import Outcome
    from headrace_verify.soak.samples import Sample

    _Figure = Callable[[Sample], float | None]

MIB = 1 << 20


def as_json(outcome: Outcome) -> dict[str, Any]:
    """The whole report as plain values."""
    return {
        **head("soak", outcome),
        "target": outcome.plan.target,
        "seed": outcome.plan.seed,
        "seconds": outcome.plan.seconds,
        "warm_up_s": round(warm_up_s(outcome.plan.seconds), 1),
        "violations": outcome.violations,
        "skipped": outcome.skipped,
        "figures": outcome.figures,
        "load": outcome.load_report,
        "probe_rounds": outcome.rounds,
        "looks": len(outcome.samples),
        "before": outcome.before.as_json(),
        "after": outcome.after.as_json(),
    }


def write_report(folder: Path, outcome: Outcome, report: dict[str, Any]) -> list[str]:
    """Write the folder; returns the names of its files."""
    folder.mkdir(parents=True, exist_ok=True)
    looks = [outcome.before, *outcome.samples, outcome.after]
    lines = "".join(json.dumps(one.as_json()) + "\n" for one in looks)
    (folder / "samples.jsonl").write_text(lines)
    chart = add_chart(folder, "chart.png", report, partial(_draw, outcome, report["verdict"]))
    return [write_json(folder, "report.json", report), "samples.jsonl", *chart]


def _mib(figure: _Figure) -> _Figure:
    def scaled(sample: Sample) -> float | None:
        value = figure(sample)
        return None if value is None else value / MIB

    return scaled


def _panels(samples: Sequence[Sample]) -> Iterator[tuple[str, dict[str, _Figure]]]:
    """(unit, lines) of each chart."""
    processes = list(samples[-1].processes) if samples else []
    memory = {named("resident", name): _mib(of(name, "rss_bytes")) for name in processes}
    caches = {named("its cache", name): _mib(of(name, "cache_bytes")) for name in processes}
    has_caches = any(one.cache_bytes for sample in samples for one in sample.processes.values())
    yield "MiB of memory", memory | (caches if has_caches else {})
    counts = {"Kafka connections": "connections", "open files": "files"}
    counts |= {name: name for name in ("sockets", "threads", "tasks")}
    yield (
        "count",
        {
            named(shown, name): of(name, field)
            for shown, field in counts.items()
            for name in processes
        },
    )
    yield (
        "MiB on disk",
        {
            "in all": _mib(lambda one: one.folder_bytes),
            "beyond the logs": _mib(overhead_bytes),
            "logs that are bounded": _mib(bounded_bytes(load.ENDLESS)),
        },
    )
    if any(one.shared is not None for one in samples):
        fields = ("ledgers", "orphans", "stale", "znodes", "watches")
        yield "count, shared", {field: of_shared(field) for field in fields}
    yield (
        "ms",
        {
            "produce p50": lambda one: one.produce_p50_ms,
            "produce p99": lambda one: one.produce_p99_ms,
            "fetch p50": lambda one: one.fetch_p50_ms,
            "fetch p99": lambda one: one.fetch_p99_ms,
            "control p50": lambda one: one.control_p50_ms,
        },
    )


def of(process: str, field: str) -> _Figure:
    """A figure of one process."""

    def found(sample: Sample) -> float | None:
        one = sample.processes.get(process)
        return None if one is None else getattr(one, field)

    return found


def of_shared(field: str) -> _Figure:
    """A figure of the brokers' shared state."""
    return lambda sample: None if sample.shared is None else getattr(sample.shared, field)


def _draw(outcome: Outcome, verdict: str, pyplot: Any) -> Any:
    """Figures over time."""
    samples = outcome.samples
    panels = list(_panels(samples))
    figure, rows = pyplot.subplots(len(panels), 1, figsize=(11, 3 * len(panels)), sharex=True)
    for axes, (unit, lines) in zip(rows, panels, strict=True):
        for name, value in lines.items():
            points = [(one.at_s, found) for one in samples if (found := value(one)) is not None]
            axes.plot([at for at, _ in points], [y for _, y in points], lw=1, label=name)
        axes.set_ylabel(unit)
        if samples:
            axes.axvspan(
                samples[0].at_s,
                samples[0].at_s + warm_up_s(outcome.plan.seconds),
                color="grey",
                alpha=0.15,
            )
        if unit == "ms":
            axes.set_yscale("log")
        else:
            axes.set_ylim(bottom=0)
        axes.legend(loc="upper left", fontsize="small", ncols=3)
    rows[-1].set_xlabel("seconds; grey: the warm-up")
    rows[0].set_title(
        f"headrace verify soak, {outcome.plan.target}, seed {outcome.plan.seed}: {verdict}"
    )
    return figure
