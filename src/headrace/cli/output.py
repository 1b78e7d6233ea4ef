"""Output of commands: tables for people, plain columns for pipes, JSON for scripts.

Invariants: data goes to stdout, messages about it to stderr. On a terminal, tables are drawn; in a
pipe, they are plain columns without truncation.
"""

from __future__ import annotations

import json
import sys
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from headrace.cli.failures import USAGE, CommandFailed
from headrace.cli.names import written_name
from headrace.cli.text import visible
from headrace.records.tenant_names import with_written_keys, written_topic
from headrace.records.written_names import with_written_names, with_written_texts
from headrace.runtime.log_text import one_line

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

Cell = str | int | float | bool | None
_OF_TOPICS = frozenset({"topic", "origin", "dead letter", "sent to"})
"""Columns of which each cell begins with the name of a topic."""
_OF_NAMES = frozenset({"group", "principal", "transactional id"})
"""Columns of which each cell is another name of a tenant or of none."""
_OF_CONTENTS = frozenset({"key", "keys", "value", "headers", "properties", "attributes"})
"""Columns with parts of records."""
GAP = 2
"""Columns of the terminal between two of a table."""
LAST_COLUMN_MIN = 20
"""A longer text in the last column is folded to this width before rows become blocks."""
AS_JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
VALIDATE_ONLY = click.option("--dry-run", is_flag=True, help="Validate only.")


def print_json(value: Any, *, is_written: bool = False, has_contents: bool = True) -> None:
    """Print one JSON document on stdout, with names of tenants as operators write them.
    `is_written`: they are already. `has_contents`: whether it may have parts of records; otherwise
    every text in it is one for people."""
    if not has_contents:
        value = with_written_texts(value)
    shown = value if is_written or not has_contents else as_written(value)
    click.echo(json.dumps(shown, indent=2, ensure_ascii=False))


def as_written(value: Any) -> Any:
    """A JSON document with names of tenants as operators write them."""
    return with_written_names(value, write=written_name)


def confirm(question: str, *, is_sure: bool) -> None:
    """Ask for confirmation before an irreversible action.

    Raises CommandFailed if there is no terminal.
    """
    if is_sure:
        return
    if not sys.stdin.isatty():
        raise CommandFailed(
            f"{question.rstrip('?')}: no terminal to ask for confirmation; nothing was done",
            "To confirm, use --yes",
            USAGE,
        )
    click.confirm(with_written_keys(question), abort=True, err=True)


def print_table(
    columns: Sequence[str], rows: Iterable[Sequence[Cell]], title: str = "", *, empty: str = ""
) -> None:
    """Print a table on stdout; numbers are right-aligned. `empty`: what to say on stderr if there
    are no rows, and how there would be some."""
    rows = [list(row) for row in rows]
    if empty and not rows:
        say(empty)
        return
    numeric = [
        bool(rows) and all(isinstance(row[index], (int, float, type(None))) for row in rows)
        for index in range(len(columns))
    ]
    texts = [
        [
            written_topic(text)
            if name in _OF_TOPICS
            else written_name(text)
            if name in _OF_NAMES
            else text
            if name in _OF_CONTENTS
            else with_written_keys(text)
            for name, text in zip(columns, map(cell_text, row), strict=True)
        ]
        for row in rows
    ]
    if sys.stdout.isatty():
        _draw(columns, texts, numeric, title)
        return
    widths = [
        max([len(name), *(len(row[index]) for row in texts)]) for index, name in enumerate(columns)
    ]
    for row in [[name.upper() for name in columns], *texts]:
        cells = [
            text.rjust(width) if right else text.ljust(width)
            for text, width, right in zip(row, widths, numeric, strict=True)
        ]
        click.echo("  ".join(cells).rstrip())


def _draw(columns: Sequence[str], texts: list[list[str]], numeric: list[bool], title: str) -> None:
    """Draw a table, or where it would break values, a block of named values for each row."""
    from rich import box
    from rich.cells import cell_len
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(highlight=False)
    cells = [
        max((cell_len(row[index]) for row in texts), default=0) for index in range(len(columns))
    ]
    whole = [max(pair) for pair in zip(cells, map(len, columns), strict=True)]
    if not numeric[-1]:
        cells[-1] = min(cells[-1], LAST_COLUMN_MIN)
    words = [max(map(len, name.split()), default=0) for name in columns]
    widths = [max(pair) for pair in zip(cells, words, strict=True)]
    spare = console.width - sum(widths) - GAP * (len(columns) - 1)
    if spare < 0:
        table = Table(box=None, show_header=False, pad_edge=False, padding=(0, GAP, 0, 0))
        for number, row in enumerate(texts):
            if number:
                table.add_row()
            for name, text in zip(columns, row, strict=True):
                table.add_row(Text(name, style="bold"), Text(text, overflow="fold"))
    else:
        table = Table(
            box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, GAP - 1, 0, 0)
        )
        for index, name in enumerate(columns):
            more = min(spare, whole[index] - widths[index])
            spare -= more
            table.add_column(
                name, justify="right" if numeric[index] else "left", overflow="fold",
                width=widths[index] + more,
            )  # fmt: skip
        for row in texts:
            table.add_row(*(Text(text) for text in row))
    if title:
        console.print(Text(title, style="italic"))
    console.print(table)


def cell_text(cell: Cell) -> str:
    """Format a cell: thousands separators, a dash for nothing, a single line."""
    if cell is None:
        return "-"
    if isinstance(cell, bool):
        return "yes" if cell else "no"
    if isinstance(cell, int):
        return f"{cell:,}"
    if isinstance(cell, float):
        return f"{cell:,.3f}"
    return one_line(cell)


def tell(text: str, *, err: bool = False) -> None:
    """Print a text for people, on stdout: without control characters of what it quotes, and with
    keys of tenants' names written as operators write them. Contents of records and documents are
    printed by `click.echo`."""
    click.echo(visible(with_written_keys(text)), err=err)


def say(message: str) -> None:
    """Print a message on stderr."""
    tell(message, err=True)


def say_dry_run(*, dry_run: bool) -> None:
    """Say that nothing was changed, if so."""
    if dry_run:
        say("dry run: nothing was changed")


def iso_time(timestamp_ms: int) -> str:
    """Format milliseconds since the epoch as ISO 8601 in UTC."""
    try:
        moment = datetime.fromtimestamp(timestamp_ms / 1000, UTC)
    except (ValueError, OverflowError, OSError):
        return str(timestamp_ms)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def size_text(size_bytes: float) -> str:
    """Format a size in bytes."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size_bytes < 1024:
            return f"{size_bytes:.0f} {unit}" if unit == "B" else f"{size_bytes:.1f} {unit}"
        size_bytes /= 1024
    return f"{size_bytes:.1f} TiB"


def counted(count: int, noun: str) -> str:
    """ "1 record", "2,000 records", "0 batches"."""
    ending = "es" if noun.endswith("ch") else "s"
    return f"{count:,} {noun}{'' if count == 1 else ending}"


def duration_text(seconds: float) -> str:
    """Format seconds."""
    if seconds < 120:
        return f"{seconds:.1f} s"
    if seconds < 7200:
        return f"{seconds / 60:.1f} min"
    if seconds < 172_800:
        return f"{seconds / 3600:.1f} h"
    return f"{seconds / 86_400:.1f} days"
