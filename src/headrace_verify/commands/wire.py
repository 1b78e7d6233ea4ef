"""`headrace verify wire`: abuse of every listener, and its effect on other clients.

Invariants: the run is in `headrace_verify.wire`; this module has the options, the progress line and
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
    from collections.abc import Callable

    from headrace_verify.commands.mode import Asked
    from headrace_verify.wire.run import Plan

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
    from headrace_verify.wire import bugs, report
    from headrace_verify.wire.run import Plan

    if seconds is None:
        seconds = QUICK_S if quick else 30.0
    plan = Plan(seconds, asked.seed, only)
    ctx.exit(perform(cases_mode(plan, report, bugs, _tables), asked))


def cases_mode(plan: Plan, report: Any, bugs: Any, tables: Callable[[], list[Table]]) -> Mode:
    """A mode that runs cases, with the modules of its report and its bugs.

    Raises click.UsageError if the plan names none.
    """
    from headrace_verify.wire.run import run_wire

    if not plan.cases():
        only = " or ".join(plan.only)
        raise click.UsageError(f"no case matches {only!r}: see --list")
    return Mode(
        partial(run_wire, plan),
        report.as_json,
        report.write_report,
        _show,
        tables,
        bugs.BUGS,
        found_in(bugs.find, plan.seed),
    )


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


def _tables() -> list[Table]:
    from headrace_verify.wire.run import CASES

    return [Table("cases", ("listener", "case"), [(case.listener, case.name) for case in CASES])]
