"""The interface of a protocol face to the process that starts it.

Invariants: a face knows the node and its services; the server knows a face by these methods only.
Adding a face changes its own package and one line of `server/assemble`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from headrace.broker.security.listener import ListenerSecurity

Address = tuple[str, int]


class Face(Protocol):
    """One protocol of one broker."""

    name: str
    """The name used in endpoints (`metadata.endpoints`)."""

    async def listen(
        self,
        host: str,
        port: int,
        listener: ListenerSecurity = ...,
        advertised: Address | None = None,
    ) -> Address:
        """Listen on an address, add it to the node's endpoints and return the bound address.

        `listener`: its name and security; by default the PLAINTEXT listener. `advertised`: the
        address that clients get instead. May be called for several listeners. Raises OSError.
        """
        ...

    def serve_ready(self) -> None:
        """Called once the broker has joined its cluster and every face listens."""
        ...

    async def close(self) -> None:
        """Stop accepting clients and close the existing connections."""
        ...
