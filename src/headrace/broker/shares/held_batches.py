"""Caches batches that a share group has read partially, for the receives that follow.

Invariants: a batch of a megabyte is delivered by a hundred receives of a hundred records, each of
which would otherwise read, check and decompress all of it. One batch is cached for each of a few
partitions, for a second. A cached batch was read in the same tenure, is neither transactional nor a
marker, and is never modified.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from typing import TYPE_CHECKING, Final

from headrace.records.batch import CONTROL, TRANSACTIONAL, read_header
from headrace.records.codec import PayloadCursor

if TYPE_CHECKING:
    from headrace.broker.shares.hosted_shares import Hosted
    from headrace.records.batch import BatchHeader

BYTES_MIN: Final = 8 * 1024
"""Reading smaller batches is as fast."""
BYTES_MAX: Final = 1024 * 1024 + 1024
OPENED_BYTES_MAX: Final = 2 * 1024 * 1024
"""For the decompressed records of a cached batch."""
OPENED_RECORDS_MAX: Final = 16_384
"""With more records than this, skipping the unneeded ones is work for a thread."""
COUNT_MAX: Final = 16
KEPT_S: Final = 1.0
"""Compaction may have replaced it after that; and an idle broker caches nothing."""


class HeldBatch(bytes):
    """A batch, and the bytes of its records once its CRC was checked."""

    opened: tuple[bytes, BatchHeader, PayloadCursor] | None = None
    """The bytes of its records, and how far they were decoded."""
    first_offset: int
    last_offset: int

    def note_opened(self, payload: bytes, header: BatchHeader) -> None:
        """Cache the decompressed records, unless they are large."""
        if len(payload) <= OPENED_BYTES_MAX and header.record_count <= OPENED_RECORDS_MAX:
            self.opened = payload, header, PayloadCursor()


class HeldBatches:
    """The cached batches of one broker."""

    def __init__(self) -> None:
        self._held: OrderedDict[Hosted, HeldBatch] = OrderedDict()
        self._timer: asyncio.TimerHandle | None = None

    def find(self, hosted: Hosted, offset: int) -> HeldBatch | None:
        """The cached batch of this partition that contains `offset`, if any."""
        held = self._held.get(hosted)
        if held is None or not held.first_offset <= offset <= held.last_offset:
            return None
        return held

    def keep(self, hosted: Hosted, batch: bytes) -> bytes:
        """Cache a batch; returns the object to use in its place."""
        if isinstance(batch, HeldBatch) or not BYTES_MIN <= len(batch) <= BYTES_MAX:
            return batch
        header = read_header(batch)
        if header.attributes & (CONTROL | TRANSACTIONAL):
            return batch
        held = HeldBatch(batch)
        held.first_offset, held.last_offset = header.base_offset, header.last_offset
        self._held[hosted] = held
        self._held.move_to_end(hosted)
        if len(self._held) > COUNT_MAX:
            self._held.popitem(last=False)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(KEPT_S, self.drop)
        return held

    def drop(self) -> None:
        """Drop all cached batches."""
        self._held.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
