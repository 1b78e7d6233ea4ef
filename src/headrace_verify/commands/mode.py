"""The common part of all verify modes: what a mode is, and how a mode is run and listed.

Invariants: knows no mode by name. A mode describes its attacks and prints its own tables; this
module has the shared options, the progress line, the report and the exit code.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import click

from headrace.cli.failures import FAILED, OK, UNKNOWN
from headrace.cli.output import print_json, print_table, say
from headrace.cli.progress import StatusLine
from headrace_verify.self_proof import choose
from headrace_verify.verdicts import CANNOT_RUN, HELD, INCONCLUSIVE, VIOLATED, verdict_of

Progress = Callable[[float, str], None]
"""A run's progress (0 to 1), and a short text."""


class Proof(NamedTuple):
    """Whether a planted bug was found."""

    is_found: bool
    by: str
    """A description of what found it."""


class Table(NamedTuple):
    """A part of what `--list` shows."""

    name: str
    columns: tuple[str, ...]
    rows: Sequence[tuple[Any, ...]]


class Mode(NamedTuple):
    """One way to attack an installation: a row of `headrace verify`.

    The plan of a run is bound in its functions.
    """

    run: Callable[[Progress], Any]
    """Run it. Raises click.UsageError, HeadraceError."""
    as_json: Callable[[Any], dict[str, Any]]
    """The outcome's whole report as plain values."""
    write_report: Callable[[Path, Any, dict[str, Any]], Sequence[str]]
    """Write a folder from outcome and report; returns the names of its files."""
    print_report: Callable[[dict[str, Any]], None]
    """Print tables and lines for people."""
    tables: Callable[[], Sequence[Table]]
    """Attacks, cases, faults and guarantees."""
    bugs: Sequence[Any]
    """Planted bugs: `self_proof.Bug`."""
    find: Callable[[Any, Progress], Proof]
    """Plant one of them, and check that it is found."""


def found_in(find: Callable[..., Sequence[str]], seed: int) -> Callable[[Any, Progress], Proof]:
    """`Mode.find` of a mode that lists its findings about a bug."""

    def prove(bug: Any, show: Progress) -> Proof:
        found = find(bug, seed, show)
        return Proof(bool(found), found[0] if found else "")

    return prove


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
        _list(mode, as_json=asked.as_json)
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


def _list(mode: Mode, *, as_json: bool) -> None:
    bugs = sorted(mode.bugs, key=lambda bug: bug.number)
    planted = [(bug.number or "-", bug.name, ", ".join(bug.found_by) or "any") for bug in bugs]
    shown = [*mode.tables(), Table("planted", ("number", "bug", "found by"), planted)]
    if as_json:
        print_json(
            {
                table.name: [dict(zip(table.columns, row, strict=True)) for row in table.rows]
                for table in shown
            }
        )
        return
    for table in shown:
        print_table(table.columns, table.rows)
        click.echo()


def _run_self_test(mode: Mode, words: str, *, as_json: bool) -> int:
    """Plant bugs, one per run; every one must be found."""
    bugs = choose(mode.bugs, words)
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
