"""Reports a connection that is open when an event loop ends, with the name of the test.

asyncio warns of it when the garbage collector finds it, possibly in a later test. That test would
fail, since warnings are errors, and its failure would not say which test left the connection open.
"""

from __future__ import annotations

from asyncio.selector_events import BaseSelectorEventLoop

LEFT: list[str] = []
"""Connections left open by loops that ended since the last report."""

_close = BaseSelectorEventLoop.close


def close(loop: BaseSelectorEventLoop) -> None:
    """Close the loop and its connections; remember those that the test did not close.

    A connection that was closed with unsent data is not one of them.
    """
    for transport in list(loop._transports.values()):
        connection = transport._sock
        if connection is None:
            continue
        if not transport.is_closing():
            LEFT.append(repr(transport))
        transport._closing, transport._sock = True, None  # a later close() does nothing
        connection.close()
    _close(loop)


def watch() -> None:
    """Use this `close` for all event loops of the process."""
    BaseSelectorEventLoop.close = close


def taken() -> list[str]:
    """The connections left open since the last call."""
    left = LEFT.copy()
    LEFT.clear()
    return left
