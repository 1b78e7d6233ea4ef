"""The services that any broker offers for a whole topic, whichever brokers own its partitions.

Invariants: only puts them together; protocols' faces use these, never the parts of one broker.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, Final

from headrace.broker.services.message_search import MessageSearch
from headrace.broker.services.message_timers import MessageTimers
from headrace.broker.services.owner_calls import OwnerCalls, checked, split
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

log = logging.getLogger(__name__)

ANNOUNCE_S: Final = 2.0
"""Within which the other brokers read a group's new settings before the change is answered."""


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
        self._groups = groups
        self.calls.offer_of_broker("groups.refresh", self._refresh_group)

    async def announce_group(self, group_id: str) -> None:
        """Have the other brokers read a group's settings, which have just been changed here.

        Returns after ANNOUNCE_S at the latest: a broker that cannot be asked reads them when the
        metadata store notifies it.
        """
        try:
            async with asyncio.timeout(ANNOUNCE_S):
                answers = await self.calls.ask_others("groups.refresh", group_id)
        except TimeoutError:
            log.info("group %s: not all brokers have read its new settings yet", group_id)
            return
        for broker_id, error in split(answers)[1].items():
            log.info("group %s: broker %d reads its settings later: %s", group_id, broker_id, error)

    async def _refresh_group(self, asked: Any) -> None:
        (group_id,) = checked([asked], str)
        await self._groups.refresh(group_id)
