"""`headrace verify security`: attacks modelled on published vulnerabilities.

Invariants: the run is in `headrace_verify.security`; this module has the options and a table.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from headrace.cli.duration import Duration
from headrace_verify.commands.mode import Table, mode_options, perform
from headrace_verify.commands.wire import cases_mode

if TYPE_CHECKING:
    from headrace_verify.commands.mode import Asked


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
    from headrace_verify.security import bugs, report, run

    if seconds is None:
        seconds = run.QUICK_S if quick else run.LONG_S
    plan = run.plan(seconds, asked.seed, only)
    ctx.exit(perform(cases_mode(plan, report, bugs, _tables), asked))


def _tables() -> list[Table]:
    from headrace_verify.security.table import THREATS

    rows = [(one.listener, one.case.name, one.after or "-", one.holds) for one in THREATS]
    return [Table("cases", ("target", "case", "modelled on", "must hold"), rows)]
