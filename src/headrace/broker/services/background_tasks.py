"""Work that continues after the request that started it: searches, traces, redrives.

Invariants: the number of running tasks, of finished tasks that are kept, and the size of each
result are bounded. A broker that stops loses its tasks: their changes so far are durable, and
clients start them again. Knows nothing of what tasks do.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from headrace.broker.security.tenant_shares import NO_HOLDER, Holder, SharedPlaces
from headrace.errors import HeadraceError, Rejected, Retriable, StorageUnavailable

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from headrace.runtime.clock import Clock
    from headrace.runtime.randomness import Randomness
    from headrace.runtime.tasks import Tasks

log = logging.getLogger(__name__)

RUNNING_MAX: Final = 16
KEPT_MAX: Final = 64
"""After their end; the oldest of the tenant and of the user that have most is dropped first."""
CANCEL_S: Final = 2.0
"""How long who cancels a task waits for its end: less than brokers wait for each other's answers
(`kafka/peers/client.py`)."""
RESULTS_MAX: Final = 10_000
RESULT_BYTES_MAX: Final = 32 * 1024 * 1024
"""For all results of one task, by the sizes it reports."""

RUNNING: Final = "running"
DONE: Final = "done"
FAILED: Final = "failed"
CANCELLED: Final = "cancelled"


class TaskUnknown(Rejected):
    """The task does not exist: it never did, it ended long ago, or the broker was restarted."""


class TooManyTasks(Retriable):
    """The maximum number of tasks is running."""


@dataclass(slots=True)
class BackgroundTask:
    """One piece of work, which records its own progress and results."""

    id: str
    kind: str
    asked: dict[str, Any]
    """The client's request."""
    started_ms: int
    state: str = RUNNING
    ended_ms: int = -1
    error: HeadraceError | None = None
    progress: dict[str, Any] = field(default_factory=dict)
    results: list[dict[str, Any]] = field(default_factory=list)
    result_bytes: int = 0
    owner: str = ""
    """The principal that started it."""
    holder: Holder = NO_HOLDER
    """For whom it counts."""

    @property
    def is_full(self) -> bool:
        """Whether no further results fit."""
        return len(self.results) >= RESULTS_MAX or self.result_bytes >= RESULT_BYTES_MAX

    def add(self, result: dict[str, Any], size_bytes: int) -> None:
        """Add a result."""
        self.results.append(result)
        self.result_bytes += size_bytes


def unknown_task(kind: str, task_id: str) -> TaskUnknown:
    """The error for a task that does not exist, or is hidden from the client."""
    return TaskUnknown(
        f"{kind} {task_id[:40]!r} does not exist: each broker keeps its tasks in memory, the last"
        f" {KEPT_MAX} after they end"
    )


def _of_most(
    tasks: Sequence[BackgroundTask], key: Callable[[BackgroundTask], str]
) -> list[BackgroundTask]:
    """Those of which there are most."""
    counts = Counter(map(key, tasks))
    most = max(counts.values())
    return [one for one in tasks if counts[key(one)] == most]


class BackgroundTasks:
    """The tasks of one broker."""

    def __init__(self, tasks: Tasks, clock: Clock, randomness: Randomness) -> None:
        self._tasks = tasks
        self._clock = clock
        self._randomness = randomness
        self._known: dict[str, BackgroundTask] = {}
        self._running: dict[str, asyncio.Task[None]] = {}
        self._places = SharedPlaces("tasks running", RUNNING_MAX, TooManyTasks)

    def start(
        self,
        kind: str,
        asked: dict[str, Any],
        work: Callable[[BackgroundTask], Awaitable[None]],
        holder: Holder = NO_HOLDER,
    ) -> BackgroundTask:
        """Start `work` for a client. Raises TooManyTasks."""
        released = self._places.take(holder)
        task = BackgroundTask(
            self._randomness.uuid().hex, kind, asked, self._clock.now_ms(), holder=holder
        )
        self._known[task.id] = task
        running = self._tasks.start(self._run(task, work), f"{kind} {task.id}")
        self._running[task.id] = running
        running.add_done_callback(lambda _: self._ended(task, released))
        return task

    async def _run(
        self, task: BackgroundTask, work: Callable[[BackgroundTask], Awaitable[None]]
    ) -> None:
        try:
            await work(task)
            task.state = DONE
        except asyncio.CancelledError:
            task.state = CANCELLED
            raise
        except HeadraceError as error:
            task.state, task.error = FAILED, error
        except Exception:
            log.exception("internal error in %s %s", task.kind, task.id)
            task.state = FAILED
            task.error = StorageUnavailable("internal error: see the broker's log")

    def _ended(self, task: BackgroundTask, released: Callable[[], None]) -> None:
        released()
        if task.state == RUNNING:  # cancelled before it started
            task.state = CANCELLED
        task.ended_ms = self._clock.now_ms()
        self._running.pop(task.id, None)
        self._forget_oldest()

    def _forget_oldest(self) -> None:
        """Who starts many tasks loses its own results, not another's: the tenant that has most,
        and the user that has most of these."""
        ended = [one for one in self._known.values() if one.id not in self._running]
        if len(ended) > KEPT_MAX:
            of_most = _of_most(ended, lambda one: one.holder.tenant)
            del self._known[_of_most(of_most, lambda one: one.holder.user)[0].id]

    def list(self, kind: str) -> list[BackgroundTask]:
        """All known tasks of a kind, by id."""
        return sorted((t for t in self._known.values() if t.kind == kind), key=lambda t: t.id)

    def get(self, kind: str, task_id: str) -> BackgroundTask:
        """Raises TaskUnknown."""
        task = self._known.get(task_id)
        if task is None or task.kind != kind:
            raise unknown_task(kind, task_id)
        return task

    async def cancel(self, kind: str, task_id: str) -> BackgroundTask:
        """Cancel a running task, or drop a finished one; a task that takes longer than CANCEL_S to
        end is returned as it runs. Raises TaskUnknown."""
        task = self.get(kind, task_id)
        is_over, running = task.state != RUNNING, self._running.get(task_id)
        if running is not None:
            if not running.cancelling():  # a second time would interrupt how it ends
                running.cancel()  # no effect if it has ended
            await asyncio.wait([running], timeout=CANCEL_S)
            await asyncio.sleep(0)  # a callback records its end
        if is_over:
            self._known.pop(task_id, None)
        return task
