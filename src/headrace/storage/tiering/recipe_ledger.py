"""One ledger read by its recipe: the tier's second form, without a copy of its records.

Invariants: rebuilt blocks are verified by the checksums of the ledger's object, so a reader gets
the bytes that were appended, or an error. Records are read from the table in a thread.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from headrace.errors import DataCorrupt, StorageUnavailable
from headrace.storage.tiering.object_format import block_crc
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
from headrace.storage.tiering.table_rows import check_presence

if TYPE_CHECKING:
    from headrace.storage.ledger import LedgerId
    from headrace.storage.tiering.blob_store import BlobStore
    from headrace.storage.tiering.table_rows import TableRows
    from headrace.storage.tiering.tier import TierCounters

log = logging.getLogger(__name__)


class RecipeLedger:
    """See RangeSource."""

    __slots__ = (
        "_blobs", "_counters", "_is_reported", "_last", "_name", "_recipe", "_rows", "_turn",
        "ledger", "size",
    )  # fmt: skip

    place = None
    """Its records are in no file of its own."""

    def __init__(
        self,
        ledger: LedgerId,
        size: int,
        blobs: BlobStore,
        name: str,
        rows: TableRows,
        counters: TierCounters,
    ) -> None:
        self.ledger = ledger
        self.size = size
        self._blobs = blobs
        self._name = name
        self._rows = rows
        self._counters = counters
        self._recipe: Recipe | None = None
        self._is_reported = False
        self._turn = asyncio.Lock()
        """Requests that overlap would otherwise alternate between two places of a file, and each
        would decode its rows from the start again."""
        self._last: tuple[Run, bytes] | None = None
        """The run rebuilt last: the next request begins in it."""

    @property
    def is_open(self) -> bool:
        """Whether its recipe was read."""
        return self._recipe is not None

    @property
    def block_bytes(self) -> int:
        """See RangeSource; the ledger is open."""
        assert self._recipe is not None
        return self._recipe.layout.block_bytes

    async def open(self) -> None:
        """Read the recipe. Raises StorageUnavailable, DataCorrupt, FormatUnsupported."""
        try:
            self._recipe = await self._read_recipe()
        except DataCorrupt as error:
            raise self._counted(error) from None

    async def _read_recipe(self) -> Recipe:
        size = await self._blobs.size(self._name)
        if size < END_SIZE:
            raise corrupt(self.ledger, "it is truncated")
        end = await self._get(size - END_SIZE, END_SIZE)
        rest = rest_size(end, size, self.ledger)
        recipe = decode_recipe(await self._get(size - END_SIZE - rest, rest), end, self.ledger)
        if recipe.layout.size != self.size:
            raise corrupt(self.ledger, f"it describes {recipe.layout.size} of {self.size} bytes")
        return recipe

    async def rebuild_all(self) -> None:
        """Rebuild and verify all of the ledger. Raises like `open`."""
        await self.open()
        assert self._recipe is not None
        for number in range(self._recipe.layout.block_count):
            await self.read_blocks(number, 1)

    async def check_files(self) -> None:
        """Look for the files that its records are in, without reading them. Raises like `open`."""
        await self.open()
        assert self._recipe is not None
        for number in sorted({run.file for run in self._recipe.runs} - {KEPT}):
            await asyncio.to_thread(check_presence, self._recipe.files[number])

    def shut(self) -> None:
        """Release the memory."""
        self._recipe = self._last = None

    async def read_blocks(self, first: int, count: int) -> memoryview:
        """See RangeSource."""
        if self._recipe is None:
            await self.open()
        recipe = self._recipe
        assert recipe is not None
        step = recipe.layout.block_bytes
        start = first * step
        end = min(start + count * step, self.size)
        runs = recipe.runs_of(start, end)
        async with self._turn:
            parts = [await self._rebuilt(recipe, run) for run in runs]
        skip = start - runs[0].position
        data = memoryview(b"".join(parts))[skip : skip + end - start]
        for at in range(-(-len(data) // step)):
            number = first + at
            if (
                block_crc(self.ledger, number, data[at * step : (at + 1) * step])
                != (recipe.crcs[number])
            ):
                raise self._counted(self.corrupt(number * step, "checksum mismatch in a block"))
        return data

    async def _rebuilt(self, recipe: Recipe, run: Run) -> bytes:
        if self._last is not None and self._last[0] == run:
            return self._last[1]
        stored = bytes(await self._get(run.stored_at, run.stored_size))
        if run.file == KEPT:
            return stored
        self._counters.cold_reads += 1
        try:
            async with self._rows.turns:
                made = asyncio.to_thread(rebuild_run, run, stored, recipe.files, self._rows)
                rebuilt = await made
            self._last = run, rebuilt
            return rebuilt
        except DataCorrupt as error:
            raise self._counted(error) from None
        except StorageUnavailable:
            self._counters.failures += 1
            raise

    async def read_footer(self) -> bytes | None:
        """The footer passed to `seal`; the ledger is open."""
        assert self._recipe is not None
        return self._recipe.footer if self._recipe.layout.has_footer else None

    def corrupt(self, position: int, problem: str) -> DataCorrupt:
        """The error for corruption at `position` of the ledger."""
        return DataCorrupt(
            f"ledger {self.ledger} is corrupt at byte {position} ({problem}): its records there are"
            f" not served; restore {self._name} in {self._blobs.shown}, and the files of the table"
            " that it names, from older versions",
            ledger=self.ledger,
            position=position,
        )

    def _counted(self, damage: DataCorrupt) -> DataCorrupt:
        """The same error, counted, and logged if it is the first one of this ledger."""
        self._counters.corrupt_blocks += 1
        if not self._is_reported:
            self._is_reported = True
            log.error("%s: %s", self._name, damage)
        return damage

    async def _get(self, start: int, size: int) -> memoryview:
        self._counters.cold_reads += 1
        self._counters.cold_bytes += size
        try:
            return await self._blobs.get(self._name, start, size)
        except StorageUnavailable:
            self._counters.failures += 1
            raise
