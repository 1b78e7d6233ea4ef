"""Writes the facts of a topic and of its partitions.

Invariants: written in bounded steps, the topic's own fact in the last one, so a visible topic has
all its partitions. The remains of an interrupted write are invisible.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.metadata.facts import PartitionFact, partition_key
from headrace.metadata.store import ABSENT, MultiOperation

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headrace.metadata.facts import TopicFact
    from headrace.metadata.store import MetadataStore

PARTS_AT_ONCE = 1_000
"""Owners and chains in one step of the metadata store."""


def first_chains(fact: TopicFact, numbers: range) -> list[MultiOperation]:
    """Chains to create with new partitions, so that a chain that is missing later is known to be
    lost."""
    value = PartitionFact().encode()
    return [MultiOperation(partition_key(fact.id, number), value, ABSENT) for number in numbers]


async def put_first(
    metadata: MetadataStore, parts: Sequence[MultiOperation]
) -> Sequence[MultiOperation]:
    """Write those facts of a topic's partitions that have no place in the step that stores the
    topic's own; returns the others. Raises VersionConflict, MetadataUnavailable."""
    for first in range(PARTS_AT_ONCE, len(parts), PARTS_AT_ONCE):
        await metadata.multi(parts[first : first + PARTS_AT_ONCE])
    return parts[:PARTS_AT_ONCE]
