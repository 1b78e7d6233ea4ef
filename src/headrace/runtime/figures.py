"""Figures, as the parts of a broker hand them over: the name of a metric, and its values.

Invariants: knows no monitoring system and no text; a face has the table of metrics and writes what
it is given. Making figures loads nothing, reads nothing that is not in memory, and waits for
nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from headrace.runtime.histogram import Histogram

Value: TypeAlias = float | Histogram


@dataclass(slots=True)
class Figures:
    """One metric."""

    name: str
    """In the table of metrics."""
    values: list[tuple[Sequence[str], Value]] = field(default_factory=list)
    """By the values of its labels, in the order of the table."""

    def add(self, labels: Sequence[str], value: Value) -> None:
        """Add a value. Each combination of labels may occur once."""
        self.values.append((labels, value))


Source: TypeAlias = Callable[[], Iterable[Figures]]


def figure(name: str, value: Value) -> Figures:
    """A metric without labels."""
    return Figures(name, [((), value)])


def figures_by(name: str, values: Mapping[tuple[str, ...], float]) -> Figures:
    """A metric by its labels."""
    return Figures(name, list(values.items()))
