"""Chance, as the rest of Headrace sees it: a simulation brings a seeded twin."""

from __future__ import annotations

import secrets
import uuid
from typing import Protocol


class Randomness(Protocol):
    """Where ids and jitter come from."""

    def uuid(self) -> uuid.UUID:
        """A new random UUID, never the two that Kafka reserves (0 and 1)."""
        ...

    def below(self, bound: int) -> int:
        """A number in [0, bound)."""
        ...


class SystemRandomness:
    """The operating system's randomness."""

    __slots__ = ()

    def uuid(self) -> uuid.UUID:
        """See Randomness."""
        return uuid.uuid4()

    def below(self, bound: int) -> int:
        """See Randomness."""
        return secrets.randbelow(bound)
