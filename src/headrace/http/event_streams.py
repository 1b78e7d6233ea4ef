"""Server-sent events (the HTML standard, section 9.2): how they are written and streamed.

Invariants: nothing is read ahead for a client: the next event is made once the last one was taken.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from starlette.responses import StreamingResponse

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from starlette.types import Receive, Scope, Send


class EventStream(StreamingResponse):
    """A stream of events, whose end is reported even where it is never begun."""

    def __init__(self, events: AsyncIterator[bytes], ended: Callable[[], None]) -> None:
        headers = {"cache-control": "no-store"}
        super().__init__(events, media_type="text/event-stream", headers=headers)
        self._ended = ended

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Stream until the events or the client end."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._ended()


def event(name: str, data: dict[str, Any], event_id: str = "") -> bytes:
    """One event; `event_id` is what a client sends as `Last-Event-ID` when it comes back."""
    named = f"id: {event_id}\n" if event_id else ""
    return f"{named}event: {name}\ndata: {json.dumps(data, separators=(',', ':'))}\n\n".encode()
