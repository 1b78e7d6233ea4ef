"""The shared part of the modes' self-tests: a bug is chosen by name and planted before a broker
starts.

Invariants: each mode has a `bugs` module with its own `BUGS`; this module has none.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Sequence


class Named(Protocol):
    """A bug that can be chosen."""

    @property
    def name(self) -> str:
        """A description of the bug."""


B = TypeVar("B", bound=Named)


def choose(bugs: Sequence[B], words: str) -> Sequence[B]:
    """The bugs whose name contains the text; all of them for `all`."""
    return bugs if words == "all" else [bug for bug in bugs if words.lower() in bug.name]


def spoiled_launch(mode: str, bug: str) -> tuple[str, ...]:
    """The start of a command line like `headrace`, with one of a mode's bugs planted."""
    return (sys.executable, "-m", "headrace_verify.spoiled", mode, bug)
