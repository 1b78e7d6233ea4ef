"""`headrace verify soak`: brokers under mixed load for long, and what grows meanwhile.

Rules of the room: the run is in `headrace_verify.soak`; here are options, a line, a table.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from headrace.cli.duration import Duration
from headrace.cli.output import print_table, say
from headrace_verify.commands.runs import prove, run_shown

QUICK_S = 12.0
DEFAULT_S = 3600.0


@click.command(
    epilog="Examples:\n\n  headrace verify soak --time 1h --report ./soak\n\n"
    "  headrace verify soak --quick\n\n"
    "  headrace verify soak --target cluster --time 1h   # needs a Java runtime\n\n"
    "  headrace verify soak --planted all   # does it see leaks at all?"
)
@click.option(
    "--target",
    type=click.Choice(["broker", "workers", "cluster"]),
    default="broker",
    show_default=True,
    help="One broker, two workers of a machine, or two brokers over a ZooKeeper and three bookies.",
)
@click.option("--time", "seconds", type=Duration(), help="Under load.  [default: 1h]")
@click.option("--seed", type=int, default=1, show_default=True, help="Of the clients' chance.")
@click.option("--quick", is_flag=True, help="What `make test` runs: coarse leaks alone.")
@click.option("--report", type=click.Path(file_okay=False, path_type=Path), help="Write a report.")
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
@click.option("--list", "is_list", is_flag=True, help="List what is judged, and planted bugs.")
@click.option("--planted", metavar="BUG", help="Plant a bug (words or `all`) and find it.")
@click.pass_context
def soak(
    ctx: click.Context,
    target: str,
    seconds: float | None,
    seed: int,
    quick: bool,
    report: Path | None,
    as_json: bool,
    is_list: bool,
    planted: str | None,
) -> None:
    """Mixed load for hours: memory, descriptors, tasks, disk and latency must not grow.

    The exit code is 0 only if something was looked at and nothing was wrong.
    """
    from headrace_verify.soak import bugs
    from headrace_verify.soak import report as reports
    from headrace_verify.soak.run import Plan, run_soak

    if is_list:
        _list()
        return
    if planted is not None:
        ctx.exit(prove(bugs, planted, seed))
    if seconds is None:
        seconds = QUICK_S if quick else DEFAULT_S
    plan = Plan(seconds, seed, target=target)
    ctx.exit(run_shown(lambda show: run_soak(plan, show), reports, _show, report, as_json=as_json))


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
        f"{load.get('acknowledged', 0):,} records acknowledged, {load.get('read_again', 0):,} read"
        f" again, {report['probe_rounds']:,} rounds of the probe, {report['looks']} looks"
    )
    what = f"{report['target']}, seed {report['seed']}, version {report['version']}"
    say(f"{what}: {report['verdict']}")


def _list() -> None:
    from headrace_verify.soak.bugs import BUGS
    from headrace_verify.soak.load import ENDLESS
    from headrace_verify.soak.verdict import LEFT_S_MAX, limits, returns

    print_table(
        ("must not grow", "within a run", "per hour"),
        [(one.name, f"{one.floor:,.0f}", f"{one.per_hour:,.0f}") for one in limits(ENDLESS)],
    )
    click.echo()
    print_table(
        ("is given back behind the load", "but for"),
        [(one.name, one.more_max) for one in returns()],
    )
    say(f"what belongs to nothing is gone from a cluster within {LEFT_S_MAX} s")
    click.echo()
    print_table(
        ("planted bug", "in", "found by"), [(bug.name, bug.target, bug.says) for bug in BUGS]
    )
