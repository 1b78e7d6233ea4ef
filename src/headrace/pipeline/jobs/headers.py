"""Headers of records as SQL expressions over the column `headers`.

Invariants: text only; of a repeated header the last one counts, as for the broker.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from headrace.pipeline.jobs.windows import quoted
from headrace.pipeline.written import WRITTEN_HEADER

if TYPE_CHECKING:
    from collections.abc import Iterable

PRODUCER: Final = "headrace-producer"
SEQUENCE: Final = "headrace-sequence"
NAMED_SEQUENCE: Final = (PRODUCER, SEQUENCE)
RESENT: Final = "headrace-resent"
"""On a record that was sent again: TOPIC-PARTITION:OFFSET it was copied from."""
RESENT_PRODUCER: Final = "headrace-resent-producer"
RESENT_SEQUENCE: Final = "headrace-resent-sequence"
"""The named sequence of a record that was sent again: a broker would drop a lower sequence."""


def last_header(*names: str) -> str:
    """The value (binary) of the last header with one of these names, the first name first."""
    found = [
        f"try_element_at(filter(headers, h -> h.key = {quoted(name)}), -1).value" for name in names
    ]
    return found[0] if len(found) == 1 else f"coalesce({', '.join(found)})"


def text_header(*names: str) -> str:
    """The value of the last such header as text; bytes that are not UTF-8 become U+FFFD."""
    return f"make_valid_utf8(cast({last_header(*names)} AS string))"


def number_header(*names: str) -> str:
    """The value of a header of decimal digits, or null."""
    return f"try_cast({text_header(*names)} AS bigint)"


def binary_number(name: str) -> str:
    """The value of a header that holds a big-endian integer of at most 8 bytes, or null."""
    value = last_header(name)
    # Of more digits `conv` is an error, which `try_cast` does not catch.
    return (
        f"CASE WHEN octet_length({value}) <= 8"
        f" THEN try_cast(conv(hex({value}), 16, 10) AS bigint) END"
    )


def without(names: Iterable[str], prefixes: Iterable[str] = ()) -> str:
    """The headers except those with these names or prefixes, and the sink's own mark."""
    listed = ", ".join(quoted(name) for name in sorted({*names, WRITTEN_HEADER}))
    kept = [f"h.key NOT IN ({listed})"]
    kept += [f"NOT startswith(h.key, {quoted(prefix)})" for prefix in prefixes]
    return f"filter(headers, h -> {' AND '.join(kept)})"


def header(name: str, value: str) -> str:
    """One header; `value` is an SQL expression of text."""
    return f"named_struct('key', {quoted(name)}, 'value', cast({value} AS binary))"


def with_header(headers: str, name: str, value: str) -> str:
    """`headers` (SQL) and one more; null headers become a list of one."""
    empty = "cast(array() AS array<struct<key: string, value: binary>>)"
    return f"concat(coalesce({headers}, {empty}), array({header(name, value)}))"
