"""Every error of Headrace has a Kafka code."""

from __future__ import annotations

import inspect

from headrace import errors
from headrace.kafka import error_codes
from headrace.kafka.error_codes import _CODES, UNKNOWN_SERVER_ERROR, code_of, message_of

KINDS = [
    kind
    for _name, kind in inspect.getmembers(errors, inspect.isclass)
    if issubclass(kind, errors.HeadraceError)
]


def test_every_error_class_is_in_the_table() -> None:
    assert set(KINDS) == set(_CODES)


def test_every_code_is_one_that_kafka_defines() -> None:
    from kio.schema.errors import ErrorCode

    for name, code in vars(error_codes).items():
        if name.isupper() and not name.startswith("_") and isinstance(code, int):
            expected = "none" if name == "NONE" else name.lower()
            assert ErrorCode(code).name == expected, name


def test_foreign_exceptions_reveal_no_details() -> None:
    error = RuntimeError("a secret")
    assert code_of(error) == UNKNOWN_SERVER_ERROR
    assert "secret" not in (message_of(error) or "")
    assert code_of(None) == 0
    assert message_of(None) is None


def test_a_timestamp_out_of_range_has_its_own_code() -> None:
    assert code_of(errors.RecordInvalid("x", is_timestamp=True)) == error_codes.INVALID_TIMESTAMP
