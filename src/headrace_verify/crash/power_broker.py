"""Attack: power loss of a whole broker: topics, groups, producer ids, ledgers.

Invariants: one workload, one oracle and one crash model, with two recorders. `power-broker` records
the ledger files at the disk interface and assumes that metadata becomes durable at one instant
before the response, so it needs no tools, is quick, and is deterministic per seed. `power-files`
records a real process, so that SQLite's files are truncated at the same instant as the ledgers'.
"""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import subprocess
import sys
import tempfile
from collections import deque
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Protocol, Self, TypeVar
from uuid import UUID

from headrace.broker.node import Node
from headrace.errors import HeadraceError
from headrace.metadata.sqlite import SqliteMetadataStore
from headrace.storage.files import wal_sync
from headrace_verify.crash.broker_oracle import TEST_EVENTS, BrokerOracle
from headrace_verify.crash.broker_scenario import (
    CONFIG,
    has_quick_groups,
    run_broker_life,
    small_settings,
)
from headrace_verify.crash.data_folder import SlowClock
from headrace_verify.crash.exploration import NEW_DISK
from headrace_verify.crash.model_disk import Image, ModelDisk
from headrace_verify.crash.power_loss import KEEPS, PROFILES, PowerLoss
from headrace_verify.crash.recorded_metadata import RecordedMetadata
from headrace_verify.crash.recorder import (
    RecordReader,
    RecordUnsound,
    compile_recorder,
    recording,
    without,
)
from headrace_verify.crash.scenario import FixedSalt, abandon, open_store
from headrace_verify.rng import seeded
from headrace_verify.task import patched

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from random import Random  # noqa: TID251 - a type

    from headrace.metadata.store import MetadataStore
    from headrace_verify.crash.recorded_metadata import Facts
    from headrace_verify.task import Task

LIVES = 2
TURNS = 22
OPERATIONS_PER_LIFE = 60
OPERATIONS_PER_PROCESS = 30
"""Fewer when SQLite is opened for each state, which takes five times as long."""
OPERATIONS_AGAIN = 8
"""Operations of an opening at which power is lost again."""
RECOVERY_SHARE = 0.02
_DEPTH_KEEPS = ("none", "prefix", "subset", "all")
_PROCESS_TIMEOUT_S = 60
_EXAMINE_TIMEOUT_S = 60
_SETTLE_TURNS = 30
_METADATA = "metadata.sqlite"


class SeededRandomness(FixedSalt):
    """Ids by seed, so that a run is reproducible."""

    def __init__(self, seed: str) -> None:
        self._rng = seeded(seed)

    def uuid(self) -> UUID:
        """See Randomness."""
        return UUID(int=self._rng.getrandbits(128), version=4)


class State:
    """The state after a power loss."""

    def __init__(self, image: Image, facts: Facts, scratch: Path | None) -> None:
        self.image = image
        self.facts = facts
        """The metadata, if there is no `scratch`."""
        self.scratch = scratch
        """The folder in which SQLite's files of the image are opened."""
        self.producer_id_last = -1
        """The last ledger id allocated before the power loss."""

    async def metadata(self, disk: ModelDisk) -> MetadataStore:
        """Open the metadata of this state."""
        if self.scratch is None:
            return RecordedMetadata(disk, self.facts)
        for old in self.scratch.iterdir():
            old.unlink()
        for name, inode in self.image.names.get("data", {}).items():
            if name.startswith(_METADATA) and not name.endswith("-shm"):
                (self.scratch / name).write_bytes(self.image.inodes[inode])
        return await SqliteMetadataStore.open(self.scratch / _METADATA, SlowClock())


class Opened:
    """A broker without sockets on a disk."""

    def __init__(self, state: State, seed: str, sync_turns: int = 0) -> None:
        self.disk = ModelDisk(state.image, sync_turns)
        self._state = state
        self._seed = seed
        self._stack = ExitStack()
        self.node: Node

    async def __aenter__(self) -> Self:
        store = await open_store(self.disk)
        try:
            metadata = await self._state.metadata(self.disk)
        except BaseException:
            await abandon(store)
            raise
        randomness = SeededRandomness(self._seed)
        self.node = Node(CONFIG, store, metadata, SlowClock(), randomness)
        try:
            await self.node.open()
        except BaseException:
            await self.__aexit__()
            raise
        has_quick_groups(self.node)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.node.tasks.close()
        if hasattr(self.node, "groups"):
            self.node.coordinators.close()
        await self.node.metadata.close()
        await abandon(self.node.store)  # type: ignore[arg-type]  # a FileLedgerStore


class Oracle(Protocol):
    """What a workload knows of the broker that it ran on."""

    producer_id_last: int
    version: int

    def step(self, note: tuple[Any, ...]) -> None:
        """Process one event."""
        ...

    async def violations(self, node: Node) -> list[str]:
        """Return what the reopened broker holds but must not, or lacks."""
        ...


async def examine(state: State, oracle: Oracle) -> tuple[list[str], list[tuple[Any, ...]]]:
    """Open the state and compare it with the oracle; returns the problems, and the opening's
    operations."""
    try:
        async with asyncio.timeout(_EXAMINE_TIMEOUT_S):
            async with Opened(state, f"again {oracle.version}") as opened:
                operations = list(opened.disk.operations)
                return await oracle.violations(opened.node), operations
    except HeadraceError as error:
        return [f"the broker does not open the remaining state: {error!r}"], []
    except Exception as error:  # noqa: BLE001 - whatever it is, a broker must open every state
        return [f"internal error of the broker, {type(error).__name__}: {error}"], []


class Walk:
    """One operation log, from operation to operation."""

    def __init__(self, task: Task, before: State, oracle: Oracle, profile: str) -> None:
        self.task = task
        self.oracle = oracle
        self.profile = profile
        self.candidates: deque[State] = deque([before], maxlen=20)
        self.states = 0
        self.has_found = False
        self.replay: dict[str, Any] = {"profile": profile}
        self._before = before
        self._facts = before.facts
        self._seen: set[int] = set()

    async def run(self, operations: list[tuple[Any, ...]], rng: Random) -> None:
        """Lose power at operations, including those of the first start."""
        loss = PowerLoss(self._before.image, self.profile)
        # A random sample of a long log: the next seed visits others.
        visits = OPERATIONS_PER_LIFE if self._before.scratch is None else OPERATIONS_PER_PROCESS
        share = visits / max(1, len(operations))
        for index, operation in enumerate(operations):
            loss.step(operation)
            if operation[0] in TEST_EVENTS:
                self.oracle.step(operation)
                continue
            if operation[0] == "facts":
                self._facts = operation[1]
            if rng.random() >= share:
                continue
            for keep, image in zip(KEEPS, loss.states(rng), strict=True):
                await self._explore_state(image, index, keep, rng)
                if self.has_found:
                    return

    async def _explore_state(self, image: Image, index: int, keep: str, rng: Random) -> None:
        facts = id(self._facts)  # replaced by each change
        key = hash((tuple(image.inodes), repr(image.names), facts, self.oracle.version))
        if key in self._seen:
            return
        self._seen.add(key)
        state = State(image, self._facts, self._before.scratch)
        operations = await self._examine(state, f"operation {index}, {keep}")
        state.producer_id_last = self.oracle.producer_id_last
        self.candidates.append(state)
        if operations and state.scratch is None and rng.random() < RECOVERY_SHARE:
            await self._lose_power_again(state, operations, f"operation {index}, {keep}")

    async def _examine(self, state: State, where: str) -> list[tuple[Any, ...]]:
        self.states += 1
        self.task.checked += 1
        self.task.add(f"states {self.profile}")
        wrong, operations = await examine(state, self.oracle)
        for text in wrong:
            self.has_found = True
            self.task.wrong(f"{where}: {text}", **self.replay)
        return operations

    async def _lose_power_again(
        self, state: State, operations: list[tuple[Any, ...]], where: str
    ) -> None:
        """Lose power while the state is opened: recovery, and the deletion of orphans."""
        loss, facts = PowerLoss(state.image, self.profile), state.facts
        rng = seeded(where)
        for index, operation in enumerate(operations):
            loss.step(operation)
            if operation[0] == "facts":
                facts = operation[1]
            if rng.random() >= OPERATIONS_AGAIN / len(operations):
                continue
            for image in loss.states(rng, _DEPTH_KEEPS):
                again = State(image, facts, None)
                await self._examine(again, f"{where}, then while opening, at {index}")


# --- recorded at the disk interface ----------------------------------------------------------


def run_power_broker(task: Task) -> None:
    """Run lives on a modelled disk."""
    run_cases(task, _modelled)


async def _modelled(task: Task, seed: int, profile: str, sync_turns: int) -> None:
    workload = Workload(BrokerOracle(), _live, _recovered)
    await run_lives(task, seed, profile, sync_turns, workload)


async def _live(opened: Opened, name: str, life: int) -> None:
    await run_broker_life(opened.node, opened.disk.note, name, TURNS, life)
    for _ in range(_SETTLE_TURNS):
        await asyncio.sleep(0)


async def _recovered(node: Node, before: BrokerOracle, state: State) -> BrokerOracle:
    oracle = await BrokerOracle.after_recovery(node, before)
    oracle.producer_id_last = state.producer_id_last
    return oracle


AnyOracle = TypeVar("AnyOracle", bound=Oracle)


class Workload(NamedTuple, Generic[AnyOracle]):
    """The workload of each life of a broker, and what is known of it."""

    oracle: AnyOracle
    """The oracle of an unused broker."""
    live: Callable[[Opened, str, int], Awaitable[None]]
    """Run the work of a life, given a seed and the number of the life."""
    recovered: Callable[[Node, AnyOracle, State], Awaitable[AnyOracle]]
    """Return what must hold of a reopened broker, given what was known before."""


async def run_lives(
    task: Task, seed: int, profile: str, sync_turns: int, workload: Workload[AnyOracle]
) -> None:
    """Lose power at each step of a life, and begin the next one with one of the resulting
    states."""
    rng = seeded(seed)
    state, oracle = State(NEW_DISK, {}, None), workload.oracle
    for life in range(LIVES):
        name = f"{seed} {life}"
        async with Opened(state, name, sync_turns) as opened:
            await workload.live(opened, name, life)
            operations = list(opened.disk.operations)
        walk = Walk(task, state, oracle, profile)
        walk.replay |= {"seed": seed, "life": life, "sync_turns": sync_turns}
        await walk.run(operations, rng)
        if walk.has_found:
            return
        state = walk.candidates[-rng.randint(1, len(walk.candidates))]
        async with Opened(state, name) as opened:
            oracle = await workload.recovered(opened.node, oracle, state)


# --- a recorded process ----------------------------------------------------------------------


def run_power_files(task: Task) -> None:
    """A real process, with its SQLite and ledger files in one operation log."""
    recorder = compile_recorder(task.folder)
    if isinstance(recorder, str):
        task.skip_all(f"{recorder}; so SQLite's files were not truncated")
        return

    async def explore(task: Task, seed: int, profile: str, sync_turns: int) -> None:
        await _recorded(task, recorder, seed, profile, sync_turns)

    run_cases(task, explore)


async def _recorded(task: Task, recorder: Path, seed: int, profile: str, sync_turns: int) -> None:
    quick = Path("/dev/shm")  # noqa: S108 - a folder of our own in it
    with tempfile.TemporaryDirectory(
        prefix="headrace-verify-", dir=quick if os.access(quick, os.W_OK) else task.folder
    ) as scratch:
        rng = seeded(seed)
        state, oracle = State(NEW_DISK, {}, Path(scratch)), BrokerOracle()
        for life in range(LIVES):
            image = without(state.image, "-shm")
            words = [str(seed), str(life), str(TURNS), str(sync_turns), task.planted]
            reader = record_process(recorder, task.folder / f"{seed}-{life}", image, words)
            walk = Walk(task, State(image, {}, state.scratch), oracle, profile)
            walk.replay |= {"seed": seed, "life": life, "sync_turns": sync_turns}
            await walk.run(reader.operations, rng)
            if walk.has_found:
                return
            state = walk.candidates[-rng.randint(1, len(walk.candidates))]
            async with Opened(state, f"{seed} {life}") as opened:
                oracle = await _recovered(opened.node, oracle, state)


def record_process(recorder: Path, place: Path, image: Image, words: list[str]) -> RecordReader:
    """Run a broker on `image` in a separate process. Raises RecordUnsound."""
    root, record = place / "root", place / "record"
    for folder, names in sorted(image.names.items()):
        (root / folder).mkdir(parents=True, exist_ok=True)
        for name, inode in names.items():
            (root / folder / name).write_bytes(image.inodes[inode])
    command = [sys.executable, "-m", "headrace_verify.crash.recorded_broker", str(root), *words]
    try:
        done = subprocess.run(  # noqa: S603 - our own module
            command,
            env=recording(recorder, root, record),
            capture_output=True,
            text=True,
            timeout=_PROCESS_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise RecordUnsound("the recorded broker does not exit") from error
    if done.returncode:
        raise RecordUnsound(f"the recorded broker failed: {done.stderr[-800:]}")
    reader = RecordReader(root, image)
    reader.read(record.read_bytes())
    differences = reader.differences()
    if differences:
        raise RecordUnsound(f"the record does not match these files: {', '.join(differences[:5])}")
    shutil.rmtree(place)
    return reader


def run_cases(task: Task, explore: Callable[[Task, int, str, int], Any]) -> None:
    """Explore case after case, each with its own seed, profile and way to sync."""
    # Ledgers are garbage-collected thousands of times from now on.
    logging.getLogger("headrace").setLevel(logging.CRITICAL)
    with small_settings():
        while task.has_time():
            profile = PROFILES[0] if task.stop_at_first else PROFILES[task.runs % 2]
            sync_turns = 0 if task.runs // 2 % 2 else 3
            seed = task.seed + task.runs
            inline_ns = -1 if sync_turns else wal_sync.INLINE_SYNC_NS
            with patched(wal_sync, "INLINE_SYNC_NS", inline_ns):
                try:
                    asyncio.run(explore(task, seed, profile, sync_turns))
                except RecordUnsound:
                    if task.planted:  # not the way to find the bug
                        return
                    raise
                except (HeadraceError, AssertionError, OSError) as error:
                    task.wrong(f"the broker did not run: {error!r}", seed=seed, profile=profile)
            task.runs += 1
    if task.runs < 2:
        task.skip(f"out of time for {PROFILES[1]}")
