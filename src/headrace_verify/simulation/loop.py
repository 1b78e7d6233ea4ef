"""An event loop with simulated time: it jumps to the next timer instead of waiting for it.

Invariants: knows callbacks and hosts, not what they do; uses no socket and no clock. Every callback
belongs to the host in whose context it was scheduled (none: the outside world). A dead host's
callbacks never run, not even a `finally`; a paused host's run later. An iteration costs at least a
microsecond, so that a spinning loop does not stop time. If nothing is scheduled but the run is not
complete, that is a deadlock, and reported.
"""

from __future__ import annotations

import asyncio
import heapq
from contextvars import Context, ContextVar, copy_context
from inspect import iscoroutine
from typing import TYPE_CHECKING, Any

from headrace.errors import Fatal
from headrace_verify.simulation.fault_points import FaultPoints

if TYPE_CHECKING:
    from asyncio.events import Handle, TimerHandle
    from collections import deque
    from collections.abc import Callable, Coroutine, Sequence

    from headrace_verify.simulation.network import Network

TURN_S = 1e-6
BEGIN_S = 1_000.0
"""Monotonic time does not begin at 0 on real machines, either."""
LATE_MAX_S = 0.5
"""How late a timer may be."""
TURNS_WITHOUT_TIME_MAX = 200_000
"""This many iterations within a second mean a spinning loop."""


class Deadlock(Fatal):
    """Nothing is scheduled, but the run is not complete."""


class Host:
    """One life of one process: a broker, a bookie, a client."""

    __slots__ = (
        "callbacks_left",
        "context",
        "held",
        "is_alive",
        "is_paused",
        "life",
        "name",
        "tasks",
    )

    def __init__(self, name: str, life: int = 1) -> None:
        self.name = name
        self.life = life
        self.is_alive = True
        self.is_paused = False
        self.callbacks_left = -1
        """Pause after this many more callbacks, in whatever state its work is; -1: do not."""
        self.held: list[Handle] = []
        self.tasks: list[asyncio.Task[Any]] = []
        """All tasks that may be pending: a dead host's are kept until the run ends, because the
        garbage collector would otherwise run their `finally` blocks."""
        context = copy_context()
        context.run(HOST.set, self)
        self.context: Context = context

    def run(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call a function as this host."""
        return self.context.copy().run(function, *arguments)


HOST: ContextVar[Host | None] = ContextVar("HOST", default=None)
OUTSIDE = Context()
"""The context of the outside world: it must not end with the host that caused it."""


def context_of(host: Host | None) -> Context:
    """The host of a callback."""
    return OUTSIDE if host is None else host.context


class Arrival(asyncio.TimerHandle):
    """Network input: a real loop polls it before its timers."""


def _order_on_waking(handle: Handle) -> int:
    """The order in which a stopped real loop resumes: its iteration, network input, its timers."""
    if isinstance(handle, Arrival):
        return 1
    return 2 if isinstance(handle, asyncio.TimerHandle) else 0


class SimulatedLoop(asyncio.BaseEventLoop):
    """See the module. `network` implements `create_connection` and `create_server`."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = BEGIN_S
        self.turns = 0
        self.timers = 0
        self.callbacks = 0
        self.network: Network | None = None
        self._ready: deque[Handle]
        self._scheduled: list[tuple[float, int, TimerHandle]]
        """Timers with equal times run in the order in which they were set; a heap alone does not
        keep it."""
        self._clock_resolution = TURN_S
        self._stuck_since = (BEGIN_S, 0)
        self.fault_points = FaultPoints("", ())
        self.on_turn: Callable[[], None] | None = None

    def time(self) -> float:
        """Seconds of simulated time."""
        return self.now_s

    def call_at(  # type: ignore[override]
        self, when: float, callback: Any, *arguments: Any, context: Context | None = None
    ) -> TimerHandle:
        """See asyncio; a host's timer may be late, as on a busy machine."""
        if HOST.get() is not None and self.fault_points.does("timer late"):
            when += self.fault_points.strength("timer late") * LATE_MAX_S
        return self._push(asyncio.TimerHandle(when, callback, arguments, self, context))

    def deliver_at(
        self, when: float, callback: Any, *arguments: Any, context: Context | None = None
    ) -> TimerHandle:
        """As `call_at`, but at exactly that time: network input."""
        return self._push(Arrival(when, callback, arguments, self, context))

    def _push(self, timer: TimerHandle) -> TimerHandle:
        self.timers += 1
        timer._scheduled = True  # type: ignore[attr-defined] # noqa: SLF001
        heapq.heappush(self._scheduled, (timer.when(), self.timers, timer))
        return timer

    def _run_once(self) -> None:
        ready, scheduled = self._ready, self._scheduled
        while scheduled and scheduled[0][2]._cancelled:  # noqa: SLF001
            heapq.heappop(scheduled)[2]._scheduled = False  # type: ignore[attr-defined] # noqa: SLF001
        now_s = self.now_s + TURN_S
        if not ready and not self._stopping:  # type: ignore[attr-defined] # asyncio's own
            if not scheduled:
                raise Deadlock("nothing is scheduled, but the run has not ended: a deadlock")
            now_s = max(now_s, scheduled[0][0])
        self.now_s = now_s
        self._check_progress(now_s)
        end_s = now_s + TURN_S
        while scheduled and scheduled[0][0] < end_s:
            handle = heapq.heappop(scheduled)[2]
            handle._scheduled = False  # type: ignore[attr-defined] # noqa: SLF001
            if not handle._cancelled:  # noqa: SLF001
                ready.append(handle)
        for _ in range(len(ready)):
            self._run_handle(ready.popleft())

    def _run_handle(self, handle: Handle) -> None:
        if handle._cancelled:  # noqa: SLF001
            return
        host: Host | None = handle._context.get(HOST)  # type: ignore[attr-defined] # noqa: SLF001
        if host is not None:
            if not host.is_alive:
                return
            if host.callbacks_left >= 0 and not host.is_paused:
                host.is_paused = host.callbacks_left == 0
                host.callbacks_left -= 1
            if host.is_paused:
                host.held.append(handle)
                return
        self.callbacks += 1
        handle._run()  # noqa: SLF001

    def _check_progress(self, now_s: float) -> None:
        self.turns += 1
        since_s, turns = self._stuck_since
        if now_s - since_s > 1.0:
            self._stuck_since = (now_s, self.turns)
        elif self.turns - turns > TURNS_WITHOUT_TIME_MAX:
            raise Deadlock(f"{TURNS_WITHOUT_TIME_MAX} iterations within a second: the loop spins")

    def _timer_handle_cancelled(self, handle: TimerHandle) -> None:
        """Cancelled timers are removed when they are due; many at once are purged."""
        super()._timer_handle_cancelled(handle)  # type: ignore[misc]
        if self._timer_cancelled_count > 1_000:  # type: ignore[has-type]
            self._timer_cancelled_count = 0
            kept = []
            for entry in self._scheduled:
                if entry[2]._cancelled:  # noqa: SLF001
                    entry[2]._scheduled = False  # type: ignore[attr-defined] # noqa: SLF001
                else:
                    kept.append(entry)
            heapq.heapify(kept)
            self._scheduled[:] = kept

    # --- hosts -------------------------------------------------------------------------------

    def create_task(self, coro: Coroutine[Any, Any, Any], **options: Any) -> Any:  # type: ignore[override]
        """See asyncio; the host keeps a reference."""
        task = super().create_task(coro, **options)
        context = options.get("context")
        host = HOST.get() if context is None else context.get(HOST)
        if host is not None:
            host.tasks.append(task)
            if len(host.tasks) > 2_000:
                host.tasks = [one for one in host.tasks if not one.done()]
        return task

    def resume(self, host: Host) -> None:
        """Resume a paused host with the callbacks that it missed."""
        host.is_paused, host.callbacks_left = False, -1
        held, host.held = host.held, []
        self._ready.extend(sorted(held, key=_order_on_waking))

    def bury(self, hosts: Sequence[Host]) -> None:
        """End the run: cancel all remaining tasks of all hosts, without side effects."""
        for host in hosts:
            host.is_alive = False
        self.set_exception_handler(lambda _loop, _context: None)
        nothing = asyncio.Handle(lambda: None, (), self)
        later = asyncio.TimerHandle(0.0, lambda: None, (), self)
        self.call_soon = lambda *_, **__: nothing  # type: ignore[method-assign]
        self.call_at = lambda *_, **__: later  # type: ignore[method-assign]
        self.call_later = lambda *_, **__: later  # type: ignore[method-assign]
        self._ready.clear()
        self._scheduled.clear()
        asyncio._set_running_loop(self)  # noqa: SLF001 - for what asks at its end
        try:
            for host in hosts:
                # its cancellation may start others, which belong to the host, too
                while host.tasks:
                    task = host.tasks.pop(0)
                    if not task.done():
                        task._log_destroy_pending = False  # type: ignore[attr-defined] # noqa: SLF001
                        host.run(_close, task.get_coro())
                host.held.clear()
        finally:
            asyncio._set_running_loop(None)  # noqa: SLF001
            self.close()

    # --- not simulated -----------------------------------------------------------------------

    def _process_events(self, event_list: Any) -> None:
        """There are no sockets."""

    def _write_to_self(self) -> None:
        """There are no other threads."""

    def run_in_executor(self, executor: Any, function: Callable[..., Any], *arguments: Any) -> Any:  # type: ignore[override]
        """Threads are not simulated: the work is done immediately, and its result comes an
        iteration later."""
        future = self.create_future()

        def finish() -> None:
            if future.cancelled():
                return
            try:
                future.set_result(function(*arguments))
            except Exception as error:  # noqa: BLE001 - the thread's edge
                future.set_exception(error)

        self.call_soon(finish)
        return future

    def create_connection(self, *arguments: Any, **_: Any) -> Any:
        """See asyncio; over the simulated network: factory, place, port."""
        assert self.network is not None
        return self.network.connect(*arguments)

    async def create_server(self, *arguments: Any, **_: Any) -> Any:
        """See asyncio; on the simulated network: factory, place, port."""
        assert self.network is not None
        return self.network.listen(*arguments)


def _close(coroutine: Any) -> None:
    frame = getattr(coroutine, "cr_frame", None)
    # A coroutine of a task that never started would be reported as never awaited.
    parts = [] if frame is None else [part for part in frame.f_locals.values() if iscoroutine(part)]
    for one in (coroutine, *parts):
        for _ in range(5):
            try:
                one.close()
                break
            except BaseException:  # noqa: BLE001, S112 - a `finally` that still waits for something
                continue
