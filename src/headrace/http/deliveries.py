"""What one receive delivers: messages with receipts, and how the rest of it is settled.

Invariants: pure but for the thread of large batches. Messages are made as JSON text at once: an
object for each of them, and the encoder's walk over it, took half of a receive's time.
"""

from __future__ import annotations

import json
import logging
from bisect import bisect_left, bisect_right
from itertools import islice
from typing import TYPE_CHECKING, Final

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
from headrace.http.receipts import quoted, receipt_text
from headrace.http.records import shown
from headrace.records.batch import read_header

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from headrace.broker.shares.share_partitions import Received
    from headrace.http.operations import Json
    from headrace.records.codec import Record

log = logging.getLogger(__name__)

UNDECODABLE: Final = "cannot be decoded"


class PartitionDeliveries:
    """The messages of one partition, and how to settle the rest of what was acquired.

    The rest: offsets without a message, records that cannot be decoded, and what would make the
    response larger than `bytes_left`, which is given back without counting as a delivery.
    """

    def __init__(self, partition: int, member: str, bytes_left: int) -> None:
        self._partition = partition
        self._member = member
        self.bytes_left = bytes_left
        self.messages: list[str] = []
        """JSON texts."""
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
        append, partition, member = self.messages.append, self._partition, self._member
        for first, range_last, deliveries in held:
            reached, last = first, min(range_last, upto)
            middle = f'.{member}","partition":{partition},"deliveries":{deliveries},"offset":'
            for record in records[bisect_left(offsets, first) : bisect_right(offsets, last)]:
                offset = record.offset
                if offset > reached:
                    self.settlements.append(Settlement(reached, offset - 1, GAP))
                reached = offset + 1
                if not record.headers:
                    # Without a call for each message, which took a fifth of the time.
                    key, value = record.key, record.value
                    try:
                        shown_key = "null" if key is None else quoted(key.decode())
                        shown_value = "null" if value is None else quoted(value.decode())
                    except UnicodeDecodeError:
                        pass
                    else:
                        append(
                            f'{{"receipt":"{partition}.{offset}{middle}{offset},'
                            f'"timestamp_ms":{record.timestamp_ms},"headers":[],'
                            f'"key":{shown_key},"value":{shown_value}}}'
                        )
                        continue
                append(_message(record, partition, member, deliveries))
            if reached <= last:
                self.settlements.append(Settlement(reached, last, GAP))

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


def _message(record: Record, partition: int, member: str, deliveries: int) -> str:
    """The JSON text of a message with headers, or with bytes that are no text."""
    message: Json = {
        "receipt": receipt_text(partition, record.offset, member),
        "partition": partition,
        "deliveries": deliveries,
    }
    return json.dumps(message | shown(record), ensure_ascii=False, separators=(",", ":"))
