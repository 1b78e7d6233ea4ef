"""`headrace dump`: the contents of stored files, for people and as JSON lines.

Invariants: `headrace.inspection.dump` reads the files; this module has the options and the output.
Works on files of a stopped, running or damaged broker, and changes nothing.
"""

from __future__ import annotations

import json
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from headrace.cli.failures import NOT_FOUND, CommandFailed
from headrace.cli.output import iso_time
from headrace.cli.parameters import CommandGroup
from headrace.errors import HeadraceError
from headrace.runtime.log_text import one_line

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from headrace.inspection.decoders import Decode
    from headrace.inspection.dump import Line
    from headrace.inspection.folder import Folder
    from headrace.inspection.ledgers import Ledgers

NOT_CHECKED = 2
_TIMES = {"timestamp", "changed", "first_append_ms", "delete_horizon"}

JSON = click.option("--json", "as_json", is_flag=True, help="Print one JSON object per line.")
RECORDS = click.option("--records", is_flag=True, help="Show the records of each batch.")
COUNT = click.option("--count", type=click.IntRange(min=1), help="Stop after this many lines.")
WORKER = click.option(
    "--worker", type=click.IntRange(min=0), default=0, help="Number of the worker."
)
DIR = click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
FILE = click.argument(
    "file", metavar="FILE", type=click.Path(exists=True, dir_okay=False, path_type=Path)
)


@click.group(cls=CommandGroup)
def dump() -> None:
    """Show the content of stored files without changing them.

    Exit code 2 means that the files could not be read. Damage is shown in place.
    """


@contextmanager
def _reading() -> Iterator[None]:
    try:
        yield
    except BrokenPipeError:
        raise
    except (HeadraceError, OSError) as error:
        raise CommandFailed(str(error), "", NOT_CHECKED) from error


def _print(lines: Iterable[Line], count: int | None, *, as_json: bool) -> None:
    for line in islice(lines, count):
        click.echo(_as_json(line) if as_json else _as_text(line))


def _as_json(line: Line) -> str:
    return json.dumps(line, ensure_ascii=False, separators=(",", ":"))


def _as_text(line: Line) -> str:
    """Format as `batch  position: 0  base_offset: 0 ...`; records are indented below their
    batch."""
    words = [f"{line['type']:<8}"]
    hidden = {"type", "key", "value"} if "decoded" in line else {"type"}
    for name, value in line.items():
        if name in hidden:
            continue
        if name in _TIMES and isinstance(value, int) and value >= 0:
            value = iso_time(value)  # noqa: PLW2901
        words.append(f"{name}: {_shown(value)}")
    indent = "  " if line["type"] == "record" else ""
    return one_line(indent + "  ".join(words))


def _shown(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _folder(folder: Path, worker: int) -> Folder:
    """Raises RequestInvalid, CommandFailed."""
    from headrace.inspection.folder import folders_of

    for found in folders_of(folder):
        if found.number == worker:
            return found
    raise CommandFailed(f"{folder} has no worker {worker}", "", NOT_FOUND)


@dump.command(epilog="Example:\n\n  headrace dump segment 0000000000000005.ledger --records")
@FILE
@RECORDS
@COUNT
@JSON
def segment(file: Path, *, records: bool, count: int | None, as_json: bool) -> None:
    """Show the record batches in a segment file.

    To decode the records of internal topics, use `headrace dump log`.
    """
    from headrace.inspection.dump import RecordsWanted, dump_batches

    def read(position: int, size: int) -> bytes:
        with file.open("rb") as stream:
            stream.seek(position)
            return stream.read(size)

    with _reading():
        lines = dump_batches(read, 0, file.stat().st_size, RecordsWanted(records))
        _print(lines, count, as_json=as_json)


@dump.command(epilog="Example:\n\n  headrace dump footer 0000000000000005.footer --json")
@FILE
@JSON
def footer(file: Path, *, as_json: bool) -> None:
    """Show the footer of a sealed ledger: index, producers, aborted transactions."""
    from headrace.inspection.dump import footer_of_file

    with _reading():
        _print([footer_of_file(file)], None, as_json=as_json)


@dump.command(epilog="Example:\n\n  headrace dump journal ./headrace-data")
@DIR
@WORKER
@COUNT
@JSON
def journal(folder: Path, worker: int, *, count: int | None, as_json: bool) -> None:
    """Show the frames of the write-ahead log and the ledgers that each changes."""
    from headrace.inspection.dump import dump_journal

    with _reading():
        _print(dump_journal(_folder(folder, worker)), count, as_json=as_json)


@dump.command(epilog="Example:\n\n  headrace dump ledgers ./headrace-data")
@DIR
@WORKER
@COUNT
@JSON
def ledgers(folder: Path, worker: int, *, count: int | None, as_json: bool) -> None:
    """List all ledgers with their length, and whether they are sealed."""
    from headrace.inspection.dump import dump_ledgers
    from headrace.inspection.ledgers import Ledgers

    with _reading():
        _print(dump_ledgers(Ledgers(_folder(folder, worker))), count, as_json=as_json)


@dump.command(epilog="Example:\n\n  headrace dump ledger ./headrace-data 5 --records")
@DIR
@click.argument("number", metavar="LEDGER", type=click.IntRange(min=0))
@WORKER
@RECORDS
@COUNT
@JSON
def ledger(
    folder: Path, number: int, worker: int, *, records: bool, count: int | None, as_json: bool
) -> None:
    """Show a ledger as the broker reads it: segment, write-ahead log, footer."""
    from headrace.inspection.ledgers import Ledgers

    with _reading():
        store = Ledgers(_folder(folder, worker))
        _print(_ledger_lines(store, number, None, is_wanted=records), count, as_json=as_json)


def _ledger_lines(
    store: Ledgers, number: int, decode: Decode | None, *, is_wanted: bool
) -> Iterator[Line]:
    from headrace.inspection.dump import RecordsWanted, dump_ledger

    found = store.by_id.get(number)
    if found is None:
        raise CommandFailed(
            f"{store.folder.path} has no ledger {number}",
            "List ledgers: headrace dump ledgers DIR",
            NOT_FOUND,
        )
    return dump_ledger(store, found, RecordsWanted(is_wanted, decode))


@dump.command(
    epilog="Examples:\n\n  headrace dump log ./headrace-data orders-0 --records\n\n"
    "  headrace dump log ./headrace-data __consumer_offsets-3 --records --json\n\n"
    "  headrace dump log ./headrace-data orders-0 --companion shares --records"
)
@DIR
@click.argument("name", metavar="TOPIC-PARTITION")
@click.option("--companion", metavar="KIND", help="A companion log, such as `shares`.")
@RECORDS
@COUNT
@JSON
def log(
    folder: Path,
    name: str,
    companion: str | None,
    *,
    records: bool,
    count: int | None,
    as_json: bool,
) -> None:
    """Show all ledgers of a partition, from oldest to newest.

    Records of internal topics and companion logs are decoded: groups and offsets, transactions,
    share groups.
    """
    with _reading():
        _print(_log_lines(folder, name, companion, is_wanted=records), count, as_json=as_json)


def _log_lines(
    folder: Path, name: str, companion: str | None, *, is_wanted: bool
) -> Iterator[Line]:
    from headrace.inspection.decoders import decoder_of
    from headrace.inspection.facts import DecodedMetadata
    from headrace.inspection.folder import folders_of
    from headrace.inspection.ledgers import Ledgers
    from headrace.inspection.metadata_copy import MetadataCopy
    from headrace.metadata.facts import CompanionKind

    if companion is not None and companion.upper() not in CompanionKind.__members__:
        known = ", ".join(one.lower() for one in CompanionKind.__members__)
        raise CommandFailed(f"unknown companion log {companion!r}: {known}", "", NOT_FOUND)
    kind = None if companion is None else CompanionKind[companion.upper()]
    folders = folders_of(folder)
    facts = DecodedMetadata(MetadataCopy(folder), max(one.number for one in folders) + 1)
    chain = facts.find(name, kind)
    if chain is None:
        raise CommandFailed(
            f"no such log in the metadata of {folder}: {name}"
            + ("" if companion is None else f", companion {companion}"),
            "List topics: headrace dump metadata DIR /topics",
            NOT_FOUND,
        )
    store = Ledgers(_folder(folder, facts.worker_of(chain)))
    decode = decoder_of(chain.topic.name, chain.companion)
    for link in chain.fact.ledgers:
        line = {"type": "ledger", "ledger": link.ledger, "base_offset": link.base_offset}
        if link.tabled_ms is not None:
            yield {**line, "problem": "its records are only in the topic's table"}
        elif link.local_deleted_ms is not None:
            yield {**line, "problem": "it is only in object storage"}
        elif link.ledger not in store.by_id:
            yield {**line, "problem": "it is missing from the directory"}
        else:
            yield line
            yield from _ledger_lines(store, link.ledger, decode, is_wanted=is_wanted)


@dump.command(
    epilog="Examples:\n\n  headrace dump metadata ./headrace-data\n\n"
    "  headrace dump metadata ./headrace-data /topics --json"
)
@DIR
@click.argument("prefix", default="/")
@COUNT
@JSON
def metadata(folder: Path, prefix: str, *, count: int | None, as_json: bool) -> None:
    """Show the metadata keys under PREFIX: topics, partitions and others."""
    from headrace.inspection.dump import metadata_line
    from headrace.inspection.folder import folders_of
    from headrace.inspection.metadata_copy import MetadataCopy

    with _reading():
        folders_of(folder)
        copy = MetadataCopy(folder)
        _print(_matching(copy.rows, prefix, metadata_line), count, as_json=as_json)
    if copy.findings:
        raise CommandFailed(copy.findings[0].cause, copy.findings[0].next_step, NOT_CHECKED)


def _matching(rows: Iterable[Any], prefix: str, line_of: Callable[[Any], Line]) -> Iterator[Line]:
    return (line_of(row) for row in rows if row.key.startswith(prefix))
