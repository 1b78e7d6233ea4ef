"""How long things have been there that should go: whether anybody still takes them away.

Invariants: pure. What is taken for left over may be new, and not yet entered where it
belongs; so age tells, not number.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Hashable


class Ages:
    """Since when each of them has been seen at every look."""

    def __init__(self) -> None:
        self._since_s: dict[Hashable, float] = {}

    def oldest_s(self, at_s: float, there: Collection[Hashable]) -> float:
        """Take in a look; how long the oldest has been there, 0 if there is none."""
        self._since_s = {one: self._since_s.get(one, at_s) for one in there}
        return at_s - min(self._since_s.values(), default=at_s)
