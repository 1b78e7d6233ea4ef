"""Chooses a partition to move from an overloaded broker.

Invariants: pure. Input is what every broker carries, in bytes per second, and which part of it may
be moved; the result is one move or none. The caller decides when and how often to ask.

How it works: a move goes from the broker that carries most to the one that carries least, and only
if the busier of the two carries clearly less afterwards. So no broker ever ends above the source,
none ends below the target, and the difference between the highest and the lowest load never grows.
The sum of squares falls with each move by a fraction of the mean's square, so steady loads
converge. Of the suitable partitions, the one is chosen after which the two loads are closest.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from uuid import UUID

PartitionKey = tuple["UUID", int]


@dataclass(slots=True)
class BrokerLoad:
    """A broker's load in bytes per second, and the part of it that may move."""

    bytes_per_s: int
    movable: Mapping[PartitionKey, int]
    """Partition -> bytes per second, included in the load above."""


class Move(NamedTuple):
    """A partition, and the broker that should serve it."""

    partition: PartitionKey
    source: int
    target: int


def overloaded(loads: Mapping[int, BrokerLoad], threshold_percent: int) -> int | None:
    """The broker with the highest load, if that exceeds `threshold_percent` of the mean."""
    if len(loads) < 2:
        return None
    busiest = max(sorted(loads), key=lambda broker: loads[broker].bytes_per_s)
    total = sum(load.bytes_per_s for load in loads.values())
    is_over = loads[busiest].bytes_per_s * len(loads) * 100 > total * threshold_percent
    return busiest if is_over else None


def choose_move(loads: Mapping[int, BrokerLoad], source: int, gain_percent: int) -> Move | None:
    """The best move away from `source`, the busiest broker; None if none is worth it.

    A move is worth it if the busier of its two brokers then carries less than `source` does now, by
    `gain_percent` of the mean load and at least one byte.
    """
    others = sorted(broker for broker in loads if broker != source)
    if not others:
        return None
    target = min(others, key=lambda broker: loads[broker].bytes_per_s)
    have, there = loads[source].bytes_per_s, loads[target].bytes_per_s
    total = sum(load.bytes_per_s for load in loads.values())
    best: Move | None = None
    lowest = have - max(1, total * gain_percent // (100 * len(loads)))
    for partition, size in _by_key(loads[source].movable):
        busier = max(have - size, there + size)
        if size > 0 and (busier < lowest or (busier == lowest and best is None)):
            best, lowest = Move(partition, source, target), busier
    return best


def _by_key(movable: Mapping[PartitionKey, int]) -> Sequence[tuple[PartitionKey, int]]:
    """In an order that is the same on all brokers."""
    return sorted(movable.items(), key=lambda item: (item[0][0].bytes, item[0][1]))
