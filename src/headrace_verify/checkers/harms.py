"""When nodes were harmed in a run, as its history says.

Invariants: pure. A cut or a client's death harms no node: who owns a partition goes on with all it
knows, or another one does in a new leader epoch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headrace_verify.history import Event

HARMLESS = frozenset(
    {"cut", "cut-to-broker", "cut-to-clients", "delay", "reset", "pause-client", "kill-client"}
)
NEVER_NS = 2**63


class Harms:
    """Spans of time in which what a node keeps in memory may have been lost."""

    def __init__(self) -> None:
        self._spans: list[list[int]] = []
        self._open: dict[str, list[list[int]]] = {}

    def note(self, event: Event) -> None:
        """A fault has begun, or is healed."""
        kind = event["fault"]
        if kind in HARMLESS:
            return
        if event["what"] == "fault":
            span = [event["t"], NEVER_NS]
            self._spans.append(span)
            self._open.setdefault(kind, []).append(span)
        elif self._open.get(kind):
            self._open[kind].pop(0)[1] = event["t"]

    def is_whole(self, since_ns: int, until_ns: int) -> bool:
        """Whether no node was harmed in that time."""
        return all(end < since_ns or begin > until_ns for begin, end in self._spans)
