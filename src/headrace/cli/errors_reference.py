"""The reference page of errors, generated from their classes and each protocol's table.

python -m headrace.cli.errors_reference > docs/reference/errors.md
"""

from __future__ import annotations

import inspect
from importlib import import_module
from typing import TYPE_CHECKING, Final

from headrace import errors
from headrace.errors import HeadraceError, RecordInvalid, Retriable
from headrace.http.problems import details, status_of
from headrace.kafka import error_codes

if TYPE_CHECKING:
    from collections.abc import Iterator

_HEAD: Final = """\
# Errors

Generated from `headrace.errors` and the tables of Kafka's codes and HTTP's statuses; do not edit.

What a broker answers when it refuses or fails, by Kafka's names and codes, which clients of all
languages show, and by the status over HTTP, where a problem (RFC 9457) also has the cause in
`detail` and a `next_step` ([HTTP](../HTTP.md)). "Retry" says whether the same request may succeed
later; clients of Kafka do that by themselves where Kafka's own brokers would let them. With "not
over HTTP" the answer there is final, until somebody creates what is missing. Errors that a client
makes itself, such as time-outs (librdkafka: `_MSG_TIMED_OUT`, `_TRANSPORT`), are not here.

| Kafka's error | code | HTTP | retry | meaning |
|---|---|---|---|---|
"""


_OF_SERVICES: Final = (
    *("broker.security.tenants", "broker.services.background_tasks"),
    *("broker.services.configurations", "broker.services.letter_desk"),
    "http.problems",
)
"""Modules with further errors."""


def page() -> str:
    """The page, as Markdown."""
    rows = {(_code(one), _row(one)) for one in [*_found(), RecordInvalid(is_timestamp=True)]}
    return _HEAD + "\n".join(row for _, row in sorted(rows)) + "\n"


def _found() -> Iterator[HeadraceError]:
    """The errors that a broker answers with: those that say more than their kind."""
    for module in (errors, *(import_module(f"headrace.{one}") for one in _OF_SERVICES)):
        for kind in vars(module).values():
            is_error = isinstance(kind, type) and issubclass(kind, HeadraceError)
            if is_error and HeadraceError not in (kind, *kind.__bases__):
                yield kind()


def _code(error: HeadraceError) -> int:
    return error_codes.code_of(error)


def _row(error: HeadraceError) -> str:
    code, (status, _) = _code(error), status_of(error)
    meaning = " ".join((inspect.getdoc(error) or "").split("\n\n")[0].split())
    if error.fields.get("is_timestamp"):
        meaning = "A record's timestamp is further from the present than its topic allows."
    retry = "yes" if isinstance(error, Retriable) else "no"
    if isinstance(error, Retriable) and not details(error)["retriable"]:
        retry = "yes, not over HTTP"
    return f"| `{error_codes.name_of(code)}` | {code} | {status} | {retry} | {meaning} |"


if __name__ == "__main__":
    print(page(), end="")
