"""Large requests and responses share memory, and only clients that stand still lose by it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from headrace.broker.services.connection_memory import (
    CHECK_S,
    PATIENCE_S,
    PROGRESS_BYTES,
    RESPONSE_BYTES_MIN,
    RequestMemory,
    ResponseMemory,
)

if TYPE_CHECKING:
    from collections.abc import Callable

MIB = 1 << 20


class Timer:
    def cancel(self) -> None: ...


class Clock:
    """What the memory uses of a loop: a clock that moves on demand."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self._due: list[tuple[float, Callable[[], None]]] = []

    def time(self) -> float:
        return self.now_s

    def call_later(self, delay_s: float, call: Callable[[], None]) -> Timer:
        self._due.append((self.now_s + delay_s, call))
        self._due.sort(key=lambda each: each[0])
        return Timer()

    def call_soon(self, call: Callable[..., None], *arguments: object) -> None:
        self.call_later(0, lambda: call(*arguments))

    def pass_time(self, seconds: float) -> None:
        end_s = self.now_s + seconds
        while self._due and self._due[0][0] <= end_s:
            self.now_s, call = self._due.pop(0)
            call()
        self.now_s = end_s


class Client:
    """A connection whose client reads `rate` bytes a second."""

    def __init__(self, clock: Clock, memory: ResponseMemory, size: int, rate: int = 0) -> None:
        self._clock, self._since_s, self._size, self._rate = clock, clock.now_s, size, rate
        self.aborted: list[float] = []
        memory.hold(self, size)

    def unsent_bytes(self) -> int:
        return max(self._size - int(self._rate * (self._clock.now_s - self._since_s)), 0)

    def missing_bytes(self) -> int:
        raise AssertionError

    def granted(self, size: int) -> None:
        raise AssertionError

    def abort(self, reason: str) -> None:
        assert "queued.max.response.bytes" in reason
        self.aborted.append(self._clock.now_s)


def memory_of(clock: Clock, mib: int = 64) -> ResponseMemory:
    return ResponseMemory(mib * MIB, clock)  # type: ignore[arg-type]


def test_a_response_gets_what_it_asks_for_while_memory_is_free() -> None:
    memory = memory_of(Clock())
    assert memory.grant(16 * MIB) == 16 * MIB
    assert memory.grant(50 * MIB) == 16 * MIB


def test_many_responses_that_wait_leave_something_for_each_further_one() -> None:
    clock = Clock()
    memory = memory_of(clock)
    granted = []
    for _ in range(100):
        granted.append(memory.grant(50 * MIB))
        Client(clock, memory, granted[-1])
    assert granted == sorted(granted, reverse=True)
    assert granted[-1] == RESPONSE_BYTES_MIN
    assert memory.held_bytes < 64 * MIB + 100 * RESPONSE_BYTES_MIN
    assert memory.grant(1_000) == 1_000


def test_clients_that_read_nothing_are_closed_until_memory_is_free() -> None:
    clock = Clock()
    memory = memory_of(clock)
    deaf = [Client(clock, memory, 10 * MIB) for _ in range(5)]
    clock.pass_time(PATIENCE_S + 2 * CHECK_S)
    assert [bool(each.aborted) for each in deaf] == [True, True, False, False, False]
    assert memory.held_bytes == 30 * MIB
    assert memory.closed_count == 2


def test_a_client_that_reads_is_kept_however_slow_and_one_that_drips_is_not() -> None:
    clock = Clock()
    memory = memory_of(clock)
    drips = Client(clock, memory, 20 * MIB, rate=100)
    slow = Client(clock, memory, 20 * MIB, rate=int(4 * PROGRESS_BYTES / CHECK_S))
    clock.pass_time(20)
    assert drips.aborted
    assert not slow.aborted


def test_while_memory_is_free_no_connection_is_closed() -> None:
    clock = Clock()
    memory = memory_of(clock)
    deaf = Client(clock, memory, 30 * MIB)
    clock.pass_time(600)
    assert not deaf.aborted


async def test_released_and_forgotten_memory_is_no_longer_counted() -> None:
    memory = ResponseMemory(64 * MIB, asyncio.get_running_loop())
    clock = Clock()
    one, other = Client(clock, memory, 5 * MIB), Client(clock, memory, 7 * MIB)
    memory.hold(one, MIB)
    memory.release(one, 2 * MIB)
    assert memory.held_bytes == 11 * MIB
    memory.forget(one)
    memory.forget(one)
    memory.release(other, 7 * MIB)
    assert memory.held_bytes == 0


class Sender:
    """A connection that receives requests; it may be waiting for memory."""

    def __init__(self, left: int = 0) -> None:
        self.left = left
        self.grants: list[int] = []
        self.aborted = ""

    def unsent_bytes(self) -> int:
        raise AssertionError

    def missing_bytes(self) -> int:
        return self.left

    def granted(self, size: int) -> None:
        self.grants.append(size)

    def abort(self, reason: str) -> None:
        self.aborted = reason


def test_requests_that_do_not_fit_wait_in_order_and_hold_no_memory() -> None:
    clock = Clock()
    memory = RequestMemory(10 * MIB, clock)  # type: ignore[arg-type]
    first, large, small = Sender(), Sender(), Sender()
    assert memory.reserve(first, 6 * MIB)
    assert not memory.reserve(large, 20 * MIB)
    assert not memory.reserve(small, MIB), "it would fit, and large ones would wait for ever"
    assert memory.held_bytes == 6 * MIB
    memory.release(first, 6 * MIB)
    clock.pass_time(0)
    assert (large.grants, small.grants) == ([20 * MIB], []), "one may exceed all memory"
    memory.forget(large)
    clock.pass_time(0)
    assert small.grants == [MIB]
    memory.release(small, MIB)
    assert memory.held_bytes == 0


def test_a_tenant_has_a_part_of_the_memory_and_tenants_take_turns() -> None:
    clock = Clock()
    memory = RequestMemory(8 * MIB, clock)  # type: ignore[arg-type]
    first, *rest = [Sender() for _ in range(4)]
    assert memory.reserve(first, 2 * MIB, "greedy")
    assert not any(memory.reserve(one, MIB, "greedy") for one in rest)
    quiet, other, late = Sender(), Sender(), Sender()
    assert memory.reserve(quiet, 3 * MIB, "quiet"), "one request may be larger than the part"
    assert memory.reserve(other, 3 * MIB), "and without a tenant there is none"
    assert not memory.reserve(late, MIB, "late"), "there is no room"
    memory.release(first, 2 * MIB)
    clock.pass_time(0)
    assert [one.grants for one in (*rest, late)] == [[MIB], [], [], [MIB]]
    memory.forget(rest[1])
    memory.release(other, 3 * MIB)
    clock.pass_time(0)
    assert [one.grants for one in rest] == [[MIB], [], [MIB]]
    for holder, size in ((quiet, 3), (late, 1), (rest[0], 1)):
        memory.release(holder, size * MIB)
    memory.forget(rest[2])
    assert memory.held_bytes == 0
    assert memory.reserve(first, 2 * MIB, "greedy")


def test_a_tenant_that_waits_for_its_own_part_closes_no_connection_of_another() -> None:
    clock = Clock()
    memory = RequestMemory(8 * MIB, clock)  # type: ignore[arg-type]
    stalled, own, waiting = Sender(left=MIB), Sender(left=MIB), Sender()
    assert memory.reserve(stalled, 2 * MIB, "quiet")
    assert memory.reserve(own, 2 * MIB, "greedy")
    assert not memory.reserve(waiting, MIB, "greedy")
    clock.pass_time(PATIENCE_S + 2 * CHECK_S)
    assert not stalled.aborted
    assert own.aborted
    assert waiting.grants == [MIB]


def test_a_client_that_stops_within_a_request_is_closed_only_while_others_wait() -> None:
    clock = Clock()
    memory = RequestMemory(10 * MIB, clock)  # type: ignore[arg-type]
    stalled, handled, waiting = Sender(left=5 * MIB), Sender(left=0), Sender()
    assert memory.reserve(stalled, 6 * MIB)
    assert memory.reserve(handled, 3 * MIB)
    clock.pass_time(600)
    assert not stalled.aborted
    assert not memory.reserve(waiting, 6 * MIB)
    clock.pass_time(PATIENCE_S + 2 * CHECK_S)
    assert "queued.max.request.bytes" in stalled.aborted
    assert not handled.aborted, "its client has sent everything"
    assert waiting.grants == [6 * MIB]


def test_a_connection_that_ends_while_it_waits_is_not_served() -> None:
    clock = Clock()
    memory = RequestMemory(10 * MIB, clock)  # type: ignore[arg-type]
    first, gone, last = Sender(), Sender(), Sender()
    assert memory.reserve(first, 10 * MIB)
    assert not memory.reserve(gone, 10 * MIB)
    assert not memory.reserve(last, 10 * MIB)
    memory.forget(gone)
    memory.release(first, 10 * MIB)
    clock.pass_time(0)
    assert (gone.grants, last.grants) == ([], [10 * MIB])
