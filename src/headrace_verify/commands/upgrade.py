"""`headrace verify upgrade`: opens data of other versions with this one, and verifies it.

Invariants: the run is in `headrace_verify.upgrade`; this module has the options, the progress line
and a table.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from headrace.cli.failures import CommandFailed
from headrace.cli.output import print_table, say
from headrace_verify.commands.mode import Mode, Table, found_in, mode_options, perform

if TYPE_CHECKING:
    from headrace_verify.commands.mode import Asked, Progress
    from headrace_verify.upgrade.run import Outcome

COMMITS = 5


@click.command(
    epilog="Examples:\n\n  headrace verify upgrade --report ./upgrade\n\n  headrace verify"
    " upgrade --commits 20   # also folders written by older commits\n\n  headrace"
    " verify upgrade --planted all   # check that it finds incompatible changes"
)
@click.option("--quick", is_flag=True, help="The profile of `make test`: nothing older runs.")
@click.option(
    "--from", "named", multiple=True, metavar="COMMIT", help="Check only this one; repeatable."
)
@click.option(
    "--commits",
    type=click.IntRange(0),
    help="This many commits of the history.  [default: 5]",
)
@click.option("--write-golden", is_flag=True, help="Regenerate the golden set of this version.")
@mode_options(None)
@click.pass_context
def upgrade(
    ctx: click.Context,
    quick: bool,
    named: tuple[str, ...],
    commits: int | None,
    write_golden: bool,
    asked: Asked,
) -> None:
    """Open data written by every released version: read it, append to it, and reject newer formats.

    The exit code is 0 only if something was checked and nothing was wrong.
    """
    from headrace_verify.upgrade import bugs, report

    if write_golden and not asked.is_list:
        _write_golden()
        return
    if commits is None:
        commits = 0 if quick or named else COMMITS
    mode = Mode(
        partial(_run, named, commits, is_quick=quick),
        report.as_json,
        report.write_report,
        _show,
        _tables,
        bugs.BUGS,
        found_in(_find, asked.seed),
    )
    ctx.exit(perform(mode, asked))


def _run(named: tuple[str, ...], commits: int, show: Progress, *, is_quick: bool) -> Outcome:
    from headrace_verify.upgrade import older
    from headrace_verify.upgrade.run import EVERYTHING, QUICK, Plan, run_upgrade

    what = QUICK if is_quick or named else EVERYTHING
    plan = Plan((*named, *older.commits(commits)), what)
    if commits and not plan.commits:
        say("skipped: older commits: git or the repository's history is not available")
    logging.getLogger("headrace").setLevel(logging.CRITICAL)  # rejection is the expected result
    return run_upgrade(plan, show)


def _find(bug: Any, _seed: int, _show: Progress) -> list[str]:
    from headrace_verify.upgrade.bugs import find

    logging.getLogger("headrace").setLevel(logging.CRITICAL)
    return find(bug)


def _show(report: dict[str, Any]) -> None:
    print_table(
        ("what", "compared", "verdict"),
        [
            (one["where"], one["checked"], "VIOLATED" if one["violations"] else "held")
            for one in report["checks"]
            if one["checked"] or one["violations"]
        ],
    )
    for one in report["checks"]:
        for why in one["skipped"]:
            say(f"skipped: {one['where']}: {why}")
    for what in report["violations"]:
        say(f"VIOLATION: {what}")
    say(f"version {report['version']}, {report['seconds']} s: {report['verdict']}")


def _write_golden() -> None:
    from headrace.errors import RequestInvalid
    from headrace_verify.upgrade.run import write_golden

    try:
        path, skipped = write_golden()
    except RequestInvalid as error:
        raise CommandFailed(str(error)) from error
    for why in skipped:
        say(f"skipped: {why}")
    say(f"{path}: {path.stat().st_size:,} bytes")


def _tables() -> list[Table]:
    from headrace_verify.upgrade import archive

    rows = [
        (name, archive.path_of(name).stat().st_size, name in archive.RELEASED)
        for name in archive.names()
    ]
    return [Table("golden sets", ("golden set", "bytes", "released"), rows)]
