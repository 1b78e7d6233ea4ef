"""`headrace verify soak`: brokers under mixed load for hours, checked for growth.

Invariants: the run is in `headrace_verify.soak`; this module has the options, the progress line and
a table.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from headrace.cli.duration import Duration
from headrace.cli.output import print_table, say
from headrace_verify.commands.mode import mode_options, perform, proof_of
from headrace_verify.self_proof import choose

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from headrace_verify.commands.mode import Asked, Progress, Proof
    from headrace_verify.soak.bugs import Bug
    from headrace_verify.soak.run import Outcome, Plan

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
    from headrace_verify.soak.run import Plan

    if seconds is None:
        seconds = QUICK_S if quick else DEFAULT_S
    ctx.exit(perform(Soak(Plan(seconds, asked.seed, target=target)), asked))


class Soak:
    """See Mode."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan

    def run(self, show: Progress) -> Outcome:
        """See Mode."""
        from headrace_verify.soak.run import run_soak

        return run_soak(self._plan, show)

    def as_json(self, outcome: Outcome) -> dict[str, Any]:
        """See Mode."""
        from headrace_verify.soak.report import as_json

        return as_json(outcome)

    def write_report(self, folder: Path, outcome: Outcome, report: dict[str, Any]) -> Sequence[str]:
        """See Mode."""
        from headrace_verify.soak.report import write_report

        return write_report(folder, outcome, report)

    def print_report(self, report: dict[str, Any]) -> None:
        """See Mode."""
        _show(report)

    def print_list(self, *, as_json: bool) -> None:
        """See Mode."""
        _list()

    def choose(self, words: str) -> Sequence[Bug]:
        """See Mode."""
        from headrace_verify.soak.bugs import BUGS

        return choose(BUGS, words)

    def find(self, bug: Bug, show: Progress) -> Proof:
        """See Mode."""
        from headrace_verify.soak.bugs import find

        return proof_of(find(bug, self._plan.seed, show))


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
        ("is released after the load", "except"),
        [(one.name, one.more_max) for one in returns()],
    )
    say(f"orphaned objects are deleted from a cluster within {LEFT_S_MAX} s")
    click.echo()
    print_table(
        ("planted bug", "in", "found by"), [(bug.name, bug.target, bug.says) for bug in BUGS]
    )
