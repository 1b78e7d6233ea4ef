"""`headrace verify simulate`: clusters in one process, in simulated time.

Invariants: the runs are in `headrace_verify.simulation`; this module has the options, the progress
line and a table.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from headrace.cli.duration import Duration
from headrace.cli.failures import FAILED, OK, UNKNOWN
from headrace.cli.inert import refuse_inert
from headrace.cli.output import print_table, say
from headrace_verify.commands.mode import Mode, Proof, Table, mode_options, perform
from headrace_verify.commands.stopping import stop_requested
from headrace_verify.verdicts import CANNOT_RUN, INCONCLUSIVE, missing
from headrace_verify.workloads import LOG, WORKLOADS

if TYPE_CHECKING:
    from headrace_verify.commands.mode import Asked, Progress
    from headrace_verify.simulation.explore import Failure, Limits

QUICK_RUNS = 8


@click.command(
    epilog="Examples:\n\n  headrace verify simulate --time 5m --seed 7 --report"
    " ./simulation\n\n  headrace verify simulate --replay"
    " ./simulation/seed-12.json\n\n  headrace verify simulate --planted all   # check"
    " that it finds bugs"
)
@click.option("--time", "seconds", type=Duration(), help="Total real time.  [default: 60s]")
@click.option("--runs", type=click.IntRange(1), help="Run this many seeds, however long it takes.")
@click.option(
    "--hours", type=click.FloatRange(0, min_open=True), help="Run this many simulated hours."
)
@click.option(
    "--failures",
    type=click.IntRange(1),
    default=3,
    show_default=True,
    help="Stop after this many failed seeds.",
)
@click.option(
    "--workload",
    type=click.Choice(list(WORKLOADS)),
    default=LOG,
    show_default=True,
    help="The clients' workload.",
)
@click.option("--quick", is_flag=True, help="The profile of `make test`.")
@click.option(
    "--replay", type=click.Path(dir_okay=False, path_type=Path), help="Replay a failed run."
)
@mode_options("Seed of the first run.")
@click.pass_context
def simulate(
    ctx: click.Context,
    seconds: float | None,
    runs: int | None,
    hours: float | None,
    failures: int,
    workload: str,
    quick: bool,
    replay: Path | None,
    asked: Asked,
) -> None:
    """Run unmodified brokers over a simulated network, metadata store, bookies and clock.

    The exit code is 0 only if something was done and nothing was wrong.
    """
    from headrace_verify.simulation import bugs, report
    from headrace_verify.simulation.explore import Limits

    if replay is not None and not asked.is_list and asked.planted is None:
        refuse_inert(
            "with --replay",
            *("seconds", "runs", "hours", "failures", "workload", "quick"),
            *("seed", "report", "as_json"),
        )
        try:
            code = _replay(replay)
        except CANNOT_RUN as error:
            say(f"{INCONCLUSIVE}: the run could not be made: {error}")
            code = UNKNOWN
        ctx.exit(code)
    if runs is None and seconds is None and hours is None:
        seconds, runs = (None, QUICK_RUNS) if quick else (60.0, None)
    limits = Limits(seconds, runs, hours, failures)
    mode = Mode(
        partial(_explore, asked.seed, limits, asked.report, workload),
        report.as_json,
        report.write_report,
        _show,
        _tables,
        bugs.BUGS,
        partial(_find, asked.seed),
    )
    ctx.exit(perform(mode, asked))


def _explore(seed: int, limits: Limits, folder: Path | None, workload: str, show: Progress) -> Any:
    from headrace_verify.simulation.explore import explore
    from headrace_verify.simulation.report import write_failure

    def keep(failure: Failure) -> None:
        """Write a failure's files immediately, because the run may last for hours."""
        if folder is not None:
            write_failure(folder, failure)

    with stop_requested() as is_over:
        return explore(seed, limits, show, keep, is_over, workload=workload)


def _find(seed: int, bug: Any, show: Progress) -> Proof:
    from headrace_verify.simulation.bugs import find

    found = find(bug, seed, show)
    kinds = "" if found.result is None else ", ".join(sorted(found.result.kinds))
    return Proof(found.result is not None, f"{kinds} (seeds tried: {found.seeds})")


def _show(report: dict[str, Any]) -> None:
    print_table(("fault", "done"), list(report["faults"].items()))
    click.echo()
    print_table(("fault point", "hits"), list(report["mischief"].items()))
    for found in report["failures"]:
        _show_failure(found)
    for point in report["mischief_missed"]:
        say(f"VIOLATION: {point!r} was never hit: this run did not test it")
    for seed in report["unstable_seeds"]:
        say(f"VIOLATION: seed {seed}: the replay gave a different trace")
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
        f"seed {found['seed']}: reproduced by {len(needed)} faults (trace"
        f" {found['trace']}) and"
        f" {', '.join(found['points_needed']) or 'no fault points'}:"
    )
    for fault in needed:
        say(f"  {fault['at_s']} s: {fault['kind']} for {fault['lasts_s']} s at {fault['target']}")


def _replay(path: Path) -> int:
    from headrace_verify.simulation.report import read_scenario
    from headrace_verify.simulation.run import simulate as run

    is_clean, is_faulty, operations, faults_done = True, False, 0, 0
    for is_shrunk in (False, True):
        result = run(read_scenario(path, is_shrunk=is_shrunk))
        faults = len(result.scenario.schedule)
        say(f"{faults} faults: trace {result.trace:08x}, {', '.join(result.kinds) or 'clean'}")
        for problem in result.problems[:10]:
            say(f"VIOLATION: {problem}")
        for anomaly in result.verdict.anomalies[:10]:
            say(f"VIOLATION: {anomaly.kind}: {anomaly.what}")
        is_clean &= result.held
        operations += result.operations
        is_faulty |= faults > 0
        faults_done += sum(result.faults.values())
    if not is_clean:
        return FAILED
    evidence = {"completed operations": operations}
    if is_faulty:
        evidence["faults that took effect"] = faults_done
    gaps = missing(evidence)
    for gap in gaps:
        say(f"{INCONCLUSIVE}: {gap}")
    return UNKNOWN if gaps else OK


def _tables() -> list[Table]:
    from headrace_verify.simulation.fault_points import POINTS
    from headrace_verify.simulation.schedule import KINDS

    return [
        Table("faults", ("fault",), [(kind,) for kind in KINDS]),
        Table("fault points", ("fault point",), [(point,) for point in POINTS]),
    ]
