"""`headrace verify upgrade`: data of other versions opens with this one, and is right.

Rules of the room: the run is in `headrace_verify.upgrade`; here are options, a line, a table.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from headrace.cli.failures import FAILED, OK, CommandFailed
from headrace.cli.output import print_table, say
from headrace_verify.commands.runs import run_shown

COMMITS = 5


@click.command(
    epilog="Examples:\n\n  headrace verify upgrade --report ./upgrade\n\n"
    "  headrace verify upgrade --commits 20   # folders that older commits write\n\n"
    "  headrace verify upgrade --planted all   # does it see changes at all?"
)
@click.option("--quick", is_flag=True, help="What `make test` runs: no older commits.")
@click.option("--from", "named", multiple=True, metavar="COMMIT", help="This one; repeatable.")
@click.option(
    "--commits",
    type=click.IntRange(0),
    help="So many of the history.  [default: 5]",
)
@click.option("--report", type=click.Path(file_okay=False, path_type=Path), help="Write a report.")
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
@click.option("--list", "is_list", is_flag=True, help="List golden sets and planted bugs.")
@click.option("--planted", metavar="BUG", help="Plant a bug (words or `all`) and find it.")
@click.option("--write-golden", is_flag=True, help="Make the golden set of this version anew.")
@click.pass_context
def upgrade(
    ctx: click.Context,
    quick: bool,
    named: tuple[str, ...],
    commits: int | None,
    report: Path | None,
    as_json: bool,
    is_list: bool,
    planted: str | None,
    write_golden: bool,
) -> None:
    """Open what every released version has written: read it, go on with it, refuse what is newer.

    The exit code is 0 only if something was checked and nothing was wrong.
    """
    if is_list:
        _list()
        return
    if write_golden:
        _write_golden()
        return
    if planted is not None:
        ctx.exit(_prove(planted))
    from headrace_verify.upgrade import older
    from headrace_verify.upgrade.run import Plan

    if commits is None:
        commits = 0 if quick or named else COMMITS
    plan = Plan((*named, *older.commits(commits)))
    if commits and not plan.commits:
        say("skipped: older commits: there is no git, or no history")
    ctx.exit(_run(plan, report, as_json=as_json))


def _run(plan: Any, folder: Path | None, *, as_json: bool) -> int:
    import logging

    from headrace_verify.upgrade import report as reports
    from headrace_verify.upgrade.run import run_upgrade

    logging.getLogger("headrace").setLevel(logging.CRITICAL)  # refusing is what this is about
    return run_shown(lambda show: run_upgrade(plan, show), reports, _show, folder, as_json=as_json)


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
        say(f"left out: {why}")
    say(f"{path}: {path.stat().st_size:,} bytes")


def _prove(words: str) -> int:
    """Plant bugs, one run each; every one must be found."""
    import logging

    from headrace_verify.self_proof import choose
    from headrace_verify.upgrade.bugs import BUGS, find

    bugs = choose(BUGS, words)
    if not bugs:
        raise click.UsageError(f"no planted bug {words!r}: see --list")
    logging.getLogger("headrace").setLevel(logging.CRITICAL)
    rows = []
    for bug in bugs:
        found = find(bug)
        rows.append((bug.name, bug.found_by, bool(found), found[0][:100] if found else "-"))
    print_table(("planted bug", "found by", "found", "what it says"), rows)
    return OK if all(row[2] for row in rows) else FAILED


def _list() -> None:
    from headrace_verify.upgrade import archive
    from headrace_verify.upgrade.bugs import BUGS

    print_table(
        ("golden set", "bytes", "released"),
        [
            (name, archive.path_of(name).stat().st_size, name in archive.RELEASED)
            for name in archive.names()
        ],
    )
    click.echo()
    print_table(("planted bug", "found by"), [(bug.name, bug.found_by) for bug in BUGS])
