"""kill -9: a writer under load is killed at random moments, repeatedly in one folder.

Tests survival of a process crash (the page cache survives), nothing more. Each cycle forks a writer
that recovers the folder, reports every ledger's length and SHA-256, and then appends, creates,
seals and deletes until it is killed. One in SPAWN_EVERY is not a fork but a new interpreter, which
is killed like the others. Every request is reported through a pipe before it is made and again when
it is acknowledged; the parent compares the reports with its own model, byte for byte.
"""

# ruff: noqa: SLF001 - inspects a recovered store's private state

from __future__ import annotations

import asyncio
import hashlib
import os
import select
import signal
import struct
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.runtime.clock import SystemClock
from headrace.storage.files import FileLedgerStore, wal_sync
from headrace_verify.crash.scenario import Expected, payload
from headrace_verify.rng import seeded

if TYPE_CHECKING:
    from collections.abc import Callable

MESSAGE = struct.Struct("<cQQQ32s")
_NONE = bytes(32)
RECOVERED, READY, CREATING, CREATED, APPEND, ACKNOWLEDGED = b"R", b"Y", b"c", b"C", b"a", b"A"
SEALING, SEALED, DELETING, DELETED = b"s", b"S", b"d", b"D"
STARTED = b"b"
SPAWN_EVERY = 8
LEDGERS_MAX = 8
START_TIMEOUT_S = 30
END_TIMEOUT_S = 60
END_POLL_S = 0.001
"""From the end of its pipe to the end of the process: microseconds, unless the machine is busy."""


def _now_s() -> float:
    return SystemClock().now_ns() / 1e9


class Model:
    """The parent's knowledge: requests made and acknowledgements received."""

    def __init__(self) -> None:
        self.ledgers: dict[int, Expected] = {}
        self.acknowledgements = 0
        self.kills = 0
        self.spawned = 0
        """How many of the killed were separate interpreters."""
        self.wrong: list[str] = []

    def take(self, message: bytes, generation: int, reported: dict[int, tuple[int, bytes]]) -> None:
        kind, ledger, first, second, digest = MESSAGE.unpack(message)
        if kind == RECOVERED:
            reported[ledger] = (first, digest)
            if second and ledger in self.ledgers:
                self.ledgers[ledger].is_sealed |= self.ledgers[ledger].footer is not None
            return
        if kind == READY:
            self._compare(reported)
            return
        if kind == CREATING:
            if ledger in self.ledgers and self.ledgers[ledger].is_created:
                self.wrong.append(f"id {ledger} was allocated twice")
            self.ledgers[ledger] = Expected()
            return
        expected = self.ledgers[ledger]
        if kind == APPEND:
            if len(expected.data) != first:
                self.wrong.append(
                    f"ledger {ledger}: position {first}, expected {len(expected.data)}"
                )
            expected.data += payload(ledger, first, second, generation)
            expected.boundaries.add(first + second)
            return
        self.acknowledgements += 1
        if kind == ACKNOWLEDGED:
            expected.acknowledged = max(expected.acknowledged, first)
        elif kind == CREATED:
            expected.is_created = True
        elif kind == SEALING:
            expected.footer = b"sealed"
        elif kind == SEALED:
            expected.is_sealed = True
        elif kind == DELETING:
            expected.is_deleting = True
        elif kind == DELETED:
            expected.is_deleted = True

    def _compare(self, reported: dict[int, tuple[int, bytes]]) -> None:
        for ledger in reported:
            if ledger not in self.ledgers:
                self.wrong.append(f"ledger {ledger} was never created")
        for ledger, expected in list(self.ledgers.items()):
            if ledger not in reported:
                if expected.is_created and not expected.is_deleting:
                    self.wrong.append(f"ledger {ledger} is lost")
                del self.ledgers[ledger]
                continue
            if expected.is_deleted:
                self.wrong.append(f"ledger {ledger} reappeared after its deletion")
            end, digest = reported[ledger]
            if end < expected.acknowledged:
                self.wrong.append(
                    f"ledger {ledger}: {expected.acknowledged} acknowledged, {end} remain"
                )
            if end not in expected.boundaries:
                self.wrong.append(f"ledger {ledger} ends inside an append, at {end}")
            if hashlib.sha256(expected.data[:end]).digest() != digest:
                self.wrong.append(f"ledger {ledger} holds bytes that were not appended")
            # What recovery has restored must stay.
            del expected.data[end:]
            expected.boundaries = {at for at in expected.boundaries if at <= end}
            expected.acknowledged = end
            expected.is_created = True


def run_kill_cycles(
    count: int, seed: int, folder: Path, has_time: Callable[[], bool] = lambda: True
) -> Model:
    """Kill the writer `count` times, then let it end once; the model reports problems."""
    rng = seeded(seed)
    model = Model()
    for cycle in range(count + 1):
        is_last = cycle == count or not has_time()
        # A third die during recovery or just after it.
        delay = rng.choice((0.0, 0.01, 0.02)) + rng.random() * 0.03
        if is_last:
            delay = 30.0
        is_spawned = cycle % SPAWN_EVERY == 0 and not is_last
        _run_cycle(model, folder, seed + cycle, delay, is_last=is_last, is_spawned=is_spawned)
        model.kills += not is_last
        model.spawned += is_spawned
        if model.wrong:
            model.wrong = [f"seed {seed} cycle {cycle}: {text}" for text in model.wrong]
            return model
        if is_last:
            break
    return model


def _fork(folder: Path, generation: int, reader: int, writer: int, *, is_last: bool) -> int:
    pid = os.fork()
    if pid == 0:
        try:
            os.close(reader)
            asyncio.run(_write_until_killed(folder, generation, writer, is_last=is_last))
        finally:
            os._exit(0)
    return pid


def _spawn(folder: Path, generation: int, writer: int) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "headrace_verify.crash.kill_cycles"]
    return subprocess.Popen(  # noqa: S603 - our own module
        [*command, str(folder), str(generation), str(writer)],
        stdin=subprocess.DEVNULL,
        pass_fds=[writer],
    )


def main() -> None:
    """Run a writer in its own interpreter; it ends when it is killed or its pipe is closed."""
    folder, generation, pipe = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    asyncio.run(_write_until_killed(folder, generation, pipe, is_last=False))


def _run_cycle(
    model: Model, folder: Path, generation: int, delay: float, *, is_last: bool, is_spawned: bool
) -> None:
    reader, writer = os.pipe()
    process: subprocess.Popen[bytes] | None = None
    if is_spawned:
        process = _spawn(folder, generation, writer)
        pid = process.pid
    else:
        pid = _fork(folder, generation, reader, writer, is_last=is_last)
    os.close(writer)
    reported: dict[int, tuple[int, bytes]] = {}
    is_ready = False
    # The interpreter's start-up is not under test.
    deadline = _now_s() + (START_TIMEOUT_S if is_spawned else delay)
    buffered = b""
    while True:
        left = deadline - _now_s()
        if left <= 0:
            os.kill(pid, signal.SIGKILL)
            deadline = _now_s() + 3_600
        if not select.select([reader], [], [], max(0.0, left))[0]:
            continue
        data = os.read(reader, 1 << 20)
        if not data:
            break
        buffered += data
        for at in range(0, len(buffered) - MESSAGE.size + 1, MESSAGE.size):
            message = buffered[at : at + MESSAGE.size]
            is_ready |= message[:1] == READY
            if message[:1] != STARTED:
                model.take(message, generation, reported)
            elif is_spawned:
                deadline = _now_s() + delay
        buffered = buffered[len(buffered) - len(buffered) % MESSAGE.size :]
    os.close(reader)
    stuck = _await_end(pid)
    if stuck is not None:
        model.wrong.append(f"writer {pid} closed its pipe but did not exit: {stuck}")
    if process is not None:
        process.wait()
    else:
        os.waitpid(pid, 0)
    if is_last and not is_ready:
        model.wrong.append("the last writer did not recover the folder")


def _await_end(pid: int) -> str | None:
    """Wait until a child has exited, with a time-out; then return its threads' states, and kill it.

    Its pipe is closed when all of its threads have released their files: then it exits immediately,
    unless the kernel or a debugger holds it.
    """
    until_s = _now_s() + END_TIMEOUT_S
    while os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is None:
        if _now_s() >= until_s:
            found = _where(pid)
            os.kill(pid, signal.SIGKILL)
            return found
        time.sleep(END_POLL_S)
    return None


def _where(pid: int) -> str:
    """Return what each thread of a process waits for, according to the kernel."""
    states = []
    for task in sorted(Path(f"/proc/{pid}/task").glob("*")):
        try:
            state = (task / "stat").read_text().rpartition(") ")[2][:1]
            states.append(f"{(task / 'comm').read_text().strip()} {state}")
            states.append((task / "wchan").read_text().strip() or "running")
        except OSError:
            continue  # it has exited meanwhile
    return " ".join(states) or "no thread is left"


async def _write_until_killed(folder: Path, generation: int, pipe: int, *, is_last: bool) -> None:
    rng = seeded(generation)
    if generation % 2:
        wal_sync.INLINE_SYNC_NS = -1

    def tell(
        kind: bytes, ledger: int, first: int = 0, second: int = 0, digest: bytes = _NONE
    ) -> None:
        os.write(pipe, MESSAGE.pack(kind, ledger, first, second, digest))

    tell(STARTED, 0)
    store = await FileLedgerStore.open(
        folder, SystemClock(), wal_file_bytes=256 << 10, checkpoint_bytes=400 << 10
    )
    ledgers = []
    for info in store.list():
        data = await store.read(info.ledger, 0, 1 << 30)
        digest = hashlib.sha256(data).digest()
        tell(RECOVERED, info.ledger, info.end, int(info.is_sealed), digest)
        ledgers.append(info.ledger)
    tell(READY, 0)
    if is_last:
        await store.close()
        return

    def acknowledged(error: BaseException | None, context: tuple[int, int]) -> None:
        if error is None:
            tell(ACKNOWLEDGED, *context)

    while True:
        await _change(store, ledgers, rng, tell)
        last: Any = None
        for _ in range(rng.choice((1, 2, 20))):
            ledger = rng.choice(ledgers)
            found = store._ledgers[ledger]
            if found.is_sealed:
                continue
            size = rng.choice((1, 100, 3_000, 20_000))
            data = payload(ledger, found.end, size, generation)
            tell(APPEND, ledger, found.end, size)
            position, last = store.append(ledger, [data], size, rng.choice((None, None, 5)))
            last.then(acknowledged, (ledger, position + size))
        if last is not None and rng.random() < 0.5:
            await last.wait()
        else:
            await asyncio.sleep(0)


async def _change(store: FileLedgerStore, ledgers: list[Any], rng: Any, tell: Any) -> None:
    if len(ledgers) < LEDGERS_MAX and (not ledgers or rng.random() < 0.1):
        tell(CREATING, store._catalog.next_ledger)
        ledgers.append(await store.create())
        tell(CREATED, ledgers[-1])
    draw = rng.random()
    if draw < 0.04 and len(ledgers) > 2:
        ledger = ledgers.pop(rng.randrange(len(ledgers)))
        tell(DELETING, ledger)
        await store.delete(ledger)
        tell(DELETED, ledger)
    elif draw < 0.06:
        ledger = rng.choice(ledgers)
        if not store._ledgers[ledger].is_sealed:
            tell(SEALING, ledger)
            await store.seal(ledger, b"sealed")
            tell(SEALED, ledger)


if __name__ == "__main__":
    main()
