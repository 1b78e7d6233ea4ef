"""The current leader of a partition that another broker serves, sent with the error.

Invariants: no hint if no broker serves the partition, or if this broker is still named as its
leader.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from uuid import UUID

from headrace.errors import Fenced, HeadraceError, NotOwner
from headrace.kafka.wire.leader_hints import LeaderHint

if TYPE_CHECKING:
    from headrace.broker.node import Node


def leader_hint(
    node: Node, topic_key: bytes, number: int, error: BaseException, listener: str, *, is_id: bool
) -> LeaderHint | None:
    """The hint for a partition that was refused with `error` at `listener`, or None."""
    if not isinstance(error, NotOwner | Fenced):
        return None
    topics, cluster = node.services.topics, node.services.cluster
    try:
        topic = (
            topics.get_by_id(UUID(bytes=topic_key))
            if is_id
            else topics.get(topic_key.decode(errors="replace"))
        )
        topic.check_partition(number)
    except HeadraceError:
        return None
    leader = topics.leader(topic, number)
    broker = cluster.leader_of(topic, number)
    if broker is None or broker.id == cluster.broker_id:
        return None
    host, port = broker.kafka_address(listener)
    return LeaderHint(broker.id, leader.leader_epoch, host, port, broker.rack)
