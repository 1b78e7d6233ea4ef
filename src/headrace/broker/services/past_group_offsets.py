"""The offsets that groups had committed in a topic at an earlier time.

Invariants: knows no protocol; changes nothing, and keeps nothing between calls. The owner of a
partition of the internal topic reads its log once, bounded by bytes and time; what the records say
is decided by `coordination/groups/past_offsets`. A log that is replaced by a snapshot meanwhile
begins later, and tells less. Share groups commit no offsets: they are not among the groups.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from headrace.broker.services.owner_calls import checked, split
from headrace.coordination.groups.past_offsets import PastOffset, PastOffsets
from headrace.coordination.kit.machine import InTransaction, TransactionEnded
from headrace.log.visibility import READ_UNCOMMITTED
from headrace.records.batch import CONTROL, TRANSACTIONAL, iterate_headers
from headrace.records.codec import decode_batch
from headrace.records.identifiers import OFFSETS_TOPIC
from headrace.records.keys_and_values import decode_keys_and_values
from headrace.records.marker import read_marker

if TYPE_CHECKING:
    from headrace.broker.services.group_administration import GroupAdministration
    from headrace.broker.services.owner_calls import OwnerCalls
    from headrace.broker.topics.topic import Topic
    from headrace.broker.topics.topics import Topics
    from headrace.errors import HeadraceError
    from headrace.log.reading import LogReader
    from headrace.records.batch import BatchHeader, Buffer
    from headrace.runtime.fair_locks import FairLock

READ_BYTES: Final = 128 * 1024
"""Per slice: about 1,000 commits, which are taken in a millisecond or two."""
BYTES_MAX: Final = 64 * 1024 * 1024
TIME_S_MAX: Final = 2.0
ROWS_MAX: Final = 5_000
"""Partitions of groups in one answer."""


class PastGroupOffsets:
    """See the module."""

    def __init__(
        self,
        calls: OwnerCalls,
        topics: Topics,
        groups: GroupAdministration,
        running: FairLock,
        transaction_ms_max: int,
    ) -> None:
        """`running` is held while records are read; `transaction_ms_max`: how long a transaction
        may be open."""
        self._calls = calls
        self._topics = topics
        self._groups = groups
        self._running = running
        self._transaction_ms_max = transaction_ms_max
        calls.offer("groups.past_offsets", self._here)

    async def of(
        self, topic: Topic, at_ms: int, group_id: str = ""
    ) -> tuple[list[PastOffset], bool, dict[int, HeadraceError]]:
        """(what is known of the groups in the topic at that time, by group and partition; whether
        there are more; the partitions of the internal topic whose part is missing). `group_id`:
        empty for all groups."""
        internal = self._topics.by_name.get(OFFSETS_TOPIC)
        if internal is None:
            return [], False, {}
        numbers = [self._groups.partition_for(group_id)] if group_id else None
        asked = topic.name, topic.id.hex, at_ms, group_id
        answers = await self._calls.ask_partitions(
            "groups.past_offsets", internal, asked, numbers, TIME_S_MAX
        )
        found, failed = split(answers)
        rows = sorted(PastOffset(*row) for rows, _is_cut in found.values() for row in rows)
        is_cut = len(rows) > ROWS_MAX or any(is_cut for _rows, is_cut in found.values())
        return rows[:ROWS_MAX], is_cut, failed

    async def _here(self, internal: Topic, number: int, asked: Any) -> Any:
        """[[row ...], whether there are more]"""
        name, topic_id, at_ms, group_id = checked(asked, str, str, int, str)
        log = internal.require_log(number)
        await log.wait_loaded()
        past = PastOffsets(name, UUID(topic_id), at_ms, self._transaction_ms_max, group_id)
        end = log.high_watermark
        async with self._running:
            first, upto = await _read(log.reader, log.log_start_offset, end, past)
        rows = past.found(is_whole=first == 0, is_cut=upto < end)
        return rows[:ROWS_MAX], len(rows) > ROWS_MAX


async def _read(reader: LogReader, first: int, end: int, past: PastOffsets) -> tuple[int, int]:
    """Take what the bounds allow; returns (the first offset that was there, where that ends)."""
    loop = asyncio.get_running_loop()
    deadline_s = loop.time() + TIME_S_MAX
    offset, size_bytes = first, 0
    while offset < end and size_bytes < BYTES_MAX and loop.time() < deadline_s:
        begin, fetched = await reader.fetch_from(offset, READ_BYTES, READ_UNCOMMITTED)
        if offset == first:  # it may have been trimmed since
            first = begin
        offset = begin
        if not fetched.data:
            return first, end
        size_bytes += len(fetched.data)
        for position, header in iterate_headers(fetched.data):
            _take(past, fetched.data, position, header)
            offset = max(offset, header.last_offset + 1)
        await asyncio.sleep(0)
    return first, offset


def _take(past: PastOffsets, data: Buffer, position: int, header: BatchHeader) -> None:
    written_ms = header.max_timestamp_ms
    if header.attributes & CONTROL:
        marker = read_marker(data, position)
        if marker is not None:
            past.end(TransactionEnded(header.producer_id, marker.is_commit), written_ms)
    elif header.attributes & TRANSACTIONAL:
        transaction = InTransaction(header.producer_id, header.producer_epoch)
        for record in decode_batch(data, position):
            past.take_pending(transaction, record.key, record.value, written_ms)
    else:
        past.take(decode_keys_and_values(data, position), written_ms)
