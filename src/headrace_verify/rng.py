"""Seeded random numbers: one seed determines a whole run.

Invariants: every random draw of an attack comes from here, so that a seed replays it.
"""

from __future__ import annotations

from random import Random  # noqa: TID251 - the only source of seeded randomness

Rng = Random


def seeded(seed: int | str) -> Random:
    """A separate generator for `seed`; the same in every process."""
    return Random(seed)  # noqa: S311 - reproducible on purpose, no secret comes from it
