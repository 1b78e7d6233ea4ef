"""`headrace verify wire`: abuse of every listener, and its effect on other clients.

Invariants: the run is in `headrace_verify.wire`; this module has the options, the progress line and
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
    from headrace_verify.wire.bugs import Bug
    from headrace_verify.wire.run import Outcome, Plan

QUICK_S = 4.0


@click.command(
    epilog="Examples:\n\n  headrace verify wire --time 30s --seed 7 --report ./wire\n\n"
    "  headrace verify wire --only bombs\n\n  headrace verify wire --planted all   #"
    " check that it finds bugs"
)
@click.option("--time", "seconds", type=Duration(), help="Approximate total time.  [default: 30s]")
@click.option("--quick", is_flag=True, help="The profile of `make test`.")
@click.option(
    "--only",
    multiple=True,
    metavar="WORDS",
    help="Run only cases whose name contains this; repeatable.",
)
@mode_options("Same seed, same abuse.")
@click.pass_context
def wire(
    ctx: click.Context,
    seconds: float | None,
    quick: bool,
    only: tuple[str, ...],
    asked: Asked,
) -> None:
    """Run hostile clients against every listener of a real broker.

    A reference client writes and is measured meanwhile. The exit code is 0 only if something was
    checked and nothing was wrong.
    """
    from headrace_verify.wire.run import Plan

    if seconds is None:
        seconds = QUICK_S if quick else 30.0
    ctx.exit(perform(Wire(Plan(seconds, asked.seed, only)), asked))


class Wire:
    """See Mode."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan

    def run(self, show: Progress) -> Outcome:
        """See Mode."""
        from headrace_verify.wire.run import run_wire

        self.check_cases()
        return run_wire(self._plan, show)

    def check_cases(self) -> None:
        """Raises click.UsageError if the plan names no case."""
        if not self._plan.cases():
            only = " or ".join(self._plan.only)
            raise click.UsageError(f"no case matches {only!r}: see --list")

    def as_json(self, outcome: Outcome) -> dict[str, Any]:
        """See Mode."""
        from headrace_verify.wire.report import as_json

        return as_json(outcome)

    def write_report(self, folder: Path, outcome: Outcome, report: dict[str, Any]) -> Sequence[str]:
        """See Mode."""
        from headrace_verify.wire.report import write_report

        return write_report(folder, outcome, report)

    def print_report(self, report: dict[str, Any]) -> None:
        """See Mode."""
        _show(report)

    def print_list(self, *, as_json: bool) -> None:
        """See Mode."""
        _list()

    def choose(self, words: str) -> Sequence[Bug]:
        """See Mode."""
        from headrace_verify.wire.bugs import BUGS

        return choose(BUGS, words)

    def find(self, bug: Bug, show: Progress) -> Proof:
        """See Mode."""
        from headrace_verify.wire.bugs import find

        return proof_of(find(bug, self._plan.seed, show))


_FIGURES = ("p99_ms", "max_ms", "memory_grown_mib", "peak_grown_mib", "log_lines")


def _show(report: dict[str, Any]) -> None:
    print_table(
        ("case", "on", "verdict", "checked", "s", "p99 ms", "max ms", "MiB", "peak MiB", "log"),
        [
            (
                one["case"],
                one["listener"],
                one["verdict"],
                one["checked"],
                one["seconds"],
                *(one["figures"].get(name, "-") for name in _FIGURES),
            )
            for one in report["cases"]
        ],
    )
    for one in report["cases"]:
        for why in one["skipped"]:
            say(f"skipped: {one['case']}: {why}")
        for what in one["violations"]:
            say(f"VIOLATION: {one['case']}: {what}")
    for why in report["skipped"]:
        say(f"skipped: {why}")
    good = report["good_client"]
    for what in good["lost"]:
        say(f"VIOLATION: {what}")
    say(f"reference client: {good['writes']:,} acknowledged writes, p99 {good['p99_ms']} ms")
    say(f"seed {report['seed']}, version {report['version']}: {report['verdict']}")


def _list() -> None:
    from headrace_verify.wire.bugs import BUGS
    from headrace_verify.wire.run import CASES

    print_table(("listener", "case"), [(case.listener, case.name) for case in CASES])
    click.echo()
    print_table(("planted bug", "found by"), [(bug.name, bug.case) for bug in BUGS])
