"""What a broker forgets with a topic: the progress of groups, share groups, and timers.

Invariants: other brokers forget their own. Progress outlives a topic whose fact was lost, which is
no deletion. Forgetting is repeated until storage takes it.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from headrace.errors import HeadraceError

if TYPE_CHECKING:
    from collections.abc import Callable
    from uuid import UUID

    from headrace.broker.coordinators.group_coordinator import GroupCoordinator
    from headrace.broker.coordinators.groups_configured import ConfiguredGroups
    from headrace.broker.shares.share_partitions import SharePartitions
    from headrace.broker.timers.timer_partitions import TimerPartitions
    from headrace.broker.topics.topic import Topic
    from headrace.broker.topics.topics import Topics
    from headrace.runtime.tasks import Tasks

log = logging.getLogger(__name__)

RETRY_S = 1.0


class DeletedTopics:
    """Of one broker."""

    def __init__(
        self,
        topics: Topics,
        shares: SharePartitions,
        timers: TimerPartitions,
        group_configs: ConfiguredGroups,
        groups: Callable[[], GroupCoordinator],
        tasks: Tasks,
    ) -> None:
        """`groups()`: the coordinator, which is made when the broker opens."""
        self._topics = topics
        self._shares = shares
        self._timers = timers
        self._group_configs = group_configs
        self._groups = groups
        self._tasks = tasks

    def gone(self, topic: Topic, *, is_certain: bool) -> None:
        """Another broker has deleted a topic; unless `is_certain`, its fact may just be lost."""
        self._shares.forget_topic(topic.id)
        self._timers.forget_topic(topic.id)
        if is_certain:
            self._tasks.spawn(
                self._forget_patiently(topic.name, topic.id), f"forget offsets of {topic.name}"
            )
        else:
            self._tasks.spawn(self._forget_if_deleted(topic), f"look after {topic.name}")

    async def forget(self, name: str, topic_id: UUID) -> None:
        """This broker has deleted a topic. Raises what a group's coordinator raises."""
        self._shares.forget_topic(topic_id)
        self._timers.forget_topic(topic_id)
        self._tasks.spawn(self._forget_share_topic(topic_id), "a deleted topic's share groups")
        await self._groups().topic_deleted(name, topic_id)

    async def _forget_if_deleted(self, gone: Topic) -> None:
        """Forget a topic's progress, unless only its fact was lost."""
        while True:
            try:
                if await self._topics.is_lost(gone.name):
                    log.error(
                        "the fact of topic %s was lost: it is not served, and its ledgers and the"
                        " groups' progress are kept; restore it with `headrace cluster repair`",
                        gone.name,
                    )
                    return
                break
            except HeadraceError as error:
                log.info("whether topic %s was deleted is not known yet: %s", gone.name, error)
                await asyncio.sleep(RETRY_S)
        await self._forget_patiently(gone.name, gone.id)

    async def _forget_patiently(self, name: str, topic_id: UUID) -> None:
        """Have this broker's groups forget the topic: no other can; storage may be away."""
        while True:
            try:
                await self._groups().topic_deleted(name, topic_id)
                return
            except HeadraceError as error:
                log.info("offsets of the deleted topic %s stay for now: %s", name, error)
                await asyncio.sleep(RETRY_S)

    async def _forget_share_topic(self, topic_id: UUID) -> None:
        try:
            await self._group_configs.forget_topic(topic_id)
        except HeadraceError as error:  # harmless: what is not there is passed over
            log.info("share groups still name the deleted topic %s: %s", topic_id, error)
