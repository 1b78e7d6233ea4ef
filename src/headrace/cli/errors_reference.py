"""The reference page of errors, generated from their classes and each protocol's table.

python -m headrace.cli.errors_reference > docs/reference/errors.md
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Final

from headrace import errors
from headrace.errors import HeadraceError, Retriable
from headrace.http.problems import status_of
from headrace.kafka import error_codes

if TYPE_CHECKING:
    from collections.abc import Iterator

_HEAD: Final = """\
# Errors

Generated from `headrace.errors` and the tables of Kafka's codes and HTTP's statuses; do not edit.

What a broker answers when it refuses or fails, by Kafka's names and codes, which clients of all
languages show, and by the status over HTTP, where a problem (RFC 9457) also has the cause in
`detail` and a `next_step` ([HTTP](../HTTP.md)). "Retry" says whether the same request may succeed
later; clients of Kafka do that by themselves where Kafka's own brokers would let them. Errors that
a client makes itself, such as time-outs (librdkafka: `_MSG_TIMED_OUT`, `_TRANSPORT`), are not here.

| Kafka's error | code | HTTP | retry | meaning |
|---|---|---|---|---|
"""


def page() -> str:
    """The page, as Markdown."""
    rows = sorted({(_code(kind), _row(kind)) for kind in _kinds()})
    return _HEAD + "\n".join(row for _, row in rows) + "\n"


def _kinds() -> Iterator[type[HeadraceError]]:
    """The errors that a broker answers with: those that say more than their kind."""
    for kind in vars(errors).values():
        is_error = isinstance(kind, type) and issubclass(kind, HeadraceError)
        if is_error and HeadraceError not in (kind, *kind.__bases__):
            yield kind


def _code(kind: type[HeadraceError]) -> int:
    return error_codes.code_of(kind())


def _row(kind: type[HeadraceError]) -> str:
    code, (status, _) = _code(kind), status_of(kind())
    meaning = " ".join((inspect.getdoc(kind) or "").split("\n\n")[0].split())
    retry = "yes" if issubclass(kind, Retriable) else "no"
    return f"| `{error_codes.name_of(code)}` | {code} | {status} | {retry} | {meaning} |"


if __name__ == "__main__":
    print(page(), end="")
