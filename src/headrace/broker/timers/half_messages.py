"""Half messages: listed, settled and shown for check-backs where this broker serves the partition.

Invariants: as for `delayed_records.py`: the machine of the partition decides.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, NamedTuple

from headrace.broker.timers.hosted_timers import translated
from headrace.broker.timers.listing import LISTED_BYTES_MAX
from headrace.coordination.timers.commands import (
    Half,
    PollCommand,
    SettleHalfCommand,
    SettleHalfReply,
)
from headrace.coordination.timers.halves import SETTLED_AT_ONCE
from headrace.errors import RecordStateInvalid
from headrace.records.bodies import Body, decode_body
from headrace.records.tenant_names import name_in, sibling, tenant_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headrace.broker.timers.timer_bodies import StoredTimer
    from headrace.broker.timers.timer_host import TimerHost
    from headrace.broker.topics.topic import Topic
    from headrace.coordination.timers.state_records import Settled

POLLED_AT_ONCE: Final = 16
"""Half messages given to a poll at a time, since their sizes are not known in advance."""

CheckWaiters = dict[str, list[asyncio.Event]]
"""By the key of a producer group, of the tenant of its topics: who waits for a check-back."""


class HalfShown(NamedTuple):
    """A half message with its record."""

    topic: str
    partition: int
    half: Half
    body: Body


class HalfMessages:
    """See the module."""

    def __init__(self, host: TimerHost, waiters: CheckWaiters) -> None:
        self._host = host
        self._waiters = waiters

    async def list_halves(self, topic: Topic, number: int) -> tuple[list[Half], list[Settled]]:
        """(pending half messages, outcomes still kept) of a partition, oldest first."""
        hosted = await self._host.hosted_or_none(topic, number)
        state = None if hosted is None else hosted.state
        if state is None:
            return [], []
        return list(state.halves.saved()), list(state.halves.outcomes)

    async def half_bodies(
        self, topic: Topic, number: int, halves: Sequence[Half]
    ) -> list[tuple[Half, StoredTimer]]:
        """The first of these half messages that are still pending, up to LISTED_BYTES_MAX.

        An empty list: all were settled meanwhile.
        """
        hosted = await self._host.hosted_or_none(topic, number)
        state = None if hosted is None else hosted.state
        if hosted is None or state is None:
            return []
        pending = [half for half in halves if half.number in state.halves.by_number]
        found = await hosted.bodies.leading([half.offset for half in pending], LISTED_BYTES_MAX)
        return list(zip(pending, found, strict=False))

    async def settle(
        self, topic: Topic, number: int, command: SettleHalfCommand
    ) -> SettleHalfReply | None:
        """Commit or roll back half messages; None if this partition never had such a one.

        The reply's error says that the outcome was another one before.
        """
        hosted = await self._host.hosted_or_none(topic, number)
        if hosted is None:
            return None
        count = 0
        while True:
            reply = await hosted.shard.submit(command)
            count += reply.count
            if reply.count < SETTLED_AT_ONCE or command.number >= 0 or command.is_dry_run:
                break
        if reply.error is not None and not isinstance(reply.error, RecordStateInvalid):
            raise translated(reply.error)
        reply.count = count
        return None if reply.outcome is None else reply

    def add_waiter(self, group: str, event: asyncio.Event) -> None:
        """Have `event` set when half messages of the producer group are due for a check-back."""
        self._waiters.setdefault(group, []).append(event)

    def remove_waiter(self, group: str, event: asyncio.Event) -> None:
        """The end of `add_waiter`."""
        waiting = self._waiters[group]
        waiting.remove(event)
        if not waiting:
            del self._waiters[group]

    async def wait_due(self, groups: Sequence[str], wait_s: float) -> list[str]:
        """Those of the producer groups with check-backs that no producer has taken.

        Waits up to `wait_s` for the first one; takes none.
        """
        event = asyncio.Event()
        for group in groups:
            self.add_waiter(group, event)
        try:
            async with asyncio.timeout(wait_s):
                while not (found := self._due(groups)):
                    event.clear()
                    await event.wait()
                return found
        except TimeoutError:
            return []
        finally:
            for group in groups:
                self.remove_waiter(group, event)

    def _due(self, groups: Sequence[str]) -> list[str]:
        asked: set[str] = set()
        for hosted in self._host.hosted:
            if hosted.state is not None:
                names = hosted.state.halves.asked_groups()
                asked.update(sibling(hosted.topic.name, name) for name in names)
        return [group for group in groups if group in asked]

    async def take_checks(self, group: str, count_max: int) -> list[HalfShown]:
        """The check-backs of a producer group that no producer has taken; each is taken once."""
        shown: list[HalfShown] = []
        bytes_left = LISTED_BYTES_MAX
        for hosted in self._host.hosted:
            name = _name_at(hosted.topic, group)
            if name is None:
                continue
            while hosted.state is not None and len(shown) < count_max and bytes_left > 0:
                count = min(count_max - len(shown), POLLED_AT_ONCE)
                reply = await hosted.ask(PollCommand(name, count))
                if not reply.halves:
                    break
                found = await hosted.bodies.get([half.offset for half in reply.halves])
                bytes_left -= sum(len(one.body) for one in found.values())
                shown += [
                    HalfShown(
                        hosted.topic.name,
                        hosted.number,
                        half,
                        decode_body(found[half.offset].body),
                    )
                    for half in reply.halves
                ]
        return shown


def _name_at(topic: Topic, group: str) -> str | None:
    """What producers of a topic call a producer group, whose key this is; None: it is of another
    tenant than the topic. A producer of the default tenant may call one as a tenant's is stored."""
    return name_in(group) if tenant_of(group) == tenant_of(topic.name) else None


def wake(waiters: CheckWaiters, groups: tuple[str, ...]) -> None:
    """Half messages of these producer groups are due for a check-back."""
    for group in groups:
        for event in waiters.get(group, ()):
            event.set()
