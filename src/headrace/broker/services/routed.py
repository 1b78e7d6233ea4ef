"""The services that any broker offers for a whole topic, whichever brokers own its partitions.

Invariants: only puts them together; protocols' faces use these, never the parts of one broker.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.broker.services.message_search import MessageSearch
from headrace.broker.services.message_timers import MessageTimers
from headrace.broker.services.owner_calls import OwnerCalls
from headrace.broker.services.record_sends import RecordSends
from headrace.broker.services.search import Search
from headrace.broker.services.trace import Tracer

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from headrace.broker.coordinators.groups_configured import ConfiguredGroups
    from headrace.broker.services.appends import Appends
    from headrace.broker.services.queue_owners import QueueOwners
    from headrace.broker.shares.share_partitions import SharePartitions
    from headrace.broker.timers.timer_partitions import TimerPartitions
    from headrace.broker.topics.topics import Topics
    from headrace.metadata.facts import BrokerFact


class Routed:
    """See the module."""

    def __init__(
        self,
        owners: QueueOwners,
        topics: Topics,
        appends: Appends,
        shares: SharePartitions,
        timers: TimerPartitions,
        groups: ConfiguredGroups,
        brokers: Callable[[], Sequence[BrokerFact]],
        broker_id: int,
    ) -> None:
        search = Search(
            topics, shares, timers, lambda: groups.values("errors.deadletterqueue.topic.name")
        )
        self.calls = OwnerCalls(owners, brokers, broker_id)
        self.sends = RecordSends(topics, owners, appends)
        self.timers = MessageTimers(self.calls, timers, brokers, broker_id)
        tracer = Tracer(topics, search, shares, timers)
        self.search = MessageSearch(self.calls, search, tracer)
