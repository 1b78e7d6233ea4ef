"""The output of `headrace consume`: text, JSON lines, raw values, templates.

Invariants: pure; a format is a function from a message to bytes. On a terminal, control characters
are made visible; in a pipe, every byte passes unchanged.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from headrace.cli.output import iso_time
from headrace.cli.text import for_terminal, unescape
from headrace.records.tenant_names import written_topic

if TYPE_CHECKING:
    from headrace.cli.client import Message

Writer = Callable[["Message"], bytes]

_TIMESTAMP_TYPES = {0: None, 1: "create", 2: "append"}
_FIELD = re.compile(r"\{([a-z_]+)(?:\[([^\]]*)\])?\}")
TEMPLATE_FIELDS = (
    "topic", "partition", "offset", "timestamp", "time", "key", "value", "size", "headers",
    "header[NAME]",
)  # fmt: skip


def as_raw(message: Message) -> bytes:
    """The bytes of the value only."""
    return message.value() or b""


def as_json(message: Message) -> bytes:
    """One JSON object and a newline. Names and meanings are stable."""
    kind, timestamp = message.timestamp()
    document = {
        "topic": written_topic(message.topic()),
        "partition": message.partition(),
        "offset": message.offset(),
        "timestamp": timestamp if kind else None,
        "timestamp_type": _TIMESTAMP_TYPES.get(kind),
        **json_bytes("key", message.key()),
        **json_bytes("value", message.value()),
        "headers": [
            {"key": name, **json_bytes("value", value)} for name, value in message.headers() or []
        ],
    }
    return json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"


def json_bytes(name: str, data: bytes | None) -> dict[str, str | None]:
    """`data` under `name` if it is UTF-8, else in base64 under `name`_base64."""
    if data is None:
        return {name: None}
    try:
        return {name: data.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(data).decode()}


def text_writer(
    *, keys: bool, headers: bool, positions: bool, times: bool, delimiter: str, terminal: bool
) -> Writer:
    """Values, one per line, after the requested columns, separated by tabs."""
    end = unescape(delimiter).encode()
    show = for_terminal if terminal else bytes
    if not (keys or headers or positions or times):
        if terminal:
            return lambda message: for_terminal(message.value() or b"") + end
        return lambda message: (message.value() or b"") + end

    def write(message: Message) -> bytes:
        columns = []
        if positions:
            columns.append(b"%d:%d" % (message.partition(), message.offset()))
        if times:
            columns.append(iso_time(message.timestamp()[1]).encode())
        if headers:
            columns.append(_headers_text(message))
        if keys:
            columns.append(_shown(message.key()))
        columns.append(message.value() or b"")
        return show(b"\t".join(columns)) + end

    return write


def _shown(data: bytes | None) -> bytes:
    return b"" if data is None else data


def _headers_text(message: Message) -> bytes:
    return b",".join(
        name.encode() + b"=" + _shown(value) for name, value in message.headers() or []
    )


_FIELDS: dict[str, Writer] = {
    "topic": lambda m: written_topic(m.topic()).encode(),
    "partition": lambda m: b"%d" % m.partition(),
    "offset": lambda m: b"%d" % m.offset(),
    "timestamp": lambda m: b"%d" % m.timestamp()[1],
    "time": lambda m: iso_time(m.timestamp()[1]).encode(),
    "key": lambda m: _shown(m.key()),
    "value": lambda m: _shown(m.value()),
    "size": lambda m: b"%d" % len(m.value() or b""),
    "headers": _headers_text,
}


def template_writer(template: str, terminal: bool) -> Writer:
    r"""Replace fields in braces; \n and \t are escapes. Raises UsageError."""
    parts: list[bytes | Writer] = []
    end = 0
    for found in _FIELD.finditer(template):
        parts.append(unescape(template[end : found.start()]).encode())
        parts.append(_field(found[1], found[2]))
        end = found.end()
    parts.append(unescape(template[end:]).encode())
    if not any(callable(part) for part in parts):
        raise click.UsageError(f"The template contains no field: use {', '.join(TEMPLATE_FIELDS)}.")
    return _joined(parts, terminal)


def percent_writer(template: str, terminal: bool) -> Writer:
    r"""Replace fields such as %k and %s, by kcat's letters; \n and \t are escapes. Raises
    UsageError."""
    parts: list[bytes | Writer] = []
    end = 0
    for found in _PERCENT.finditer(template):
        parts.append(unescape(template[end : found.start()]).encode())
        if found[1] != "%" and found[1] not in _LETTERS:
            raise click.UsageError(
                f"Unknown field {found[0]!r} in --format: use {', '.join(PERCENT_FIELDS)}."
            )
        parts.append(b"%" if found[1] == "%" else _LETTERS[found[1]])
        end = found.end()
    parts.append(unescape(template[end:]).encode())
    return _joined(parts, terminal)


def _length(data: bytes | None) -> bytes:
    return b"%d" % (-1 if data is None else len(data))


_PERCENT = re.compile(r"%(.?)", re.DOTALL)
_LETTERS: dict[str, Writer] = {
    "t": _FIELDS["topic"],
    "p": _FIELDS["partition"],
    "o": _FIELDS["offset"],
    "T": _FIELDS["timestamp"],
    "k": _FIELDS["key"],
    "K": lambda m: _length(m.key()),
    "s": _FIELDS["value"],
    "S": lambda m: _length(m.value()),
    "h": _FIELDS["headers"],
}
PERCENT_FIELDS = (*(f"%{letter}" for letter in _LETTERS), "%%")


def _joined(parts: list[bytes | Writer], terminal: bool) -> Writer:
    show = for_terminal if terminal else bytes

    def write(message: Message) -> bytes:
        return b"".join(show(part(message)) if callable(part) else part for part in parts)

    return write


def _field(name: str, argument: str | None) -> Writer:
    if name == "header" and argument is not None:
        wanted = argument

        def one_header(message: Message) -> bytes:
            values: list[Any] = [v for k, v in message.headers() or [] if k == wanted]
            return _shown(values[-1]) if values else b""

        return one_header
    if name not in _FIELDS or argument is not None:
        raise click.UsageError(
            f"Unknown template field {{{name}}}: use {', '.join(TEMPLATE_FIELDS)}."
        )
    return _FIELDS[name]
