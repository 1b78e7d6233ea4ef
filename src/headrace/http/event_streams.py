"""Server-sent events (the HTML standard, section 9.2): how they are written and streamed.

Invariants: nothing is read ahead for a client: the next event is made once the last one was taken.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from starlette.responses import StreamingResponse

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping

    from starlette.types import Receive, Scope, Send


class HeldStream(StreamingResponse):
    """A stream that holds a place from when it is made: it is given back where the stream ends, and
    by `release` where another response is sent instead."""

    def __init__(
        self,
        content: AsyncIterator[bytes],
        media_type: str,
        headers: Mapping[str, str],
        released: Callable[[], None],
    ) -> None:
        super().__init__(
            content, media_type=media_type, headers={"cache-control": "no-store", **headers}
        )
        self._released: Callable[[], None] | None = released

    def release(self) -> None:
        """Give the place back, once."""
        released, self._released = self._released, None
        if released is not None:
            released()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Stream until the content or the client end."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            self.release()


class EventStream(HeldStream):
    """A stream of events."""

    def __init__(self, events: AsyncIterator[bytes], ended: Callable[[], None]) -> None:
        super().__init__(events, "text/event-stream", {}, ended)


def event(name: str, data: dict[str, Any], event_id: str = "") -> bytes:
    """One event; `event_id` is what a client sends as `Last-Event-ID` when it comes back."""
    named = f"id: {event_id}\n" if event_id else ""
    return f"{named}event: {name}\ndata: {json.dumps(data, separators=(',', ':'))}\n\n".encode()
