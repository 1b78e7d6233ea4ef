"""The figures of a broker for metrics: which of its parts count what.

Invariants: counts nothing itself. What a part counts is in its own module.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from headrace.broker.services.client_figures import (
    append_figures,
    login_figures,
    pushed_figures,
    throttling_figures,
)
from headrace.broker.services.group_figures import (
    consumer_group_figures,
    dead_letter_figures,
    share_group_figures,
    timer_figures,
)
from headrace.broker.services.storage_figures import (
    cache_figures,
    cluster_figures,
    compaction_figures,
    disk_figures,
    garbage_figures,
    log_figures,
    tiering_figures,
    topic_figures,
)

if TYPE_CHECKING:
    from headrace.broker.node import Node
    from headrace.broker.services.services import Services
    from headrace.runtime.figures import Source


def figures_of(node: Node, services: Services) -> list[Source]:
    """What the parts count, in the order in which it is shown."""
    topics, ownership, clock = node.topics, node.ownership, node.clock
    sources: list[Source] = [
        partial(append_figures, services.appends),
        partial(login_figures, services),
        partial(throttling_figures, services.quotas, services.fair_shares),
        partial(pushed_figures, services.telemetry),
        partial(cache_figures, node.store),
        partial(disk_figures, services.topics),
        partial(topic_figures, topics),
        partial(log_figures, topics, services.health, services.configurations),
        partial(consumer_group_figures, node.groups, topics, clock),
        partial(share_group_figures, services.shares, topics, ownership, clock),
        partial(dead_letter_figures, services.dead_letters),
        partial(timer_figures, node.timers, clock),
        partial(compaction_figures, node.compactor),
        partial(cluster_figures, topics, ownership, node.replication),
    ]
    if node.tiering is not None:
        sources.append(partial(tiering_figures, node.tiering))
    if node.ledger_garbage is not None:
        sources.append(partial(garbage_figures, node.ledger_garbage))
    return sources
