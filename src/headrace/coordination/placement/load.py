"""Which partition should move because one broker has more to do than the others.

Invariants: pure. It is told what every broker carries, in bytes a second, and which of that
may be moved; it answers with one move or none. Who asks, how often and how patiently is decided
elsewhere.

How it works: a move goes from the broker that carries most to the one that carries least, and only
if the busier of the two carries clearly less afterwards. So no broker ever ends above the one that
gave, none ends below the one that took, and the difference between the most and the least that any
broker carries never grows. The sum of squares falls with each move by a part of the mean's square,
so that steady loads come to rest. Of the partitions that would do, the one is taken after which the
two are closest.
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
    """What a broker carries, in bytes a second, and the part of it that may go elsewhere."""

    bytes_per_s: int
    movable: Mapping[PartitionKey, int]
    """Partition -> bytes a second, which are among those above."""


class Move(NamedTuple):
    """A partition, and the broker that should serve it."""

    partition: PartitionKey
    source: int
    target: int


def overloaded(loads: Mapping[int, BrokerLoad], threshold_percent: int) -> int | None:
    """The broker that carries most, if that is more than `threshold_percent` of the mean."""
    if len(loads) < 2:
        return None
    busiest = max(sorted(loads), key=lambda broker: loads[broker].bytes_per_s)
    total = sum(load.bytes_per_s for load in loads.values())
    is_over = loads[busiest].bytes_per_s * len(loads) * 100 > total * threshold_percent
    return busiest if is_over else None


def choose_move(loads: Mapping[int, BrokerLoad], source: int, gain_percent: int) -> Move | None:
    """The move away from `source`, the busiest, that evens out most; None where none is worth it.

    A move is worth it if the busier of its two brokers carries less afterwards than `source` does
    now, by `gain_percent` of what a broker carries on average, and by a byte at least.
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
    """In an order that all brokers would find."""
    return sorted(movable.items(), key=lambda item: (item[0][0].bytes, item[0][1]))
