"""How long leftovers have existed, which shows whether they are still being collected.

Invariants: pure. An apparent leftover may be new and not registered yet; therefore the age counts,
not the number.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Hashable


class Ages:
    """Since when each of them has been seen in every sample."""

    def __init__(self) -> None:
        self._since_s: dict[Hashable, float] = {}

    def oldest_s(self, at_s: float, there: Collection[Hashable]) -> float:
        """Add a sample; returns the age of the oldest, or 0."""
        self._since_s = {one: self._since_s.get(one, at_s) for one in there}
        return at_s - min(self._since_s.values(), default=at_s)
