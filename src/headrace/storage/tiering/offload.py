"""Writes a ledger's object, and reads it back before it is relied on.

Invariants: streams; memory use is a few pieces, whatever the ledger's size. Checksums are computed
from the ledger store's bytes and compared with what object storage returns.
"""

from __future__ import annotations

import asyncio
from array import array
from contextlib import aclosing
from typing import TYPE_CHECKING, NamedTuple

from headrace.errors import DataCorrupt
from headrace.storage.tiering.object_format import (
    BLOCK_BYTES,
    HEADER_SIZE,
    Layout,
    block_crc,
    encode_header,
    encode_tail,
)

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from headrace.runtime.clock import Clock
    from headrace.storage.ledger import Buffer, LedgerInfo, LedgerStore
    from headrace.storage.tiering.blob_store import BlobStore

PIECE_BYTES = 4 << 20

assert PIECE_BYTES % BLOCK_BYTES == 0


class UploadRate:
    """Limits the upload rate of all offloads together, in bytes per second."""

    def __init__(self, clock: Clock, bytes_per_s: int | None) -> None:
        self._clock = clock
        self._bytes_per_s = bytes_per_s
        self._free_ns = 0
        """When the bytes granted so far will have been sent."""

    async def take(self, size: int) -> None:
        """Wait until `size` more bytes may be sent."""
        if self._bytes_per_s is None:
            return
        now_ns = self._clock.now_ns()
        begins_ns = max(self._free_ns, now_ns)
        self._free_ns = begins_ns + size * 1_000_000_000 // self._bytes_per_s
        await asyncio.sleep((begins_ns - now_ns) / 1e9)


class WrittenObject(NamedTuple):
    """The expected contents of an object when it is read back."""

    layout: Layout
    crcs: array[int]
    head: bytes
    rest: bytes
    """Footer, checksums, trailer."""


async def write_object(
    store: LedgerStore, info: LedgerInfo, blobs: BlobStore, name: str, pace: UploadRate
) -> WrittenObject:
    """Write the object of a sealed ledger. Raises StorageUnavailable, LedgerUnknown."""
    footer = info.footer or b""
    layout = Layout(info.ledger, info.end, len(footer), info.footer is not None)
    crcs = array("I")
    rest = b""

    async def parts() -> AsyncGenerator[Buffer]:
        nonlocal rest
        yield encode_header(layout)
        for position in range(0, info.end, PIECE_BYTES):
            want = min(PIECE_BYTES, info.end - position)
            await pace.take(want)
            data = memoryview(await store.read(info.ledger, position, want))
            if len(data) != want:
                raise DataCorrupt(
                    f"ledger {info.ledger} returned {len(data)} of {want} bytes at {position}: it"
                    " was not offloaded; restore it from a backup",
                    ledger=info.ledger,
                    position=position,
                )
            for at in range(0, want, BLOCK_BYTES):
                crcs.append(block_crc(info.ledger, len(crcs), data[at : at + BLOCK_BYTES]))
            yield data
        rest = footer + encode_tail(layout, crcs, footer)
        yield rest

    async with aclosing(parts()) as stream:
        size = await blobs.put(name, stream)
    assert size == layout.object_size, "the size follows from the layout"
    return WrittenObject(layout, crcs, encode_header(layout), rest)


async def read_back(blobs: BlobStore, name: str, written: WrittenObject) -> None:
    """Verify the object byte for byte. Raises StorageUnavailable, DataCorrupt."""
    layout = written.layout
    ledger = layout.ledger
    size = await blobs.size(name)
    is_same = (
        size == layout.object_size
        and await blobs.get(name, 0, HEADER_SIZE) == written.head
        and await blobs.get(name, layout.footer_at, len(written.rest)) == written.rest
    )
    number = 0
    while is_same and number < layout.block_count:
        start = number * BLOCK_BYTES
        data = await blobs.get(name, HEADER_SIZE + start, min(PIECE_BYTES, layout.size - start))
        for at in range(0, len(data), BLOCK_BYTES):
            is_same &= (
                block_crc(ledger, number, data[at : at + BLOCK_BYTES]) == written.crcs[number]
            )
            number += 1
    if not is_same:
        raise DataCorrupt(
            f"{blobs.shown}: {name} differs from what was written: ledger {ledger} was not"
            " offloaded; check whether another program writes there",
            ledger=ledger,
        )
