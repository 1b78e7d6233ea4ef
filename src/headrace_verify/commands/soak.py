"""`headrace verify soak`: brokers under mixed load for hours, checked for growth.

Invariants: the run is in `headrace_verify.soak`; this module has the options, the progress line and
a table.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import click

from headrace.cli.duration import Duration
from headrace.cli.output import print_table, say
from headrace_verify.commands.mode import Mode, Table, found_in, mode_options, perform

if TYPE_CHECKING:
    from headrace_verify.commands.mode import Asked

QUICK_S = 12.0
DEFAULT_S = 3600.0


@click.command(
    epilog="Examples:\n\n  headrace verify soak --time 1h --report ./soak\n\n  headrace"
    " verify soak --quick\n\n  headrace verify soak --target cluster --time 1h   #"
    " needs a Java runtime\n\n  headrace verify soak --planted all   # check that it"
    " finds leaks"
)
@click.option(
    "--target",
    type=click.Choice(["broker", "workers", "cluster"]),
    default="broker",
    show_default=True,
    help="A single broker, two workers of a worker cluster, or two brokers with a"
    " ZooKeeper and three bookies.",
)
@click.option("--time", "seconds", type=Duration(), help="Duration of the load.  [default: 1h]")
@click.option("--quick", is_flag=True, help="The profile of `make test`: detects only large leaks.")
@mode_options("Seed of the clients' random choices.")
@click.pass_context
def soak(
    ctx: click.Context,
    target: str,
    seconds: float | None,
    quick: bool,
    asked: Asked,
) -> None:
    """Run mixed load for hours: memory, descriptors, tasks, disk use and latency must not grow.

    The exit code is 0 only if something was measured and nothing was wrong.
    """
    from headrace_verify.soak import bugs, report, run

    if seconds is None:
        seconds = QUICK_S if quick else DEFAULT_S
    plan = run.Plan(seconds, asked.seed, target=target)
    mode = Mode(
        partial(run.run_soak, plan),
        report.as_json,
        report.write_report,
        _show,
        _tables,
        bugs.BUGS,
        found_in(bugs.find, asked.seed),
    )
    ctx.exit(perform(mode, asked))


def _show(report: dict[str, Any]) -> None:
    print_table(
        ("figure", "first third", "last third", "per hour", "within the run"),
        [
            (name, *(f"{found[key]:,.1f}" for key in ("first", "last", "per_hour", "grown")))
            for name, found in report["figures"].items()
        ],
    )
    for why in report["skipped"]:
        say(f"skipped: {why}")
    for what in report["violations"]:
        say(f"VIOLATION: {what}")
    load = report["load"]
    say(
        f"{load.get('acknowledged', 0):,} records acknowledged,"
        f" {load.get('read_again', 0):,} read again, {report['probe_rounds']:,} rounds of"
        f" the probe, {report['looks']} samples"
    )
    what = f"{report['target']}, seed {report['seed']}, version {report['version']}"
    say(f"{what}: {report['verdict']}")


def _tables() -> list[Table]:
    from headrace_verify.soak.load import ENDLESS
    from headrace_verify.soak.verdict import LEFT_S_MAX, limits, returns

    bounds = [(one.name, f"{one.floor:,.0f}", f"{one.per_hour:,.0f}") for one in limits(ENDLESS)]
    released = [(one.name, one.more_max) for one in returns()]
    orphans = ("orphaned objects of a cluster", f"within {LEFT_S_MAX} s")
    return [
        Table("limits", ("must not grow", "within a run", "per hour"), bounds),
        Table("released", ("is released after the load", "except"), [*released, orphans]),
    ]
