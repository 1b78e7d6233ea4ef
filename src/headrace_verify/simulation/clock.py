"""Simulated clock and randomness of a host, in place of `runtime/clock` and `runtime/randomness`.

Invariants: time comes only from the loop, randomness only from the seed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from uuid import UUID

if TYPE_CHECKING:
    from random import Random  # noqa: TID251 - a type

    from headrace_verify.simulation.loop import SimulatedLoop

EPOCH_MS = 1_750_000_000_000
"""The wall clock at the start of a run."""


class SimulatedClock:
    """See Clock: one machine's, whose wall clock may be set."""

    def __init__(self, loop: SimulatedLoop) -> None:
        self._loop = loop
        self.skew_ms = 0
        """The error of the wall clock."""

    def now_ms(self) -> int:
        """See Clock."""
        return EPOCH_MS + int(self._loop.now_s * 1000) + self.skew_ms

    def now_ns(self) -> int:
        """See Clock."""
        return int(self._loop.now_s * 1_000_000_000)


class SimulatedRandomness:
    """See Randomness."""

    def __init__(self, random: Random) -> None:
        self._random = random

    def uuid(self) -> UUID:
        """See Randomness."""
        return UUID(int=self._random.getrandbits(128), version=4)

    def below(self, bound: int) -> int:
        """See Randomness."""
        return self._random.randrange(bound)
