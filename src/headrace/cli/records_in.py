"""The input of `headrace produce`: lines, JSON lines, whole files.

Invariants: pure reading and parsing, one record at a time, so that memory does not depend on a
file's size. An error names the input and the line number.
"""

from __future__ import annotations

import base64
import binascii
import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

from headrace.cli.failures import FAILED, CommandFailed
from headrace.cli.positions import parse_time_ms

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

Headers = list[tuple[str, bytes | None]]


class OutgoingRecord(NamedTuple):
    """A record to send. With `timestamp_ms` 0 and `partition` -1, the client chooses."""

    key: bytes | None
    value: bytes | None
    headers: Headers
    timestamp_ms: int = 0
    partition: int = -1


@dataclass(slots=True)
class Reading:
    """How to convert input to records: the same for all inputs."""

    key: bytes | None
    key_separator: bytes | None
    headers: Headers
    timestamp_ms: int
    partition: int
    value: str | None = None
    """A template of a row's columns."""
    empty_is_null: bool = False
    key_from_name: bool = False


class Source(NamedTuple):
    """One input, with its name for error messages."""

    name: str
    stream: BinaryIO


def read_lines(
    source: Source, reading: Reading, read: Callable[[int], None]
) -> Iterator[OutgoingRecord]:
    """One record per line; `read(bytes)` is called with the progress. Raises CommandFailed."""
    key, separator, headers = reading.key, reading.key_separator, reading.headers
    timestamp_ms, partition, empty_is_null = (
        reading.timestamp_ms,
        reading.partition,
        reading.empty_is_null,
    )
    for number, line in enumerate(source.stream, 1):
        read(len(line))
        value: bytes | None = line.removesuffix(b"\n").removesuffix(b"\r")
        if separator is not None:
            assert value is not None
            key, found, value = value.partition(separator)
            if not found:
                raise bad_line(source, number, f"has no key separator {separator!r}")
        if not value and empty_is_null:
            value = None
        yield OutgoingRecord(key, value, headers, timestamp_ms, partition)


def read_json(
    source: Source, reading: Reading, read: Callable[[int], None]
) -> Iterator[OutgoingRecord]:
    """One JSON object per line, as written by `headrace consume --format json`. Raises
    CommandFailed."""
    for number, line in enumerate(source.stream, 1):
        read(len(line))
        if not line.strip():
            continue
        try:
            yield record_from_json(json.loads(line), reading)
        except (ValueError, TypeError, binascii.Error) as error:
            raise bad_line(source, number, unreadable(error)) from None


def read_whole(
    source: Source, reading: Reading, read: Callable[[int], None]
) -> Iterator[OutgoingRecord]:
    """The whole input as one record."""
    value = source.stream.read()
    read(len(value))
    key = Path(source.name).name.encode() if reading.key_from_name else reading.key
    yield OutgoingRecord(key, value, reading.headers, reading.timestamp_ms, reading.partition)


def record_from_json(document: Any, reading: Reading) -> OutgoingRecord:
    """Build a record from one JSON object. Raises ValueError, TypeError."""
    if not isinstance(document, dict):
        raise TypeError(
            "a record is an object such as {'key': 'k', 'value': 'v'}".replace("'", '"')
        )
    key = _bytes_of(document, "key")
    timestamp = document.get("timestamp")
    if isinstance(timestamp, str):
        timestamp = parse_time_ms(timestamp)
    partition = document.get("partition")
    if reading.partition >= 0 or partition is None:
        partition = reading.partition
    return OutgoingRecord(
        key if key is not None else reading.key,
        _bytes_of(document, "value"),
        [*_headers_of(document.get("headers")), *reading.headers],
        reading.timestamp_ms or int(timestamp or 0),
        int(partition),
    )


def _bytes_of(document: dict[str, Any], name: str) -> bytes | None:
    encoded = document.get(f"{name}_base64")
    if encoded is not None:
        return base64.b64decode(encoded, validate=True)
    value = document.get(name)
    if value is None:
        return None
    if isinstance(value, str):
        return value.encode()
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def _headers_of(headers: Any) -> Headers:
    if not headers:
        return []
    if isinstance(headers, dict):
        return [(name, _bytes_of({"value": value}, "value")) for name, value in headers.items()]
    return [(header["key"], _bytes_of(header, "value")) for header in headers]


def unreadable(error: Exception) -> str:
    """What is wrong with a line of JSON."""
    if isinstance(error, json.JSONDecodeError):
        return f"is not valid JSON: {error.msg} at column {error.colno}"
    return f"cannot be read: {error}"


def bad_line(source: Source, number: int, trouble: str, unit: str = "line") -> CommandFailed:
    """The error that a line or row of an input is not usable."""
    return CommandFailed(
        f"{unit} {number} of {source.name} {trouble}; the {unit}s before it were sent",
        "Fix it and send the rest",
        FAILED,
    )
