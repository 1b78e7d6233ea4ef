"""Who a client is, once that is known.

Invariants: a value. What a client says of itself (client id, software name) is not in it.
"""

from __future__ import annotations

from typing import Final, NamedTuple

USER: Final = "User"
"""The type of every principal of Kafka's own."""
BROKER: Final = "Broker"
"""The type of the brokers of this cluster, whose name is their id. No client has it."""


class Principal(NamedTuple):
    """An authenticated client, or the anonymous one."""

    name: str
    type: str = USER
    tenant: str = ""
    """Whose names it uses; "": those of an installation without tenants."""
    mechanism: str = ""
    """By which it was authenticated: a SASL mechanism, `SSL`, or "" for the anonymous one."""

    @property
    def is_broker(self) -> bool:
        """Whether it is a broker of this cluster, which may do everything."""
        return self.type == BROKER

    def __str__(self) -> str:
        """`User:alice`, as in Kafka's ACLs."""
        return f"{self.type}:{self.name}"


ANONYMOUS: Final = Principal("ANONYMOUS")
"""Kafka's principal for clients that are not authenticated."""
