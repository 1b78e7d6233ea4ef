"""What the commands of `headrace verify` share: a run with its line and report, and self-proof.

Rules of the room: a mode gives its run, its report and its tables; nothing here knows any of them.
"""

from __future__ import annotations

import signal
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

import click

from headrace.cli.failures import FAILED, OK
from headrace.cli.output import print_json, print_table, say
from headrace.cli.progress import StatusLine
from headrace_verify.self_proof import choose

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    Progress = Callable[[float, str], None]


class Outcome(Protocol):
    """What a run came to."""

    @property
    def held(self) -> bool:
        """Whether something was checked and nothing was wrong."""


class ReportPart(Protocol):
    """The `report` module of a mode."""

    def as_json(self, outcome: Any, /) -> dict[str, Any]:
        """The whole report as plain values."""

    def write_report(self, folder: Path, outcome: Any, report: dict[str, Any], /) -> Sequence[str]:
        """Write the folder; the names of its files."""


@contextmanager
def told_to_end() -> Iterator[Callable[[], bool]]:
    """Yields what says whether Ctrl-C or SIGTERM came: what was done until then is reported.

    The second time, they do what they always do.
    """
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    came: list[int] = []

    def note(number: int, _frame: object) -> None:
        came.append(number)
        say("told to end: finishing what has begun")
        restore()

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    for number in before:
        signal.signal(number, note)
    try:
        yield lambda: bool(came)
    finally:
        restore()


def run_shown(
    run: Callable[[Progress], Outcome],
    reports: ReportPart,
    show: Callable[[dict[str, Any]], None],
    folder: Path | None,
    *,
    as_json: bool,
) -> int:
    """Run it, report and show what came of it; the exit code."""
    line = StatusLine()
    try:
        outcome = run(line.show)
    finally:
        line.end()
    report = reports.as_json(outcome)
    if folder is not None:
        names = reports.write_report(folder, outcome, report)
        say(f"report: {folder}: {', '.join(names)}")
    if as_json:
        print_json(report)
    else:
        show(report)
    return OK if outcome.held else FAILED


def prove(module: Any, words: str, seed: int) -> int:
    """Plant bugs of a module, one run each; every one must be found. Raises click.UsageError."""
    bugs = choose(module.BUGS, words)
    if not bugs:
        raise click.UsageError(f"no planted bug {words!r}: see --list")
    rows = []
    line = StatusLine()
    for bug in bugs:
        found = module.find(bug, seed, line.show)
        line.end()
        rows.append((bug.name, bool(found), found[0][:100] if found else "-"))
    print_table(("planted bug", "found", "by"), rows)
    return OK if all(row[1] for row in rows) else FAILED
