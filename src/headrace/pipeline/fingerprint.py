"""Hashes of stored records as SQL: one per column, and one of the whole record.

Invariants: pure text, no Spark. Two records that differ in any stored field have different hash
input: every value carries its length or a null marker, every list its size, and column hashes have
a fixed width. (A hash over several columns at once skips nulls, so that a key without a value would
equal a value without a key.)
"""

from __future__ import annotations

from typing import NamedTuple

OFFSET = "offset"


class Column(NamedTuple):
    """A column of the source and the table, and the SQL of its 64-bit hash."""

    name: str
    hashed: str


def _number(value: str) -> str:
    return f"isnull({value}), {value}"


def _octets(value: str) -> str:
    """The length of a binary or a string is -1 for null, which therefore also marks null."""
    return f"coalesce(octet_length({value}), -1), {value}"


def _list(value: str, hash_of_element: str) -> str:
    """Most records have no headers, and the per-element function is the slow part."""
    return (
        f"if(isnull({value}), xxhash64(-1), "
        f"xxhash64(size({value}), transform({value}, {hash_of_element})))"
    )


_HEADER = f"header -> xxhash64(isnull(header), {_octets('header.key')}, {_octets('header.value')})"

_RAW_KEYS = _list("raw.headerKeys", f"key -> xxhash64({_octets('key')})")
_RAW = f"if(isnull(raw), xxhash64(-1), xxhash64({_number('raw.timestampMs')}, {_RAW_KEYS}))"

COLUMNS = (
    Column("timestamp", f"xxhash64({_number('unix_micros(timestamp)')})"),
    Column("timestampType", f"xxhash64({_number('timestampType')})"),
    Column("key", f"xxhash64({_octets('key')})"),
    Column("headers", _list("headers", _HEADER)),
    Column("value", f"xxhash64({_octets('value')})"),
    Column("raw", _RAW),
)
"""All stored fields of a record except its position (topic, partition, offset)."""


def record_hash(columns: tuple[Column, ...] = COLUMNS) -> str:
    """Return the SQL of a record's 64-bit hash, including its offset."""
    return f"xxhash64({OFFSET}, {', '.join(column.hashed for column in columns)})"


def hash_name(column: Column) -> str:
    """Return the name under which a column's own hash is selected."""
    return f"{column.name}_hash"
