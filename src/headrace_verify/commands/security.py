"""`headrace verify security`: attacks modelled on published vulnerabilities.

Invariants: the run is in `headrace_verify.security`; this module has the options and a table.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from headrace.cli.duration import Duration
from headrace.cli.output import print_table
from headrace_verify.commands.mode import mode_options, perform, proof_of
from headrace_verify.commands.wire import Wire
from headrace_verify.self_proof import choose

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headrace_verify.commands.mode import Asked, Progress, Proof
    from headrace_verify.wire.bugs import Bug
    from headrace_verify.wire.run import Outcome, Plan


@click.command(
    epilog="Examples:\n\n  headrace verify security --seed 7 --report ./security\n\n"
    "  headrace verify security --only names\n\n  headrace verify security --planted"
    " all   # check that it finds holes"
)
@click.option(
    "--time",
    "seconds",
    type=Duration(),
    help="Minimum total time; most cases have a fixed length.  [60s]",
)
@click.option("--quick", is_flag=True, help="The profile of `make test`.")
@click.option(
    "--only",
    multiple=True,
    metavar="WORDS",
    help="Run only cases whose name contains this; repeatable.",
)
@mode_options("Same seed, same attacks.")
@click.pass_context
def security(
    ctx: click.Context,
    seconds: float | None,
    quick: bool,
    only: tuple[str, ...],
    asked: Asked,
) -> None:
    """Attack a real broker: names, permissions, settings, bombs, HTTP, secrets, files, source code.

    The exit code is 0 only if something was checked and nothing was wrong.
    """
    from headrace_verify.security import run

    if seconds is None:
        seconds = run.QUICK_S if quick else run.LONG_S
    ctx.exit(perform(Security(run.plan(seconds, asked.seed, only)), asked))


class Security:
    """See Mode: the wire mode's run and tables, with its own cases."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._wire = Wire(plan)
        self.write_report = self._wire.write_report
        self.print_report = self._wire.print_report

    def run(self, show: Progress) -> Outcome:
        """See Mode."""
        from headrace_verify.security.run import run_security

        self._wire.check_cases()
        return run_security(self._plan, show)

    def as_json(self, outcome: Outcome) -> dict[str, Any]:
        """See Mode."""
        from headrace_verify.security.report import as_json

        return as_json(outcome)

    def print_list(self, *, as_json: bool) -> None:
        """See Mode."""
        _list()

    def choose(self, words: str) -> Sequence[Bug]:
        """See Mode."""
        from headrace_verify.security.bugs import BUGS

        return choose(BUGS, words)

    def find(self, bug: Bug, show: Progress) -> Proof:
        """See Mode."""
        from headrace_verify.security.bugs import find

        return proof_of(find(bug, self._plan.seed, show))


def _list() -> None:
    from headrace_verify.security.bugs import BUGS
    from headrace_verify.security.table import THREATS

    print_table(
        ("target", "case", "modelled on", "must hold"),
        [(one.listener, one.case.name, one.after or "-", one.holds) for one in THREATS],
    )
    click.echo()
    print_table(("planted hole", "found by"), [(bug.name, bug.case) for bug in BUGS])
