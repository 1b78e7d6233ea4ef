"""Commands that the host sends to every machine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headrace.errors import HeadraceError


@dataclass(slots=True)
class DoneReply:
    """The reply to a command of the host."""

    error: HeadraceError | None = None


@dataclass(slots=True)
class TickCommand:
    """Time has passed: sent when `next_deadline_ms` is reached."""

    def refused(self, error: HeadraceError) -> DoneReply:
        """The reply that carries `error`."""
        return DoneReply(error)


@dataclass(slots=True)
class LoadedCommand:
    """The log has been replayed: sessions and rebalance timeouts start now."""

    def refused(self, error: HeadraceError) -> DoneReply:
        """The reply that carries `error`."""
        return DoneReply(error)
