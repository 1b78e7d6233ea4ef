"""The source of randomness of Headrace; the simulation brings a seeded one."""

from __future__ import annotations

import secrets
import uuid
from typing import Protocol


class Randomness(Protocol):
    """The source of ids and jitter."""

    def uuid(self) -> uuid.UUID:
        """A new random UUID, never one of the two that Kafka reserves (0 and 1)."""
        ...

    def below(self, bound: int) -> int:
        """A number in [0, bound)."""
        ...


class SystemRandomness:
    """The operating system's random number generator."""

    __slots__ = ()

    def uuid(self) -> uuid.UUID:
        """See Randomness."""
        return uuid.uuid4()

    def below(self, bound: int) -> int:
        """See Randomness."""
        return secrets.randbelow(bound)
