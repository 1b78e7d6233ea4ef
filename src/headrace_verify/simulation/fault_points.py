"""Points at which a simulated run may do something rare but legal, depending on its seed.

Invariants: pure. The simulated environment (loop, network, metadata, bookies) asks at a point
whether to misbehave; `nudges` asks on behalf of the brokers' own choices. Each point has its own
random numbers, so that one can be disabled without changing the others. The effects must be legal
at any time, on a healthy machine too: they are not faults and need no healing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace_verify.rng import seeded

if TYPE_CHECKING:
    from collections.abc import Sequence

SEAMS = {
    "timer late": 0.01,
    "thread late": 0.1,
    "bytes in pieces": 0.02,
    "connection refused": 0.02,
    "answer of metadata lost": 0.004,
    "watch late": 0.02,
    "metadata server refuses": 0.1,
    "read of a bookie fails": 0.02,
    "batch of a bookie cut short": 0.2,
    "add of a bookie fails": 0.003,
    "request cancelled": 0.01,
}
"""What the environment may do, and with what probability."""
NUDGES = {
    "ledger rolled": 1.0,
    "ledger cached no more": 1.0,
    "index given back": 1.0,
    "coordinator reads its log again": 0.5,
    "owners compared early": 1.0,
    "retention early": 1.0,
    "sweep early": 0.5,
    "producer ids used up": 1.0,
}
"""What a broker may do on its own at any moment."""
POINTS = {**SEAMS, **NUDGES}
CALM_PROBABILITY = 0.2
"""Seeds without any fault points."""


class FaultPoints:
    """What one run may do, and what it did."""

    def __init__(self, seed: str, points: Sequence[str]) -> None:
        self._generators = {point: seeded(f"{seed} {point}") for point in points}
        self.hits: dict[str, int] = {}
        """Point -> number of hits."""
        self.is_over = False

    def does(self, point: str) -> bool:
        """Decide whether to misbehave here and now."""
        rng = self._generators.get(point)
        if rng is None or self.is_over or rng.random() >= POINTS[point]:
            return False
        self.hits[point] = self.hits.get(point, 0) + 1
        return True

    def strength(self, point: str) -> float:
        """Return how much: 0 to 1, small values more often. Call it only after `does` returned
        true."""
        return self._generators[point].random() ** 2


def draw_points(seed: int) -> tuple[str, ...]:
    """The points of a run: a random half of them, or none."""
    rng = seeded(f"simulation {seed} mischief")
    if rng.random() < CALM_PROBABILITY:
        return ()
    return tuple(point for point in POINTS if rng.random() < 0.5)
