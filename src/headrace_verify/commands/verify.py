"""`headrace verify`: attack this installation on this machine, and say what held.

Rules of the room: the attacks are in `headrace_verify`; here are options, a progress line, a table.
"""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from headrace.cli.duration import Duration
from headrace.cli.failures import FAILED, OK
from headrace.cli.output import print_json, print_table, say
from headrace.cli.progress import StatusLine
from headrace_verify.commands.blackbox import blackbox
from headrace_verify.commands.security import security
from headrace_verify.commands.simulate import simulate
from headrace_verify.commands.soak import soak
from headrace_verify.commands.upgrade import upgrade
from headrace_verify.commands.wire import wire

if TYPE_CHECKING:
    from headrace_verify.crash import Plan
    from headrace_verify.task import Task


class _Line:
    """What runs now, on stderr. It has no thread, because attacks fork."""

    def __init__(self) -> None:
        self._is_shown = sys.stderr.isatty()
        self._title = ""
        self._elsewhere = StatusLine()
        self._progress: Any = None
        if self._is_shown:
            from rich.console import Console
            from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

            self._progress = Progress(
                TextColumn("{task.description}"),
                BarColumn(),
                TextColumn("{task.fields[state]}"),
                TimeElapsedColumn(),
                console=Console(stderr=True),
                transient=True,
                auto_refresh=False,
            )
            self._progress.start()
            self._task = self._progress.add_task("", total=1.0, state="")

    def begin(self, title: str) -> None:
        """Name what begins."""
        self._title = title
        if self._is_shown:
            self._progress.update(self._task, description=title, completed=0, state="")
            self._progress.refresh()

    def show(self, task: Task) -> None:
        """Say how far it is."""
        done = task.fraction
        if task.runs_max:
            done = task.runs / task.runs_max
        state = f"{task.checked:,} checked, {task.violation_count} violations"
        if self._is_shown:
            self._progress.update(self._task, completed=done, state=state)
            self._progress.refresh()
        else:
            self._elsewhere.show(done, f"{self._title}: {state}")

    def end(self) -> None:
        """Take it away."""
        if self._is_shown:
            self._progress.stop()


@click.group()
def verify() -> None:
    """Attack Headrace on this machine: every promise has a test that tries to break it."""


verify.add_command(blackbox)
verify.add_command(wire)
verify.add_command(simulate)
verify.add_command(soak)
verify.add_command(upgrade)
verify.add_command(security)


@verify.command(
    epilog="Examples:\n\n  headrace verify crash --quick\n\n  headrace verify crash --time 10m"
    " --report ./verify\n\n  headrace verify crash --only flips --all\n\n"
    "  headrace verify crash --planted all   # does it see bugs at all?"
)
@click.option(
    "--time", "seconds", type=Duration(), default="60s", show_default=True, help="In all."
)
@click.option("--seed", type=int, default=1, show_default=True, help="Same seed, same attacks.")
@click.option("--runs", type=click.IntRange(1), help="Runs of each attack, instead of a time.")
@click.option("--flips", type=click.IntRange(1), help="Flips (or torn tail bytes), likewise.")
@click.option("--all", "is_exhaustive", is_flag=True, help="Every bit of the small folder: long.")
@click.option("--quick", is_flag=True, help="The profile of `make test`: a minute.")
@click.option("--only", multiple=True, metavar="ATTACK", help="This attack alone; may be repeated.")
@click.option("--report", type=click.Path(file_okay=False, path_type=Path), help="Write a report.")
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
@click.option("--list", "is_list", is_flag=True, help="List attacks, promises and planted bugs.")
@click.option("--planted", metavar="BUG", help="Plant a bug (number, words or `all`) and find it.")
@click.pass_context
def crash(
    ctx: click.Context,
    seconds: float,
    seed: int,
    runs: int | None,
    flips: int | None,
    is_exhaustive: bool,
    quick: bool,
    only: tuple[str, ...],
    report: Path | None,
    as_json: bool,
    is_list: bool,
    planted: str | None,
) -> None:
    """Crashes and damage: kill -9, power loss, torn files, flipped bits, failing disks.

    The exit code is 0 only if something was checked and every promise held.
    """
    from headrace_verify.crash import BY_NAME, Plan

    if is_list:
        _list(as_json=as_json)
        return
    unknown = [name for name in only if name not in BY_NAME]
    if unknown:
        raise click.UsageError(f"no attack {unknown[0]!r}: choose from {', '.join(BY_NAME)}")
    plan = Plan(seconds, seed, runs, flips, quick, is_exhaustive, only)
    ctx.exit(_run(plan, planted, report, as_json=as_json))


def _run(plan: Plan, planted: str | None, folder: Path | None, *, as_json: bool) -> int:
    import logging

    from headrace_verify.crash import run_attacks, run_planted
    from headrace_verify.planted import chosen
    from headrace_verify.report import has_held, summary, write_report

    if planted is not None and not chosen(planted):
        raise click.UsageError(f"no planted bug {planted!r}: see --list")
    logging.getLogger("headrace").setLevel(logging.CRITICAL)  # failing is what this is about
    line = _Line()
    # A long run that is told to end still reports what it has checked.
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        if planted is None:
            outcomes = run_attacks(plan, lambda attack: line.begin(attack.name), line.show)
            proofs = []
        else:
            outcomes = []
            proofs = run_planted(planted, plan.seed, lambda bug: line.begin(bug.name))
    finally:
        signal.signal(signal.SIGTERM, before)
        line.end()
    report = summary(plan.seed, outcomes, proofs)
    if folder is not None:
        names = write_report(folder, report)
        say(f"report: {folder}: {', '.join(names[:6])}{' ...' if len(names) > 6 else ''}")
    if as_json:
        print_json(report)
    else:
        _show(report)
    return OK if has_held(outcomes, proofs) else FAILED


def _show(report: dict[str, Any]) -> None:
    if report["attacks"]:
        print_table(
            ("attack", "verdict", "checked", "what", "seconds", "per second", "violations"),
            [
                (
                    one["name"],
                    one["verdict"],
                    one["checked"],
                    one["unit"],
                    one["seconds"],
                    round(one["checked"] / max(one["seconds"], 0.1), 1),
                    one["violations"],
                )
                for one in report["attacks"]
            ],
        )
    if report["planted"]:
        print_table(
            ("no", "planted bug", "attack", "found", "seconds"),
            [
                (one["number"], one["bug"], one["attack"], one["found"], one["seconds"])
                for one in report["planted"]
            ],
        )
    for attack in report["attacks"]:
        for name, figure in attack["figures"].items():
            say(f"{attack['name']}: {name}: {figure}")
        for why in attack["skipped"]:
            say(f"{attack['name']}: skipped: {why}")
        for finding in attack["findings"]:
            say(f"{attack['name']}: VIOLATION: {finding['what']}  (replay: {finding['replay']})")
    missed = [one["bug"] for one in report["planted"] if not one["found"]]
    if missed:
        say(f"NOT FOUND: {', '.join(missed)}")
    say(f"seed {report['seed']}, version {report['version']}: {report['verdict']}")


def _list(*, as_json: bool) -> None:
    from headrace_verify.crash import ATTACKS
    from headrace_verify.planted import PLANTED

    if as_json:
        print_json(
            {
                "attacks": [{"name": one.name, "promise": one.promise} for one in ATTACKS],
                "planted": [
                    {"number": bug.number, "bug": bug.name, "attack": bug.attack} for bug in PLANTED
                ],
            }
        )
        return
    print_table(("attack", "promise"), [(one.name, one.promise) for one in ATTACKS])
    click.echo()
    bugs = sorted(PLANTED, key=lambda bug: bug.number)
    print_table(
        ("no", "planted bug", "found by"), [(bug.number, bug.name, bug.attack) for bug in bugs]
    )
