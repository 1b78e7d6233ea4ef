"""Whether a series grows: Theil-Sen's slope, and medians of its beginning and end.

Invariants: pure. Slopes are medians over all pairs, so a third of the values may be outliers (a
rebalance, a checkpoint, a busy machine) without changing the verdict.
"""

from __future__ import annotations

from itertools import pairwise
from statistics import median
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

POINTS_MAX = 200
"""Longer series are divided into this many pieces, each with its median: 19,900 pairs take 10
ms."""


class Trend(NamedTuple):
    """The growth of a series."""

    first: float
    """The median of its first third."""
    last: float
    """The median of its last third."""
    per_hour: float
    grown: float
    """The slope over the whole series."""


def trend(points: Sequence[tuple[float, float]]) -> Trend | None:
    """Of (seconds, value), by time; None for fewer than six points."""
    if len(points) < 6:
        return None
    pieces = _pieces(points)
    slopes = [
        (second[1] - first[1]) / (second[0] - first[0])
        for number, first in enumerate(pieces)
        for second in pieces[number + 1 :]
        if second[0] > first[0]
    ]
    if not slopes:
        return None
    slope = median(slopes)
    third = len(points) // 3
    return Trend(
        median(value for _, value in points[:third]),
        median(value for _, value in points[-third:]),
        slope * 3600,
        slope * (points[-1][0] - points[0][0]),
    )


def _pieces(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    if len(points) <= POINTS_MAX:
        return list(points)
    edges = [len(points) * number // POINTS_MAX for number in range(POINTS_MAX + 1)]
    cut = [points[start:end] for start, end in pairwise(edges)]
    return [(median(at for at, _ in piece), median(value for _, value in piece)) for piece in cut]
