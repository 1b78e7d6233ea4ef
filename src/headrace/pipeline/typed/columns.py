"""The columns of a typed read, and the decoding of its batches.

Invariants: the schema is loaded once in each process for the same options.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from headrace.pipeline.arrow import COLUMNS, header_kind, raw_column
from headrace.pipeline.errors import OptionInvalid
from headrace.pipeline.typed.values import UNDECODABLE, TypedValues, undecodable_type

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from headrace.pipeline.options import SourceOptions
    from headrace.pipeline.typed.options import TypedOptions


@lru_cache(maxsize=16)
def typed_values(options: TypedOptions, topic: str | None) -> TypedValues:
    """The values of a topic. Raises OptionInvalid, RegistryUnavailable."""
    return TypedValues(options, topic)


def values_of(options: SourceOptions) -> TypedValues:
    """The values of a read. Raises OptionInvalid, RegistryUnavailable."""
    assert options.typed is not None, "asked for typed values only"
    if options.typed.registry is not None and not options.include_headers:
        raise OptionInvalid("includeHeaders=false hides the header that may name a value's schema.")
    return typed_values(options.typed, options.topics[0] if len(options.topics) == 1 else None)


def typed_schema(options: SourceOptions) -> StructType:
    """The source's columns with a typed `value`, and `undecodable`."""
    from pyspark.sql.pandas.types import from_arrow_type

    typed = columns_with(values_of(options).arrow_type)
    return typed.add(UNDECODABLE, from_arrow_type(undecodable_type()))


def columns_with(value: pa.DataType) -> StructType:
    """The source's columns (`arrow.SCHEMA`) with values of a type."""
    import pyarrow as pa
    from pyspark.sql.pandas.types import from_arrow_type
    from pyspark.sql.types import StructType

    kinds = {
        "topic": pa.string(),
        "partition": pa.int32(),
        "offset": pa.int64(),
        "timestamp": pa.timestamp("us", "UTC"),
        "timestampType": pa.int32(),
        "key": pa.binary(),
        "headers": header_kind(),
        "value": value,
        "raw": raw_column(0, {}, {}).type,
    }
    columns = StructType()
    for name in COLUMNS:
        columns = columns.add(name, from_arrow_type(kinds[name]))
    return columns
