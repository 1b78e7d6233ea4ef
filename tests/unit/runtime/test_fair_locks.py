"""Nobody waits for the turns of a flood because one of its requests holds a lock."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

from headrace.metadata.turns import Turns
from headrace.runtime.fair_locks import FairLock, Hold
from headrace.runtime.loop_turns import TURN_NS, LoopTurns, Paced

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from contextlib import AbstractAsyncContextManager

    from headrace.runtime.loop_turns import Path

    Lock = Callable[[], AbstractAsyncContextManager[None]]

MANY: Path = ("acme", "many", False)
SLOW: Path = ("acme", "many", True)
"""Of those of its requests that have taken long."""
ONE: Path = ("acme", "one", False)


class Flood:
    """A user whose requests wait for their turns all the time, beside another user."""

    def __init__(self) -> None:
        self.turns = LoopTurns()
        self.now_ns = 0
        self.log: list[str] = []
        self._rest: list[asyncio.Task[None]] = []
        self.is_over = False

    async def step(self, name: str, took_ns: int = TURN_NS) -> None:
        """A part of a request."""
        self.log.append(name)
        self.now_ns += took_ns
        await asyncio.sleep(0)

    async def _busy(self) -> None:
        while not self.is_over:
            await self.step("many")

    async def paced(self, path: Path, handling: Awaitable[None]) -> None:
        async def handle() -> None:
            await handling

        await Paced(self.turns, path, handle(), lambda: self.now_ns)

    def start(self, path: Path, handling: Awaitable[None]) -> asyncio.Task[None]:
        task = asyncio.create_task(self.paced(path, handling))
        self._rest.append(task)
        return task

    async def begin(self) -> None:
        for _ in range(50):
            self.start(MANY, self._busy())
        while len(self.log) < 150:
            await asyncio.sleep(0)

    async def end(self) -> None:
        self.is_over = True
        await asyncio.gather(*self._rest, return_exceptions=True)


async def change(flood: Flood, lock: Lock, name: str, steps: int = 5) -> None:
    """A request that holds the lock for some steps."""
    async with lock():
        for _ in range(steps):
            await flood.step(name, 1)


def turns_of_a_key() -> Lock:
    turns = Turns()
    return lambda: turns.of("key")


def one_lock(lock: FairLock) -> Lock:
    return lambda: lock


@pytest.mark.parametrize(
    ("make", "others_max"),
    [
        (lambda: one_lock(FairLock()), 10),
        (turns_of_a_key, 10),
        # Each of its steps has the next turn of its user, whose two kinds of requests alternate.
        (lambda: one_lock(FairLock(1, Hold.LONG)), 60),
    ],
    ids=["lock", "key", "long work"],
)
def test_the_holder_of_a_lock_does_not_wait_for_its_users_other_requests(
    make: Callable[[], Lock], others_max: int
) -> None:
    async def scenario() -> None:
        flood, lock = Flood(), make()
        await flood.begin()
        holder = flood.start(SLOW, change(flood, lock, "holder"))
        while "holder" not in flood.log:
            await asyncio.sleep(0)
        flood.log.clear()
        await flood.paced(ONE, change(flood, lock, "one"))
        # With a lock that does not know who is paced: more than 200.
        assert flood.log.count("many") <= others_max, flood.log
        assert holder.done()
        await flood.end()

    asyncio.run(scenario())


def test_a_lock_is_held_by_users_in_turns() -> None:
    async def scenario() -> list[str]:
        flood, lock = Flood(), FairLock()
        async with lock:
            for _ in range(20):
                flood.start(MANY, change(flood, one_lock(lock), "many", 1))
            await asyncio.sleep(0)
            one = flood.start(ONE, change(flood, one_lock(lock), "one", 1))
            for _ in range(50):
                await asyncio.sleep(0)
            assert not flood.log
        await one
        found = list(flood.log)
        await flood.end()
        return found

    assert asyncio.run(scenario())[:2] == ["many", "one"]


def test_as_many_hold_it_as_there_are_places() -> None:
    async def scenario() -> None:
        lock, held, most = FairLock(3, Hold.LONG), 0, 0

        async def work() -> None:
            nonlocal held, most
            async with lock:
                held += 1
                most = max(most, held)
                for _ in range(3):
                    await asyncio.sleep(0)
                held -= 1

        await asyncio.gather(*(work() for _ in range(20)))
        assert (held, most) == (0, 3)
        assert not lock.locked()

    asyncio.run(scenario())


@pytest.mark.parametrize("is_granted", [False, True])
def test_a_cancelled_request_leaves_the_lock_to_the_next(is_granted: bool) -> None:
    async def scenario() -> None:
        flood, lock = Flood(), FairLock()
        await lock.acquire()
        waiting = flood.start(MANY, change(flood, one_lock(lock), "cancelled"))
        await asyncio.sleep(0)
        following = flood.start(ONE, change(flood, one_lock(lock), "next"))
        for _ in range(3):
            await asyncio.sleep(0)
        if is_granted:
            lock.release()
            waiting.cancel()
        else:
            waiting.cancel()
            await asyncio.sleep(0)
            lock.release()
        with suppress(asyncio.CancelledError):
            await waiting
        await following
        assert "cancelled" not in flood.log
        assert not lock.locked()
        await flood.end()

    asyncio.run(scenario())


def test_a_request_that_holds_nothing_any_more_takes_turns_again() -> None:
    async def scenario() -> None:
        flood, lock = Flood(), FairLock()
        await flood.begin()

        async def request() -> None:
            await change(flood, one_lock(lock), "held", 1)
            flood.log.clear()
            await flood.step("one", 1)
            await flood.step("one", 1)

        await flood.paced(ONE, request())
        assert flood.log.count("many") >= 1
        await flood.end()

    asyncio.run(scenario())
