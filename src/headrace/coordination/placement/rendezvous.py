"""Computes which broker should own each partition of a topic, on every broker independently.

Invariants: pure. The result depends on the topic id, the eligible brokers and the operators' pins,
so brokers with the same view of the cluster agree without communication.

How it works: rendezvous hashing (Thaler and Ravishankar, 1998) with bounded load: each partition in
turn takes its highest-ranked broker that has not reached its share of the topic, rounded up.
Without the bound, six partitions on two brokers may well be placed five to one. When a broker
leaves, its partitions go to their next choices and few others move.

The share is the least that can hold the topic, so no broker has more than the evenest placement
gives the fullest one. Only that is bounded: ten partitions on four brokers may be placed 3, 3, 3,
1. Many topics even it out in part. With another bound, old brokers would not agree with new ones.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from uuid import UUID

NO_BROKER = -1


def rank(topic_id: UUID, partition: int, broker: int) -> bytes:
    """The rank of a broker for a partition: the highest wins.

    Do not change: during a rolling upgrade old and new brokers must agree.
    """
    key = topic_id.bytes + partition.to_bytes(4, "big") + broker.to_bytes(4, "big")
    return blake2b(key, digest_size=8).digest()


def one_of(duty: UUID, brokers: Sequence[int]) -> int:
    """The broker elected for a cluster-wide duty; NO_BROKER if there are no brokers."""
    return place(duty, 1, brokers, {})[0]


def place(
    topic_id: UUID, partition_count: int, brokers: Sequence[int], pins: Mapping[int, int]
) -> list[int]:
    """The broker for each partition of one topic; NO_BROKER for all if there are no brokers.

    `pins` (partition -> broker) take precedence while their broker is among `brokers`.
    """
    candidates = sorted(set(brokers))
    if not candidates:
        return [NO_BROKER] * partition_count
    if len(candidates) == 1:
        return candidates * partition_count
    share = -(-partition_count // len(candidates))
    load = dict.fromkeys(candidates, 0)
    placed = [NO_BROKER] * partition_count
    for partition, broker in pins.items():
        if broker in load and 0 <= partition < partition_count:
            placed[partition] = broker
            load[broker] += 1
    for partition in range(partition_count):
        if placed[partition] != NO_BROKER:
            continue
        open_brokers = [broker for broker in candidates if load[broker] < share]
        best = max(open_brokers or candidates, key=lambda broker: rank(topic_id, partition, broker))
        placed[partition] = best
        load[best] += 1
    return placed
