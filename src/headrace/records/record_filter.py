"""Filters of records by an expression over what a record holds.

Invariants: pure. One meaning for the HTTP interface, the command line and the console. A record for
which the expression has no value (its value is not valid JSON, a field is absent) does not match
and is counted: `failures`, with the first reason. A value is decoded once, and only if the
expression asks for it.

    value       JSON as its value, other text as a string, anything else as bytes (or by `decode`)
    text, key   strings, or bytes where they are no UTF-8; null where there is none
    headers     by name, the last one of a name; values as those of keys
    topic, partition, offset, timestamp_ms, value_bytes
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from headrace.records.cel import EvaluationFailed, Expression

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from headrace.records.cel_syntax import Node

    Decode = Callable[["Candidate"], Any]

DECODED_BYTES_MAX: Final = 4 * 1024 * 1024
"""Larger values are not decoded: they are text or bytes."""
_JSON_STARTS: Final = frozenset(bytes([one]) for one in b'{["-0123456789tfn \t\r\n')


class Candidate:
    """A record that a filter looks at."""

    __slots__ = (
        "_decode", "_headers", "_key", "_text", "_value", "headers", "key", "offset", "partition",
        "raw", "timestamp_ms", "topic",
    )  # fmt: skip

    def __init__(
        self,
        topic: str,
        partition: int,
        offset: int,
        timestamp_ms: int,
        key: bytes | None,
        raw: bytes | None,
        headers: Sequence[tuple[str, bytes | None]],
        decode: Decode | None = None,
    ) -> None:
        """`decode`: how the value becomes one of the expression; None: see `plain_value`."""
        self.topic = topic
        self.partition = partition
        self.offset = offset
        self.timestamp_ms = timestamp_ms
        self.key = key
        self.raw = raw
        self.headers = headers
        self._decode = decode
        self._value: Any = _UNKNOWN
        self._text: Any = _UNKNOWN
        self._key: Any = _UNKNOWN
        self._headers: Any = _UNKNOWN

    @property
    def value(self) -> Any:
        """The decoded value."""
        if self._value is _UNKNOWN:
            decode = self._decode
            self._value = plain_value(self.raw) if decode is None else decode(self)
        return self._value

    @property
    def value_text(self) -> str | bytes | None:
        """The value as text."""
        if self._text is _UNKNOWN:
            self._text = text_or_bytes(self.raw)
        return self._text  # type: ignore[no-any-return]

    @property
    def key_text(self) -> str | bytes | None:
        """The key as text."""
        if self._key is _UNKNOWN:
            self._key = text_or_bytes(self.key)
        return self._key  # type: ignore[no-any-return]

    @property
    def headers_by_name(self) -> dict[str, str | bytes | None]:
        """The last header of each name."""
        if self._headers is _UNKNOWN:
            self._headers = {name: text_or_bytes(value) for name, value in self.headers}
        return self._headers  # type: ignore[no-any-return]


_UNKNOWN: Final = object()


def plain_value(data: bytes | None) -> Any:
    """A value without a schema: JSON, text, or bytes."""
    if data is None:
        return None
    if data[:1] in _JSON_STARTS and len(data) <= DECODED_BYTES_MAX:
        try:
            return json.loads(data)
        except (ValueError, RecursionError):
            pass
    return text_or_bytes(data)


def text_or_bytes(data: bytes | None) -> str | bytes | None:
    """UTF-8 as a string."""
    if data is None:
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        return data


VARIABLES: Final = {
    "value": lambda one: one.value,
    "text": lambda one: one.value_text,
    "key": lambda one: one.key_text,
    "headers": lambda one: one.headers_by_name,
    "topic": lambda one: one.topic,
    "partition": lambda one: one.partition,
    "offset": lambda one: one.offset,
    "timestamp_ms": lambda one: one.timestamp_ms,
    "value_bytes": lambda one: len(one.raw or b""),
}


class RecordFilter:
    """An expression that selects records."""

    def __init__(self, text: str) -> None:
        """Raises ExpressionInvalid."""
        self._expression = Expression(text, VARIABLES)
        self.failures = 0
        """Records for which the expression has no truth value."""
        self.first_failure = ""
        self.needles = [one.encode() for one in _needles(self._expression.tree)]
        """Texts that occur in the bytes of every matching record."""

    def matches(self, one: Candidate) -> bool:
        """Whether the expression is true for a record."""
        try:
            found = self._expression.evaluate(one)
            if type(found) is bool:
                return found
            reason = "the expression is not a condition: it is neither true nor false"
        except EvaluationFailed as error:
            reason = str(error)
        except (ValueError, RecursionError, OverflowError) as error:  # such as half a surrogate
            reason = f"the expression cannot be applied to it: {error}"
        self.failures += 1
        self.first_failure = self.first_failure or reason
        return False


def _needles(tree: Node) -> Iterator[str]:
    """Texts without which no record matches: those that all of `&&` demand of keys, headers and
    the text itself, which are stored as they are."""
    if tree.kind == "&&":
        for part in tree.parts:
            yield from _needles(part)
        return
    is_call = tree.kind == "call" and tree.has_target and len(tree.parts) == 2
    if not (tree.kind == "==" or (is_call and tree.value in _DEMANDS)):
        return
    target, wanted = tree.parts
    if type(wanted.value) is str and wanted.kind == "literal" and _is_stored(target):
        yield wanted.value


_DEMANDS: Final = frozenset({"contains", "startsWith", "endsWith"})


def _is_stored(node: Node) -> bool:
    if node.kind == "name":
        return node.value in {"key", "text"}
    if node.kind not in {"select", "index"}:
        return False
    return node.parts[0].kind == "name" and node.parts[0].value == "headers"
