"""Requests begin in turns: tenants, users and connections, and by the time that they take."""

from __future__ import annotations

import asyncio
import gc
import warnings
import weakref
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest
from tests.kit.turns import TurnCount

from headrace.runtime.loop_turns import (
    BEGUN_MAX,
    TURN_NS,
    FairQueue,
    LoopTurns,
    Paced,
    gather_charged,
    paced_here,
)

if TYPE_CHECKING:
    from headrace.runtime.loop_turns import Path

MANY: Path = ("acme", "many", False)
ONE: Path = ("acme", "one", False)


class Clock:
    """Time passes when the test says so."""

    def __init__(self) -> None:
        self.now_ns = 0

    def read(self) -> int:
        return self.now_ns


def test_parts_of_paths_are_taken_in_turns() -> None:
    queue = FairQueue()
    for number in range(3):
        queue.add(MANY, f"many {number}")
    queue.add(ONE, "one")
    queue.add(("beta", "x", False), "other tenant")
    taken = [queue.pop() for _ in range(5)]
    assert taken == ["many 0", "other tenant", "one", "many 1", "many 2"]
    assert not queue


def test_what_is_added_first_keeps_its_order_in_its_path() -> None:
    queue = FairQueue()
    queue.add(ONE, "one")
    queue.add(MANY, "many 2")
    for name in ("many 1", "many 0"):
        queue.add_first(MANY, name)
    assert [queue.pop() for _ in range(4)] == ["many 0", "one", "many 1", "many 2"]
    assert not queue


def test_what_does_not_wait_any_more_leaves_nothing() -> None:
    queue = FairQueue()
    queue.add(MANY, "a")
    queue.add(MANY, "a")
    queue.add(ONE, "b")
    queue.remove(MANY, "a")
    queue.remove(MANY, "a")
    queue.remove(("unknown",), "c")
    assert queue.pop() == "b"
    assert not queue


async def steps(clock: Clock, turns: LoopTurns, log: list[str], name: str, count: int) -> None:
    """Requests of one client at once, each of whose two steps takes half a turn."""

    async def request() -> None:
        for _ in range(2):
            log.append(name)
            clock.now_ns += TURN_NS // 2
            await asyncio.sleep(0)

    path = MANY if name == "many" else ONE
    await asyncio.gather(*(Paced(turns, path, request(), clock.read) for _ in range(count)))


def test_others_go_on_beside_many_requests_of_one() -> None:
    async def scenario() -> list[str]:
        clock, turns, log = Clock(), LoopTurns(), list[str]()
        many = asyncio.create_task(steps(clock, turns, log, "many", 100))
        while len(log) < BEGUN_MAX:  # it is not known yet how long they take
            await asyncio.sleep(0)
        log.clear()
        await steps(clock, turns, log, "one", 1)
        found = list(log)
        await many
        assert turns.may_begin
        return found

    found = asyncio.run(scenario())
    assert found.count("one") == 2
    # Those that begin in the turn, and one of the other user's before each step of this one.
    assert found.count("many") <= BEGUN_MAX


def test_few_begin_in_a_turn_that_take_long() -> None:
    async def scenario() -> None:
        clock, turns = Clock(), LoopTurns()
        count = TurnCount(turns)
        in_turns: dict[int, int] = {}

        async def request() -> None:
            in_turns[count.number] = in_turns.get(count.number, 0) + 1
            clock.now_ns += 2 * TURN_NS

        await asyncio.gather(*(Paced(turns, ONE, request(), clock.read) for _ in range(100)))
        assert max(in_turns.values()) <= BEGUN_MAX
        assert list(in_turns.values())[2:] == [1] * (len(in_turns) - 2)

    asyncio.run(scenario())


def test_others_of_the_same_user_do_not_wait_for_all_that_take_long() -> None:
    async def scenario() -> None:
        clock, turns, log = Clock(), LoopTurns(), list[str]()

        async def request(name: str, count: int) -> None:
            for _ in range(count):
                log.append(name)
                clock.now_ns += TURN_NS if name == "many" else 0
                await asyncio.sleep(0)

        async def paced(name: str, count: int) -> None:
            await Paced(turns, (None, "user", False), request(name, count), clock.read)

        many = [asyncio.create_task(paced("many", 20)) for _ in range(50)]
        while len(log) < 150:  # each has had a step
            await asyncio.sleep(0)
        log.clear()
        await paced("one", 3)
        assert log.count("one") == 3
        assert log.count("many") <= 10
        await asyncio.gather(*many)

    asyncio.run(scenario())


def test_one_whose_turn_another_took_does_not_wait_for_all_once_more() -> None:
    async def scenario() -> None:
        clock, turns, log = Clock(), LoopTurns(), list[str]()

        async def request(name: str, spent_ns: int, count: int) -> None:
            for _ in range(count):
                log.append(name)
                clock.now_ns += spent_ns
                await asyncio.sleep(0)

        def begin(name: str, spent_ns: int, count: int) -> asyncio.Task[None]:
            paced = Paced(turns, (None, name, False), request(name, spent_ns, count), clock.read)
            return asyncio.create_task(_awaited(paced))

        others = [begin(f"long {n}", TURN_NS + TURN_NS // 10, 100) for n in range(3)]
        others += [begin(f"short {n}", 0, 100) for n in range(7)]
        for _ in range(40):
            await asyncio.sleep(0)
        log.clear()
        await begin("one", 0, 3)
        assert log.count("one") == 3
        # One of each before each step and its end, and one before it asked.
        assert max(log.count(f"long {n}") for n in range(3)) <= 5
        await asyncio.gather(*others)

    asyncio.run(scenario())


def test_a_request_ends_at_once_when_what_awaits_it_is_closed() -> None:
    """As the tasks of a loop that was abandoned: nothing has a turn then."""

    async def scenario() -> None:
        clock, turns, ended = Clock(), LoopTurns(), list[str]()

        async def request(name: str) -> None:
            try:
                await asyncio.get_running_loop().create_future()
            finally:
                ended.append(name)

        waits, has_waited = (
            _awaited(Paced(turns, ONE, request(name), clock.read)) for name in ("waits", "waited")
        )
        has_waited.send(None)
        turns.may_begin = False
        waits.send(None)  # for its turn
        has_waited.close()
        waits.close()
        assert ended == ["waited"]

    asyncio.run(scenario())


def test_errors_leave_no_garbage_that_the_cycle_collector_has_to_find() -> None:
    """It runs rarely in a broker, and a request may have megabytes."""

    async def scenario() -> None:
        turns, clock, errors = LoopTurns(), Clock(), list[weakref.ref[_NotDoneError]]()

        def failed() -> asyncio.Future[None]:
            error = _NotDoneError()
            errors.append(weakref.ref(error))
            future = asyncio.get_running_loop().create_future()
            asyncio.get_running_loop().call_soon(future.set_exception, error)
            return future

        async def request() -> None:
            with suppress(_NotDoneError):
                await failed()

        await Paced(turns, ONE, request(), clock.read)
        await asyncio.sleep(0)  # what has resumed it is done
        assert [error() for error in errors] == [None]

    gc.disable()
    try:
        asyncio.run(scenario())
    finally:
        gc.enable()


def test_a_request_that_is_cancelled_while_it_waits_does_not_begin() -> None:
    async def scenario() -> None:
        clock, turns, begun = Clock(), LoopTurns(), list[int]()

        async def request(number: int) -> None:
            begun.append(number)

        tasks = [
            asyncio.ensure_future(_awaited(Paced(turns, ONE, request(n), clock.read)))
            for n in range(BEGUN_MAX + 2)
        ]
        await asyncio.sleep(0)
        tasks[BEGUN_MAX].cancel()
        await asyncio.wait(tasks)
        assert tasks[BEGUN_MAX].cancelled()
        assert begun == [*range(BEGUN_MAX), BEGUN_MAX + 1]

    asyncio.run(scenario())


@pytest.mark.parametrize("turn_count", [0, 1, 2])
def test_what_is_gathered_and_cancelled_ends_also_if_it_has_not_begun(turn_count: int) -> None:
    """As for a client that goes; Python warned of coroutines that were never awaited."""

    async def run() -> None:
        waiting: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        async def part() -> None:
            await waiting

        async def request() -> None:
            await gather_charged(part() for _ in range(3))

        paced = Paced(LoopTurns(), ONE, request(), Clock().read)
        task = asyncio.ensure_future(paced)
        for _ in range(1 + turn_count):
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        asyncio.run(run())
        gc.collect()
    assert not [str(one.message) for one in caught]


def test_what_runs_knows_what_it_has_spent_until_now() -> None:
    async def scenario() -> None:
        clock, turns = Clock(), LoopTurns()

        async def request() -> int:
            clock.now_ns += 3
            await asyncio.sleep(0)
            clock.now_ns += 4
            here = paced_here()
            assert here is not None
            return here.spent_until_now_ns()

        paced = Paced(turns, ONE, request(), clock.read)
        assert await paced == paced.spent_ns == 7

    asyncio.run(scenario())


class _NotDoneError(Exception):
    pass


async def _awaited(paced: Paced[None]) -> None:
    await paced


def test_results_and_errors_pass() -> None:
    async def scenario() -> None:
        async def result() -> str:
            await asyncio.sleep(0)
            return "done"

        async def failure() -> None:
            await asyncio.sleep(0)
            raise ValueError("not done")

        turns, clock = LoopTurns(), Clock()
        assert await Paced(turns, ONE, result(), clock.read) == "done"
        with pytest.raises(ValueError, match="not done"):
            await Paced(turns, ONE, failure(), clock.read)

    asyncio.run(scenario())
