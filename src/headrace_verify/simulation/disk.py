"""The disk of a simulated machine: its operations, their durations, and power loss.

Invariants: `verify/model_disk` with simulated time. A sync in a thread ends later, unless the
calling process has died meanwhile; one in the loop only accounts for its duration. Bytes survive
the process; `verify/power_loss` derives from the operation log what survives a power loss.
"""

from __future__ import annotations

import errno
from concurrent.futures import Executor, Future
from typing import TYPE_CHECKING, Any

from headrace_verify.crash.model_disk import ModelDisk
from headrace_verify.crash.power_loss import KEEPS, PROFILES, PowerLoss

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random  # noqa: TID251 - a type

    from headrace_verify.crash.model_disk import Image
    from headrace_verify.crash.recorded_metadata import Facts
    from headrace_verify.simulation.clock import SimulatedClock
    from headrace_verify.simulation.loop import SimulatedLoop

SYNC_MIN_S, SYNC_MAX_S = 0.000_05, 0.003
LATE_MAX_S = 0.3
"""Of a thread that is not scheduled."""
FULL_BYTES = 1 << 30
_LOCK_HOLDER = b"1\n"


class SimulatedDisk(ModelDisk):
    """One disk between two power losses."""

    def __init__(self, image: Image, loop: SimulatedLoop, random: Random) -> None:
        super().__init__(image)
        self.operations = _Account(self)
        self.before = image
        self.slow_s = 0.0
        """A fault: each sync takes up to this much longer."""
        self.is_full = False
        """A fault: the disk is full."""
        self.failing_syncs = 0.0
        """A fault: this fraction of the syncs fails."""
        self.are_names_meant = False
        """Whether syncs of folders fail, too."""
        self.spent_ns = 0
        """How long the loop itself has waited for syncs."""
        self.cut_after = -1
        """Lose power after this many operations; -1: do not."""
        self.on_cut: Callable[[], None] = lambda: None
        self._loop = loop
        self._random = random
        self.fault = self._meet

    def _meet(self, action: str, path: str) -> int | None:
        is_sync = action == "sync" or (action == "sync folder" and self.are_names_meant)
        if is_sync and self._random.random() < self.failing_syncs:
            raise OSError(errno.EIO, "the disk does not take it", path)
        if action == "write" and self.is_full:
            return self._random.randrange(64)
        return None

    def done(self) -> None:
        """Count an operation."""
        if self.cut_after > 0:
            self.cut_after -= 1
            if self.cut_after == 0:
                self.cut_after = -1
                self.on_cut()

    def sync_s(self) -> float:
        """The duration of the next sync."""
        random = self._random.random
        return SYNC_MIN_S + random() ** 3 * SYNC_MAX_S + random() * self.slow_s

    def fdatasync(self, fd: int, /) -> None:
        """See Disk."""
        super().fdatasync(fd)
        if self._deferred is None:
            self.spent_ns += int(self.sync_s() * 1e9)

    def pwrite(self, fd: int, data: Any, position: int, /) -> int:
        """See Disk. Which process holds the lock does not depend on the seed."""
        if self._paths[fd].endswith("/lock"):
            data = _LOCK_HOLDER
        return super().pwrite(fd, data, position)

    def space(self, path: str, /) -> tuple[int, int]:
        """See Disk."""
        return (0 if self.is_full else FULL_BYTES), FULL_BYTES

    def threads(self, name: str, count: int, /) -> Executor:
        """See Disk."""
        return _Threads(self, self._loop)

    def after_power_loss(self) -> tuple[Image, Facts]:
        """A possible state after a power loss now: the files, and the metadata."""
        profile = self._random.choice(PROFILES)
        loss, facts = PowerLoss(self.before, profile), None
        for operation in self.operations:
            loss.step(operation)
            if operation[0] == "facts":
                facts = operation[1]
        (state,) = loss.states(self._random, (self._random.choice(KEEPS),))
        return state, facts or {}


class _Account(list[tuple[Any, ...]]):
    """The operations of a disk, which is notified of each."""

    def __init__(self, disk: SimulatedDisk) -> None:
        super().__init__()
        self._disk = disk

    def append(self, operation: tuple[Any, ...]) -> None:
        super().append(operation)
        self._disk.done()


class _Threads(Executor):
    """Simulated threads: work is done immediately; its completion and durability come later."""

    def __init__(self, disk: SimulatedDisk, loop: SimulatedLoop) -> None:
        self._disk = disk
        self._loop = loop

    def submit(self, function: Any, /, *arguments: Any, **options: Any) -> Future[Any]:
        """See Executor."""
        future: Future[Any] = Future()
        result: Any = None
        ends: list[Any] = []
        error: BaseException | None = None
        try:
            result, ends = self._disk.run_deferred(lambda: function(*arguments, **options))
        except BaseException as failure:  # noqa: BLE001 - an executor hands on whatever came
            error = failure
        delay_s = self._disk.sync_s()
        if self._loop.fault_points.does("thread late"):
            delay_s += self._loop.fault_points.strength("thread late") * LATE_MAX_S
        self._loop.call_later(delay_s, self._finish, future, result, ends, error)
        return future

    def _finish(
        self, future: Future[Any], result: Any, ends: list[Any], error: BaseException | None
    ) -> None:
        self._disk.operations.extend(ends)
        if error is None:
            future.set_result(result)
        else:
            future.set_exception(error)


class DiskClock:
    """See Clock: a machine's clock, which includes syncs in the loop, while the loop's own stands
    still."""

    def __init__(self, clock: SimulatedClock, disk: SimulatedDisk) -> None:
        self._clock = clock
        self._disk = disk

    def now_ms(self) -> int:
        """See Clock."""
        return self._clock.now_ms()

    def now_ns(self) -> int:
        """See Clock."""
        return self._clock.now_ns() + self._disk.spent_ns
