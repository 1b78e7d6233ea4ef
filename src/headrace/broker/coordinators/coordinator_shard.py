"""The host of coordinator machines: one shard per partition of an internal topic.

Invariants: the only place that appends a machine's records, waits, and replies. In one step a
command is decided, its durable records are added to the record batch of this loop turn
(`shard_appends`), and all its records are applied. So the machine is ahead of the disk, and nothing
else is: every reply, including those of read-only commands, waits until everything decided before
it is durable. Appends complete in order, so waiting for the newest append suffices. After a failed
append the machine has applied records that the log lacks: it is discarded, all waiting commands are
refused (CoordinatorUnavailable), and the state is read back from the log (CoordinatorLoading
meanwhile). A decision whose records the log refuses before they are applied, because they are too
large or their transaction has ended, is refused alone, since the machine has not changed. Effects
of a decision are performed once its records are durable; their outcomes come back as commands. A
reload drops pending effects: the machine requests outstanding ones again. While a shard is
suspended, its machine is given no command and no time passes for it.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

from headrace.broker.coordinators.shard_appends import ShardAppends
from headrace.broker.coordinators.shard_log import (
    BATCH_OVERHEAD_BYTES,
    RECORD_OVERHEAD_BYTES,
    REFUSALS,
    LogRecord,
    ShardLog,
    size_of,
)
from headrace.broker.coordinators.shard_replay import StateAhead, restore
from headrace.broker.coordinators.shard_snapshot import ShardSnapshots
from headrace.broker.coordinators.shard_time import ShardTime
from headrace.coordination.kit.machine import EndsTransaction, Parkable
from headrace.errors import (
    CoordinatorLoading,
    CoordinatorUnavailable,
    DiskFull,
    Fenced,
    HeadraceError,
    NotCoordinator,
    NotOwner,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace.coordination.kit.machine import Command, Decision, Machine
    from headrace.runtime.clock import Clock
    from headrace.runtime.completion import Completion
    from headrace.runtime.tasks import Tasks

log = logging.getLogger(__name__)

LOAD_WAIT_S = 1
"""How long a command waits for the first load: long enough for a small log, so that a first client
is not refused, short enough that a long load does not block a connection."""
LOAD_RETRY_MS_MIN, LOAD_RETRY_MS_MAX = 50, 5_000
TICK_RETRY_MS = 1_000

# A machine's closed unions, and the reply that one command names.
Commands = TypeVar("Commands")
Record = TypeVar("Record")
Replies = TypeVar("Replies")
Reply = TypeVar("Reply")


class CoordinatorShard(Generic[Commands, Record, Replies]):
    """Hosts one machine over one log. Loads itself on the first command."""

    validates: ClassVar[bool] = False  # set by tests and simulation: see `Machine.validate`

    def __init__(
        self,
        name: str,
        shard_log: ShardLog,
        make_machine: Callable[[], Machine[Commands, Record, Replies]],
        host_commands: tuple[Commands, Commands],
        clock: Clock,
        tasks: Tasks,
        perform: Callable[[Any, Callable[[Commands], None]], None] | None = None,
        ahead: StateAhead | None = None,
    ) -> None:
        """`host_commands`: the commands that report a load and an expired deadline to the machine.
        `perform(effect, report)` begins an effect; `report(command)` delivers its outcome, any
        number of times, never within the call. `ahead`: for the first load."""
        self.machine: Machine[Commands, Record, Replies] | None = None
        self._suspended: Machine[Commands, Record, Replies] | None = None
        self._name = name
        self._log = shard_log
        self._make_machine = make_machine
        self._loaded, self._tick = host_commands
        self._tasks = tasks
        self._perform = perform
        self._ahead = ahead
        self._time = ShardTime(clock, self._wake)
        self._load_count = 0
        self._is_loading = False
        self._pause_ms = 0
        """Delay before the next load; it grows while the log accepts nothing."""
        self._load_task: asyncio.Task[None] | None = None
        self._first_load = asyncio.Event()
        self._closed_with: HeadraceError | None = None
        self._appends = ShardAppends(shard_log, self._append_settled)
        self._parked: dict[int, tuple[asyncio.Future[Any], Command[Any]]] = {}
        self._last_ticket = 0
        parts = self._appends, self._append_part, self._is_hosted, tasks
        self.snapshots = ShardSnapshots(name, shard_log, *parts)

    def load(self) -> None:
        """Start reading the log unless that has begun: deadlines expire and markers are sent
        without a command."""
        if self.machine is None:
            self._start_loading()

    # --- commands ----------------------------------------------------------------------------

    async def submit(self, command: Command[Reply]) -> Reply:
        """Answer a command. Errors are part of the reply."""
        if self.machine is None:
            error = await self._wait_loaded()
            if error is not None:
                return command.refused(error)
        if isinstance(command, Parkable):
            return await self._submit_parkable(command, command)
        decision = self._run(command)
        if isinstance(decision, HeadraceError):
            return command.refused(decision)
        reply: Any = decision.reply
        return reply if self._appends.tail is None else await self._hold(command, reply)

    async def _submit_parkable(self, command: Command[Reply], parkable: Parkable) -> Reply:
        """Answer a command that may be parked. A cancelled caller leaves only a ticket behind,
        whose answer is dropped."""
        self._last_ticket = ticket = parkable.ticket = self._last_ticket + 1
        future: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        self._parked[ticket] = (future, command)
        try:
            decision = self._run(command)
            if isinstance(decision, HeadraceError):
                return command.refused(decision)
            if decision.reply is not None:
                del self._parked[ticket]
                reply: Any = decision.reply
                return reply if self._appends.tail is None else await self._hold(command, reply)
            return await future
        finally:
            self._parked.pop(ticket, None)

    async def _hold(self, command: Command[Reply], reply: Reply) -> Reply:
        """Return `reply` once everything appended so far is durable."""
        tail = self._appends.tail
        assert tail is not None
        future: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        tail.then(self._release, (self._load_count, [(future, command, reply)]))
        return await future

    def _release(self, error: BaseException | None, context: Any) -> None:
        load_count, replies = context
        is_void = error is not None or load_count != self._load_count
        for future, command, reply in replies:
            if not future.done():
                future.set_result(command.refused(_unavailable()) if is_void else reply)

    def _run(self, command: Any) -> Decision[Record, Any] | HeadraceError:
        """Decide, append and apply in this turn; or return the error, with no effect."""
        machine = self.machine
        assert machine is not None
        decision: Decision[Record, Any] = machine.decide(command, self._time.now_ms())
        if decision.records:
            if (error := self._store(machine, decision)) is not None:
                return error
            for record in decision.records:
                machine.apply(record)
            if self.validates:
                machine.validate()
        if decision.answers:
            self._answer(decision.answers)
        if decision.effects:
            self._when_durable(self._begin_effects, (self._load_count, decision.effects))
        self._arm()
        if self.snapshots.log_bytes > self.snapshots.due_at_bytes:
            self.snapshots.begin(machine)
        return decision

    def _run_own(self, command: Commands) -> None:
        """Run a command of the host. No caller repeats it; a reload makes up for it."""
        outcome = self._run(command)
        if isinstance(outcome, HeadraceError):
            self._drop(outcome)

    def _store(
        self, machine: Machine[Commands, Record, Replies], decision: Decision[Record, Any]
    ) -> HeadraceError | None:
        """Append the durable records of `decision`; the error if the log refuses them."""
        batch, durable = decision.batch, _encoded(machine, decision)
        if isinstance(batch, EndsTransaction):
            return self._append(lambda: self._log.append_marker(batch), RECORD_OVERHEAD_BYTES)
        if not durable:
            return None
        size_bytes = size_of(durable)
        if batch is not None or not self._appends.fits_turn(size_bytes, len(durable)):
            return self._append(lambda: self._log.append(durable, batch), size_bytes)
        if self._appends.add(durable, size_bytes) is not None:
            return _unavailable()
        self.snapshots.log_bytes += size_bytes
        return None

    def _begin_effects(self, error: BaseException | None, context: tuple[int, list[Any]]) -> None:
        """Perform the effects that waited for their decision to be durable."""
        load_count, effects = context
        if error is not None or load_count != self._load_count or self.machine is None:
            return
        assert self._perform is not None, "a machine with effects needs a host that performs them"

        def report(command: Commands) -> None:
            if load_count == self._load_count and self.machine is not None:
                try:
                    self._run_own(command)
                except Exception:
                    log.exception("%s: cannot apply the outcome of an effect", self._name)

        for effect in effects:
            self._perform(effect, report)

    def _answer(self, answers: list[tuple[int, Any]]) -> None:
        """Answer parked commands once the records behind the answers are durable."""
        replies = [
            (*parked, reply)
            for ticket, reply in answers
            if (parked := self._parked.pop(ticket, None)) is not None
        ]
        self._when_durable(self._release, (self._load_count, replies))

    def _when_durable(
        self, callback: Callable[[BaseException | None, Any], None], context: Any
    ) -> None:
        """Call `callback` once everything decided so far is durable, or has failed."""
        tail = self._appends.tail
        if tail is None:
            callback(None, context)
        else:
            tail.then(callback, context)

    # --- log access --------------------------------------------------------------------------

    def _append(self, write: Callable[[], Completion], size_bytes: int) -> HeadraceError | None:
        """Append by `write` alone; the error if the log refused it."""
        machine = self.machine
        error = self._appends.append(write)
        if error is None:
            self.snapshots.log_bytes += size_bytes
            return None
        if self.machine is machine:  # otherwise an earlier decision could not be appended
            if isinstance(error, REFUSALS):
                return error
            self._drop(error)
        return _unavailable()

    def _append_settled(self, error: BaseException | None) -> None:
        if error is None:
            self._pause_ms = 0
            self.snapshots.log_bytes += BATCH_OVERHEAD_BYTES
        else:
            self._drop(error)

    def _append_part(self, records: list[LogRecord]) -> HeadraceError | None:
        """Append a part of a snapshot."""
        return self._append(lambda: self._log.append(records), size_of(records))

    def _is_hosted(self, machine: Machine[Any, Any, Any]) -> bool:
        """Whether commands still reach this machine."""
        return self.machine is machine

    async def shrink(self, timeout_s: float) -> None:
        """Replace a log that is much longer than the state by a snapshot, up to a time limit: the
        log is about to be handed over, and clients wait while its next owner reads it."""
        if self.machine is not None:
            await self.snapshots.shrink(self.machine, timeout_s)

    def _drop(self, error: BaseException) -> None:
        """The machine is ahead of the log: discard it and read the log again.

        If another broker owns the log by now, close this shard instead. A suspended machine is
        ahead of the log, too.
        """
        self._suspended = None
        if self.machine is None:
            return
        if isinstance(error, NotOwner | Fenced) and not isinstance(error, REFUSALS):
            self._resign(error)
            return
        if not isinstance(error, DiskFull):  # the store has logged that already
            log.warning("%s: append failed (%s); reloading the state", self._name, error)
        self._refuse_parked(_unavailable())
        self._unload()
        self._start_loading()

    def _unload(self) -> None:
        self.machine = None
        self._load_count += 1
        self._appends.discard()
        self._time.cancel()

    def _refuse_parked(self, error: HeadraceError) -> None:
        parked, self._parked = self._parked, {}
        for future, command in parked.values():
            if not future.done():
                future.set_result(command.refused(error))

    # --- loading -----------------------------------------------------------------------------

    def preload(self) -> None:
        """Start the first load before a command needs it."""
        if self._load_count == 0:
            self._start_loading()

    async def _wait_loaded(self) -> HeadraceError | None:
        if self._closed_with is None and self._load_count == 0:
            self._start_loading()
            with suppress(TimeoutError):
                async with asyncio.timeout(LOAD_WAIT_S):
                    await self._first_load.wait()
        if self._closed_with is not None:
            return self._closed_with
        return None if self.machine is not None else CoordinatorLoading("loading: try again")

    def _start_loading(self) -> None:
        if not self._is_loading and self._closed_with is None:
            self._is_loading = True
            self._load_task = self._tasks.start(self._load(), f"load {self._name}")

    async def _load(self) -> None:
        """Read the log until that succeeds: without its state a shard can answer nothing."""
        retry_ms = LOAD_RETRY_MS_MIN
        pause_ms = self._pause_ms
        self._pause_ms = min(max(pause_ms * 2, LOAD_RETRY_MS_MIN), LOAD_RETRY_MS_MAX)
        try:
            if pause_ms:
                await asyncio.sleep(pause_ms / 1000)
            while self._closed_with is None:
                try:
                    await self._load_once()
                    return
                except (NotOwner, Fenced) as error:
                    self._resign(error)
                except Exception as error:  # noqa: BLE001  # a task's edge: say it and try again
                    log.warning("%s: cannot read the log (%r): retrying", self._name, error)
                await asyncio.sleep(retry_ms / 1000)
                retry_ms = min(retry_ms * 2, LOAD_RETRY_MS_MAX)
        finally:
            self._is_loading = False

    async def _load_once(self) -> None:
        while self._appends.tail is not None:
            # Appends in flight may still reach the log: read it only once they have settled.
            with suppress(HeadraceError):
                await self._appends.tail.wait()
        ahead, self._ahead = self._ahead, None
        machine, log_bytes = await restore(self._make_machine, self._log, ahead)
        if self._closed_with is not None:
            return
        assert self.machine is None, "only a shard without state loads"
        self._time.align()
        decision = machine.decide(self._loaded, self._time.now_ms())
        for record in decision.records:
            assert machine.encode(record) is None, "loading writes nothing"
            machine.apply(record)
        self.machine = machine
        self.snapshots.loaded(log_bytes)
        self._load_count += 1
        self._first_load.set()
        self._arm()
        if decision.effects:
            self._begin_effects(None, (self._load_count, decision.effects))

    # --- time --------------------------------------------------------------------------------

    def _arm(self) -> None:
        """Arm one timer for all deadlines. One that fires early only checks and is armed again."""
        if self.machine is None:
            return
        deadline_ms = self.machine.next_deadline_ms()
        if deadline_ms is not None:
            self._time.wake_at(deadline_ms)

    def _wake(self) -> None:
        if self.machine is None:
            return
        deadline_ms = self.machine.next_deadline_ms()
        if deadline_ms is not None and deadline_ms <= self._time.now_ms():
            try:
                self._run_own(self._tick)
            except Exception:
                log.exception("%s: a tick failed", self._name)
                self._time.wake_at(self._time.now_ms() + TICK_RETRY_MS)
        self._arm()

    # --- suspending and closing --------------------------------------------------------------

    def suspend(self) -> bool:
        """Keep the machine while the log refuses everything; False if it cannot be kept: if it has
        effects, whose outcomes it would miss; if clients wait, who are told to look elsewhere; or
        if the log lacks what was decided in this turn of the loop."""
        if self.machine is None or self._perform or self._parked or self._appends.is_collecting:
            return False
        self._suspended, self.machine = self.machine, None
        self._time.stand_still()
        return True

    def resume(self, shard_log: ShardLog) -> bool:
        """The log, if it is the same one, accepts requests again: go on; False if the machine is of
        no use any more. For the machine no time has passed: no one could reach it."""
        if self._suspended is None or shard_log.leader_epoch != self._log.leader_epoch:
            return False
        self.machine, self._suspended = self._suspended, None
        self._time.go_on()
        self._arm()
        return True

    @property
    def is_closed(self) -> bool:
        """Whether it was closed, by `close` or because another broker owns its log now."""
        return self._closed_with is not None

    def _resign(self, error: BaseException) -> None:
        log.info("%s: another broker owns the log now (%s)", self._name, error)
        self.close(NotCoordinator("another broker coordinates this now: look up the coordinator"))

    def close(self, error: HeadraceError) -> None:
        """Refuse parked and further commands with `error`. Replies whose records are in flight are
        still sent once these are durable."""
        self._closed_with = error
        self.machine = self._suspended = None
        self._appends.flush()
        self._refuse_parked(error)
        self._first_load.set()
        load_count = self._load_count
        self._unload()
        self._load_count = load_count


def _unavailable() -> CoordinatorUnavailable:
    return CoordinatorUnavailable("the coordinator could not store its state: try again")


def _encoded(
    machine: Machine[Any, Record, Any], decision: Decision[Record, Any]
) -> list[LogRecord]:
    """The durable records of a decision."""
    encode = machine.encode
    found: list[LogRecord] = [p for r in decision.records if (p := encode(r)) is not None]
    assert not found or not isinstance(decision.batch, EndsTransaction), "a marker comes alone"
    return found
