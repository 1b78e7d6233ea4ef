"""Waits until the view of owners satisfies a condition.

Invariants: reads a ClusterView and changes nothing. The code that acts on changes calls `notify`
after each round.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Container

    from headrace.broker.ownership.cluster_view import ClusterView, Owner
    from headrace.broker.topics.topic import Topic
    from headrace.metadata.facts import PartitionKey

log = logging.getLogger(__name__)

SERVED_WAIT_S = 5.0


class OwnershipWaiter:
    """The conditions that callers wait for."""

    def __init__(self, view: ClusterView, me: int, mine: Container[PartitionKey]) -> None:
        """`mine`: the partitions that this broker serves."""
        self._view = view
        self._me = me
        self._mine = mine
        self._changed = asyncio.Event()

    def notify(self) -> None:
        """A round of changes has been applied."""
        self._changed.set()

    async def wait_served(self, topic: Topic, numbers: Collection[int] | None = None) -> None:
        """See Ownership."""
        wanted = range(topic.fact.partition_count) if numbers is None else numbers
        if not await self._until(
            lambda: all(self._is_served(topic, number) for number in wanted), SERVED_WAIT_S
        ):
            log.warning("topic %s still has partitions without an owner", topic.name)

    def _is_served(self, topic: Topic, number: int) -> bool:
        owner = self._owner(topic, number)
        if owner is None:
            return False
        return owner.fact.broker != self._me or (topic.id, number) in self._mine

    async def wait_ended(self, topic: Topic, timeout_s: float) -> bool:
        """See Ownership."""

        def is_free(number: int) -> bool:
            owner = self._owner(topic, number)
            return owner is None or owner.fact.broker == self._me

        return await self._until(
            lambda: all(map(is_free, range(topic.fact.partition_count))), timeout_s
        )

    def _owner(self, topic: Topic, number: int) -> Owner | None:
        """The owner of a partition, if it is live."""
        owner = self._view.owners.get((topic.id, number))
        return owner if owner and self._view.is_alive(owner.fact) else None

    async def wait(self, condition: Callable[[], bool], timeout_s: float) -> bool:
        """Wait until `condition` holds in the view; whether it did in time."""
        return await self._until(condition, timeout_s)

    async def _until(self, condition: Callable[[], bool], timeout_s: float) -> bool:
        if condition():  # without a timer: every queue request of another broker asks
            return True
        try:
            async with asyncio.timeout(timeout_s):
                while not condition():
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            return False
        return True
