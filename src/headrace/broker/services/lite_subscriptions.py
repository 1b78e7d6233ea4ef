"""The lite topics that clients of a group subscribe to, at the owners of their partitions.

Invariants: knows no protocol. Any broker takes a subscription; the owner of the partition in which
a lite topic lies keeps it, for as long as the client repeats it. An owner that takes over knows
none until then. A lite topic lies in the partition of its name as a record's key.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from headrace.broker.services.kept_subscriptions import (
    KeptNames,
    KeptSubscriptions,
    Subscriber,
    restored,
)
from headrace.broker.services.owner_calls import checked, split
from headrace.broker.shares.lite_partitions import SESSION_MS
from headrace.coordination.shares.lite_commands import LEAVE, REMOVE, SET, LiteSyncCommand
from headrace.errors import GroupUnknown, HeadraceError, QuotaExceeded
from headrace.records.partitioner import partition_of_key
from headrace.runtime.loop_turns import charged_alike

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from headrace.broker.services.owner_calls import OwnerCalls
    from headrace.broker.shares.lite_partitions import LitePartitions
    from headrace.broker.topics.topic import Topic
    from headrace.runtime.clock import Clock

log = logging.getLogger(__name__)

ANSWER_S: Final = 1.0
"""How long another broker is awaited for what it remembers, or for taking a copy: longer ones leave
it to the client, which repeats everything."""
Displaced = tuple[str, str, str, str]
"""(topic, group, client, lite topic): the client no longer receives it."""


class LiteSubscriptions:
    """See the module."""

    def __init__(
        self, calls: OwnerCalls, partitions: LitePartitions, clock: Clock, broker_id: int
    ) -> None:
        self._calls = calls
        self._partitions = partitions
        self._clock = clock
        self._broker_id = broker_id
        self._kept = KeptSubscriptions()
        self._on_displaced: list[Callable[[Sequence[Displaced]], None]] = []
        calls.offer("lite.sync", self._sync_here)
        calls.offer_of_broker("lite.displaced", self._displaced_here)
        calls.offer_of_broker("lite.copy", self._copy_here)
        calls.offer_of_broker("lite.kept", self._kept_here)
        partitions.restore_by(self._restore)

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
        change = [group_id, client, action, [*parts.items()], stay]
        new = self._keep(topic, change)
        asking = self._ask(topic, group_id, client, action, parts, stay)
        answers, _ = await asyncio.gather(
            charged_alike(asking), charged_alike(self._copy(topic, change))
        )
        displaced: list[Displaced] = []
        failures: list[BaseException] = []
        for answer in answers:
            if isinstance(answer, BaseException):
                failures.append(answer)
            else:
                displaced += [(topic.name, group_id, other, name) for other, name in answer]
        await self._tell(displaced)
        if failures:
            if isinstance(failures[0], QuotaExceeded):
                undone = [group_id, client, REMOVE, [*new.items()], stay]
                self._keep(topic, undone)
                await self._copy(topic, undone)
                parts = {number: some for number, some in new.items() if some}
                # Those whose partitions had room for them.
                await self._ask(topic, group_id, client, REMOVE, parts, stay)
            raise failures[0]

    async def _ask(
        self,
        topic: Topic,
        group_id: str,
        client: str,
        action: int,
        parts: Mapping[int, Sequence[str]],
        stay: str,
    ) -> list[Any]:
        """What the owners answer, or the errors."""
        asking = [
            self._calls.ask_partition(
                "lite.sync", topic, number, [group_id, client, action, some, stay]
            )
            for number, some in parts.items()
        ]
        return await asyncio.gather(*map(charged_alike, asking), return_exceptions=True)

    async def _tell(self, displaced: Sequence[Displaced]) -> None:
        if displaced:
            await self._calls.ask_brokers("lite.displaced", displaced)

    # --- what the next owner asks for ---------------------------------------------------------

    def _keep(self, topic: Topic, change: list[Any]) -> dict[int, list[str]]:
        return self._remember(self._broker_id, topic.name, topic.id.hex, *change)

    async def _copy(self, topic: Topic, change: list[Any]) -> None:
        asked = [self._broker_id, topic.name, topic.id.hex, *change]
        await self._calls.ask_next("lite.copy", asked, ANSWER_S)

    def _remember(
        self, origin: int, topic: str, topic_id: str, *change: Any
    ) -> dict[int, list[str]]:
        group_id, client, action, parts, stay = checked(change, str, str, int, list, str)
        who = Subscriber(origin, topic, group_id, client)
        times_ms = self._clock.now_ms(), SESSION_MS
        return self._kept.change(who, topic_id, action, dict(parts), stay, times_ms)

    async def _copy_here(self, asked: Any) -> Any:
        origin, topic, topic_id, *change = asked
        checked([origin, topic, topic_id], int, str, str)
        self._remember(origin, topic, topic_id, *change)
        return True

    async def _kept_here(self, asked: Any) -> Any:
        topic, topic_id, number = checked(asked, str, str, int)
        now_ms = self._clock.now_ms()
        return self._kept.of_partition(self._broker_id, topic, topic_id, number, now_ms)

    async def _restore(self, topic: Topic, number: int) -> None:
        """Subscribe clients again on a partition that this broker has just begun to serve."""
        asked = [topic.name, topic.id.hex, number]
        answers = await self._calls.ask_brokers("lite.kept", asked, limit_s=ANSWER_S)
        found, failed = split(answers)
        if failed:
            log.info(
                "lite topics of %s-%d: some brokers do not tell who subscribes to them, their"
                " clients get nothing until they repeat it: %s",
                *(topic.name, number, next(iter(failed.values()))),
            )
        displaced: list[Displaced] = []
        try:
            for command in restored(KeptNames(*one) for some in found.values() for one in some):
                with suppress(GroupUnknown, QuotaExceeded):
                    others = await self._partitions.restore(topic, number, command)
                    displaced += [(topic.name, command.group_id, *one) for one in others]
        except HeadraceError as error:  # it does not serve the partition any more
            log.info("lite topics of %s-%d: %s", topic.name, number, error)
        await self._tell(displaced)

    async def _sync_here(self, topic: Topic, number: int, asked: Any) -> Any:
        group_id, client, action, names, stay = checked(asked, str, str, int, list, str)
        command = LiteSyncCommand(group_id, client, action, names, SESSION_MS, stay)
        return await self._partitions.sync(topic, number, command)

    async def _displaced_here(self, asked: Any) -> Any:
        displaced: list[Displaced] = [checked(one, str, str, str, str) for one in asked]
        self._kept.displaced(displaced)
        for notify in self._on_displaced:
            notify(displaced)
        return True
