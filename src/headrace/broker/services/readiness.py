"""Whether clients can be served here, and what they send be stored: what load balancers ask, over
HTTP (`/readyz`) and gRPC (health checks).

Invariants: reads state that exists anyway; loads no log and asks nobody. That listeners are open is
their faces' own knowledge.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from headrace.broker.services.services import Services

log = logging.getLogger(__name__)


class Readiness(NamedTuple):
    """The verdict of one broker."""

    is_disk_full: bool
    reason: str | None
    """Why not, unless it is the disk."""

    @property
    def is_ready(self) -> bool:
        """Whether it can serve."""
        return not self.is_disk_full and self.reason is None


def readiness_of(services: Services) -> Readiness:
    """The verdict of this broker, now."""
    replication = services.replication
    reason = None if replication is None else replication.obstacle()
    counts = services.health.opened()
    if reason is None and counts.refused and not counts.served:
        reason = f"none of the {counts.refused} partitions that this broker opened is served"
    return Readiness(_is_disk_full(services), reason)


def _is_disk_full(services: Services) -> bool:
    space = services.topics.disk
    try:
        return space is not None and space.space().is_full
    except OSError as error:
        log.warning("cannot read how much of the disk is free: %s", error)
        return False
