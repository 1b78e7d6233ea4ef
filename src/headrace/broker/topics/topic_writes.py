"""How the facts of a topic and of its partitions are written.

Invariants: in steps of the metadata store that are bounded, the topic's own fact in the last one: a
topic that is seen has all its partitions. What a write that was cut short leaves is not seen.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.metadata.facts import PartitionFact, partition_key
from headrace.metadata.store import ABSENT, Operation

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headrace.metadata.facts import TopicFact
    from headrace.metadata.store import MetadataStore

PARTS_AT_ONCE = 1_000
"""Owners and chains in one step of the metadata store."""


def first_chains(fact: TopicFact, numbers: range) -> list[Operation]:
    """What to write with new partitions, so that a chain which is missing later was lost."""
    value = PartitionFact().encode()
    return [Operation(partition_key(fact.id, number), value, ABSENT) for number in numbers]


async def put_topic(metadata: MetadataStore, step: Operation, parts: Sequence[Operation]) -> int:
    """Write a topic's fact after, or together with, the facts of its partitions; its version.

    Raises VersionConflict, MetadataUnavailable.
    """
    for first in range(PARTS_AT_ONCE, len(parts), PARTS_AT_ONCE):
        await metadata.multi(parts[first : first + PARTS_AT_ONCE])
    return (await metadata.multi([step, *parts[:PARTS_AT_ONCE]]))[0]
