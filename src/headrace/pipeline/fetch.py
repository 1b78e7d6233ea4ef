"""One range of offsets, from the broker into Arrow batches.

Rules of the room: runs in Spark's Python workers; knows nothing of planning. Every record of
the range that the log holds comes once, in order; the end is found also where the log has
holes (compaction, transaction markers), by the end-of-partition event.
How it works: Python lists over up to `batch_rows` messages, then flat buffers. `pa.array` on a
list would import pandas, a second in each new worker.
"""

from __future__ import annotations

import gc
from array import array
from itertools import accumulate
from time import monotonic_ns
from typing import TYPE_CHECKING, Any

from headrace.pipeline.errors import ReadStalled, RecordsLost

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from headrace.pipeline.options import SourceOptions
    from headrace.pipeline.planning import OffsetRange

_POLL_S = 0.25
# Taken from the client at a time, so that large messages pile up to a slice at most.
_SLICE_ROWS = 1_000
_BATCH_BYTES = 32 << 20
_MS_TO_NS = 1_000_000
_DEFAULTS = {
    "log_level": "2",
    "group.id": "headrace-pipeline",  # never joined: partitions are assigned by hand
    "enable.auto.commit": "false",
    "enable.partition.eof": "true",
    "fetch.message.max.bytes": str(4 << 20),
    "fetch.queue.backoff.ms": "5",
    "queued.min.messages": "100000",
    "queued.max.messages.kbytes": str(32 << 10),
    "fetch.wait.max.ms": "100",
}


def read_range(piece: OffsetRange, options: SourceOptions) -> Iterator[Any]:
    """The records of `piece` as Arrow batches in the source's column order.

    Raises RecordsLost when the range begins before the log does (failOnDataLoss), ReadStalled
    when the broker sends nothing for `stall_timeout_ms`.
    """
    from confluent_kafka import Consumer, TopicPartition

    reset = "error" if options.fail_on_data_loss else "earliest"
    consumer = Consumer({**_DEFAULTS, "auto.offset.reset": reset, **options.client})
    # Messages live for one batch: collecting cycles among them halves the speed.
    collecting = gc.isenabled()
    gc.disable()
    try:
        consumer.assign([TopicPartition(piece.topic, piece.partition, piece.start)])
        for messages in message_batches(consumer, piece, options):
            yield to_arrow(messages, piece, include_headers=options.include_headers)
    finally:
        if collecting:
            gc.enable()
        consumer.close()


def message_batches(
    consumer: Any, piece: OffsetRange, options: SourceOptions
) -> Iterator[list[Any]]:
    """The messages of `piece` from a consumer that was assigned to its start."""
    position = piece.start
    heard_ns = monotonic_ns()
    held: list[Any] = []
    held_bytes = 0
    while position < piece.end:
        wanted = min(_SLICE_ROWS, options.batch_rows - len(held), piece.end - position)
        events = consumer.consume(wanted, _POLL_S)
        if not events:
            if monotonic_ns() - heard_ns > options.stall_timeout_ms * _MS_TO_NS:
                raise _stalled(piece, position, options.stall_timeout_ms)
            continue
        heard_ns = monotonic_ns()
        messages = [event for event in events if event.error() is None]
        reached_end_at = -1
        if len(messages) < len(events):
            reached_end_at = _check_events(events, piece, options)
        last = messages[-1].offset() if messages else position - 1
        position = max(last + 1, reached_end_at)
        if last >= piece.end:
            messages = [message for message in messages if message.offset() < piece.end]
        held += messages
        held_bytes += sum(map(len, messages))
        if len(held) >= options.batch_rows or held_bytes >= _BATCH_BYTES:
            yield held
            held, held_bytes = [], 0
    if held:
        yield held


def _stalled(piece: OffsetRange, position: int, timeout_ms: int) -> ReadStalled:
    return ReadStalled(
        f"{piece.topic}-{piece.partition}: nothing came for {timeout_ms} ms at offset {position}, "
        f"{piece.end} was promised. Is the broker up? Spark tries the task again."
    )


def _check_events(events: Sequence[Any], piece: OffsetRange, options: SourceOptions) -> int:
    """The offset at which the log ends now, or -1; raises what an error event means."""
    from confluent_kafka import KafkaError, KafkaException

    reached = -1
    for event in events:
        error = event.error()
        if error is None:
            continue
        if error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001 - its public name
            reached = max(reached, event.offset())
        elif error.code() in (
            KafkaError._AUTO_OFFSET_RESET,  # noqa: SLF001
            KafkaError.OFFSET_OUT_OF_RANGE,
        ):
            raise RecordsLost(
                f"{piece.topic}-{piece.partition}: offset {piece.start} is not in the log any "
                "more. Set failOnDataLoss=false to read what is left.",
                topic=piece.topic,
                partition=piece.partition,
            )
        elif error.fatal() or not error.retriable():
            raise KafkaException(error)
    if 0 <= reached < piece.end and options.fail_on_data_loss:
        # Not an error by itself: a follower may be behind. The stall timeout decides.
        return -1
    return piece.end if 0 <= reached < piece.end else reached


def to_arrow(messages: Sequence[Any], piece: OffsetRange, *, include_headers: bool) -> Any:
    """One Arrow batch: topic, partition, offset, timestamp, timestampType, key, headers, value."""
    import pyarrow as pa

    count = len(messages)
    kinds, times_ms = zip(*[message.timestamp() for message in messages], strict=True)
    columns = [
        _repeated(piece.topic.encode(), count, pa.string()),
        _ints("i", [piece.partition]) if count == 1 else _ints("i", [piece.partition] * count),
        _ints("q", [message.offset() for message in messages]),
        _timestamps(times_ms, kinds),
        _ints("i", [kind - 1 for kind in kinds]),  # librdkafka's 1 and 2 are Kafka's 0 and 1
        binary([message.key() for message in messages]),
        header_column([message.headers() for message in messages] if include_headers else count),
        binary([message.value() for message in messages]),
    ]
    return pa.RecordBatch.from_arrays(columns, names=list(COLUMNS))


COLUMNS = (
    "topic", "partition", "offset", "timestamp", "timestampType", "key", "headers", "value",
)  # fmt: skip


def binary(values: Sequence[bytes | None]) -> Any:
    """A binary column; None is null."""
    import pyarrow as pa

    validity = None
    filled: Sequence[bytes | None] = values
    if None in values:
        validity = _bitmap([value is not None for value in values])
        filled = [value or b"" for value in values]
    sizes = array("i", accumulate(map(len, filled), initial=0))  # type: ignore[arg-type]
    body = b"".join(filled)  # type: ignore[arg-type]
    return pa.Array.from_buffers(
        pa.binary(), len(values), [validity, pa.py_buffer(sizes), pa.py_buffer(body)]
    )


def header_column(rows: Sequence[list[tuple[str, bytes | None]] | None] | int) -> Any:
    """A list of (key, value) a row; null where a record has none, or for `rows` rows at all."""
    import pyarrow as pa

    kind = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    if isinstance(rows, int) or not any(rows):
        return pa.nulls(rows if isinstance(rows, int) else len(rows), kind)
    flat = [header for row in rows if row for header in row]
    keys = binary([key.encode() for key, _ in flat]).cast(pa.string())
    values = binary([value for _, value in flat])
    ends = array("i", accumulate((len(row) if row else 0 for row in rows), initial=0))
    children = pa.StructArray.from_arrays([keys, values], names=["key", "value"])
    validity = _bitmap([bool(row) for row in rows])
    return pa.Array.from_buffers(
        kind, len(rows), [validity, pa.py_buffer(ends)], children=[children]
    )


def _repeated(text: bytes, count: int, kind: Any) -> Any:
    import pyarrow as pa

    ends = array("i", range(0, len(text) * count + 1, len(text))) if text else array("i", [0])
    return pa.Array.from_buffers(
        kind, count, [None, pa.py_buffer(ends), pa.py_buffer(text * count)]
    )


def _ints(code: str, values: Sequence[int]) -> Any:
    import pyarrow as pa

    kind = pa.int64() if code == "q" else pa.int32()
    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(array(code, values))])


def _timestamps(times_ms: Sequence[int], kinds: Sequence[int]) -> Any:
    import pyarrow as pa

    validity = None if all(kinds) else _bitmap([kind > 0 for kind in kinds])
    micros = array("q", [time_ms * 1000 for time_ms in times_ms])
    return pa.Array.from_buffers(
        pa.timestamp("us", tz="UTC"), len(micros), [validity, pa.py_buffer(micros)]
    )


def _bitmap(present: Sequence[bool]) -> Any:
    import pyarrow as pa

    bits = bytearray((len(present) + 7) // 8)
    for index, is_present in enumerate(present):
        if is_present:
            bits[index >> 3] |= 1 << (index & 7)
    return pa.py_buffer(bytes(bits))
