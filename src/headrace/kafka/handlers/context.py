"""What a handler knows about a request beside its body."""

from __future__ import annotations

from typing import NamedTuple


class Context(NamedTuple):
    """The header's part of a request."""

    api_key: int
    version: int
    client_id: str
    client_host: str
    connection: object = None
    """Stands for the client's connection: what is tied to it ends with it."""
