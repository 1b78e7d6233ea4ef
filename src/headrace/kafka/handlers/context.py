"""What a handler is, and what it knows about a request beside its body.

A handler names the type of its request (`kafka/wire/messages.pyi`) for type checkers alone: what
it gets has those attributes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from headrace.broker.sessions import Session
    from headrace.kafka.wire.schema import Answer

    Handler = Callable[[Any, Any, "Context"], Awaitable[Answer]]
    """(node, request, context) -> the answer."""


class Context(NamedTuple):
    """The header's part of a request."""

    api_key: int
    version: int
    client_id: str
    client_host: str
    session: Session
    connection: object = None
    """Stands for the client's connection: what is tied to it ends with it."""
