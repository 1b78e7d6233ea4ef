"""What one receive delivers of a partition: messages, and how the rest of it is settled.

Invariants: pure but for the thread of large batches; the caller makes messages of records.
"""

from __future__ import annotations

import logging
from bisect import bisect_left, bisect_right
from collections.abc import Callable
from itertools import islice
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from headrace.broker.services.batch_search import Wanted, record_bytes, wanted_records
from headrace.coordination.shares.commands import (
    GAP,
    REJECT,
    UNDELIVERED,
    Acquired,
    Settlement,
)
from headrace.errors import (
    BatchCorrupt,
    DataCorrupt,
    RecordInvalid,
    UnsupportedForMessageFormat,
)
from headrace.records.batch import read_header

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from headrace.broker.shares.share_receive import Received
    from headrace.records.codec import Record

log = logging.getLogger(__name__)

_M = TypeVar("_M")
Show = Callable[[int, int, "Sequence[Record]"], "list[_M]"]
"""(partition, count of deliveries, records in order) -> a message for each record."""
UNDECODABLE: Final = "cannot be decoded"


class PartitionDeliveries(Generic[_M]):
    """The messages of one partition, and how to settle the rest of what was acquired.

    The rest: offsets without a message, records that cannot be decoded, and what would make the
    response larger than `bytes_left`, which is given back without counting as a delivery.
    """

    def __init__(self, partition: int, show: Show[_M], bytes_left: int) -> None:
        self._partition = partition
        self._show = show
        self.bytes_left = bytes_left
        self.messages: list[_M] = []
        self.settlements: list[Settlement] = []

    async def add(self, received: Received) -> None:
        """Take what was acquired."""
        for batch, held in _by_batch(received):
            if not held:
                continue
            if self.bytes_left <= 0:
                self._give_back(held, held[0].first)
                continue
            first, last = held[0].first, held[-1].last
            count = sum(one.last - one.first + 1 for one in held)
            matches = None if len(held) == 1 else _lies_in(held)
            wanted = Wanted(first, last, count, self.bytes_left, matches)
            try:
                records = await wanted_records(batch, wanted)
            except (BatchCorrupt, DataCorrupt, RecordInvalid, UnsupportedForMessageFormat) as error:
                log.warning(
                    "records of partition %d are rejected, %s: %s", self._partition, held, error
                )
                self.settlements += [
                    Settlement(r.first, r.last, REJECT, reason=UNDECODABLE) for r in held
                ]
                continue
            self.bytes_left -= sum(map(record_bytes, records))
            if self.bytes_left <= 0:
                last = records[-1].offset
            self._add_records(held, records, last)
            self._give_back(held, last + 1)

    def _add_records(self, held: list[Acquired], records: list[Record], upto: int) -> None:
        offsets = [record.offset for record in records]
        for first, range_last, deliveries in held:
            last = min(range_last, upto)
            begin, end = bisect_left(offsets, first), bisect_right(offsets, last)
            if begin < end:
                self.messages += self._show(self._partition, deliveries, records[begin:end])
            if end - begin == last - first + 1:
                continue
            reached = first
            for offset in [*offsets[begin:end], last + 1]:
                if offset > reached:
                    self.settlements.append(Settlement(reached, offset - 1, GAP))
                reached = offset + 1

    def _give_back(self, held: list[Acquired], first: int) -> None:
        self.settlements += [
            Settlement(max(one.first, first), one.last, UNDELIVERED)
            for one in held
            if one.last >= first
        ]


def _lies_in(held: list[Acquired]) -> Callable[[Record], bool]:
    firsts = [one.first for one in held]

    def lies_in(record: Record) -> bool:
        at = bisect_right(firsts, record.offset) - 1
        return at >= 0 and record.offset <= held[at].last

    return lies_in


def _by_batch(received: Received) -> Iterator[tuple[bytes, list[Acquired]]]:
    """Each batch with the parts of the acquired ranges that lie in it."""
    acquired = sorted(received.acquired)
    at = 0
    for batch in received.batches:
        header = read_header(batch)
        low, high = header.base_offset, header.last_offset
        while at < len(acquired) and acquired[at].last < low:
            at += 1
        held: list[Acquired] = []
        for first, last, deliveries in islice(acquired, at, None):
            if first > high:
                break
            held.append(Acquired(max(first, low), min(last, high), deliveries))
        yield batch, held
