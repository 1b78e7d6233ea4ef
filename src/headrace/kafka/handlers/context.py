"""The handler type, and what a handler knows about a request besides its body.

A handler names the type of its request (`kafka/wire/messages.pyi`) for type checkers only: the
actual object has those attributes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from headrace.broker.security.sessions import ClientSession
    from headrace.kafka.wire.schema import Answer

    Handler = Callable[[Any, Any, "Context"], Awaitable[Answer]]
    """(node, request, context) -> the response."""


class Context(NamedTuple):
    """Properties of a request from its header and connection."""

    api_key: int
    version: int
    client_id: str
    client_host: str
    session: ClientSession
    grant: Callable[[int], int]
    """How many of these bytes a large response may have: see
    `broker.services.connection_memory`."""
    connection: object = None
    """Identifies the client's connection: state tied to it ends with it."""
    client_port: int = 0
