"""The data source `headrace-batches`: the record batches of topics as a table, one row each.

Invariants: bounded reads of headers only; no record is decoded. A batch belongs to the task in
whose range its last offset lies, so each is returned once. Spark imports this module in every
worker: keep it light.
"""

from __future__ import annotations

from array import array
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import DataSource

from headrace.pipeline.catalog_tables import options_of_read, schema_of
from headrace.pipeline.errors import OptionInvalid
from headrace.pipeline.options import BATCH_OPTIONS, parse_source
from headrace.pipeline.source import HeadraceReader
from headrace.pipeline.tasks import TopicRange, read_of_topic

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pyspark.sql.datasource import InputPartition
    from pyspark.sql.types import StructType

    from headrace.pipeline.options import SourceOptions
    from headrace.pipeline.planning import OffsetRange

BATCHES_FORMAT: Final = "headrace-batches"
_NUMBERS: Final = {
    "partition": "int",
    "base_offset": "bigint",
    "last_offset": "bigint",
    "records": "int",
    "size_bytes": "bigint",
    "producer_id": "bigint",
    "producer_epoch": "int",
    "base_sequence": "int",
    "is_transactional": "boolean",
    "is_control": "boolean",
    "is_aborted": "boolean",
}
SCHEMA: Final = ", ".join(["topic string", *(f"{name} {kind}" for name, kind in _NUMBERS.items())])
"""Without a producer id, it, its epoch and its sequence are -1, as they are stored."""
_ROWS_MAX: Final = 10_000


class BatchesReader(HeadraceReader):
    """A bounded read of headers, planned like one of records."""

    def partitions(self) -> Sequence[InputPartition]:
        """Plan the tasks. Raises OptionInvalid, RecordsLost, TopicRecreated."""
        from headrace.pipeline.direct import is_possible

        if not is_possible(self.options.client):
            raise OptionInvalid(
                f"{BATCHES_FORMAT} reads whole batches without the client library, and does not"
                " know one of the kafka.* options given. Remove those that are not about"
                " addresses, TLS or a login with a password."
            )
        return super().partitions()

    def read(self, partition: InputPartition | None) -> Iterator[Any]:
        """Read the headers of one task. Spark passes None if there is nothing to read."""
        if partition is None:
            return iter(())
        assert isinstance(partition, TopicRange), "planned here"
        return read_of_topic(partition.piece, partition.topic_id, self.options, _read_rows)


class BatchesDataSource(DataSource):
    """`format("headrace-batches")`."""

    @classmethod
    def name(cls) -> str:
        """The name for `format`."""
        return BATCHES_FORMAT

    def schema(self) -> str | StructType:
        """The columns of a read. Raises OptionInvalid."""
        return schema_of(self.options, SCHEMA, partial(parse_source, known=BATCH_OPTIONS))

    def reader(self, schema: StructType) -> BatchesReader:
        """A bounded read. Raises OptionInvalid."""
        return BatchesReader(parse_source(options_of_read(self.options, schema), BATCH_OPTIONS))


def _read_rows(piece: OffsetRange, options: SourceOptions) -> Iterator[Any]:
    from headrace.pipeline.direct import read_headers

    rows = (
        (
            piece.partition,
            header.base_offset,
            header.last_offset,
            header.record_count,
            header.size,
            header.producer_id,
            header.producer_epoch,
            header.base_sequence,
            header.is_transactional,
            header.is_control,
            is_aborted,
        )
        for header, is_aborted in read_headers(piece, options)
    )
    while part := list(islice(rows, _ROWS_MAX)):
        yield _arrow_batch(piece.topic, part)


def _arrow_batch(topic: str, rows: Sequence[tuple[int, ...]]) -> Any:
    """By buffers, as in `arrow.py`: `pa.array` imports pandas."""
    import pyarrow as pa

    from headrace.pipeline.arrow import repeated

    types = {"int": pa.int32(), "bigint": pa.int64(), "boolean": pa.bool_()}
    columns = [
        pa.Array.from_buffers(
            pa.int64(), len(rows), [None, pa.py_buffer(array("q", numbers))]
        ).cast(types[kind])
        for numbers, kind in zip(zip(*rows, strict=True), _NUMBERS.values(), strict=True)
    ]
    return pa.RecordBatch.from_arrays([repeated(topic, len(rows)), *columns], ["topic", *_NUMBERS])
