"""The workers of a compaction round: the broker's event loop, or a separate process.

Invariants: a worker only executes `rounds`, and accesses no ledger; the cleaner reads for it,
writes what it returns, and verifies both. The loop's worker pauses after each STEP_RECORDS. The
process uses another core, a lower priority and its own memory for the key map, so a round hardly
affects clients; it starts and ends with the round, or ends with the broker, which closes its input.

Messages on its pipes are a head (operation, two numbers, size of the body) and a body. Each request
is answered in order.

If the store has a file for a sealed ledger, the process reads and verifies it itself, so that the
broker copies only retained batches. These are returned in a shared in-memory file: answers of the
second pass alternate between its halves, so one is written while the other is read.
"""

from __future__ import annotations

import asyncio
import json
import sys
from array import array
from struct import Struct
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, TypeVar, cast

from headrace.errors import (
    BatchCorrupt,
    CompactionInterrupted,
    DataCorrupt,
    LedgerUnknown,
    StorageUnavailable,
)
from headrace.log.compaction.rounds import (
    AbortedRanges,
    Compaction,
    KeyMap,
    Left,
    map_run,
    rewrite_run,
)
from headrace.log.sealed_runs import encode_segment
from headrace.runtime.memory_file import close_memory_file, memory_file, read_exactly

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from headrace.log.compaction.rounds import BatchRun, Steps
    from headrace.log.segment import Segment
    from headrace.records.batch import Buffer

_T = TypeVar("_T")


class Job(NamedTuple):
    """The parameters of a round."""

    aborted: list[tuple[int, int, int]]
    """(producer id, first offset, offset of the marker) of aborted transactions."""
    keys_max: int
    now_ms: int
    delete_retention_ms: int


class CompactionWorker(Protocol):
    """Two passes over a partition, run by run. A failed call ends the round."""

    async def map(self, run: BatchRun, from_offset: int) -> bool:
        """Add the next batches of the dirty range, except those that end before `from_offset`;
        returns whether the map is full, so that the rest has to wait. Raises BatchCorrupt."""
        ...

    async def end_map(self, end_offset: int | None) -> tuple[int, int]:
        """Complete the map, up to `end_offset` (None: up to where it became full). Returns the end
        of the map, and its number of keys."""
        ...

    async def rewrite(self, run: BatchRun, base_offset: int, end_offset: int) -> Left:
        """The retained form of the next batches, for a new ledger with this offset range.
        Raises BatchCorrupt."""
        ...

    async def close(self) -> None:
        """End the worker; to be called once."""
        ...


class RoundState:
    """The state of a round, for both workers."""

    def __init__(self, job: Job) -> None:
        self.aborted = AbortedRanges(job.aborted)
        self.keys = KeyMap(self.aborted, job.keys_max)
        self.compaction = Compaction(self.keys, self.aborted, job.now_ms, job.delete_retention_ms)

    def end_map(self, end_offset: int | None) -> tuple[int, int]:
        if end_offset is not None:
            self.keys.end_offset = end_offset
        self.keys.mark()
        return self.keys.end_offset, len(self.keys)


class LoopWorker:
    """A worker in the broker's event loop, for small rounds."""

    def __init__(self, job: Job, pause: Callable[[], Awaitable[None]]) -> None:
        """`pause` yields to other work; it is called after each STEP_RECORDS."""
        self._round = RoundState(job)
        self._pause = pause

    async def map(self, run: BatchRun, from_offset: int) -> bool:
        """See CompactionWorker."""
        return await self._in_steps(map_run(self._round.keys, run, from_offset))

    async def end_map(self, end_offset: int | None) -> tuple[int, int]:
        """See CompactionWorker."""
        return self._round.end_map(end_offset)

    async def rewrite(self, run: BatchRun, base_offset: int, end_offset: int) -> Left:
        """See CompactionWorker."""
        return await self._in_steps(
            rewrite_run(self._round.compaction, run, base_offset, end_offset)
        )

    async def close(self) -> None:
        """See CompactionWorker."""

    async def _in_steps(self, steps: Steps[_T]) -> _T:
        while True:
            try:
                next(steps)
            except StopIteration as done:
                return cast("_T", done.value)
            await self._pause()


# --- the process ---------------------------------------------------------------------------------

HEAD: Final = Struct(">BqqQ")
JOB, MAP, END_MAP, REWRITE, OPEN, MAP_FILE, REWRITE_FILE = range(7)
DONE, CORRUPT, DAMAGED, MISSING, UNREADABLE = range(5)
DROPPED, UNCHANGED = -1, -2
"""Instead of a batch's new size."""
NOTHING: Final = -1
BODY_BYTES_MAX: Final = 1 << 30
_END_S: Final = 5.0
_UNDER_WAY: Final = 2


class MapProgress(NamedTuple):
    """A piece of a ledger's file that was added to the map."""

    read_bytes: int
    is_full: bool = False
    """Whether the map is full, so that the rest has to wait for the next round."""


class Rewritten(NamedTuple):
    """The retained form of a piece of a ledger's file."""

    read_bytes: int
    removed_records: int
    dropped_markers: list[int]
    is_changed: bool
    batches: bytes


class ProcessWorker:
    """A worker in a separate process."""

    def __init__(self, process: asyncio.subprocess.Process, left: int) -> None:
        """`left`: descriptor of the in-memory file for retained batches."""
        self._process = process
        assert process.stdin is not None
        assert process.stdout is not None
        self._in, self._out = process.stdin, process.stdout
        self._left = left
        self._is_mapping = False
        self._under_way = 0

    @classmethod
    async def start(cls, job: Job) -> ProcessWorker:
        """Start the process for one round. Raises CompactionInterrupted."""
        left = memory_file()
        try:
            process = await asyncio.create_subprocess_exec(  # noqa: TID251 - a constant command
                *(sys.executable, "-m", "headrace.log.compaction.worker_process"),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                limit=1 << 20,
                pass_fds=(left,) if left >= 0 else (),
            )
        except OSError as error:
            close_memory_file(left)
            raise CompactionInterrupted(f"cannot start the compaction process: {error}") from error
        worker = cls(process, left)
        try:
            await worker.begin(job)
        except BaseException:
            await worker.close()
            raise
        return worker

    @property
    def reads_files(self) -> bool:
        """Whether `map_file` and `rewrite_file` work on this system."""
        return self._left >= 0

    async def begin(self, job: Job) -> None:
        """Send the parameters of the round. Raises CompactionInterrupted."""
        await self._ask(JOB, 0, 0, json.dumps(job).encode())

    async def map(self, run: BatchRun, from_offset: int) -> bool:
        """See CompactionWorker."""
        is_full = await self._mapped()
        await self.send(MAP, from_offset, 0, run.whole())
        self._is_mapping = True  # the answer is awaited later, while the cleaner reads on
        return is_full

    async def _mapped(self) -> bool:
        """Whether the previous run filled the map; then no later one is added."""
        if not self._is_mapping:
            return False
        self._is_mapping = False
        is_full, _, _ = await self._answer()
        return bool(is_full)

    async def end_map(self, end_offset: int | None) -> tuple[int, int]:
        """See CompactionWorker."""
        if await self._mapped():
            end_offset = None
        end, count, _ = await self._ask(END_MAP, NOTHING if end_offset is None else end_offset, 0)
        return end, count

    async def rewrite(self, run: BatchRun, base_offset: int, end_offset: int) -> Left:
        """See CompactionWorker."""
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

    async def map_file(
        self, segment: Segment, path: str, from_offset: int
    ) -> AsyncIterator[MapProgress]:
        """Like `map`, for a whole sealed ledger, which the process reads from its file piece by
        piece. Raises BatchCorrupt, DataCorrupt, LedgerUnknown if there is no file,
        StorageUnavailable."""
        await self._open(segment, path)
        async for is_full, size, _ in self._pieces(segment, MAP_FILE, from_offset, 0):
            yield MapProgress(size, bool(is_full))

    async def rewrite_file(
        self, segment: Segment, path: str, base_offset: int, end_offset: int
    ) -> AsyncIterator[Rewritten]:
        """Like `rewrite`, from the file. Each piece is verified against what it replaces."""
        await self._open(segment, path)
        async for removed, size, body in self._pieces(
            segment, REWRITE_FILE, base_offset, end_offset
        ):
            numbers = array("q")
            numbers.frombytes(body)
            at, left_size, is_changed, *markers = numbers
            left = read_exactly(self._left, left_size, at)
            yield Rewritten(size, removed, markers, bool(is_changed), left)

    async def _open(self, segment: Segment, path: str) -> None:
        await self._mapped()
        while self._under_way:  # a reader stopped before the end
            self._under_way -= 1
            await self.receive()
        body = encode_segment(segment, path)
        _result(await self._exchange(OPEN, self._left, 0, body), segment)

    async def _pieces(
        self, segment: Segment, operation: int, first: int, second: int
    ) -> AsyncIterator[tuple[int, int, bytes]]:
        """Answers to repeated requests, up to the end of the file; the process works on the next
        one while the caller uses the previous one."""
        is_at_end = False
        while not is_at_end or self._under_way:
            while not is_at_end and self._under_way < _UNDER_WAY:
                await self.send(operation, first, second, b"")
                self._under_way += 1
            answer = await self.receive()
            self._under_way -= 1
            piece = _result(answer, segment)
            if piece[1]:
                yield piece
            else:
                is_at_end = True

    async def close(self) -> None:
        """See CompactionWorker."""
        close_memory_file(self._left)
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
        while self._under_way:  # a reader of a file stopped before its end
            self._under_way -= 1
            await self.receive()
        status, first, second, answer = await self.receive()
        if status == CORRUPT:
            raise BatchCorrupt(answer.decode())
        return first, second, memoryview(answer)

    async def _exchange(
        self, operation: int, first: int, second: int, body: bytes
    ) -> tuple[int, int, int, bytes]:
        await self.send(operation, first, second, body)
        return await self.receive()

    async def send(self, operation: int, first: int, second: int, body: Buffer) -> None:
        """Send a request. Raises CompactionInterrupted."""
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
            "its process ended during the round; no record is lost, and the round is retried"
        )


def _result(answer: tuple[int, int, int, bytes], segment: Segment) -> tuple[int, int, bytes]:
    """The contents of an answer about a ledger's file. Raises the error that it reports."""
    status, first, second, body = answer
    if status == DONE:
        return first, second, body
    text = body.decode()
    if status == CORRUPT:
        raise BatchCorrupt(text)
    if status == DAMAGED:
        raise DataCorrupt(text, ledger=segment.ledger)
    if status == MISSING:
        raise LedgerUnknown(
            f"ledger {segment.ledger} has no file: it was deleted", ledger=segment.ledger
        )
    raise StorageUnavailable(
        f"compaction cannot use the file of ledger {segment.ledger} ({text}): repair the disk or"
        " free memory; the round is retried",
        ledger=segment.ledger,
        cause=text,
    )
