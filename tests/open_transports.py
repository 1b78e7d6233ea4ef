"""A connection that a test leaves open when its event loop ends is told with that test's name.

asyncio warns of it when the garbage collector finds it, which is in some later test: that one
would fail (warnings are errors), and nobody could say which test had left it.
"""

from __future__ import annotations

from asyncio.selector_events import BaseSelectorEventLoop

LEFT: list[str] = []
"""What the loops that ended since the last test have left."""

_close = BaseSelectorEventLoop.close


def close(loop: BaseSelectorEventLoop) -> None:
    """Close the loop's connections with it, and remember those that nobody had closed.

    One that was closed while bytes were waiting is not remembered: nobody waits for these.
    """
    for transport in list(loop._transports.values()):
        connection = transport._sock
        if connection is None:
            continue
        if not transport.is_closing():
            LEFT.append(repr(transport))
        transport._closing, transport._sock = True, None  # whoever closes it later finds it closed
        connection.close()
    _close(loop)


def watch() -> None:
    """From now on all loops of this process do so."""
    BaseSelectorEventLoop.close = close


def taken() -> list[str]:
    """What was left since the last call."""
    taken = LEFT.copy()
    LEFT.clear()
    return taken
