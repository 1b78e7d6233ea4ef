"""Deletes a topic's dependent state on this broker: committed offsets, share groups, timers.

Invariants: other brokers delete their own. Offsets are kept for a topic whose fact was lost, which
is not a deletion. Deletion is retried until storage accepts it.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from headrace.errors import HeadraceError

if TYPE_CHECKING:
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
    """The dependent state of one broker."""

    def __init__(
        self,
        topics: Topics,
        shares: SharePartitions,
        timers: TimerPartitions,
        group_configs: ConfiguredGroups,
        groups: GroupCoordinator,
        tasks: Tasks,
    ) -> None:
        self._topics = topics
        self._shares = shares
        self._timers = timers
        self._group_configs = group_configs
        self._groups = groups
        self._tasks = tasks

    def topic_deleted(self, topic: Topic, *, is_certain: bool) -> None:
        """Another broker has deleted a topic; unless `is_certain`, its fact may only have been
        lost."""
        self._shares.forget_topic(topic.id)
        self._timers.host.hosted.forget_topic(topic.id)
        if is_certain:
            self._tasks.spawn(
                self._delete_offsets(topic.name, topic.id), f"delete offsets of {topic.name}"
            )
        else:
            self._tasks.spawn(self._forget_if_deleted(topic), f"check deletion of {topic.name}")

    async def forget(self, name: str, topic_id: UUID) -> None:
        """This broker has deleted a topic. Raises the group coordinator's errors."""
        self._shares.forget_topic(topic_id)
        self._timers.host.hosted.forget_topic(topic_id)
        self._tasks.spawn(self._forget_share_topic(topic_id), "a deleted topic's share groups")
        await self._groups.topic_deleted(name, topic_id)

    async def _forget_if_deleted(self, topic: Topic) -> None:
        """Delete a topic's offsets unless only its fact was lost."""
        while True:
            try:
                if await self._topics.is_lost(topic.name):
                    log.error(
                        "the fact of topic %s was lost: the topic is not served, its ledgers and "
                        "committed offsets are kept; restore it with `headrace cluster repair`",
                        topic.name,
                    )
                    return
                break
            except HeadraceError as error:
                log.info("cannot determine yet whether topic %s was deleted: %s", topic.name, error)
                await asyncio.sleep(RETRY_S)
        await self._delete_offsets(topic.name, topic.id)

    async def _delete_offsets(self, name: str, topic_id: UUID) -> None:
        """Delete the topic's offsets in this broker's groups, which no other broker can do; retries
        while storage is unavailable."""
        while True:
            try:
                await self._groups.topic_deleted(name, topic_id)
                return
            except HeadraceError as error:
                log.info("cannot delete the offsets of deleted topic %s yet: %s", name, error)
                await asyncio.sleep(RETRY_S)

    async def _forget_share_topic(self, topic_id: UUID) -> None:
        try:
            await self._group_configs.forget_topic(topic_id)
        except HeadraceError as error:  # harmless: deleted topics are skipped
            log.info("share groups still refer to deleted topic %s: %s", topic_id, error)
