"""Answers for a whole topic, put together from those of the owners of its partitions.

Invariants: a partition whose owner cannot be asked costs the answer that partition alone; where
there is no other, its error is the answer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from headrace.errors import HeadraceError
from headrace.http.problems import details

if TYPE_CHECKING:
    from collections.abc import Mapping

    from headrace.http.operations import Json

_T = TypeVar("_T")


def failed_partitions(errors: Mapping[int, HeadraceError]) -> Json:
    """The field `failed` of an answer; no field if there is nothing to say."""
    if not errors:
        return {}
    return {
        "failed": [
            {"partition": number, "error": details(error)}
            for number, error in sorted(errors.items())
        ]
    }


def failed_brokers(errors: Mapping[int, HeadraceError]) -> Json:
    """The same of what was asked of every broker."""
    if not errors:
        return {}
    return {
        "failed": [
            {"broker": number, "error": details(error)} for number, error in sorted(errors.items())
        ]
    }


def of_partitions(answers: Mapping[int, _T | HeadraceError]) -> tuple[dict[int, _T], Json]:
    """(what was answered, by partition, the field `failed`).

    Raises the first error where there is nothing else.
    """
    found: dict[int, _T] = {}
    errors: dict[int, HeadraceError] = {}
    for number, answer in answers.items():
        if isinstance(answer, HeadraceError):
            errors[number] = answer
        else:
            found[number] = answer
    if not found:
        for error in errors.values():
            raise error
    return found, failed_partitions(errors)
