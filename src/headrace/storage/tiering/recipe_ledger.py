"""One ledger read by its recipe: the tier's second form, without a copy of its records.

Invariants: rebuilt blocks are verified by the checksums of the ledger's object, so a reader gets
the bytes that were appended, or an error. Records are read from the table in a thread.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

from headrace.errors import DataCorrupt, StorageUnavailable
from headrace.runtime.fair_locks import FairLock
from headrace.storage.tiering.object_format import first_bad_block
from headrace.storage.tiering.recipe import rebuild_run
from headrace.storage.tiering.recipe_format import (
    END_SIZE,
    KEPT,
    Recipe,
    Run,
    corrupt,
    decode_recipe,
    rest_size,
)
from headrace.storage.tiering.remote_ledger import ATTEMPTS
from headrace.storage.tiering.table_rows import TableRows

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from headrace.storage.ledger import LedgerId
    from headrace.storage.tiering.ledger_blob import LedgerBlob
    from headrace.storage.tiering.recipe_format import TableFile

T = TypeVar("T")

READERS_MAX: Final = 6
"""Threads that rebuild ledgers at the same time, for all ledgers together. Most wait for files in
S3: `DECODERS_MAX` of them decode."""
REBUILT_BYTES_MAX: Final = 8 << 20
PIECE_BLOCKS: Final = 8


class RebuiltRuns:
    """Rebuilds runs, and keeps those of the last requests: the next one begins in such a run.

    For all ledgers together. `rows` are the tables' files. Its threads are its own: those of the
    event loop, which wait for disks, would all wait for S3 if that stalls.
    """

    def __init__(self, bytes_max: int = REBUILT_BYTES_MAX) -> None:
        self.rows = TableRows()
        self._bytes_max = bytes_max
        self._threads = ThreadPoolExecutor(READERS_MAX, "table-reader")
        self._kept: dict[tuple[LedgerId, Run], bytes] = {}
        """Oldest first: a run that was read to its end is not asked for again."""
        self.size_bytes = 0

    def find(self, ledger: LedgerId, run: Run) -> bytes | None:
        """The bytes of a run, if they are kept."""
        return self._kept.get((ledger, run))

    async def rebuild(
        self, ledger: LedgerId, recipe: Recipe, runs: Sequence[Run], stored: memoryview
    ) -> list[bytes]:
        """The bytes of consecutive runs, from what the recipe has stored for them.

        Raises StorageUnavailable, DataCorrupt; the caller verifies the bytes.
        """
        start = runs[0].stored_at

        def rebuilt() -> list[bytes]:
            return [
                rebuild_run(
                    run,
                    bytes(stored[run.stored_at - start :][: run.stored_size]),
                    recipe.files,
                    self.rows,
                )
                for run in runs
            ]

        if all(run.file == KEPT for run in runs):
            return rebuilt()
        found = await self.in_thread(rebuilt)
        if runs[-1].file != KEPT:
            self._keep(ledger, runs[-1], found[-1])
        return found

    def _keep(self, ledger: LedgerId, run: Run, data: bytes) -> None:
        self.size_bytes += len(data) - len(self._kept.pop((ledger, run), b""))
        self._kept[ledger, run] = data
        while self.size_bytes > self._bytes_max and len(self._kept) > 1:
            self.size_bytes -= len(self._kept.pop(next(iter(self._kept))))

    async def forget(self, ledger: LedgerId, recipe: Recipe) -> None:
        """Bytes of a ledger were wrong: read its files anew, which may be restored."""
        for key in [key for key in self._kept if key[0] == ledger]:
            self.size_bytes -= len(self._kept.pop(key))
        await self.in_thread(self.rows.forget, recipe.files)

    async def in_thread(self, function: Callable[..., T], *arguments: Any) -> T:
        """Call what may wait for a table's file."""
        return await asyncio.get_running_loop().run_in_executor(
            self._threads, partial(function, *arguments)
        )

    def close(self) -> None:
        """Close all files; a thread that waits for one ends by itself."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        self.rows.close()


class RecipeLedger:
    """See RangeSource."""

    __slots__ = ("_blob", "_block_bytes", "_recipe", "_runs", "_turn", "ledger", "size")

    place = None
    """Its records are in no file of its own."""
    is_rebuilt = True
    """See RangeSource."""

    def __init__(self, blob: LedgerBlob, size: int, runs: RebuiltRuns) -> None:
        self.ledger = blob.ledger
        self.size = size
        self._blob = blob
        self._runs = runs
        self._recipe: Recipe | None = None
        self._block_bytes = 0
        self._turn = FairLock()
        """Requests that overlap would otherwise alternate between two places of a file, and each
        would decode its rows from the start again."""

    @property
    def is_open(self) -> bool:
        """Whether its recipe was read."""
        return self._recipe is not None

    @property
    def block_bytes(self) -> int:
        """See RangeSource; the ledger was opened."""
        return self._block_bytes

    async def open(self) -> None:
        """Read the recipe. Raises StorageUnavailable, DataCorrupt, FormatUnsupported."""
        try:
            self._recipe = recipe = await self._read_recipe()
            self._block_bytes = recipe.layout.block_bytes
        except DataCorrupt as error:
            raise self._blob.counted(error) from None

    async def _read_recipe(self) -> Recipe:
        size = await self._blob.size()
        if size < END_SIZE:
            raise corrupt(self.ledger, "it is truncated")
        end = await self._blob.get(size - END_SIZE, END_SIZE)
        left = rest_size(end, size, self.ledger)
        rest = await self._blob.get(size - END_SIZE - left, left)
        recipe = await asyncio.to_thread(decode_recipe, rest, end, self.ledger)
        if recipe.layout.size != self.size:
            raise corrupt(self.ledger, f"it describes {recipe.layout.size} of {self.size} bytes")
        return recipe

    async def rebuild_all(self) -> None:
        """Rebuild and verify all of the ledger. Raises like `open`."""
        await self.open()
        assert self._recipe is not None
        end = self._recipe.layout.block_count
        for first in range(0, end, PIECE_BLOCKS):
            await self.read_blocks(first, min(PIECE_BLOCKS, end - first))

    async def check_files(self) -> Sequence[str]:
        """Look for the files that its records are in, without reading them; returns their paths.
        Raises like `open`."""
        files = await self.files()
        for file in files:
            await self._runs.in_thread(self._runs.rows.sources.check_presence, file)
        return [file.path for file in files]

    async def files(self) -> Sequence[TableFile]:
        """The table's files that its records are in. Raises like `open`."""
        await self.open()
        recipe = self._recipe
        assert recipe is not None
        return [recipe.files[at] for at in sorted({run.file for run in recipe.runs} - {KEPT})]

    def shut(self) -> None:
        """Release the memory."""
        self._recipe = None

    async def read_blocks(self, first: int, count: int) -> memoryview:
        """See RangeSource."""
        if self._recipe is None:
            await self.open()
        recipe = self._recipe
        assert recipe is not None
        step = recipe.layout.block_bytes
        start = first * step
        size = min(count * step, self.size - start)
        bad = -1
        for _ in range(ATTEMPTS):
            async with self._turn:
                data = await self._rebuilt(recipe, start, start + size)
            self._blob.counters.cold_bytes += size
            bad = first_bad_block(self.ledger, first, step, data, recipe.crcs)
            if bad < 0:
                return data
            await self._runs.forget(self.ledger, recipe)
        raise self._blob.counted(self.corrupt(bad * step, "checksum mismatch in a block"))

    async def _rebuilt(self, recipe: Recipe, start: int, end: int) -> memoryview:
        """The bytes of the ledger from `start` to before `end`, not verified."""
        runs = recipe.runs_of(start, end)
        skip = start - runs[0].position
        kept = self._runs.find(self.ledger, runs[0])
        parts = [] if kept is None else [kept]
        wanted = runs if kept is None else runs[1:]
        try:
            if wanted:
                at, last = wanted[0].stored_at, wanted[-1]
                stored = await self._blob.get(at, last.stored_at + last.stored_size - at)
                parts += await self._of_runs(recipe, wanted, stored)
        except DataCorrupt as error:
            await self._runs.forget(self.ledger, recipe)
            raise self._blob.counted(error) from None
        return memoryview(b"".join(parts))[skip : skip + end - start]

    async def _of_runs(
        self, recipe: Recipe, runs: Sequence[Run], stored: memoryview
    ) -> list[bytes]:
        try:
            return await self._runs.rebuild(self.ledger, recipe, runs, stored)
        except StorageUnavailable:
            self._blob.counters.failures += 1
            raise

    async def read_footer(self) -> bytes | None:
        """The footer passed to `seal`; the ledger is open."""
        assert self._recipe is not None
        return self._recipe.footer if self._recipe.layout.has_footer else None

    def corrupt(self, position: int, problem: str) -> DataCorrupt:
        """The error for corruption at `position` of the ledger."""
        besides = ", and the files of the table that it names,"
        return self._blob.corrupt(position, problem, besides)
