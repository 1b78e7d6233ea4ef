"""Reads one offset range from the broker into Arrow batches: `direct.py`, or librdkafka.

Invariants: runs in Spark's Python workers; knows nothing of planning. Every record of the range
that the log holds is returned once, in order. The end-of-partition event finds the end even if the
log has holes (compaction, transaction markers). Memory is bounded by what the client prefetches
(`CONSUMER_DEFAULTS`) and one batch (columns.py).
"""

from __future__ import annotations

import gc
from functools import lru_cache
from time import monotonic_ns
from typing import TYPE_CHECKING, Any

from headrace.pipeline.arrow import to_arrow
from headrace.pipeline.columns import batches_of, columns_of
from headrace.pipeline.errors import ReadStalled
from headrace.pipeline.raw_headers import RawHeaderReader
from headrace.pipeline.refusals import read_refused
from headrace.runtime import compiled

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from headrace.log.ledger_objects import LedgerPlace
    from headrace.pipeline.options import SourceOptions
    from headrace.pipeline.planning import OffsetRange

_POLL_S = 0.25
_SLICE_ROWS = 1_000
_MS_TO_NS = 1_000_000
CONSUMER_DEFAULTS = {
    "log_level": "2",
    "group.id": "headrace-pipeline",  # never joined: partitions are assigned manually
    "enable.auto.commit": "false",
    "enable.partition.eof": "true",
    "check.crcs": "true",  # as `direct` does; a flipped bit may hide records without an error
    "fetch.message.max.bytes": str(4 << 20),
    "fetch.queue.backoff.ms": "1",
    # librdkafka's limit in bytes counts values alone, so 400 keys of 1 MiB, or large headers, would
    # all be in memory. It fetches again while fewer than this number of messages are queued: with
    # one, at most one response waits, whatever its records consist of.
    "queued.min.messages": "1",
    "queued.max.messages.kbytes": str(32 << 10),
    "fetch.wait.max.ms": "100",
}


def read_range(
    piece: OffsetRange, options: SourceOptions, places: Sequence[LedgerPlace] = ()
) -> Iterator[Any]:
    """Yield the records of `piece` as Arrow batches in the source's column order, those of the
    ledgers at `places` from object storage.

    Raises RecordsLost if the range begins before the log start (failOnDataLoss), ReadStalled if the
    broker sends nothing for `stall_timeout_ms`, RecordUnreadable for a record that cannot be
    returned, ReadRefused if the broker refuses.
    """
    use_core()
    from headrace.pipeline.direct import is_possible, read_directly

    if not is_possible(options.client):
        return read_through_client(piece, options)
    return read_directly(piece, options, places)


@lru_cache(maxsize=1)
def use_core() -> None:
    """Use the compiled core, if it is there: before its modules are imported."""
    compiled.use()


def read_through_client(piece: OffsetRange, options: SourceOptions) -> Iterator[Any]:
    """As `read_range`, for client settings that only librdkafka knows: nearly twice the CPU."""
    from confluent_kafka import Consumer, TopicPartition

    reset = "error" if options.fail_on_data_loss else "earliest"
    settings = {**CONSUMER_DEFAULTS, "auto.offset.reset": reset, **options.client}
    consumer = Consumer(settings)
    raw = RawHeaderReader(settings, piece.topic, piece.partition, options.stall_timeout_ms)
    # Messages live for one batch: the cycle collector would scan them and halve the speed.
    collecting = gc.isenabled()
    gc.disable()
    try:
        consumer.assign([TopicPartition(piece.topic, piece.partition, piece.start)])
        slices = (
            columns_of(messages, include_headers=options.include_headers, read_raw_headers=raw.read)
            for messages in message_batches(consumer, piece, options)
        )
        for columns in batches_of(slices, options.batch_rows):
            yield to_arrow(columns, piece.topic, piece.partition)
    finally:
        if collecting:
            gc.enable()
        raw.close()
        consumer.close()


def message_batches(
    consumer: Any, piece: OffsetRange, options: SourceOptions
) -> Iterator[list[Any]]:
    """Yield the messages of `piece` from a consumer assigned to its start.

    A batch takes only what the client has already fetched: waiting for a fixed number of messages
    would let large ones accumulate.
    """
    position = piece.start
    received_at_ns = monotonic_ns()
    while position < piece.end:
        wanted = min(_SLICE_ROWS, piece.end - position)
        events = consumer.consume(wanted, 0) or consumer.consume(1, _POLL_S)
        if not events:
            if monotonic_ns() - received_at_ns > options.stall_timeout_ms * _MS_TO_NS:
                raise _stalled(piece, position, options.stall_timeout_ms)
            continue
        received_at_ns = monotonic_ns()
        messages = [event for event in events if event.error() is None]
        reached_end_at = -1
        if len(messages) < len(events):
            reached_end_at = _check_events(events, piece, options)
        last = messages[-1].offset() if messages else position - 1
        position = max(last + 1, reached_end_at)
        if last >= piece.end:
            messages = [message for message in messages if message.offset() < piece.end]
        if messages:
            yield messages


def _stalled(piece: OffsetRange, position: int, timeout_ms: int) -> ReadStalled:
    return ReadStalled(
        f"{piece.topic}-{piece.partition}: no records arrived for {timeout_ms} ms at"
        f" offset {position}, although the range ends at {piece.end}. Is the broker up?"
        " Spark retries the task."
    )


def _check_events(events: Sequence[Any], piece: OffsetRange, options: SourceOptions) -> int:
    """Return the offset at which the log ends, or -1; raises the error of an error event."""
    from confluent_kafka import KafkaError, KafkaException

    reached = -1
    for event in events:
        error = event.error()
        # The library asks for the group's coordinator, though the group is not used.
        if error is None or error.code() == KafkaError.GROUP_AUTHORIZATION_FAILED:
            continue
        if error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001 - its public name
            reached = max(reached, event.offset())
        elif error.code() in (
            KafkaError._AUTO_OFFSET_RESET,  # noqa: SLF001
            KafkaError.OFFSET_OUT_OF_RANGE,
        ):
            raise piece.lost(piece.start)
        elif error.code() in (
            KafkaError._BAD_MSG,  # noqa: SLF001
            KafkaError._BAD_COMPRESSION,  # noqa: SLF001
            KafkaError.INVALID_MSG,
        ):
            raise piece.unreadable(max(piece.start, event.offset() or 0), error.str())
        elif error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:
            raise read_refused(options.client, piece.topic, piece.partition, error.name())
        elif error.fatal() or not error.retriable():
            raise KafkaException(error)
    if 0 <= reached < piece.end and options.fail_on_data_loss:
        # Not an error by itself: a replica may lag. The stall time-out decides.
        return -1
    return piece.end if 0 <= reached < piece.end else reached
