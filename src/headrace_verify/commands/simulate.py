"""`headrace verify simulate`: clusters in one process, under simulated time.

Rules of the room: the runs are in `headrace_verify.simulation`; here are options, a line, a table.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from headrace.cli.duration import Duration
from headrace.cli.failures import FAILED, OK
from headrace.cli.output import print_table, say
from headrace.cli.progress import StatusLine
from headrace_verify.commands.runs import run_shown, told_to_end

QUICK_RUNS = 8


@click.command(
    epilog="Examples:\n\n  headrace verify simulate --time 5m --seed 7 --report ./simulation\n\n"
    "  headrace verify simulate --replay ./simulation/seed-12.json\n\n"
    "  headrace verify simulate --planted all   # does it see bugs at all?"
)
@click.option("--time", "seconds", type=Duration(), help="Real time, in all.  [default: 60s]")
@click.option("--seed", type=int, default=1, show_default=True, help="Of the first run.")
@click.option("--runs", type=click.IntRange(1), help="So many seeds, however long it takes.")
@click.option("--hours", type=click.FloatRange(0, min_open=True), help="So many simulated hours.")
@click.option(
    "--failures",
    type=click.IntRange(1),
    default=3,
    show_default=True,
    help="End after so many seeds that were not clean.",
)
@click.option("--quick", is_flag=True, help="What `make test` runs.")
@click.option("--report", type=click.Path(file_okay=False, path_type=Path), help="Write a report.")
@click.option(
    "--replay", type=click.Path(dir_okay=False, path_type=Path), help="A failed run, once more."
)
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
@click.option("--list", "is_list", is_flag=True, help="List faults and planted bugs.")
@click.option("--planted", metavar="BUG", help="Plant a bug (number, words or `all`) and find it.")
@click.pass_context
def simulate(
    ctx: click.Context,
    seconds: float | None,
    seed: int,
    runs: int | None,
    hours: float | None,
    failures: int,
    quick: bool,
    report: Path | None,
    replay: Path | None,
    as_json: bool,
    is_list: bool,
    planted: str | None,
) -> None:
    """Clusters of brokers as they are, over a simulated network, metadata, bookies and time.

    The exit code is 0 only if something was done and nothing was wrong.
    """
    if is_list:
        _list()
        return
    if planted is not None:
        ctx.exit(_prove(planted, seed))
    if replay is not None:
        ctx.exit(_replay(replay))
    if runs is None and seconds is None and hours is None:
        seconds, runs = (None, QUICK_RUNS) if quick else (60.0, None)
    ctx.exit(_run(seed, (seconds, runs, hours, failures), report, as_json=as_json))


def _run(seed: int, limits: Any, folder: Path | None, *, as_json: bool) -> int:
    from headrace_verify.simulation import report as reports
    from headrace_verify.simulation.explore import Limits, explore

    def keep(failure: Any) -> None:
        if folder is not None:  # at once: the run may last for hours
            reports.write_failure(folder, failure)

    with told_to_end() as is_over:
        return run_shown(
            lambda show: explore(seed, Limits(*limits), show, keep, is_over),
            reports,
            _show,
            folder,
            as_json=as_json,
        )


def _show(report: dict[str, Any]) -> None:
    print_table(("fault", "done"), list(report["faults"].items()))
    click.echo()
    print_table(("mischief", "done"), list(report["mischief"].items()))
    for found in report["failures"]:
        _show_failure(found)
    for point in report["mischief_missed"]:
        say(f"VIOLATION: {point!r} was never done: this was no proof of it")
    for seed in report["unstable_seeds"]:
        say(f"VIOLATION: seed {seed}: another trace the second time")
    say(
        f"{report['runs']} runs, {report['simulated_hours']} simulated hours"
        f" ({report['broker_hours']} broker-hours), {report['simulated_per_real']} times real time,"
        f" {report['messages_per_s']:,} messages/s, {report['operations']:,} operations"
    )
    say(f"seed {report['seed']}, version {report['version']}: {report['verdict']}")


def _show_failure(found: dict[str, Any]) -> None:
    for problem in found["problems"][:10]:
        say(f"VIOLATION: seed {found['seed']}: {problem}")
    for anomaly in found["anomalies"][:10]:
        say(f"VIOLATION: seed {found['seed']}: {anomaly['kind']}: {anomaly['what']}")
    needed = found["faults_needed"]
    say(
        f"seed {found['seed']}: it takes {len(needed)} faults (trace {found['trace']})"
        f" and {', '.join(found['points_needed']) or 'no mischief'}:"
    )
    for fault in needed:
        say(f"  {fault['at_s']} s: {fault['kind']} for {fault['lasts_s']} s at {fault['target']}")


def _replay(path: Path) -> int:
    from headrace_verify.simulation.report import read_scenario
    from headrace_verify.simulation.run import simulate as run

    is_clean = True
    for is_shrunk in (False, True):
        result = run(read_scenario(path, is_shrunk=is_shrunk))
        faults = len(result.scenario.schedule)
        say(f"{faults} faults: trace {result.trace:08x}, {', '.join(result.kinds) or 'clean'}")
        for problem in result.problems[:10]:
            say(f"VIOLATION: {problem}")
        for anomaly in result.verdict.anomalies[:10]:
            say(f"VIOLATION: {anomaly.kind}: {anomaly.what}")
        is_clean &= result.held
    return OK if is_clean else FAILED


def _prove(words: str, seed: int) -> int:
    """Plant bugs, one search each; every one must be found."""
    from headrace_verify.simulation.bugs import chosen, find

    bugs = chosen(words)
    if not bugs:
        raise click.UsageError(f"no planted bug {words!r}: see --list")
    rows = []
    line = StatusLine()
    for bug in bugs:
        found = find(bug, seed, line.show)
        line.end()
        by = ", ".join(sorted(found.result.kinds)) if found.result else "-"
        rows.append((bug.number, bug.name, bool(found.result), found.seeds, by[:70]))
    print_table(("no.", "planted bug", "found", "seeds", "by"), rows)
    return OK if all(row[2] for row in rows) else FAILED


def _list() -> None:
    from headrace_verify.simulation.bugs import BUGS
    from headrace_verify.simulation.mischief import POINTS
    from headrace_verify.simulation.schedule import KINDS

    print_table(("fault",), [(kind,) for kind in KINDS])
    click.echo()
    print_table(("mischief",), [(point,) for point in POINTS])
    click.echo()
    rows = [(bug.number, bug.name, ", ".join(bug.faults) or "all") for bug in BUGS]
    print_table(("no.", "planted bug", "faults"), rows)
