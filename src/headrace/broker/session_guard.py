"""Steps down shortly before a session can end, and up again when there is one that lives.

Rules of the room: looks at the session now and then and tells of changes; what it means to step
down is the owner's business. Storage fences a former owner in any case; but clients should not be
led to it, and bookies forget a fence together with its ledger (docs/BOOKKEEPER.md, I7).
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace.metadata.store import StoreSession
    from headrace.runtime.clock import Clock

log = logging.getLogger(__name__)

MARGIN = 5
"""This part of the session's time is kept as a margin; half of it passes between two looks."""
LOOK_S_MAX = 1.0


async def guard_session(
    session: StoreSession,
    clock: Clock,
    step_down: Callable[[], None],
    step_up: Callable[[], None],
) -> None:
    """Call `step_down` and `step_up` in turn, until cancelled."""
    is_up = True
    while True:
        margin_ms = session.timeout_ms // MARGIN
        is_safe = session.is_safe(clock.now_ns(), margin_ms)
        if is_up and not is_safe:
            log.warning(
                "the metadata store is silent (session %s): this broker serves nothing until it"
                " answers again",
                session.state.value,
            )
            step_down()
        elif is_safe and not is_up:
            log.info("the metadata store answers again: this broker serves what it owns")
            step_up()
        is_up = is_safe
        await asyncio.sleep(min(margin_ms / 2000, LOOK_S_MAX))
