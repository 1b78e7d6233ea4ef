"""`headrace check DIR`: reports damage in a broker's data folder, and its effects.

Invariants: the checks are in `headrace.inspection`; this module has the options, the progress line
and the tables. The exit codes are documented in the command's help: do not change, scripts rely on
them.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from headrace.cli.failures import CommandFailed
from headrace.cli.output import counted, print_table, say, size_text
from headrace.errors import HeadraceError

if TYPE_CHECKING:
    from headrace.inspection.check import Report
    from headrace.inspection.findings import Finding

DAMAGED, NOT_CHECKED = 1, 2


@click.command(
    epilog="Examples:\n\n  headrace check ./headrace-data\n\n"
    "  headrace check ./headrace-data --json | jq 'select(.type == \"damage\")'"
)
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per line.")
@click.option("--verbose", "-v", is_flag=True, help="Show notes and one line per partition.")
def check(folder: Path, *, as_json: bool, verbose: bool) -> None:
    """Check a broker's data directory for damage without changing it.

    \b
    Reads every file: format, checkpoint, write-ahead log, metadata, segments, footers. For each
    damage it shows file, position, cause, effect (topic, partition and offsets) and the next step.
    The broker may be stopped or running; for a running one the result is a snapshot.

    \b
    Exit codes:
      0  no damage
      1  damage was found
      2  something could not be read, or DIR is not a data directory
    """
    from headrace.cli.progress import bytes_read
    from headrace.inspection.check import check as run
    from headrace.inspection.findings import Severity

    try:
        with bytes_read("checking") as progress:
            report = run(folder, progress)
    except (HeadraceError, OSError) as error:
        raise CommandFailed(str(error), "", NOT_CHECKED) from error
    if as_json:
        _print_lines(report)
    else:
        _print_report(report, is_verbose=verbose)
    if report.of(Severity.DAMAGE):
        sys.exit(DAMAGED)
    if report.of(Severity.UNREADABLE):
        sys.exit(NOT_CHECKED)


def _print_lines(report: Report) -> None:
    for finding in report.findings:
        _print_line(finding.as_json())
    for log in report.logs:
        _print_line({"type": "log", **log._asdict()})
    _print_line({"type": "summary", **_totals(report), "users": report.users})


def _print_line(value: object) -> None:
    click.echo(json.dumps(value, ensure_ascii=False, separators=(",", ":")))


def _totals(report: Report) -> dict[str, int]:
    from headrace.inspection.findings import Severity

    return {
        "damage": len(report.of(Severity.DAMAGE)),
        "unreadable": len(report.of(Severity.UNREADABLE)),
        "notes": len(report.of(Severity.NOTE)),
        "logs": len(report.logs),
        "ledgers": sum(log.ledger_count for log in report.logs),
        "batches": sum(log.batch_count for log in report.logs),
        "records": sum(log.record_count for log in report.logs),
        "size_bytes": sum(log.size_bytes for log in report.logs),
    }


def _print_report(report: Report, *, is_verbose: bool) -> None:
    from headrace.inspection.findings import Severity

    if report.users:
        pids = ", ".join(map(str, report.users))
        say(f"In use by process {pids}: the result is a snapshot.")
    for finding in report.findings:
        if finding.severity is not Severity.NOTE or is_verbose:
            _print_finding(finding)
    if is_verbose and report.logs:
        print_table(
            ["log", "ledgers", "batches", "records", "bytes", "first", "end", "damage"],
            [list(log) for log in report.logs],
        )
    totals = _totals(report)
    notes = f" {counted(totals['notes'], 'note')} (--verbose)."
    if is_verbose or not totals["notes"]:
        notes = ""
    wrong = totals["damage"]
    verdict = f"{counted(wrong, 'damage')} found" if wrong else "No damage found"
    if totals["unreadable"]:
        verdict += f", {counted(totals['unreadable'], 'part')} could not be read"
    counts = {"log": "logs", "ledger": "ledgers", "batch": "batches", "record": "records"}
    parts = ", ".join(counted(totals[name], noun) for noun, name in counts.items())
    click.echo(f"{verdict}: {parts}, {size_text(totals['size_bytes'])}.{notes}")


def _print_finding(finding: Finding) -> None:
    from headrace.runtime.log_text import one_line

    at = "" if finding.position is None else f", byte {finding.position}"
    click.echo(one_line(f"{finding.severity.upper()} {finding.kind}: {finding.file}{at}"))
    for name, text in (
        ("cause", finding.cause),
        ("effect", finding.effect),
        ("next step", finding.next_step),
    ):
        if text:
            click.echo(one_line(f"  {name + ':':<10} {text}"))
