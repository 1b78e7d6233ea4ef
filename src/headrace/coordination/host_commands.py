"""What the host of every machine asks it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headrace.errors import HeadraceError


@dataclass(slots=True)
class DoneReply:
    """Answers a command of the host itself."""

    error: HeadraceError | None = None


@dataclass(slots=True)
class TickCommand:
    """Time has passed: the host sends it when `next_deadline_ms` is reached."""

    def refused(self, error: HeadraceError) -> DoneReply:
        """The reply that carries `error`."""
        return DoneReply(error)


@dataclass(slots=True)
class LoadedCommand:
    """The log has been replayed: sessions and rebalances start to count from now."""

    def refused(self, error: HeadraceError) -> DoneReply:
        """The reply that carries `error`."""
        return DoneReply(error)
