"""`headrace verify security`: a table of attacks, each drawn from a published vulnerability.

Rules of the room: the run is in `headrace_verify.security`; here are options and a table.
"""

from __future__ import annotations

from pathlib import Path

import click

from headrace.cli.duration import Duration
from headrace.cli.output import print_table
from headrace_verify.commands.runs import prove
from headrace_verify.commands.wire import run_plan


@click.command(
    epilog="Examples:\n\n  headrace verify security --seed 7 --report ./security\n\n"
    "  headrace verify security --only names\n\n"
    "  headrace verify security --planted all   # does it see holes at all?"
)
@click.option(
    "--time", "seconds", type=Duration(), help="In all, at least; most cases just end.  [60s]"
)
@click.option("--seed", type=int, default=1, show_default=True, help="Same seed, same attacks.")
@click.option("--quick", is_flag=True, help="What `make test` runs.")
@click.option("--only", multiple=True, metavar="WORDS", help="Cases so named; may be repeated.")
@click.option("--report", type=click.Path(file_okay=False, path_type=Path), help="Write a report.")
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
@click.option("--list", "is_list", is_flag=True, help="List cases, sources and planted holes.")
@click.option("--planted", metavar="BUG", help="Plant a hole (words or `all`) and find it.")
@click.pass_context
def security(
    ctx: click.Context,
    seconds: float | None,
    seed: int,
    quick: bool,
    only: tuple[str, ...],
    report: Path | None,
    as_json: bool,
    is_list: bool,
    planted: str | None,
) -> None:
    """Attacks on a real broker: names, rights, settings, bombs, HTTP, secrets, files, its source.

    The exit code is 0 only if something was checked and nothing was wrong.
    """
    from headrace_verify.security import bugs, run
    from headrace_verify.security import report as reports

    if is_list:
        _list()
        return
    if planted is not None:
        ctx.exit(prove(bugs, planted, seed))
    if seconds is None:
        seconds = run.QUICK_S if quick else run.LONG_S
    plan = run.plan(seconds, seed, only)
    ctx.exit(run_plan(plan, reports, report, as_json=as_json))


def _list() -> None:
    from headrace_verify.security.bugs import BUGS
    from headrace_verify.security.table import THREATS

    print_table(
        ("on", "case", "drawn from", "must hold"),
        [(one.listener, one.case.name, one.after or "-", one.holds) for one in THREATS],
    )
    click.echo()
    print_table(("planted hole", "found by"), [(bug.name, bug.case) for bug in BUGS])
