"""Announces changed settings of groups to the other brokers.

Invariants: knows no protocol. The metadata store notifies all brokers in time; this only makes
them read the settings sooner, so that the next request meets them wherever it arrives.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, Final

from headrace.broker.services.owner_calls import checked, split

if TYPE_CHECKING:
    from headrace.broker.coordinators.groups_configured import ConfiguredGroups
    from headrace.broker.services.owner_calls import OwnerCalls

log = logging.getLogger(__name__)

ANNOUNCE_S: Final = 2.0
"""Within which the other brokers read a group's new settings before the change is answered."""


class GroupAnnouncements:
    """See the module."""

    def __init__(self, calls: OwnerCalls, groups: ConfiguredGroups) -> None:
        self._calls = calls
        self._groups = groups
        calls.offer_of_broker("groups.refresh", self._refresh)

    async def announce(self, group_id: str) -> None:
        """Have the other brokers read a group's settings, which have just been changed here.

        Returns after ANNOUNCE_S at the latest: a broker that cannot be asked reads them when the
        metadata store notifies it.
        """
        try:
            async with asyncio.timeout(ANNOUNCE_S):
                answers = await self._calls.ask_others("groups.refresh", group_id)
        except TimeoutError:
            log.info("group %s: not all brokers have read its new settings yet", group_id)
            return
        for broker_id, error in split(answers)[1].items():
            log.info("group %s: broker %d reads its settings later: %s", group_id, broker_id, error)

    async def _refresh(self, asked: Any) -> None:
        (group_id,) = checked([asked], str)
        await self._groups.refresh(group_id)
