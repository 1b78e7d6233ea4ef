"""A run's folder: enough for others to judge it.

Invariants: `report.json` says what was tested, what was skipped and why, what was found;
`schedule.json` holds the faults, `history.jsonl` every operation. The chart needs matplotlib;
without it, the report says so.
"""

from __future__ import annotations

from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Any

from headrace_verify.blackbox.figures import BIN_MS, availability, outages, summary
from headrace_verify.blackbox.run import HISTORY, replays
from headrace_verify.report import add_chart, head, write_json

if TYPE_CHECKING:
    from pathlib import Path

    from headrace_verify.blackbox.run import Outcome


def as_json(outcome: Outcome) -> dict[str, Any]:
    """The whole report as plain values."""
    found = outages(outcome.tally, outcome.done.injected)
    faults: dict[str, int] = {}
    for episode in outcome.done.injected:
        faults[episode.fault.kind] = faults.get(episode.fault.kind, 0) + 1
    return {
        **head("blackbox", outcome),
        "seed": outcome.plan.seed,
        "replay": next(replays(outcome)),
        "seconds": outcome.plan.seconds,
        "violations": outcome.violations,
        **outcome.verdict.as_json(),
        "skipped": outcome.skipped,
        "faults": faults,
        "operations": outcome.tally.operations,
        "clients": outcome.tally.clients,
        "records_read": outcome.tally.records_read,
        "messages": outcome.messages,
        "events": outcome.event_count,
        "judged_s": round(outcome.judged_s, 2),
        "unavailability": summary(found),
        "outages": found,
        "broker_log_ends": outcome.log_tail,
        "archive": None if outcome.archive is None else asdict(outcome.archive),
    }


def write_report(folder: Path, outcome: Outcome, report: dict[str, Any]) -> list[str]:
    """Write the remaining files; returns the names of all."""
    names = [write_json(folder, "schedule.json", [fault._asdict() for fault in outcome.schedule])]
    draw = partial(_draw, outcome, report["verdict"])
    names += [HISTORY, *add_chart(folder, "availability.png", report, draw)]
    return [write_json(folder, "report.json", report), *names]


def _draw(outcome: Outcome, verdict: str, pyplot: Any) -> Any:
    """Writes and reads over time, with the faults."""
    writes, reads = availability(outcome.tally, outcome.begun_ns, outcome.ended_ns)
    seconds = [place * BIN_MS / 1000 for place in range(len(writes))]
    figure, axes = pyplot.subplots(figsize=(12, 5))
    per_s = 1000 // BIN_MS
    axes.plot(seconds, [count * per_s for count in writes], lw=1, label="acknowledged writes/s")
    axes.plot(seconds, [count * per_s for count in reads], lw=1, label="polls with records/s")
    colours: dict[str, str] = {}
    for episode in outcome.done.injected:
        kind = episode.fault.kind
        is_new = kind not in colours
        colour = colours.setdefault(kind, f"C{2 + len(colours) % 8}")
        first = (episode.began_ns - outcome.begun_ns) / 1e9
        last = max(first + 0.1, (episode.healed_ns - outcome.begun_ns) / 1e9)
        axes.axvspan(first, last, color=colour, alpha=0.25, label=kind if is_new else None)
    axes.set_xlabel("seconds")
    axes.set_yscale("symlog", linthresh=10)
    axes.set_ylim(bottom=0)
    last_ns = max([outcome.healed_ns, *(done for _, done in outcome.tally.writes[-1:])])
    axes.set_xlim(0, (last_ns - outcome.begun_ns) / 1e9 + 2)
    axes.legend(loc="upper left", fontsize="small", ncols=3)
    axes.set_title(f"headrace verify blackbox, seed {outcome.plan.seed}: {verdict}")
    return figure
