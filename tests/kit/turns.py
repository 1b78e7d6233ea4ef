"""Turns of the event loop (`headrace.runtime.loop_turns`), counted."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headrace.runtime.loop_turns import LoopTurns


class TurnCount:
    """Counts the turns that end while requests begin."""

    def __init__(self, turns: LoopTurns) -> None:
        self.number = 0
        self._end_turn = turns._end_turn
        turns._end_turn = self._count  # type: ignore[method-assign]

    def _count(self) -> None:
        self.number += 1
        self._end_turn()
