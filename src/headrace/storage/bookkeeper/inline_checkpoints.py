"""Finds the inline checkpoints of a ledger: the newest by a backward search, the others by links.

Invariants: knows entries and their format; `position_reader` reads them. The entries read on the
way, after the newest one, are what the caller reads next: they stay in memory.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.storage.bookkeeper.entries import (
    CHECKPOINT,
    checkpoint_links,
    read_checkpoint_data,
    read_head,
)
from headrace.storage.ledger import InlineCheckpoint

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headrace.storage.bookkeeper.open_ledger import OpenLedger
    from headrace.storage.bookkeeper.position_reader import PositionReader
    from headrace.storage.bookkeeper.wire import Entry

SEARCHED_BYTES_MAX = 48 << 20
"""If the last so many bytes contain no checkpoint, the ledger counts as having none."""
STEP_BYTES = 2 << 20


async def read_inline_checkpoints(
    opened: OpenLedger, positions: PositionReader
) -> Sequence[InlineCheckpoint]:
    """The checkpoints of a sealed ledger, oldest first. Raises as `PositionReader.entries`."""
    last = await _find_newest(opened, positions)
    found: list[InlineCheckpoint] = []
    while last is not None:
        first, previous = checkpoint_links(last.payload)
        payloads = [entry.payload for entry in await positions.entries(opened, first, last.entry)]
        found.append(
            InlineCheckpoint(read_head(last.payload).position, read_checkpoint_data(payloads))
        )
        last = None
        if previous >= 0:
            last = (await positions.entries(opened, previous, previous))[0]
    return found[::-1]


async def _find_newest(opened: OpenLedger, positions: PositionReader) -> Entry | None:
    """The last entry of the newest complete checkpoint."""
    end = opened.last_entry + 1
    step = max(1, STEP_BYTES * end // max(opened.end, 1))
    searched = 0
    while end and searched < SEARCHED_BYTES_MAX:
        begin = max(0, end - step)
        entries = await positions.entries(opened, begin, end - 1)
        for entry in reversed(entries):
            if read_head(entry.payload).kind == CHECKPOINT:
                return entry
            searched += len(entry.payload)
        end = begin
    return None
