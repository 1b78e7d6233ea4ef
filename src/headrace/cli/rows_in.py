"""Rows as records for `headrace produce`: CSV, NDJSON and Parquet.

Invariants: a row's value is a JSON object of its columns unless a template says otherwise. One
line or batch of rows at a time, so that memory does not depend on a file's size. An error names the
input and the row.
"""

from __future__ import annotations

import base64
import csv
import json
import re
from datetime import date, datetime, time
from typing import TYPE_CHECKING, Any

from headrace.cli.failures import USAGE, CommandFailed
from headrace.cli.records_in import OutgoingRecord, Reading, Source, bad_line, unreadable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Row = dict[str, Any]

_COLUMN = re.compile(r"\{([^{}]+)\}")
ROWS_AT_ONCE = 10_000
FIELD_CHARACTERS_MAX = 100_000_000
"""Of one CSV field: more than a message may have."""


class Template:
    """Text with columns in braces, such as {region}-{id}.

    A template that is one column alone is null where the column is null.
    """

    def __init__(self, text: str) -> None:
        self._parts = _COLUMN.split(text)  # text, column, text, column, ..., text

    def fill(self, row: Row) -> bytes | None:
        """Raises ValueError if the row lacks a column."""
        parts = self._parts
        for name in parts[1::2]:
            if name not in row:
                raise ValueError(f"it has no column {name!r}, only {', '.join(row)}")
        if len(parts) == 3 and not parts[0] and not parts[2]:
            return _bytes(row[parts[1]])
        texts = [_bytes(row[part]) if at % 2 else part.encode() for at, part in enumerate(parts)]
        return b"".join(text or b"" for text in texts)


def _bytes(value: Any) -> bytes | None:
    if value is None or isinstance(value, bytes):
        return value
    return value.encode() if isinstance(value, str) else _json(value)


def _json(value: Any) -> bytes:
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=_plain)
    return text.encode()


def _plain(value: Any) -> Any:
    """What JSON has not: bytes as text or base64, times as ISO 8601, the rest as text."""
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return base64.b64encode(value).decode()
    return value.isoformat() if isinstance(value, datetime | date | time) else str(value)


class _Rows:
    """Makes records of rows. `given`: the text of a row that is JSON already."""

    def __init__(self, reading: Reading) -> None:
        key = reading.key
        self._key = None if key is None else Template(key.decode())
        self._value = None if reading.value is None else Template(reading.value)
        self._headers = [
            (name, None if text is None else Template(text.decode()))
            for name, text in reading.headers
        ]
        self._reading = reading

    def record(self, row: Row, given: bytes | None = None) -> OutgoingRecord:
        """Raises ValueError if the row lacks a column."""
        key = None if self._key is None else self._key.fill(row)
        value = (given or _json(row)) if self._value is None else self._value.fill(row)
        headers = [(name, None if one is None else one.fill(row)) for name, one in self._headers]
        return OutgoingRecord(
            key, value, headers, self._reading.timestamp_ms, self._reading.partition
        )


def read_csv(
    source: Source, reading: Reading, read: Callable[[int], None]
) -> Iterator[OutgoingRecord]:
    """One record per row after the row with the names of the columns. Raises CommandFailed."""
    csv.field_size_limit(FIELD_CHARACTERS_MAX)

    def lines() -> Iterator[str]:
        for at, line in enumerate(source.stream):
            read(len(line))
            yield line.decode("utf-8" if at else "utf-8-sig")

    rows, maker = csv.DictReader(lines(), strict=True), _Rows(reading)
    try:
        for row in rows:
            if None in row or None in row.values():
                raise ValueError("the number of its fields is not that of the first row")
            yield maker.record(row)
    except (csv.Error, ValueError) as error:
        raise bad_line(source, rows.line_num, f"cannot be read: {error}") from None


def read_ndjson(
    source: Source, reading: Reading, read: Callable[[int], None]
) -> Iterator[OutgoingRecord]:
    """One record per line: its value is the line, a JSON object. Raises CommandFailed."""
    maker = _Rows(reading)
    for number, line in enumerate(source.stream, 1):
        read(len(line))
        text = line.strip()
        if not text:
            continue
        try:
            row = json.loads(text)
            if not isinstance(row, dict):
                raise TypeError("it is not a JSON object")
            yield maker.record(row, text)
        except (ValueError, TypeError) as error:
            raise bad_line(source, number, unreadable(error)) from None


def read_parquet(
    source: Source, reading: Reading, read: Callable[[int], None]
) -> Iterator[OutgoingRecord]:
    """One record per row. Raises CommandFailed."""
    try:
        from pyarrow import ArrowException, parquet
    except ImportError:
        raise CommandFailed(
            "reading Parquet needs pyarrow; nothing was sent",
            "Install it: pip install 'headrace[pipeline]'",
            USAGE,
        ) from None
    if not source.stream.seekable():
        raise CommandFailed(
            f"{source.name} is a pipe: Parquet is read from its end; nothing was sent",
            "Specify the name of a file",
            USAGE,
        )
    number, maker = 0, _Rows(reading)
    try:
        file = parquet.ParquetFile(source.stream)
        for group in range(file.num_row_groups):
            for batch in file.iter_batches(ROWS_AT_ONCE, row_groups=[group]):
                for row in batch.to_pylist():
                    number += 1
                    yield maker.record(row)
            read(file.metadata.row_group(group).total_byte_size)
    except (ArrowException, ValueError) as error:
        raise bad_line(source, number, f"cannot be read: {error}", "row") from None
