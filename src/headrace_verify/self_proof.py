"""The shared part of the modes' self-tests: a bug is chosen by name and planted before a broker
starts.

Invariants: each mode has a `bugs` module with its own `BUGS`; this module has none.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Sequence

Patch = Callable[[Any, str, Any], None]
"""Replaces an attribute, which must exist, of a class or module."""


@dataclass(frozen=True)
class Bug:
    """A change that breaks a guarantee, and what must find it."""

    plant: Callable[[Patch], None]
    found_by: tuple[str, ...] = ()
    """Any of them is enough: an attack, case or part of a run, or kinds of its findings."""
    number: int = 0
    """Of the mistake that it makes, where a mode numbers them; several bugs make the same one."""

    @property
    def name(self) -> str:
        """A description of the bug."""
        return self.plant.__name__.replace("_", " ")


B = TypeVar("B", bound=Bug)


def choose(bugs: Sequence[B], words: str) -> Sequence[B]:
    """The bugs with a number, or whose name contains the text; all of them for `all`."""
    if words == "all":
        return bugs
    if words.isdigit():
        return [bug for bug in bugs if bug.number == int(words)]
    return [bug for bug in bugs if words.lower() in bug.name]


def spoiled_launch(mode: str, bug: str) -> tuple[str, ...]:
    """The start of a command line like `headrace`, with one of a mode's bugs planted."""
    return (sys.executable, "-m", "headrace_verify.spoiled", mode, bug)
