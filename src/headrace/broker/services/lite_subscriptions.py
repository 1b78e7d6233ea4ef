"""The lite topics that clients of a group subscribe to, at the owners of their partitions.

Invariants: knows no protocol. Any broker takes a subscription; the owner of the partition in which
a lite topic lies keeps it, for as long as the client repeats it. An owner that takes over knows
none until then. A lite topic lies in the partition of its name as a record's key.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from headrace.broker.services.owner_calls import checked
from headrace.broker.shares.lite_partitions import SESSION_MS
from headrace.coordination.shares.lite_commands import LEAVE, SET, LiteSyncCommand
from headrace.records.partitioner import partition_of_key

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from headrace.broker.services.owner_calls import OwnerCalls
    from headrace.broker.shares.lite_partitions import LitePartitions
    from headrace.broker.topics.topic import Topic

Displaced = tuple[str, str, str, str]
"""(topic, group, client, lite topic): the client no longer receives it."""


class LiteSubscriptions:
    """See the module."""

    def __init__(self, calls: OwnerCalls, partitions: LitePartitions) -> None:
        self._calls = calls
        self._partitions = partitions
        self._on_displaced: list[Callable[[Sequence[Displaced]], None]] = []
        calls.offer("lite.sync", self._sync_here)
        calls.offer_of_broker("lite.displaced", self._displaced_here)

    def on_displaced(self, notify: Callable[[Sequence[Displaced]], None]) -> None:
        """Notify of the clients, of any broker, whose place another one took."""
        self._on_displaced.append(notify)

    async def sync(
        self,
        topic: Topic,
        group_id: str,
        client: str,
        action: int,
        names: Collection[str],
        stay: str = "",
    ) -> None:
        """Change what a client subscribes to: see LiteSyncCommand.

        Raises QuotaExceeded, and the error of a partition that could not be asked: to repeat the
        call has the same result.
        """
        parts: dict[int, list[str]] = {}
        count = len(topic.partitions)
        if action in {SET, LEAVE}:
            parts = {number: [] for number in range(count)}
        for name in names:
            parts.setdefault(partition_of_key(name.encode(), count), []).append(name)
        answers = await asyncio.gather(
            *(
                self._calls.ask_partition(
                    "lite.sync", topic, number, [group_id, client, action, some, stay]
                )
                for number, some in parts.items()
            ),
            return_exceptions=True,
        )
        displaced: list[Displaced] = []
        failures: list[BaseException] = []
        for answer in answers:
            if isinstance(answer, BaseException):
                failures.append(answer)
            else:
                displaced += [(topic.name, group_id, other, name) for other, name in answer]
        if displaced:
            await self._calls.ask_brokers("lite.displaced", displaced)
        if failures:
            raise failures[0]

    async def _sync_here(self, topic: Topic, number: int, asked: Any) -> Any:
        group_id, client, action, names, stay = checked(asked, str, str, int, list, str)
        command = LiteSyncCommand(group_id, client, action, names, SESSION_MS, stay)
        return await self._partitions.sync(topic, number, command)

    async def _displaced_here(self, asked: Any) -> Any:
        displaced: list[Displaced] = [checked(one, str, str, str, str) for one in asked]
        for notify in self._on_displaced:
            notify(displaced)
        return True
