"""Where the last N records of partitions begin, as a reader gets them.

Invariants: reads, and writes nothing. Offsets are not records: markers of transactions, records of
aborted ones and what compaction has removed have offsets, too, so N offsets before the end there
may be fewer than N records.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from headrace.cli.client import kafka
from headrace.cli.positions import Partition
from headrace.cli.reader import MESSAGES_MAX, POLL_S, Span

if TYPE_CHECKING:
    from collections.abc import Mapping

    from headrace.cli.positions import Bounds
    from headrace.cli.reader import ReadState

COUNTED_MAX: Final = 10_000
"""Of more records, offsets are counted: records are read twice here."""


def begins_of_last(
    reader: ReadState, count: int, bounds: Mapping[Partition, Bounds]
) -> dict[Partition, int]:
    """The offset of the first of the last `count` records of each partition. Raises
    CommandFailed."""
    begins = {p: max(b.latest - count, b.earliest) for p, b in bounds.items()}
    if not 0 < count <= COUNTED_MAX:
        return begins
    found: dict[Partition, list[int]] = {p: [] for p in bounds}
    spans = {p: Span(begins[p], b.latest) for p, b in bounds.items() if begins[p] > b.earliest}
    while spans:
        for partition, offsets in _offsets(reader, spans).items():
            found[partition] = offsets + found[partition]
        further = {}
        for partition, (begin, _end) in spans.items():
            lacking = count - len(found[partition])
            begins[partition] = begin if lacking > 0 else found[partition][-count]
            if lacking > 0 and begin > (earliest := bounds[partition].earliest):
                further[partition] = Span(max(begin - 2 * lacking, earliest), begin)
        spans = further
    return begins


def _offsets(reader: ReadState, spans: Mapping[Partition, Span]) -> dict[Partition, list[int]]:
    """The offsets at which there are records."""
    found: dict[Partition, list[int]] = {p: [] for p in spans}
    left = {*spans}
    consumer = reader.consumer()
    part = kafka().TopicPartition
    consumer.assign([part(p.topic, p.number, span.begin) for p, span in spans.items()])
    try:
        while left:
            for message in consumer.consume(MESSAGES_MAX, POLL_S):
                partition = Partition(message.topic(), message.partition())
                error, offset = message.error(), message.offset()
                end = spans[partition].end
                assert end is not None
                if error is not None and error.name() != "_PARTITION_EOF":
                    reader.check(error, partition.topic)
                    continue
                if error is not None or offset >= end - 1:  # none of its records are left to come
                    left.discard(partition)
                if error is None and offset < end:
                    found[partition].append(offset)
    finally:
        consumer.close()
    return found
