"""Self-proof, what its modes share: a bug is named, and planted in a broker before it starts.

Invariants: each mode has its `bugs` module with its own `BUGS`; here is no bug.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Sequence


class Named(Protocol):
    """A bug, as far as it is chosen."""

    @property
    def name(self) -> str:
        """What it does, in words."""


B = TypeVar("B", bound=Named)


def choose(bugs: Sequence[B], words: str) -> Sequence[B]:
    """The bugs whose name holds the words; all of them for `all`."""
    return bugs if words == "all" else [bug for bug in bugs if words.lower() in bug.name]


def spoiled_launch(mode: str, bug: str) -> tuple[str, ...]:
    """The start of a command line as that of `headrace`, with a bug of a mode planted."""
    return (sys.executable, "-m", "headrace_verify.spoiled", mode, bug)
