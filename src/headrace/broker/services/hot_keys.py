"""The keys that most records of a partition have, counted on demand.

Invariants: knows no protocol; changes nothing, and the path of a record does no work for it. The
owner of the partition reads a window of its newest records, or from an offset on, bounded by
records, decompressed bytes and time, and says which offsets it has read. As that is exact for the
window, nothing is estimated.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from hashlib import sha256
from heapq import nlargest
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from headrace.broker.services.batch_search import Wanted, record_bytes, wanted_records
from headrace.broker.services.owner_calls import checked
from headrace.broker.shares.share_reads import BatchesRead
from headrace.errors import BatchCorrupt, RecordInvalid, UnsupportedForMessageFormat
from headrace.log.visibility import READ_COMMITTED

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headrace.broker.services.owner_calls import OwnerCalls
    from headrace.broker.topics.topic import Topic
    from headrace.log.reading import LogReader
    from headrace.records.codec import Record
    from headrace.runtime.fair_locks import FairLock

RECORDS_MAX: Final = 10_000
READ_BYTES: Final = 256 * 1024
"""Per slice: about a millisecond."""
WINDOW_BYTES_MAX: Final = 64 * 1024 * 1024
"""Decompressed; one batch may exceed it."""
TIME_S_MAX: Final = 2.0
KEYS_MAX: Final = 20
KEY_BYTES_MAX: Final = 1_024
"""Of a key that are kept and shown."""


class HotKey(NamedTuple):
    """A key, and how many records of the window have it."""

    key: bytes | None
    """At most its first KEY_BYTES_MAX; None: the records without a key."""
    key_bytes: int
    records: int
    size_bytes: int
    """Of their keys and values."""


class Window(NamedTuple):
    """What was counted in one partition."""

    first_offset: int
    end_offset: int
    """Of what was read."""
    is_whole: bool
    """Whether that is all that was asked for."""
    records: int
    distinct_keys: int
    unreadable: int
    """Batches that cannot be decoded."""
    keys: Sequence[HotKey]
    """Those with the most records, first."""


class HotKeys:
    """See the module."""

    def __init__(self, calls: OwnerCalls, running: FairLock) -> None:
        """`running` is held while records are read."""
        self._calls = calls
        self._running = running
        calls.offer("keys.hot", self._here)

    async def of(self, topic: Topic, number: int, records: int, start: int = -1) -> Window:
        """The most frequent keys among so many records of one partition: the newest, or those from
        the offset `start` on. Raises HeadraceError."""
        row = await self._calls.ask_partition("keys.hot", topic, number, [records, start])
        found = Window(*row)
        return found._replace(keys=[HotKey(*one) for one in found.keys])

    async def _here(self, topic: Topic, number: int, asked: Any) -> Any:
        count, start = checked(asked, int, int)
        count = min(max(count, 1), RECORDS_MAX)
        log = topic.require_log(number)
        await log.wait_loaded()
        end = log.visibility.bound(READ_COMMITTED).offset
        first = max(end - count if start < 0 else start, log.log_start_offset)
        end = min(first + count, end)
        tally = _Tally(first, end)
        async with self._running:
            upto = max(min(await _count(log.reader, tally, first, end), end), first)
        return first, upto, upto >= end, *tally.counts(), tally.hottest()


async def _count(reader: LogReader, tally: _Tally, first: int, end: int) -> int:
    """Count what the bounds allow; returns where that ends, or any offset from `end` on."""
    loop = asyncio.get_running_loop()
    deadline_s = loop.time() + TIME_S_MAX
    offset = first

    def may_go_on() -> bool:
        return tally.size_bytes < WINDOW_BYTES_MAX and loop.time() < deadline_s

    while offset < end and may_go_on():
        offset, data = await reader.fetch_from(offset, READ_BYTES, READ_COMMITTED)
        if not data.data:
            return end  # only markers, or what was compacted
        read = BatchesRead()
        reached = read.add(bytes(data.data), offset, end - 1, data.aborted or ())
        for batch, (_, last) in zip(read.batches, read.within, strict=True):
            if not may_go_on():  # a small batch may decompress to 64 MiB
                return offset
            await tally.add(batch)
            offset = last + 1
            await asyncio.sleep(0)
        offset = reached
    return offset


class _Tally:
    """The keys of one window. A key is known by its first bytes, size and digest, so that memory is
    bounded by the records of the window, however long their keys are."""

    def __init__(self, first: int, end: int) -> None:
        self._wanted = Wanted(first, end - 1, RECORDS_MAX, WINDOW_BYTES_MAX, self._count)
        self._records: Counter[_Key | None] = Counter()
        self._sizes: Counter[_Key | None] = Counter()
        self._unreadable = 0
        self.size_bytes = 0
        """Of the records that were counted, decompressed."""

    async def add(self, batch: bytes) -> None:
        """Count the records of a batch."""
        try:
            await wanted_records(batch, self._wanted)
        except (BatchCorrupt, RecordInvalid, UnsupportedForMessageFormat):
            self._unreadable += 1

    def _count(self, record: Record) -> bool:
        key = None if record.key is None else _key_of(record.key)
        self._records[key] += 1
        self._sizes[key] += len(record.key or b"") + len(record.value or b"")
        self.size_bytes += record_bytes(record)
        return False  # none is kept

    def counts(self) -> tuple[int, int, int]:
        """(records, distinct keys, batches that cannot be decoded)"""
        keys = len(self._records) - (None in self._records)
        return self._records.total(), keys, self._unreadable

    def hottest(self) -> list[HotKey]:
        """The keys with the most records."""
        found = nlargest(KEYS_MAX, self._records.items(), lambda one: one[1])
        return [
            HotKey(key and key.first_bytes, key.size if key else 0, records, self._sizes[key])
            for key, records in found
        ]


class _Key(NamedTuple):
    first_bytes: bytes
    size: int
    digest: bytes
    """Of a key that is longer than its first bytes."""


def _key_of(key: bytes) -> _Key:
    is_long = len(key) > KEY_BYTES_MAX
    return _Key(key[:KEY_BYTES_MAX], len(key), sha256(key).digest() if is_long else b"")
