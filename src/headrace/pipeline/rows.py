"""Converts DataFrame rows to records, and validates columns, types and values.

Responsibilities: a bad schema is rejected at planning; a row that Kafka or the client would change
is rejected when it arrives. Nothing is converted silently. Knows no broker.
"""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, Any

from headrace.pipeline.errors import OptionInvalid, RowInvalid
from headrace.pipeline.written import RowToWrite
from headrace.records.tenant_names import key_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pyspark.sql.types import DataType, StructType

    from headrace.pipeline.options import SinkOptions

_TEXT = {"string", "varchar", "char"}
_BYTES = {*_TEXT, "binary"}
_NEEDED = {
    "topic": "string",
    "partition": "int",
    "key": "binary or string",
    "value": "binary or string",
    "headers": "array<struct<key: string, value: binary>>",
    "timestamp": "timestamp",
}
_SIMPLE = {
    "topic": _TEXT,
    "partition": {"int", "smallint", "tinyint"},
    "key": _BYTES,
    "value": _BYTES,
    "timestamp": {"timestamp"},
}
COLUMNS = frozenset(_NEEDED)
_PIECE_ROWS = 1_000
"""As many as Spark passes to a writer at a time."""
_PIECE_BYTES = 8 << 20
"""Of Arrow data. A session's settings may pass a hundred thousand rows at a time, or large ones."""


def check_columns(schema: StructType, options: SinkOptions) -> None:
    """Raise OptionInvalid unless every row of this schema can become a record."""
    names = schema.fieldNames()
    unknown = sorted(set(names) - COLUMNS)
    if unknown or "value" not in names:
        raise OptionInvalid(
            f"A row needs the column value and may have {', '.join(sorted(COLUMNS))}; this"
            f" one has {', '.join(names)}. Select and rename columns before writing."
        )
    for name in names:
        if names.count(name) > 1:
            raise OptionInvalid(f"Column {name} occurs twice. Drop or rename one before writing.")
    for column in schema.fields:
        if column.name == "value" and options.typed is not None:
            continue  # the schema decides, row by row
        if not _fits(column.name, column.dataType):
            raise OptionInvalid(
                f"Column {column.name} has type {column.dataType.simpleString()}, but a"
                f" record needs {_NEEDED[column.name]}. Cast it before writing.",
                column=column.name,
            )
    if options.topic is None and "topic" not in names:
        raise OptionInvalid("No topic to write to. Set the option topic, or add a column topic.")


def _fits(name: str, kind: DataType) -> bool:
    if name == "headers":
        return _is_headers(kind)
    return _type_name(kind) in _SIMPLE[name]


def _type_name(kind: DataType) -> str:
    """The type without length or collation: varchar(10) and string collate UNICODE are accepted
    too."""
    return kind.simpleString().partition("(")[0].partition(" ")[0]


def _is_headers(kind: DataType) -> bool:
    from pyspark.sql.types import ArrayType, StructType

    if not isinstance(kind, ArrayType) or not isinstance(kind.elementType, StructType):
        return False
    fields = {each.name: _type_name(each.dataType) for each in kind.elementType.fields}
    return (
        fields.keys() == {"key", "value"} and fields["key"] in _TEXT and fields["value"] in _BYTES
    )


def rows_of(batches: Iterator[Any], options: SinkOptions) -> Iterator[list[RowToWrite]]:
    """Yield the rows of a task in pieces, none of them empty. Raises RowInvalid."""
    parts = chain.from_iterable(map(_parts, batches))
    pieces = (list(_rows_of_batch(part, options)) for part in parts)
    if options.sort_rows:
        rows = sorted((row for piece in pieces for row in piece), key=_sort_key)
        pieces = (rows[start : start + _PIECE_ROWS] for start in range(0, len(rows), _PIECE_ROWS))
    return filter(None, pieces)


def _parts(batch: Any) -> Iterator[Any]:
    """A batch of Spark's, halved until each part is small, as its rows are objects next."""
    if batch.num_rows <= 1 or batch.nbytes <= _PIECE_BYTES:
        yield batch
        return
    half = batch.num_rows // 2
    yield from _parts(batch.slice(0, half))
    yield from _parts(batch.slice(half))


def _sort_key(row: RowToWrite) -> tuple[str, int, int, bytes, bytes]:
    return (row.topic, row.partition, row.timestamp_ms, row.key or b"", row.value or b"")


def _rows_of_batch(batch: Any, options: SinkOptions) -> Iterator[RowToWrite]:
    headers = _column(batch, "headers")
    rows = map(
        RowToWrite,
        _topics(batch, options.topic),
        _partitions(batch),
        _bytes(batch, "key"),
        _bytes(batch, "value") if options.typed is None else [None] * batch.num_rows,
        [()] * batch.num_rows if headers is None else map(_headers, headers.to_pylist()),
        _timestamps(batch),
    )
    return rows if options.typed is None else _encoded(rows, batch, options)


def _encoded(rows: Iterator[RowToWrite], batch: Any, options: SinkOptions) -> Iterator[RowToWrite]:
    """The rows with values by their topic's schema; null stays a tombstone. Raises RowInvalid."""
    from headrace.pipeline.typed.columns import typed_values

    assert options.typed is not None, "typed values only"
    by_subject = options.typed.registry is not None and options.typed.subject is None
    found = _column(batch, "value").to_pylist(maps_as_pydicts="strict")
    for row, value in zip(rows, found, strict=True):
        if value is None:
            yield row
            continue
        values = typed_values(options.typed, row.topic if by_subject else None)
        header = values.header()
        headers = row.headers if header is None else [*row.headers, header]
        yield row._replace(value=values.encoded(value), headers=headers)


def _column(batch: Any, name: str) -> Any:
    index = batch.schema.get_field_index(name)
    return None if index < 0 else batch.column(index)


def _topics(batch: Any, default: str | None) -> Sequence[str]:
    column = _column(batch, "topic")
    if column is None:
        assert default is not None, "checked at planning"
        return [default] * batch.num_rows
    written = column.to_pylist()
    by_name = {name: name and key_of(name) for name in set(written)}
    if column.null_count == 0:
        return [by_name[name] for name in written]
    if default is None:
        raise RowInvalid(
            "A row has null in the column topic, and the option topic is not set. The batch is "
            "not committed. Filter such rows, or set the option topic."
        )
    return [default if name is None else by_name[name] for name in written]


def _partitions(batch: Any) -> Sequence[int]:
    column = _column(batch, "partition")
    if column is None:
        return [-1] * batch.num_rows
    numbers = column.to_pylist()
    if any(each is not None and each < 0 for each in numbers):
        raise RowInvalid(
            "A row has a negative partition number. The batch is not committed. Use null to"
            " choose the partition by key."
        )
    return [-1 if each is None else each for each in numbers]


def _bytes(batch: Any, name: str) -> Sequence[bytes | None]:
    import pyarrow as pa

    column = _column(batch, name)
    if column is None:
        return [None] * batch.num_rows
    if pa.types.is_string(column.type):
        column = column.cast(pa.binary())
    elif pa.types.is_large_string(column.type):
        column = column.cast(pa.large_binary())
    return column.to_pylist()  # type: ignore[no-any-return]


def _timestamps(batch: Any) -> Sequence[int]:
    """Return milliseconds, or 0 for null: the client replaces 0 by the time of writing."""
    import pyarrow as pa

    column = _column(batch, "timestamp")
    if column is None:
        return [0] * batch.num_rows
    micros = column.cast(pa.timestamp("us", tz=column.type.tz)).cast(pa.int64()).to_pylist()
    times_ms = [0 if each is None else (each // 1000 or -1) for each in micros]
    if min(times_ms, default=0) < 0:
        raise RowInvalid(
            "A row has a timestamp before 1970-01-01 00:00:00.001 UTC. Kafka does not support"
            " times before 1970, and its client librdkafka replaces 0 by the current time."
            " The batch is not committed. Use null for the time of writing, or a later"
            " timestamp."
        )
    return times_ms


def _headers(pairs: list[dict[str, Any] | None] | None) -> list[tuple[str, bytes | None]]:
    if not pairs:
        return []
    made: list[tuple[str, bytes | None]] = []
    for pair in pairs:
        name = None if pair is None else pair["key"]
        if pair is None or name is None:
            raise RowInvalid(
                "A row has a header with a null key, which Kafka does not allow. The batch is"
                " not committed. Filter such headers: filter(headers, h -> h.key IS NOT"
                " NULL)."
            )
        content = pair["value"]
        made.append((name, content.encode() if isinstance(content, str) else content))
    return made
