"""The common part of all verify modes: the `Mode` protocol, and how a mode is run and listed.

Invariants: knows no mode by name. A mode describes its attacks and prints its own tables; this
module has the shared options, the progress line, the report and the exit code.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import click

from headrace.cli.failures import FAILED, OK, UNKNOWN
from headrace.cli.output import print_json, print_table, say
from headrace.cli.progress import StatusLine
from headrace_verify.verdicts import CANNOT_RUN, HELD, INCONCLUSIVE, VIOLATED, verdict_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headrace_verify.self_proof import Named


Progress = Callable[[float, str], None]
"""A run's progress (0 to 1), and a short text."""


class Proof(NamedTuple):
    """Whether a planted bug was found."""

    is_found: bool
    by: str
    """A description of what found it."""


def proof_of(found: Sequence[str]) -> Proof:
    """Build a proof from a run's findings about a bug."""
    return Proof(bool(found), found[0] if found else "")


class Mode(Protocol):
    """One way to attack an installation, with the settings of one run."""

    def run(self, show: Progress, /) -> Any:
        """Run it. Raises click.UsageError, HeadraceError."""

    def as_json(self, outcome: Any, /) -> dict[str, Any]:
        """The whole report as plain values."""

    def write_report(self, folder: Path, outcome: Any, report: dict[str, Any], /) -> Sequence[str]:
        """Write the folder; returns the names of its files."""

    def print_report(self, report: dict[str, Any], /) -> None:
        """Print tables and lines for people."""

    def print_list(self, *, as_json: bool) -> None:
        """Print the attacks, the guarantees, and the planted bugs."""

    def choose(self, words: str, /) -> Sequence[Named]:
        """The planted bugs that match these words; all of them for `all`."""

    def find(self, bug: Any, show: Progress, /) -> Proof:
        """Plant one of them, and check that it is found."""


class Asked(NamedTuple):
    """The options of every mode."""

    seed: int
    report: Path | None
    as_json: bool
    is_list: bool
    planted: str | None


def mode_options(seed: str | None = "Same seed, same run.") -> Callable[[Any], Any]:
    """Add them to a command, which gets them as `asked`.

    `seed` is the help text of --seed; None: the mode uses no randomness.
    """
    options = (
        click.option(
            "--report",
            type=click.Path(file_okay=False, path_type=Path),
            help="Write a report to this folder.",
        ),
        click.option("--json", "as_json", is_flag=True, help="Print the report as JSON."),
        click.option("--list", "is_list", is_flag=True, help="List the attacks and planted bugs."),
        click.option(
            "--planted",
            metavar="BUG",
            help="Plant a bug (words or `all`) and check that it is found.",
        ),
    )

    def decorate(command: Any) -> Any:
        @functools.wraps(command)
        def asking(
            report: Path | None,
            as_json: bool,
            is_list: bool,
            planted: str | None,
            seed: int = 1,
            **more: Any,
        ) -> Any:
            return command(asked=Asked(seed, report, as_json, is_list, planted), **more)

        decorated: Any = asking
        for option in reversed(options):
            decorated = option(decorated)
        if seed is not None:
            decorated = click.option("--seed", type=int, default=1, show_default=True, help=seed)(
                decorated
            )
        return decorated

    return decorate


def perform(mode: Mode, asked: Asked) -> int:
    """Run the requested action; returns the exit code. Raises click.UsageError, HeadraceError."""
    if asked.is_list:
        mode.print_list(as_json=asked.as_json)
        return OK
    if asked.planted is not None:
        return _run_self_test(mode, asked.planted, as_json=asked.as_json)
    line = StatusLine()
    try:
        outcome = mode.run(line.show)
    except CANNOT_RUN as error:
        line.end()
        say(f"{INCONCLUSIVE}: the run could not be made: {error}")
        if asked.as_json:
            print_json({"verdict": INCONCLUSIVE, "inconclusive": [str(error)]})
        return UNKNOWN
    finally:
        line.end()
    gaps = outcome.gaps
    report = {**mode.as_json(outcome), "inconclusive": gaps}
    if asked.report is not None:
        names = mode.write_report(asked.report, outcome, report)
        say(f"report: {asked.report}: {', '.join(names[:6])}{' ...' if len(names) > 6 else ''}")
    if asked.as_json:
        print_json(report)
    else:
        mode.print_report(report)
    word = verdict_of(outcome)
    if word == INCONCLUSIVE:
        for gap in gaps:
            say(f"{INCONCLUSIVE}: {gap}")
    return {HELD: OK, VIOLATED: FAILED, INCONCLUSIVE: UNKNOWN}[word]


def _run_self_test(mode: Mode, words: str, *, as_json: bool) -> int:
    """Plant bugs, one per run; every one must be found."""
    bugs = mode.choose(words)
    if not bugs:
        raise click.UsageError(f"no planted bug {words!r}: see --list")
    rows: list[tuple[str, bool, str, float]] = []
    line = StatusLine()
    for bug in bugs:
        begun_ns = time.perf_counter_ns()
        proof = mode.find(bug, line.show)
        line.end()
        seconds = round((time.perf_counter_ns() - begun_ns) / 1e9, 1)
        rows.append((bug.name, proof.is_found, proof.by[:100] or "-", seconds))
    columns = ("planted bug", "found", "by", "seconds")
    if as_json:
        names = ("bug", "found", "by", "seconds")
        print_json({"planted": [dict(zip(names, row, strict=True)) for row in rows]})
    else:
        print_table(columns, rows)
    missed = [row[0] for row in rows if not row[1]]
    if missed:
        say(f"NOT FOUND: {', '.join(missed)}")
    return FAILED if missed else OK
