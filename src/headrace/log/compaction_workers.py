"""Who takes batches apart for a round of compaction: the broker's loop, or a process beside it.

Invariants: a worker decides nothing that `compaction` does not, and touches no ledger; the cleaner
reads for it, writes what it gives back, and checks both. The loop's own worker pauses after each
STEP_RECORDS. The process has another core, lower priority and its own memory for the key map, so
the broker's clients hardly notice a round; it starts with a round and ends with it, or with
the broker: then its input ends.

On its pipes: a head (operation, two numbers, size of the body), and the body. One answer follows
each request, in order.
"""

from __future__ import annotations

import asyncio
import json
import sys
from array import array
from struct import Struct
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, TypeVar, cast

from headrace.errors import BatchCorrupt, CompactionInterrupted
from headrace.log.compaction import (
    AbortedRanges,
    Compaction,
    KeyMap,
    Left,
    Run,
    map_run,
    rewrite_run,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from headrace.log.compaction import Steps
    from headrace.records.batch import Buffer

_T = TypeVar("_T")


class Job(NamedTuple):
    """What a round is about."""

    aborted: list[tuple[int, int, int]]
    """(producer id, first offset, offset of the marker) of aborted transactions."""
    keys_max: int
    now_ms: int
    delete_retention_ms: int


class Worker(Protocol):
    """Two passes over a partition, run by run. A failed call ends the round."""

    async def map(self, run: Run, from_offset: int) -> bool:
        """Take the next batches of the dirty range, without those that end before `from_offset`;
        whether the map is full, so that the rest waits for the next round. Raises BatchCorrupt."""
        ...

    async def end_map(self, end_offset: int | None) -> tuple[int, int]:
        """All before `end_offset` was seen (None: up to where the map became full). Returns the
        end of the map, and how many keys are in it."""
        ...

    async def rewrite(self, run: Run, base_offset: int, end_offset: int) -> Left:
        """What is left of the next batches of the ledger to be written, which has these offsets.
        Raises BatchCorrupt."""
        ...

    async def close(self) -> None:
        """End; once."""
        ...


class _Round:
    """The state of a round, for both workers."""

    def __init__(self, job: Job) -> None:
        self.aborted = AbortedRanges(job.aborted)
        self.keys = KeyMap(self.aborted, job.keys_max)
        self.compaction = Compaction(self.keys, self.aborted, job.now_ms, job.delete_retention_ms)

    def end_map(self, end_offset: int | None) -> tuple[int, int]:
        if end_offset is not None:
            self.keys.end_offset = end_offset
        return self.keys.end_offset, len(self.keys)


class LoopWorker:
    """In the broker's loop: for small rounds."""

    def __init__(self, job: Job, pause: Callable[[], Awaitable[None]]) -> None:
        """`pause` lets others work: STEP_RECORDS were taken apart since the last time."""
        self._round = _Round(job)
        self._pause = pause

    async def map(self, run: Run, from_offset: int) -> bool:
        """See Worker."""
        return await self._in_steps(map_run(self._round.keys, run, from_offset))

    async def end_map(self, end_offset: int | None) -> tuple[int, int]:
        """See Worker."""
        return self._round.end_map(end_offset)

    async def rewrite(self, run: Run, base_offset: int, end_offset: int) -> Left:
        """See Worker."""
        return await self._in_steps(
            rewrite_run(self._round.compaction, run, base_offset, end_offset)
        )

    async def close(self) -> None:
        """See Worker."""

    async def _in_steps(self, steps: Steps[_T]) -> _T:
        while True:
            try:
                next(steps)
            except StopIteration as done:
                return cast("_T", done.value)
            await self._pause()


# --- a process -----------------------------------------------------------------------------------

HEAD: Final = Struct(">BqqQ")
JOB, MAP, END_MAP, REWRITE = range(4)
DONE, CORRUPT = range(2)
DROPPED, UNCHANGED = -1, -2
"""In place of a batch's new size."""
_NOTHING: Final = -1
BODY_BYTES_MAX: Final = 1 << 30
_END_S: Final = 5.0


class ProcessWorker:
    """In a process of its own."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        assert process.stdin is not None
        assert process.stdout is not None
        self._in, self._out = process.stdin, process.stdout
        self._is_mapping = False

    @classmethod
    async def start(cls, job: Job) -> ProcessWorker:
        """Start it for one round. Raises CompactionInterrupted."""
        try:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "headrace.log.compaction_process"),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                limit=1 << 20,
            )
        except OSError as error:
            raise CompactionInterrupted(f"its process cannot be started: {error}") from error
        worker = cls(process)
        await worker.begin(job)
        return worker

    async def begin(self, job: Job) -> None:
        """Say what the round is about. Raises CompactionInterrupted."""
        await self._ask(JOB, 0, 0, json.dumps(job).encode())

    async def map(self, run: Run, from_offset: int) -> bool:
        """See Worker."""
        is_full = await self._mapped()
        await self.send(MAP, from_offset, 0, run.whole())
        self._is_mapping = True  # while the cleaner reads on
        return is_full

    async def _mapped(self) -> bool:
        """Whether the run before filled the map; then no later one is taken."""
        if not self._is_mapping:
            return False
        self._is_mapping = False
        is_full, _, _ = await self._answer()
        return bool(is_full)

    async def end_map(self, end_offset: int | None) -> tuple[int, int]:
        """See Worker."""
        if await self._mapped():
            end_offset = None
        end, count, _ = await self._ask(END_MAP, _NOTHING if end_offset is None else end_offset, 0)
        return end, count

    async def rewrite(self, run: Run, base_offset: int, end_offset: int) -> Left:
        """See Worker."""
        data = run.whole()
        removed, marker_count, body = await self._ask(REWRITE, base_offset, end_offset, data)
        numbers = array("q")
        at = 8 * (len(run.batches) + marker_count)
        numbers.frombytes(body[:at])
        batches: list[Buffer | None] = []
        stored = memoryview(data)
        for (place, header), size in zip(run.batches, numbers, strict=False):
            if size == UNCHANGED:
                batches.append(stored[place : place + header.size])
            elif size == DROPPED:
                batches.append(None)
            else:
                batches.append(body[at : at + size])
                at += size
        return Left(batches, removed, list(numbers[len(run.batches) :]))

    async def close(self) -> None:
        """See Worker."""
        self._in.close()
        try:
            await asyncio.wait_for(self._process.wait(), _END_S)
        except TimeoutError:
            self._process.kill()
            await self._process.wait()

    async def _ask(
        self, operation: int, first: int, second: int, body: Buffer = b""
    ) -> tuple[int, int, memoryview]:
        await self.send(operation, first, second, body)
        return await self._answer()

    async def _answer(self) -> tuple[int, int, memoryview]:
        status, first, second, answer = await self.receive()
        if status == CORRUPT:
            raise BatchCorrupt(answer.decode())
        return first, second, memoryview(answer)

    async def send(self, operation: int, first: int, second: int, body: Buffer) -> None:
        """One request. Raises CompactionInterrupted."""
        try:
            self._in.write(HEAD.pack(operation, first, second, len(body)))
            if body:
                self._in.write(body)
            await self._in.drain()
        except OSError as error:
            raise self._ended() from error

    async def receive(self) -> tuple[int, int, int, bytes]:
        """The next answer: status, two numbers, body. Raises CompactionInterrupted."""
        try:
            status, first, second, size = HEAD.unpack(await self._out.readexactly(HEAD.size))
            return status, first, second, await self._out.readexactly(size)
        except (OSError, asyncio.IncompleteReadError) as error:
            raise self._ended() from error

    @staticmethod
    def _ended() -> CompactionInterrupted:
        return CompactionInterrupted(
            "its process ended within the round; no record is lost, and it is tried again"
        )


class Answer(NamedTuple):
    """What the process answers to one request."""

    status: int
    first: int
    second: int
    parts: list[Buffer]


class Served:
    """The other side of the pipes: one round, request by request."""

    def __init__(self) -> None:
        self._round: _Round | None = None

    def answer(self, operation: int, first: int, second: int, body: bytes) -> Answer:
        """Do what is asked. Damaged batches are an answer; what else goes wrong is raised."""
        if operation == JOB:
            self._round = _Round(Job(*json.loads(body)))
            return Answer(DONE, 0, 0, [])
        assert self._round is not None
        try:
            if operation == MAP:
                steps = map_run(self._round.keys, Run.of(body), first)
                return Answer(DONE, int(_outcome(steps)), 0, [])
            if operation == END_MAP:
                ended = self._round.end_map(None if first == _NOTHING else first)
                return Answer(DONE, *ended, [])
            return self._rewrite(self._round.compaction, Run.of(body), first, second)
        except BatchCorrupt as error:
            return Answer(CORRUPT, 0, 0, [str(error).encode()])

    @staticmethod
    def _rewrite(compaction: Compaction, run: Run, base_offset: int, end_offset: int) -> Answer:
        left = _outcome(rewrite_run(compaction, run, base_offset, end_offset))
        sizes = array("q")
        parts: list[Buffer] = []
        for (at, header), batch in zip(run.batches, left.batches, strict=True):
            if batch is None:
                sizes.append(DROPPED)
            elif len(batch) == header.size and batch == memoryview(run.data)[at : at + header.size]:
                sizes.append(UNCHANGED)
            else:
                sizes.append(len(batch))
                parts.append(batch)
        sizes.extend(left.dropped_markers)
        return Answer(
            DONE, left.removed_records, len(left.dropped_markers), [sizes.tobytes(), *parts]
        )


def _outcome(steps: Steps[_T]) -> _T:
    while True:
        try:
            next(steps)
        except StopIteration as done:
            return cast("_T", done.value)
