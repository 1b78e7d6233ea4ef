"""Writes the recipe of a ledger that has an object.

Invariants: streams; memory is a few batches, and the offsets of the table's files. Reads the
object's blocks, which are verified, and never deletes anything.
"""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import TYPE_CHECKING, Final

from headrace.errors import DataCorrupt
from headrace.records.batch import iterate_headers
from headrace.storage.tiering.recipe import STORED_SHARE_MAX, RecipePlan, sources_of
from headrace.storage.tiering.recipe_format import Recipe, encode_recipe

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence

    from headrace.storage.tiering.blob_store import BlobStore
    from headrace.storage.tiering.recipe_format import TableFile
    from headrace.storage.tiering.remote_ledger import RemoteLedger
    from headrace.storage.tiering.table_rows import TableRows

PIECE_BLOCKS = 8


RUN_BYTES_MIN: Final = 32 << 10
"""A ledger may have a run for so many of its bytes, and `RUNS_MORE` in all: each is a request, and
some 200 bytes of memory while the recipe is open."""
RUNS_MORE: Final = 256


class _Unprofitable(Exception):
    """The recipe would store most of the ledger, or be read in too many pieces; with the reason."""


async def write_recipe(
    source: RemoteLedger,
    blobs: BlobStore,
    name: str,
    files: Sequence[TableFile],
    rows: TableRows,
) -> str | None:
    """Write the recipe, or return why it would not be worthwhile, and nothing was written then.

    Raises StorageUnavailable, DataCorrupt.
    """
    await source.open()
    plan = RecipePlan(await asyncio.to_thread(sources_of, files, rows), rows)

    async def parts() -> AsyncGenerator[bytes]:
        async with aclosing(_stored(source, plan)) as stored:
            async for part in stored:
                if plan.stored_size > STORED_SHARE_MAX * source.size:
                    raise _Unprofitable(plan.why_kept())
                if len(plan.runs) > source.size // RUN_BYTES_MIN + RUNS_MORE:
                    raise _Unprofitable("it has a marker, or another batch to keep, every few KiB")
                yield part
        footer = await source.read_footer() or b""
        runs = tuple(plan.runs)
        yield encode_recipe(Recipe(source.layout, source.crcs, footer, tuple(files), runs))

    try:
        async with aclosing(parts()) as stream:
            await blobs.put(name, stream)
    except _Unprofitable as error:
        return str(error)
    return None


async def _stored(source: RemoteLedger, plan: RecipePlan) -> AsyncGenerator[bytes]:
    """What the recipe stores for each piece of the ledger."""
    rest = b""
    for first in range(0, source.layout.block_count, PIECE_BLOCKS):
        count = min(PIECE_BLOCKS, source.layout.block_count - first)
        data = rest + bytes(await source.read_blocks(first, count))
        stored, rest = await asyncio.to_thread(_add_batches, plan, data)
        yield stored
    if rest:
        raise DataCorrupt(
            f"ledger {source.ledger} ends with {len(rest)} bytes that are no batch: it keeps its"
            " object; check it with `headrace check`",
            ledger=source.ledger,
        )


def _add_batches(plan: RecipePlan, data: bytes) -> tuple[bytes, bytes]:
    """Add the whole batches in `data`; returns what to store for them, and the rest."""
    stored, end = [], 0
    view = memoryview(data)
    for at, header in iterate_headers(data):
        end = at + header.size
        stored.append(plan.add(view[at:end], header))
    return b"".join(stored), data[end:]
