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
    from headrace.broker.services.services import Services


def leader_hint(
    services: Services,
    place: tuple[bytes, int],
    error: BaseException,
    listener: str,
    *,
    is_id: bool,
) -> LeaderHint | None:
    """The hint for a partition that was refused with `error` at `listener`, or None.

    `place`: (topic in wire form, partition).
    """
    if not isinstance(error, NotOwner | Fenced):
        return None
    topics, cluster = services.topics, services.cluster
    topic_key, number = place
    try:
        topic = (
            topics.readable.get_by_id(UUID(bytes=topic_key))
            if is_id
            else topics.readable.get(topic_key.decode(errors="replace"))
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
