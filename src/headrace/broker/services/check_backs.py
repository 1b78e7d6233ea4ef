"""Check-backs: half messages whose producers are asked for an outcome, pushed to waiting clients.

Invariants: knows no protocol. A check-back of any broker reaches one of those that wait for its
producer group, at any broker; one that nobody waits for stays with its partition until someone
does, or the next check. Nothing is polled: while clients of this broker wait, each other broker is
asked to say when it has check-backs of their groups, in one call for all of them.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, Final

from headrace.broker.services.owner_calls import checked
from headrace.broker.timers.half_messages import HalfShown
from headrace.coordination.timers.commands import Half
from headrace.errors import HeadraceError, StorageUnavailable
from headrace.records.bodies import decode_body, encode_body

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from headrace.broker.services.owner_calls import OwnerCalls
    from headrace.broker.timers.half_messages import HalfMessages
    from headrace.metadata.facts import BrokerFact
    from headrace.runtime.tasks import Tasks

log = logging.getLogger(__name__)

WAITERS_MAX: Final = 10_000
"""Of one broker, each a client that waits."""
GROUPS_MAX: Final = 1_000
"""Producer groups about which one call asks; those beyond are looked for when a call ends."""
TAKEN_MAX: Final = 1_000
WATCH_S: Final = 5.0
"""How long another broker keeps a call that asks for check-backs."""
RETRY_S: Final = 1.0
"""Until a broker that could not be asked is asked again."""

Failed = dict[int, HeadraceError]
"""The brokers that could not be asked."""


class _Waiter:
    """A client that waits for check-backs of one producer group."""

    def __init__(self) -> None:
        self.event = asyncio.Event()
        """Set when this broker or another one has some."""
        self.ready: set[int] = set()
        """The other brokers that may have some."""

    def notify(self, broker_id: int) -> None:
        """Another broker has some."""
        self.ready.add(broker_id)
        self.event.set()


class CheckBacks:
    """See the module."""

    def __init__(
        self,
        calls: OwnerCalls,
        halves: HalfMessages,
        brokers: Callable[[], Sequence[BrokerFact]],
        broker_id: int,
        tasks: Tasks,
    ) -> None:
        self._calls = calls
        self._halves = halves
        self._brokers = brokers
        self._broker_id = broker_id
        self._tasks = tasks
        self._waiters: dict[str, list[_Waiter]] = {}
        self._count = 0
        self._watches: dict[int, asyncio.Task[None]] = {}
        """By other broker."""
        self._changed = asyncio.Event()
        """Set when there is more to ask the other brokers than they have been asked."""
        calls.offer_of_broker("halves.checks", self._take_here)
        calls.offer_of_broker("halves.due", self._wait_here)

    async def next(
        self, group: str, count_max: int, wait_s: float | None
    ) -> tuple[list[HalfShown], Failed]:
        """(half messages of all brokers whose producer group is due for a check-back, brokers that
        could not be asked).

        Waits up to `wait_s` for the first one; None: for as long as it takes. Each check-back goes
        to one caller. Raises StorageUnavailable if too many wait.
        """
        if self._count >= WAITERS_MAX:
            raise StorageUnavailable(f"{WAITERS_MAX} clients wait for check-backs: try again later")
        loop = asyncio.get_running_loop()
        until_s = None if wait_s is None else loop.time() + wait_s
        waiter = _Waiter()
        self._add(group, waiter)
        try:
            brokers = self._ids()
            while True:
                waiter.event.clear()
                waiter.ready.clear()
                self._changed.set()
                found, failed = await self._take(group, count_max, brokers)
                if found or (until_s is not None and loop.time() >= until_s):
                    return found, failed
                self._watch_others()
                try:  # around the wait alone: what was taken must be returned
                    async with asyncio.timeout_at(until_s):
                        await waiter.event.wait()
                except TimeoutError:
                    return found, failed
                brokers = [self._broker_id, *sorted(waiter.ready)]
        finally:
            self._remove(group, waiter)

    def _add(self, group: str, waiter: _Waiter) -> None:
        self._waiters.setdefault(group, []).append(waiter)
        self._halves.add_waiter(group, waiter.event)
        self._count += 1

    def _remove(self, group: str, waiter: _Waiter) -> None:
        waiters = self._waiters[group]
        waiters.remove(waiter)
        self._halves.remove_waiter(group, waiter.event)
        if not waiters:
            del self._waiters[group]
        self._count -= 1

    def _ids(self) -> list[int]:
        """All brokers, this one first."""
        ids = (broker.id for broker in self._brokers())
        return sorted(ids, key=lambda one: (one != self._broker_id, one))

    async def _take(
        self, group: str, count_max: int, brokers: Sequence[int]
    ) -> tuple[list[HalfShown], Failed]:
        found: list[HalfShown] = []
        failed: Failed = {}
        for broker_id in brokers:
            asked = group, count_max - len(found)
            if asked[1] <= 0:
                break
            try:
                rows = await self._calls.ask_broker("halves.checks", broker_id, asked)
            except HeadraceError as error:
                failed[broker_id] = error
                continue
            found += [
                HalfShown(name, number, Half(*half), decode_body(body))
                for name, number, half, body in rows
            ]
        return found, failed

    async def _take_here(self, asked: Any) -> list[Any]:
        group, count_max = checked(asked, str, int)
        return [
            (
                one.topic,
                one.partition,
                [getattr(one.half, name) for name in Half.__slots__],
                encode_body(*one.body),
            )
            for one in await self._halves.take_checks(group, min(count_max, TAKEN_MAX))
        ]

    # --- other brokers -----------------------------------------------------------------------

    def _watch_others(self) -> None:
        """Have each other broker say when it has check-backs of groups that wait here."""
        for broker_id in self._ids():
            former = self._watches.get(broker_id)
            if broker_id != self._broker_id and (former is None or former.done()):
                task = self._tasks.start(self._watch(broker_id), f"check-backs of {broker_id}")
                self._watches[broker_id] = task

    async def _watch(self, broker_id: int) -> None:
        """Runs while clients wait and the broker is registered."""
        while self._waiters and any(one.id == broker_id for one in self._brokers()):
            self._changed.clear()
            groups = self._unasked(broker_id)
            changed = self._tasks.start(self._changed.wait(), "more check-backs to wait for")
            asking = self._tasks.start(self._due_at(broker_id, groups), "check-backs elsewhere")
            try:
                await asyncio.wait([changed, asking], return_when=asyncio.FIRST_COMPLETED)
                if asking.done():
                    for group in asking.result():
                        for waiter in self._waiters.get(group, ()):
                            waiter.notify(broker_id)
            finally:
                changed.cancel()
                asking.cancel()

    def _unasked(self, broker_id: int) -> list[str]:
        """The groups of which someone does not know yet whether the broker has check-backs."""
        groups = (
            group
            for group, waiters in self._waiters.items()
            if any(broker_id not in waiter.ready for waiter in waiters)
        )
        return sorted(groups)[:GROUPS_MAX]

    async def _due_at(self, broker_id: int, groups: Sequence[str]) -> list[str]:
        """Those of the groups with check-backs at another broker; waits for the first one."""
        try:
            asked = list(groups), int(WATCH_S * 1000)
            found = await self._calls.ask_broker("halves.due", broker_id, asked, WATCH_S)
            return [str(group) for group in found]
        except HeadraceError as error:
            log.info("cannot wait for check-backs at broker %d: %s", broker_id, error)
            await asyncio.sleep(RETRY_S)
            return []

    async def _wait_here(self, asked: Any) -> list[str]:
        groups, wait_ms = checked(asked, list, int)
        checked(groups, *[str] * len(groups))
        wait_s = min(max(wait_ms, 0) / 1000, WATCH_S)
        return await self._halves.wait_due(groups[:GROUPS_MAX], wait_s)
