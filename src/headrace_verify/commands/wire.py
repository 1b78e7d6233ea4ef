"""`headrace verify wire`: abuse of every listener, and what it did to everybody else.

Rules of the room: the run is in `headrace_verify.wire`; here are options, a line, a table.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from headrace.cli.duration import Duration
from headrace.cli.output import print_table, say
from headrace_verify.commands.runs import prove, run_shown

if TYPE_CHECKING:
    from headrace_verify.commands.runs import ReportPart

QUICK_S = 4.0


@click.command(
    epilog="Examples:\n\n  headrace verify wire --time 30s --seed 7 --report ./wire\n\n"
    "  headrace verify wire --only bombs\n\n"
    "  headrace verify wire --planted all   # does it see bugs at all?"
)
@click.option("--time", "seconds", type=Duration(), help="In all, about.  [default: 30s]")
@click.option("--seed", type=int, default=1, show_default=True, help="Same seed, same abuse.")
@click.option("--quick", is_flag=True, help="What `make test` runs.")
@click.option("--only", multiple=True, metavar="WORDS", help="Cases so named; may be repeated.")
@click.option("--report", type=click.Path(file_okay=False, path_type=Path), help="Write a report.")
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
@click.option("--list", "is_list", is_flag=True, help="List cases and planted bugs.")
@click.option("--planted", metavar="BUG", help="Plant a bug (words or `all`) and find it.")
@click.pass_context
def wire(
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
    """Hostile clients on every listener of a real broker, while a good one is measured.

    The exit code is 0 only if something was checked and nothing was wrong.
    """
    from headrace_verify.wire.run import Plan

    if is_list:
        _list()
        return
    if planted is not None:
        from headrace_verify.wire import bugs

        ctx.exit(prove(bugs, planted, seed))
    if seconds is None:
        seconds = QUICK_S if quick else 30.0
    plan = Plan(seconds, seed, only)
    from headrace_verify.wire import report as reports

    ctx.exit(run_plan(plan, reports, report, as_json=as_json))


def run_plan(plan: Any, reports: ReportPart, folder: Path | None, *, as_json: bool) -> int:
    """Run it, report and show what came of it; the exit code. Raises click.UsageError."""
    from headrace_verify.wire.run import run_wire

    if not plan.cases():
        raise click.UsageError(f"no case is named {' or '.join(plan.only)!r}: see --list")
    return run_shown(lambda show: run_wire(plan, show), reports, _show, folder, as_json=as_json)


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
    say(f"good client: {good['writes']:,} acknowledged writes, p99 {good['p99_ms']} ms")
    say(f"seed {report['seed']}, version {report['version']}: {report['verdict']}")


def _list() -> None:
    from headrace_verify.wire.bugs import BUGS
    from headrace_verify.wire.run import CASES

    print_table(("listener", "case"), [(case.listener, case.name) for case in CASES])
    click.echo()
    print_table(("planted bug", "found by"), [(bug.name, bug.case) for bug in BUGS])
