"""The writers of the data source `headrace`: rows of a DataFrame become records of topics.

Rules of the room: columns are found by name (`value`, and perhaps topic, partition, key,
headers, timestamp); how rows are delivered once is `delivery.py`. Spark pickles a writer to
its workers: it carries options only.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from headrace.pipeline.delivery import Delivery, IdempotentDelivery, Row, WriteIdentity
from headrace.pipeline.errors import OptionInvalid

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql.types import StructType

    from headrace.pipeline.options import SinkOptions

COLUMNS = {"topic", "partition", "key", "value", "headers", "timestamp"}
_QUERY_PROPERTY = "sql.streaming.queryId"
_BATCH_PROPERTY = "streaming.sql.batchId"


@dataclass
class RowsWritten(WriterCommitMessage):
    """What one task did."""

    count: int


class BatchWriter(DataSourceArrowWriter):
    """A bounded write: once per `writeId`, which is made up for each job unless given."""

    def __init__(self, options: SinkOptions, schema: StructType) -> None:
        check_columns(schema.fieldNames(), options)
        self.options = options
        self.write_id = options.write_id or uuid4().hex

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        """One task's rows."""
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None, "a writer runs inside a task"
        identity = WriteIdentity(self.write_id, 0, context.partitionId())
        return RowsWritten(deliver(iterator, self.options, identity))


class StreamWriter(DataSourceStreamArrowWriter):
    """A stream's write: once per micro-batch of the query, over kills and replays."""

    def __init__(self, options: SinkOptions, schema: StructType) -> None:
        check_columns(schema.fieldNames(), options)
        self.options = options

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        """One task's rows of one micro-batch."""
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None, "a writer runs inside a task"
        query = context.getLocalProperty(_QUERY_PROPERTY)
        batch = context.getLocalProperty(_BATCH_PROPERTY)
        assert query is not None, "Spark names the query in each task"
        assert batch is not None, "Spark names the batch in each task"
        identity = WriteIdentity(query, int(batch), context.partitionId())
        return RowsWritten(deliver(iterator, self.options, identity))


def check_columns(names: list[str], options: SinkOptions) -> None:
    """Raise OptionInvalid unless a record can be made of these columns."""
    unknown = sorted(set(names) - COLUMNS)
    if unknown or "value" not in names:
        raise OptionInvalid(
            f"A row needs the column value and may have {', '.join(sorted(COLUMNS))}; "
            f"this one has {', '.join(names)}."
        )
    if options.topic is None and "topic" not in names:
        raise OptionInvalid("Say where to: option topic, or a column topic.")


def deliver(batches: Iterator[Any], options: SinkOptions, identity: WriteIdentity) -> int:
    """Write all rows of a task once; how many were written now. Empty tasks touch nothing."""
    delivery: Delivery | None = None
    try:
        for row in rows_of(batches, options):
            if delivery is None:
                delivery = IdempotentDelivery(options, identity)
            delivery.send(row)
        return 0 if delivery is None else delivery.finish()
    finally:
        if delivery is not None:
            delivery.close()


def rows_of(batches: Iterator[Any], options: SinkOptions) -> Iterator[Row]:
    """The rows in the order in which they are numbered."""
    rows = (row for batch in batches for row in _rows_of_batch(batch, options.topic))
    return iter(sorted(rows, key=_sort_key)) if options.sort_rows else rows


def _sort_key(row: Row) -> tuple[str, int, int, bytes, bytes]:
    return (row.topic, row.partition, row.timestamp_ms, _bytes(row.key), _bytes(row.value))


def _bytes(value: bytes | str | None) -> bytes:
    return value.encode() if isinstance(value, str) else value or b""


def _rows_of_batch(batch: Any, topic: str | None) -> Iterator[Row]:
    import pyarrow as pa

    def column(name: str, instead: Any) -> list[Any]:
        index = batch.schema.get_field_index(name)
        if index < 0:
            return [instead] * batch.num_rows
        values = batch.column(index)
        if pa.types.is_timestamp(values.type):
            values = values.cast(pa.timestamp("us", tz=values.type.tz)).cast(pa.int64())
            return [instead if each is None else each // 1000 for each in values.to_pylist()]
        return [instead if each is None else each for each in values.to_pylist()]

    for name, partition, key, value, headers, timestamp_ms in zip(
        column("topic", topic),
        column("partition", -1),
        column("key", None),
        column("value", None),
        column("headers", ()),
        column("timestamp", 0),
        strict=True,
    ):
        if name is None:
            raise OptionInvalid("A row has no topic, and the option topic is not set.")
        pairs = [(header["key"], header["value"]) for header in headers]
        yield Row(name, partition, key, value, pairs, timestamp_ms)
