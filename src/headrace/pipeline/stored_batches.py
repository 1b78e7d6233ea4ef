"""Reads the batches of a range from object storage, and from brokers what is not there.

Responsibilities: joins sealed ledgers and the log by offset into one stream. What a ledger does not
give (it was deleted or replaced since the read was planned, is damaged, or does not tell how its
last transactions end) comes from the brokers, from the offset reached on.

Invariants: every record of the range that the log holds is returned once, in order, whatever the
planned list says: a batch lends its records from the offset reached to where its part ends. Records
before the log start offset are never read from objects.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from headrace.errors import DataCorrupt, FormatUnsupported, StorageUnavailable
from headrace.log.ledger_objects import LedgerObjects, LedgerPlace
from headrace.pipeline.cluster import ClusterClient
from headrace.pipeline.direct import Batch, LogReader, intact, with_aborted
from headrace.pipeline.errors import StoreUnavailable
from headrace.pipeline.planning import build, offset_of

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator, Sequence

    from headrace.pipeline.options import SourceOptions
    from headrace.pipeline.planning import OffsetRange

log = logging.getLogger(__name__)

_Found = tuple[bytes, Batch, bool]


def stored_batches(
    piece: OffsetRange, options: SourceOptions, places: Sequence[LedgerPlace]
) -> Iterator[_Found]:
    """Yield (bytes, batch, is aborted) of each batch that has offsets of the range.

    Raises StoreUnavailable, and what reading from brokers raises.
    """
    assert options.objects is not None, "planned with it"
    reader = LogReader(piece, options)
    cluster = ClusterClient(options.client)
    position = piece.start
    try:
        with LedgerObjects(options.objects) as objects:
            for place in sorted(places, key=lambda one: one.base_offset):
                end = min(place.end_offset, piece.end)
                if end <= max(position, place.base_offset):
                    continue
                if position < place.base_offset:
                    yield from reader.batches(position, place.base_offset)
                    position = place.base_offset
                start = cluster.earliest(build([(piece.topic, piece.partition, 0)]))
                if offset_of(start, piece.topic, piece.partition, 0) <= position:
                    part = piece._replace(start=position, end=end)
                    position = yield from _of_ledger(objects, place, part, options)
        yield from reader.batches(position, piece.end)
    finally:
        reader.close()


def _of_ledger(
    objects: LedgerObjects, place: LedgerPlace, part: OffsetRange, options: SourceOptions
) -> Generator[_Found, None, int]:
    """Yield the batches of one ledger; returns the offset reached. Raises StoreUnavailable."""
    position, end = part.start, part.end
    try:
        opened = objects.open(place)
        if options.is_read_committed:
            end = min(end, opened.committed_end)
        if position >= end:
            return position
        for found in opened.pieces(position, end, is_read_committed=options.is_read_committed):
            asked = [Batch(at, header, position, end) for at, header in found.batches]
            checked = intact(part, found.data, asked)
            for batch, is_aborted in with_aborted(part, found.data, found.aborted, checked):
                yield found.data, batch, is_aborted
            position = min(end, found.batches[-1][1].last_offset + 1)
    except StorageUnavailable as error:
        if not error.fields.get("is_missing"):
            raise StoreUnavailable(
                f"{part.topic}-{part.partition}: offset {position} could not be read from object"
                f" storage: {error}. Nothing is lost: a restarted read continues. Without the"
                " option objects, brokers are asked for all records."
            ) from error
        reason: Exception = error
    except (DataCorrupt, FormatUnsupported) as error:
        reason = error
    else:
        return end
    log.warning(
        "%s-%d: offsets from %d on are read from brokers instead of ledger %d: %s",
        part.topic, part.partition, position, place.ledger, reason,
    )  # fmt: skip
    return position
