"""A bounded cache of object ranges with read-ahead.

Invariants: runs in the event loop's thread. A caller that waits for a range may be cancelled; the
request continues and serves later callers. Only verified bytes enter the cache. A request waits for
those of its kind alone, and asks this cache for nothing: tables that stall hold up no object.

Bytes are cached in *runs* of whole blocks. A miss directly after another run counts as sequential
reading: the next run is twice as long, and from then on the following range is requested when a
reader first touches a run. A random read fetches one block.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, NamedTuple, Protocol

from headrace.errors import HeadraceError
from headrace.runtime.tasks import Tasks

if TYPE_CHECKING:
    from headrace.storage.ledger import Buffer

RUN_BYTES_MAX = 2 << 20
"""Half of AHEAD_BYTES, so that two requests overlap. Blocks of 4 MiB return to the system whenever
they are freed, and touching new ones is costly: 90,000 page faults per GB, 40,000 with 2 MiB."""
AHEAD_BYTES = 4 << 20
"""In flight or cached ahead of a sequential reader: with 40 ms per request, 100 MB/s."""
REQUESTS_MAX = 16
"""Concurrent requests, so at most 32 MiB in flight; read-ahead pauses when half are in use."""
TABLE_REQUESTS_MAX = 8
"""The same of ledgers whose records are in tables, which fewer threads rebuild: 16 MiB more."""


class RangeSource(Protocol):
    """A ledger in object storage."""

    @property
    def ledger(self) -> int:
        """The ledger's id."""
        ...

    @property
    def size(self) -> int:
        """The ledger's size in bytes."""
        ...

    @property
    def block_bytes(self) -> int:
        """The size of all blocks but the last."""
        ...

    @property
    def is_rebuilt(self) -> bool:
        """Whether its bytes are rebuilt from a table."""
        ...

    async def read_blocks(self, first: int, count: int) -> memoryview:
        """Whole blocks, verified. Raises StorageUnavailable, DataCorrupt."""
        ...


class _BlockRun:
    """Contiguous blocks in memory."""

    __slots__ = ("data", "end", "first", "is_touched", "position", "source")

    def __init__(self, source: RangeSource, first: int, count: int, data: memoryview) -> None:
        self.source = source
        self.first = first
        self.end = first + count
        self.position = first * source.block_bytes
        self.data = data
        self.is_touched = False


class _Slots:
    """What sources of one kind may request at the same time."""

    __slots__ = ("count", "free", "taken")

    def __init__(self, count: int) -> None:
        self.count = count
        self.free = asyncio.Semaphore(count)  # noqa: TID251  # of tasks
        self.taken = 0
        """Requests, with those that wait."""


class BlockId(NamedTuple):
    """One block of one ledger."""

    ledger: int
    block: int


class ReadAhead:
    """The cached runs of all ledgers read from objects."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._bytes = 0
        self._runs: dict[_BlockRun, None] = {}
        """Least recently used first."""
        self._by_block: dict[BlockId, _BlockRun] = {}
        self._coming: dict[BlockId, asyncio.Task[_BlockRun | HeadraceError]] = {}
        self._slots = {False: _Slots(REQUESTS_MAX), True: _Slots(TABLE_REQUESTS_MAX)}
        """By `is_rebuilt`."""
        self._tasks = Tasks()

    async def close(self) -> None:
        """Cancel requests in flight."""
        await self._tasks.close()

    @property
    def size_bytes(self) -> int:
        """The size of the cached runs."""
        return self._bytes

    def is_at(self, source: RangeSource, position: int) -> bool:
        """Whether the block at `position` is cached or in flight."""
        place = BlockId(source.ledger, position // source.block_bytes)
        return place in self._by_block or place in self._coming

    def cached(self, source: RangeSource, position: int, size: int) -> Buffer | None:
        """The range, truncated at the ledger's end, if it is fully cached."""
        end = min(position + size, source.size)
        if end <= position:
            return b""
        runs: list[_BlockRun] = []
        block = position // source.block_bytes
        while not runs or runs[-1].position + len(runs[-1].data) < end:
            run = self._by_block.get(BlockId(source.ledger, block))
            if run is None:
                return None
            runs.append(run)
            block = run.end
        for run in runs:
            self._touch(run)
        return _joined(runs, position, end)

    async def read(self, source: RangeSource, position: int, size: int) -> Buffer:
        """The range, truncated at the ledger's end. Raises StorageUnavailable, DataCorrupt."""
        end = min(position + size, source.size)
        if end <= position:
            return b""
        last = (end - 1) // source.block_bytes
        found: list[_BlockRun | asyncio.Task[_BlockRun | HeadraceError]] = []
        block = position // source.block_bytes
        while block <= last:
            place = BlockId(source.ledger, block)
            run = self._by_block.get(place)
            if run is not None:
                found.append(run)
                block = run.end
                continue
            task = self._coming.get(place) or self._ask(source, block, last + 1)
            found.append(task)
            while self._coming.get(BlockId(source.ledger, block)) is task:
                block += 1
        runs = [run if isinstance(run, _BlockRun) else await _come(run) for run in found]
        for run in runs:
            self._touch(run)
        return _joined(runs, position, end)

    def forget(self, ledger: int) -> None:
        """The ledger was deleted, or has another source: release its memory, and let no new reader
        wait for what the former source has not answered yet."""
        for run in [run for run in self._runs if run.source.ledger == ledger]:
            self._drop(run)
        for place in [place for place in self._coming if place.ledger == ledger]:
            del self._coming[place]

    # --- internal ----------------------------------------------------------------------------

    def _ask(
        self, source: RangeSource, first: int, wanted_end: int
    ) -> asyncio.Task[_BlockRun | HeadraceError]:
        """Request the blocks from `first` on, as many as the reader and its history call for."""
        before = self._by_block.get(BlockId(source.ledger, first - 1))
        length = 1 if before is None else 2 * (before.end - before.first)
        if BlockId(source.ledger, first - 1) in self._coming:
            length = RUN_BYTES_MAX // source.block_bytes
        length = min(max(length, wanted_end - first), max(RUN_BYTES_MAX // source.block_bytes, 1))
        end = min(first + length, -(-source.size // source.block_bytes))
        for block in range(first + 1, end):
            place = BlockId(source.ledger, block)
            if place in self._by_block or place in self._coming:
                end = block
                break
        places = [BlockId(source.ledger, block) for block in range(first, end)]
        slots = self._slots[source.is_rebuilt]
        slots.taken += 1

        async def fetch() -> _BlockRun | HeadraceError:
            try:
                async with slots.free:
                    data = await source.read_blocks(first, end - first)
                run = _BlockRun(source, first, end - first, data)
                self._keep(run)
                return run
            except HeadraceError as error:
                return error  # for waiting callers; with read-ahead there may be none
            finally:
                slots.taken -= 1
                for place in places:
                    if self._coming.get(place) is task:
                        del self._coming[place]

        task = self._tasks.start(fetch(), f"cold read of ledger {source.ledger}")
        for place in places:
            self._coming[place] = task
        return task

    def _touch(self, run: _BlockRun) -> None:
        """Mark a run as most recently used, and read ahead of a sequential reader."""
        if run in self._runs:
            del self._runs[run]
            self._runs[run] = None
        if run.is_touched:
            return
        run.is_touched = True
        source = run.source
        if run.end - run.first > 1 or BlockId(source.ledger, run.first - 1) in self._by_block:
            self._ask_ahead(source, run.end)

    def _ask_ahead(self, source: RangeSource, block: int) -> None:
        """Request what a sequential reader needs next and was not requested yet."""
        end = min(block + AHEAD_BYTES // source.block_bytes, -(-source.size // source.block_bytes))
        slots = self._slots[source.is_rebuilt]
        while block < end and slots.taken < slots.count // 2:
            place = BlockId(source.ledger, block)
            run = self._by_block.get(place)
            if run is not None:
                block = run.end
            elif place in self._coming:
                block += 1
            else:
                _ = self._ask(source, block, block + 1)

    def _keep(self, run: _BlockRun) -> None:
        self._runs[run] = None
        self._bytes += len(run.data)
        for block in range(run.first, run.end):
            self._by_block[BlockId(run.source.ledger, block)] = run
        while self._bytes > self._bytes_max and len(self._runs) > 1:
            self._drop(next(iter(self._runs)))

    def _drop(self, run: _BlockRun) -> None:
        if run not in self._runs:
            return
        del self._runs[run]
        self._bytes -= len(run.data)
        for block in range(run.first, run.end):
            if self._by_block.get(BlockId(run.source.ledger, block)) is run:
                del self._by_block[BlockId(run.source.ledger, block)]


async def _come(task: asyncio.Task[_BlockRun | HeadraceError]) -> _BlockRun:
    await asyncio.wait([task])  # cancelling this caller must not cancel the shared task
    found = task.result()
    if isinstance(found, _BlockRun):
        return found
    raise type(found)(str(found), **found.fields)


def _joined(runs: list[_BlockRun], position: int, end: int) -> Buffer:
    """The bytes from `position` to `end`: a view of one run, or a copy from several."""
    parts = [run.data[max(position - run.position, 0) : max(end - run.position, 0)] for run in runs]
    return parts[0] if len(parts) == 1 else b"".join(parts)
