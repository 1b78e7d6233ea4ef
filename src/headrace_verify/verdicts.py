"""The verdict of a run: held, VIOLATED or INCONCLUSIVE.

Invariants: knows no mode. A violation needs evidence, and so does "held": a check that could not
run, or that had nothing to check, is inconclusive, with its reason.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Protocol

from headrace.errors import Retriable

if TYPE_CHECKING:
    from collections.abc import Mapping

HELD: Final = "held"
VIOLATED: Final = "VIOLATED"
INCONCLUSIVE: Final = "INCONCLUSIVE"
"""The words of reports. Do not change: scripts read them."""


class NotRun(Retriable):
    """A check could not be run: this says nothing about what it would have checked."""


CANNOT_RUN: Final = (Retriable, OSError)
"""Errors that say something about this machine, or this moment, and nothing about a guarantee.
Others come from what is checked: an assertion that failed, damage, a request that was refused."""


class Judged(Protocol):
    """What a run, or a part of it, has found."""

    @property
    def is_violated(self) -> bool:
        """Whether a guarantee was violated."""

    @property
    def gaps(self) -> list[str]:
        """Why "held" would say too much: what could not run, and evidence that is missing."""


def verdict_of(judged: Judged) -> str:
    """One of the three words."""
    if judged.is_violated:
        return VIOLATED
    return INCONCLUSIVE if judged.gaps else HELD


def missing(evidence: Mapping[str, Any]) -> list[str]:
    """The kinds of evidence of which there is none, as reasons."""
    return [f"no {name}" for name, count in evidence.items() if not count]
