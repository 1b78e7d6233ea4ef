"""What every protocol in front of a broker offers the process that starts it.

Invariants: a face knows the node and its services; the server knows a face by these methods alone.
Adding one touches its package and one line of `server/assemble`.
"""

from __future__ import annotations

from typing import Protocol

Address = tuple[str, int]


class Face(Protocol):
    """One protocol of one broker."""

    name: str
    """As endpoints name it (`metadata.endpoints`)."""

    async def listen(
        self, host: str, port: int, listener: str = ..., advertised: Address | None = None
    ) -> Address:
        """Accept clients at an address, and add it to the node's endpoints; what was bound.

        `advertised`: what clients are told instead. May be called for several listeners.
        Raises OSError.
        """
        ...

    def serve_ready(self) -> None:
        """The broker is a member of its cluster, and every face listens."""
        ...

    async def close(self) -> None:
        """Accept no more clients, and close the connections of those there are."""
        ...
