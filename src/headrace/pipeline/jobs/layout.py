"""The columns of an archive's table: made at the start, and widened as a topic's schema grows.

Invariants: never drops or narrows a column, so every row that was written stays readable. A value
is written under the name of its field, whatever the order of fields in either schema.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from headrace.pipeline.catalog import (
    ADDED_COLUMNS,
    APPEND,
    MODE_PROPERTY,
    UPSERT,
    TableName,
    can_stage,
    check_layout,
    check_mode,
    creating,
    load_table_or_none,
)
from headrace.pipeline.errors import OptionInvalid, TableUnusable
from headrace.pipeline.publishing import WAP_PROPERTY, java_table

if TYPE_CHECKING:
    from headrace.pipeline.warehouse import Warehouse

VALUE = "value"
_BINARY = {VALUE: "binary"}
_SIDE_SUFFIX = "_undecodable"


class Layout(NamedTuple):
    """What a new table is made like.

    `is_daily`: partitioned by the day of a record's timestamp, too, and each file is in the order
    of offsets. `is_typed`: `value` has the type of the rows that are written.
    """

    mode: str
    compression: str
    is_daily: bool = False
    is_typed: bool = False


def side_table(table: TableName) -> TableName:
    """The table of what a typed table cannot hold: of the same name, in a namespace beside it."""
    return table._replace(namespace=table.namespace + _SIDE_SUFFIX)


def ensure_table(
    spark: Any, catalog: Any, place: Warehouse, table: TableName, layout: Layout
) -> None:
    """Create the table, or check and complete it. Raises OptionInvalid, TableUnusable."""
    if layout.mode == UPSERT and not can_stage(catalog):
        raise OptionInvalid(
            f"The table {table.in_spark} cannot be in mode upsert: its catalog, Nessie, keeps one"
            " snapshot of a table, and a merge must be staged. Nothing was written. Use mode"
            " append, or keep the table in another catalog."
        )
    present = load_table_or_none(catalog, table)
    if present is None:
        _create(spark, place, table, layout, _BINARY if not layout.is_typed else {})
        return
    check_layout(present)
    check_mode(present, layout.mode)
    columns = {field.name: str(field.field_type) for field in present.schema().fields}
    if VALUE in columns and (columns[VALUE] == "binary") == layout.is_typed:
        held, asked = ("bytes", "columns") if layout.is_typed else ("columns", "bytes")
        raise TableUnusable(
            f"The table {table.in_spark} holds values as {held}, and they are to be {asked} now."
            " Nothing was written. Name another table, or set the topic's value format back."
        )
    for name, kind in ADDED_COLUMNS.items():
        if name not in columns:  # of an earlier version; its rows are null there
            spark.sql(f"ALTER TABLE {table.in_spark} ADD COLUMN {name} {kind}")
    if present.properties.get(WAP_PROPERTY) != "true":
        spark.sql(f"ALTER TABLE {table.in_spark} SET TBLPROPERTIES ('{WAP_PROPERTY}'='true')")
    if layout.is_daily and present.sort_order().is_unsorted:
        _order(spark, table)


def ensure_side_table(spark: Any, catalog: Any, place: Warehouse, table: TableName) -> TableName:
    """The side table of `table`: values as they are, with the reason why they are there."""
    side = side_table(table)
    if load_table_or_none(catalog, side) is None:
        columns = {**_BINARY, "reason": "string"}
        _create(spark, place, side, Layout(APPEND, "zstd", is_daily=True), columns)
    return side


def _create(
    spark: Any, place: Warehouse, table: TableName, layout: Layout, more: dict[str, str]
) -> None:
    with creating(place):
        spark.sql(f"CREATE NAMESPACE IF NOT EXISTS {table.namespace_in_spark}")
    # A resume reads the bounds of offset; bounds of the payload would only cost.
    metrics = "write.metadata.metrics.column"
    columns = ", ".join(f"{name} {kind}" for name, kind in (more | ADDED_COLUMNS).items())
    without_value = f"'{metrics}.value'='none'," if VALUE in more else ""
    spark.sql(
        f"""CREATE TABLE IF NOT EXISTS {table.in_spark} (
            topic string, partition int, offset bigint, timestamp timestamp, key binary,
            headers array<struct<key: string, value: binary>>, {columns})
        USING iceberg
        PARTITIONED BY (topic, partition{", days(timestamp)" if layout.is_daily else ""})
        TBLPROPERTIES ('format-version'='2', 'write.distribution-mode'='none',
            'write.spark.fanout.enabled'='{str(not layout.is_daily).lower()}',
            'commit.retry.num-retries'='20',
            '{WAP_PROPERTY}'='true', '{MODE_PROPERTY}'='{layout.mode}',
            'write.parquet.compression-codec'='{layout.compression}',
            'write.metadata.delete-after-commit.enabled'='true',
            'write.metadata.previous-versions-max'='20', {without_value}
            '{metrics}.offset'='full', '{metrics}.timestamp'='full', '{metrics}.key'='none')"""
    )
    if layout.is_daily:
        _order(spark, table)


def _order(spark: Any, table: TableName) -> None:
    """Sort the rows of each task, by partition first: so one file is open at a time, even where
    records are of thousands of days."""
    spark.sql(f"ALTER TABLE {table.in_spark} WRITE LOCALLY ORDERED BY offset")


def fitted(spark: Any, table: TableName, frame: Any) -> Any:
    """`frame` with `value` as the table has it, after the table got what fields it lacks.

    Raises TableUnusable if a field's type became one that the table's cannot be widened to.
    """
    from pyspark.errors import IllegalArgumentException
    from pyspark.sql.functions import col

    jvm = spark._jvm  # noqa: SLF001 - pyspark has no public way
    loaded = java_table(spark, table)
    wanted = jvm.org.apache.iceberg.spark.SparkSchemaUtil.convert(
        frame.select(VALUE)._jdf.schema()  # noqa: SLF001
    )
    try:
        loaded.updateSchema().unionByNameWith(wanted).commit()
    except IllegalArgumentException as error:  # as which PySpark raises Java's
        reason = str(error).splitlines()[0].rstrip(".")
        raise TableUnusable(
            f"The table {table.in_spark} cannot follow the topic's schema: {reason}. Nothing is"
            " lost: the topic keeps its records. Register a version of the schema whose types the"
            " table's widen to (int to long, float to double, new fields), or name another table."
        ) from error
    kind = spark.table(table.in_spark).schema[VALUE].dataType
    value = _conformed(col(VALUE), frame.schema[VALUE].dataType, kind)
    return frame.withColumn(VALUE, value)


def _conformed(value: Any, present: Any, wanted: Any) -> Any:
    """A column of the type `present` as one of type `wanted`, whose fields include its own."""
    from pyspark.sql import functions as f
    from pyspark.sql.types import ArrayType, MapType, StructType

    if present == wanted:
        return value
    if isinstance(wanted, StructType):
        own = {field.name: field.dataType for field in present.fields}
        fields = [
            (
                _conformed(value.getField(field.name), own[field.name], field.dataType)
                if field.name in own
                else f.lit(None).cast(field.dataType)
            ).alias(field.name)
            for field in wanted.fields
        ]
        return f.when(value.isNotNull(), f.struct(*fields))
    if isinstance(wanted, ArrayType):
        return f.transform(
            value, lambda each: _conformed(each, present.elementType, wanted.elementType)
        )
    if isinstance(wanted, MapType):
        return f.transform_values(
            value, lambda _, each: _conformed(each, present.valueType, wanted.valueType)
        )
    return value.cast(wanted)
