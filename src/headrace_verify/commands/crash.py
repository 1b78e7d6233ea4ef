"""`headrace verify crash`: kill -9, power loss and damage, and what they violated.

Invariants: the attacks are in `headrace_verify.crash`; this module has the options, the progress
line and a table.
"""

from __future__ import annotations

import logging
import signal
import sys
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from headrace.cli.duration import Duration
from headrace.cli.output import print_table, say
from headrace.cli.progress import StatusLine
from headrace_verify.commands.mode import Mode, Proof, Table, mode_options, perform

if TYPE_CHECKING:
    from headrace_verify.commands.mode import Asked, Progress
    from headrace_verify.crash.run import Attacked, Plan
    from headrace_verify.task import Task


class _Line:
    """The running attack, on stderr. Has no thread, because attacks fork."""

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
        """Start the line of an attack."""
        self._title = title
        if self._is_shown:
            self._progress.update(self._task, description=title, completed=0, state="")
            self._progress.refresh()

    def show(self, task: Task) -> None:
        """Update the progress."""
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
        """Clear the line."""
        if self._is_shown:
            self._progress.stop()


@click.command(
    epilog="Examples:\n\n  headrace verify crash --quick\n\n  headrace verify crash --time"
    " 10m --report ./verify\n\n  headrace verify crash --only flips --all\n\n"
    "  headrace verify crash --planted all   # check that it finds bugs"
)
@click.option(
    "--time", "seconds", type=Duration(), default="60s", show_default=True, help="Total time."
)
@click.option("--runs", type=click.IntRange(1), help="Runs of each attack, instead of a time.")
@click.option(
    "--flips",
    type=click.IntRange(1),
    help="Number of bit flips (or torn tail bytes), instead of a time.",
)
@click.option(
    "--all", "is_exhaustive", is_flag=True, help="Flip every bit of the small folder: takes long."
)
@click.option("--quick", is_flag=True, help="The profile of `make test`: a minute.")
@click.option("--only", multiple=True, metavar="ATTACK", help="Run only this attack; repeatable.")
@mode_options("Same seed, same attacks.")
@click.pass_context
def crash(
    ctx: click.Context,
    seconds: float,
    runs: int | None,
    flips: int | None,
    is_exhaustive: bool,
    quick: bool,
    only: tuple[str, ...],
    asked: Asked,
) -> None:
    """Test crashes and damage: kill -9, power loss, torn files, flipped bits, failing disks.

    The exit code is 0 only if something was checked and no guarantee was violated.
    """
    from headrace_verify.crash import bugs, report
    from headrace_verify.crash.run import BY_NAME, Plan

    unknown = [name for name in only if name not in BY_NAME]
    if unknown:
        raise click.UsageError(f"unknown attack {unknown[0]!r}: choose from {', '.join(BY_NAME)}")
    plan = Plan(seconds, asked.seed, runs, flips, quick, is_exhaustive, only)
    mode = Mode(
        partial(_attack, plan),
        partial(report.as_json, asked.seed),
        report.write_report,
        _show,
        _tables,
        bugs.BUGS,
        partial(_find, asked.seed),
    )
    ctx.exit(perform(mode, asked))


def _attack(plan: Plan, _show: Progress) -> Attacked:
    """Attacks fork, so the progress line has no thread."""
    from headrace_verify.crash.run import Attacked, run_attacks

    logging.getLogger("headrace").setLevel(logging.CRITICAL)  # failure is the expected result
    line = _Line()
    # A long run that is stopped still reports its checks.
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        return Attacked(run_attacks(plan, lambda attack: line.begin(attack.name), line.show))
    finally:
        signal.signal(signal.SIGTERM, before)
        line.end()


def _find(seed: int, bug: Any, _show: Progress) -> Proof:
    from headrace_verify.crash.run import find_planted

    logging.getLogger("headrace").setLevel(logging.CRITICAL)
    proof, (attack,) = find_planted(bug, seed), bug.found_by
    if proof.is_skipped:
        return Proof(True, f"skipped: this machine lacks what {attack!r} needs")
    return Proof(proof.is_found, attack)


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
    for attack in report["attacks"]:
        for name, figure in attack["figures"].items():
            say(f"{attack['name']}: {name}: {figure}")
        for why in attack["skipped"]:
            say(f"{attack['name']}: skipped: {why}")
        for finding in attack["findings"]:
            say(f"{attack['name']}: VIOLATION: {finding['what']}  (replay: {finding['replay']})")
    say(f"seed {report['seed']}, version {report['version']}: {report['verdict']}")


def _tables() -> list[Table]:
    from headrace_verify.crash.run import ATTACKS

    return [Table("attacks", ("name", "promise"), [(one.name, one.promise) for one in ATTACKS])]
