"""When faults affected nodes in a run, according to its history.

Invariants: pure. A network cut or a client's death does not affect a node's state: the partition's
owner keeps its in-memory state, or another node takes over in a new leader epoch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headrace_verify.history import Event

UNAFFECTING = frozenset(
    {"cut", "cut-to-broker", "cut-to-clients", "delay", "reset", "pause-client", "kill-client"}
)
NEVER_NS = 2**63


class NodeFaults:
    """Time spans in which a node's in-memory state may have been lost."""

    def __init__(self) -> None:
        self._spans: list[list[int]] = []
        self._open: dict[str, list[list[int]]] = {}

    def note(self, event: Event) -> None:
        """Record that a fault began, or was healed."""
        kind = event["fault"]
        if kind in UNAFFECTING:
            return
        if event["what"] == "fault":
            span = [event["t"], NEVER_NS]
            self._spans.append(span)
            self._open.setdefault(kind, []).append(span)
        elif self._open.get(kind):
            self._open[kind].pop(0)[1] = event["t"]

    def is_whole(self, since_ns: int, until_ns: int) -> bool:
        """Whether no node was affected in that time."""
        return all(end < since_ns or begin > until_ns for begin, end in self._spans)
