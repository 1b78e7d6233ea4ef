"""When requests begin that take the event loop, over all connections of a process.

Invariants: knows who asks, not what. Handlers run on the event loop, and a small request may take
long: in each turn of the loop only so many begin as take TURN_NS. The others wait in a tree, of
tenants, their users and their connections say, each node of which lets those below it have their
turns one by one: none of them waits for more of another's requests than for one.
"""

from __future__ import annotations

import asyncio
from asyncio import CancelledError
from collections import OrderedDict
from collections.abc import Hashable
from threading import local
from typing import TYPE_CHECKING, Any, Final, Generic, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterable

    Clock = Callable[[], int]

T = TypeVar("T")

BEGUN_MAX: Final = 64
"""In one turn. Ordinary ones take 0.1 ms each."""
TURN_NS: Final = 10_000_000
"""What they may take. One alone may take longer."""
SLOW_NS: Final = TURN_NS // 4
"""A request that has taken longer has its further turns among those of its kind, and so have the
next ones of its connection: others of the same user do not wait for all of these."""

Path = tuple[Hashable, ...]
"""To whom a request belongs, the largest part first: the share of its tenant, its user, whether it
`is_slow`, and its connection if that has several requests that wait."""
USER: Final = 1
_IS_SLOW: Final = 2
"""Which parts these are."""


class FairQueue:
    """Those that wait, in a tree: see the module."""

    __slots__ = ("_tree",)

    def __init__(self) -> None:
        self._tree: OrderedDict[Any, Any] = OrderedDict()
        """Waiters have None, and parts of paths what is below them."""

    def __bool__(self) -> bool:
        return bool(self._tree)

    def add(self, path: Path, waiter: object, *, is_first: bool = False) -> None:
        """Have it wait; once, however often it is added. `is_first`: it has the next turn of all
        that wait with the same path."""
        tree = self._tree
        for part in path:
            tree = tree.setdefault(part, OrderedDict())
        tree[waiter] = None
        if is_first:
            tree.move_to_end(waiter, last=False)

    def add_first(self, path: Path, waiter: object) -> None:
        """Have it wait as the first, and each part of its path."""
        tree = self._tree
        for part in path:
            below = tree.setdefault(part, OrderedDict())
            tree.move_to_end(part, last=False)
            tree = below
        tree[waiter] = None
        tree.move_to_end(waiter, last=False)

    def remove(self, path: Path, waiter: object) -> None:
        """It does not wait any more, if it did."""
        trees = [self._tree]
        for part in path:
            if part not in trees[-1]:
                return
            trees.append(trees[-1][part])
        trees.pop().pop(waiter, None)
        for part in reversed(path):
            tree = trees.pop()
            if tree[part]:
                return
            del tree[part]

    def pop(self) -> Any:
        """The one whose turn it is: each part of its path goes to the end."""
        return _pop(self._tree)


def _pop(tree: OrderedDict[Any, Any]) -> Any:
    part, below = tree.popitem(last=False)
    if below is None:
        return part
    waiter = _pop(below)
    if below:
        tree[part] = below
    return waiter


async def wait_in(queue: FairQueue, path: Path) -> None:
    """Wait until `admit` is called with what is taken out of the queue."""
    admission: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    queue.add(path, admission)
    try:
        await admission
    finally:
        queue.remove(path, admission)  # it may be cancelled


def admit(admission: asyncio.Future[None]) -> bool:
    """End a wait; False: it was cancelled."""
    if admission.done():
        return False
    admission.set_result(None)
    return True


class Waiter(Protocol):
    """A request that waits for its turn."""

    def take_turn(self) -> None:
        """It may begin now; what does so calls `LoopTurns.begun`."""
        ...


class _Call:
    """A request that waits in a task of its own."""

    def __init__(self, turns: LoopTurns) -> None:
        self._turns = turns
        self.turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def take_turn(self) -> None:
        """See Waiter."""
        if admit(self.turn):
            self._turns.begun()


class LoopTurns:
    """See the module."""

    def __init__(self, loop: asyncio.AbstractEventLoop | None = None) -> None:
        """`loop` None: the one that runs."""
        self._loop = loop
        self._ready = FairQueue()
        self._displaced: list[tuple[Path, _Call]] = []
        """Those whose turn it was, but what began before them took all its time."""
        self._begun_max = BEGUN_MAX
        self._begun_count = 0
        self.may_begin = True
        """Whether a request may begin now, without waiting."""
        self._spent_ns = 0
        self.is_long = False
        """Whether what has begun in this turn has taken long: nothing more is to be done in it."""
        self._is_ending = False

    def begun(self) -> None:
        """A request begins."""
        self._begun_count += 1
        if self._begun_count >= self._begun_max:
            self.may_begin = False
        if 2 * self._begun_count >= self._begun_max:  # few may belong to several turns
            self.end_turn_soon()

    def spent(self, spent_ns: int) -> None:
        """One that has begun took the loop for this long."""
        self._spent_ns += spent_ns
        if self._spent_ns > TURN_NS:
            self.is_long = True
            self.may_begin = False
            self.end_turn_soon()

    def wait(self, path: Path, waiter: Waiter, *, is_first: bool = False) -> None:
        """Have `waiter` called when it is its turn; once, however often it is told so."""
        self._ready.add(path, waiter, is_first=is_first)
        self.may_begin = False
        self.end_turn_soon()

    def forget(self, path: Path, waiter: Waiter) -> None:
        """It does not wait any more."""
        self._ready.remove(path, waiter)

    async def enter(self, path: Path, *, is_first: bool = False) -> None:
        """Begin in this turn, or when it is the task's turn. `is_first`: see FairQueue."""
        if self.may_begin:
            self.begun()
            return
        call = _Call(self)
        self.wait(path, call, is_first=is_first)
        await self._until_admitted(path, call)

    async def enter_first(self, path: Path) -> None:
        """Begin in the next turn, as the first of all in `path`: this one `is_long`. Those that
        began together keep their order, which is that of the requests of a connection."""
        call = _Call(self)
        self._displaced.append((path, call))
        await self._until_admitted(path, call)

    async def _until_admitted(self, path: Path, call: _Call) -> None:
        try:
            await call.turn
        finally:
            self.forget(path, call)  # it may be cancelled

    def end_turn_soon(self) -> None:
        """The turn ends after all that begins in this one of the loop."""
        if not self._is_ending:
            self._is_ending = True
            loop = self._loop = self._loop or asyncio.get_running_loop()
            loop.call_soon(loop.call_soon, self._end_turn)

    def _end_turn(self) -> None:
        self._is_ending = self.is_long = False
        begun, spent_ns = self._begun_count, self._spent_ns
        self._begun_count = self._spent_ns = 0
        if spent_ns > TURN_NS:
            self._begun_max = min(max(1, begun * TURN_NS // spent_ns), BEGUN_MAX)
        elif 2 * begun >= self._begun_max:
            self._begun_max = min(BEGUN_MAX, 2 * self._begun_max)
        while self._displaced:
            self._ready.add_first(*self._displaced.pop())
        while self._ready and self._begun_count < self._begun_max:
            waiter: Waiter = self._ready.pop()
            waiter.take_turn()
        self.may_begin = self._begun_count < self._begun_max and not self._ready


class ReadTurn:
    """How long what is read from sockets is processed in this turn of the loop."""

    __slots__ = ("_ends_ns", "_loop")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._ends_ns = 0
        """0: nothing has been read."""

    def is_over(self, now_ns: int) -> bool:
        """Whether what is left waits for the next turn: TURN_NS have passed since this was asked
        first in this one."""
        if not self._ends_ns:
            self._ends_ns = now_ns + TURN_NS
            self._loop.call_soon(self._begin_next)
        return now_ns > self._ends_ns

    def _begin_next(self) -> None:
        self._ends_ns = 0


class _Here(local):
    """Of each thread."""

    paced: Paced[Any] | None = None


_here: Final = _Here()


def paced_here() -> Paced[Any] | None:
    """What runs, if it is paced. To ask for the task instead would take half a microsecond."""
    return _here.paced


def paced_alike(coroutine: Coroutine[Any, Any, T]) -> Awaitable[T]:
    """For a task of its own: awaits a coroutine each step of which takes a turn of the request that
    runs, if that is paced."""
    paced = paced_here()
    return coroutine if paced is None else paced.alike(coroutine)


def charged_alike(coroutine: Coroutine[Any, Any, T]) -> Awaitable[T]:
    """For a task of its own: awaits a coroutine that waits for no turns, and what it takes counts
    for the request that runs, if that is paced."""
    paced = paced_here()
    if paced is None:
        return coroutine
    other = paced.alike(coroutine)
    other.unpaced_count = 1
    return other


async def gather_charged(coroutines: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """As `asyncio.gather`, each one `charged_alike`: handlers of requests use this one alone."""
    return await asyncio.gather(*map(charged_alike, coroutines))


class Paced(Generic[T]):
    """Awaits a coroutine each step of which takes a turn, and adds up in `spent_ns` what they took:
    what has waited with others may go on at the same moment, for any length of time."""

    __slots__ = (
        "_begun_ns",
        "_coroutine",
        "_now_ns",
        "_origin",
        "_turns",
        "first_count",
        "has_begun",
        "path",
        "spent_ns",
        "unpaced_count",
    )

    def __init__(
        self, turns: LoopTurns, path: Path, coroutine: Coroutine[Any, Any, T], now_ns: Clock
    ) -> None:
        self._turns = turns
        self.path = path
        self._coroutine = coroutine
        self._now_ns = now_ns
        self._begun_ns = 0
        self._origin: Paced[Any] | None = None
        self.has_begun = False
        """Whether the next step has its turn already."""
        self.spent_ns = 0
        self.unpaced_count = self.first_count = 0
        """What it holds that others wait for: see `fair_locks`."""

    def __del__(self) -> None:
        self._coroutine.close()  # its task may have been cancelled before it began

    def __await__(self) -> Generator[Any, Any, T]:
        coroutine, now_ns, turns = self._coroutine, self._now_ns, self._turns
        error: BaseException | None = None
        try:
            while True:
                try:
                    if self.has_begun:
                        self.has_begun = False
                    elif turns.may_begin or self.unpaced_count:
                        turns.begun()
                    else:
                        is_first = self.first_count > 0
                        yield from turns.enter(self.path, is_first=is_first).__await__()
                    while turns.is_long and not self.unpaced_count:  # by what began before it
                        yield from turns.enter_first(self.path).__await__()
                except (Exception, CancelledError) as raised:  # noqa: BLE001  # the coroutine's
                    error = raised
                self._begun_ns = now_ns()
                before, _here.paced = _here.paced, self
                try:
                    waited_for = coroutine.send(None) if error is None else coroutine.throw(error)
                except StopIteration as done:
                    result: T = done.value
                    return result
                finally:
                    _here.paced = before
                    error = None  # no cycle: its traceback refers to this frame
                    self._count(now_ns() - self._begun_ns)
                try:
                    yield waited_for
                except (Exception, CancelledError) as raised:  # noqa: BLE001  # the coroutine's
                    error = raised
                del waited_for  # it may have the error, too
        except GeneratorExit:  # this one is closed: nothing has a turn any more
            before, _here.paced = _here.paced, self
            try:
                coroutine.close()
            finally:
                _here.paced = before
            raise

    def spent_until_now_ns(self) -> int:
        """Of one that runs: with what the step that goes on has taken."""
        return self.spent_ns + self._now_ns() - self._begun_ns

    def alike(self, coroutine: Coroutine[Any, Any, T]) -> Paced[T]:
        """Another one of the same request, which what it takes counts for, too."""
        other = Paced(self._turns, self.path, coroutine, self._now_ns)
        other._origin = self._origin or self
        return other

    def _count(self, spent_ns: int) -> None:
        self.spent_ns += spent_ns
        if self._origin is not None:
            self._origin.spent_ns += spent_ns
        self._turns.spent(spent_ns)
        if self.spent_ns > SLOW_NS and self.path[_IS_SLOW] is False:
            self.path = (*self.path[:_IS_SLOW], True, *self.path[_IS_SLOW + 1 :])
