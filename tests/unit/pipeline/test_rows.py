"""Rows as records: what is taken as it is, and what is refused."""

from itertools import chain

import pyarrow as pa
import pytest
from pyspark.sql import types as T  # noqa: N812 - its usual name

from headrace.pipeline.errors import OptionInvalid, RowInvalid
from headrace.pipeline.options import SinkOptions
from headrace.pipeline.rows import check_columns, rows_of
from headrace.pipeline.written import RowToWrite

TO_TOPIC = SinkOptions({}, topic="t")
HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


def headers(key=T.StringType, value=T.BinaryType, names=("key", "value")):
    fields = [T.StructField(names[0], key()), T.StructField(names[1], value())]
    return T.ArrayType(T.StructType(fields))


def schema(**columns):
    return T.StructType([T.StructField(name, kind) for name, kind in columns.items()])


@pytest.mark.parametrize(
    "columns",
    [
        {},
        {
            "value": T.StringType(), "key": T.StringType(), "topic": T.StringType(),
            "partition": T.IntegerType(), "timestamp": T.TimestampType(),
        },
        {"value": T.VarcharType(9), "partition": T.ShortType()},
        {"headers": headers()},
        {"headers": headers(value=T.StringType)},
    ],
)  # fmt: skip
def test_columns_that_make_records(columns):
    check_columns(schema(**{"value": T.BinaryType(), **columns}), TO_TOPIC)


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"offset": T.LongType()}, "needs the column value and may have"),
        ({"value": T.IntegerType()}, "has type int, but a record needs binary or string"),
        ({"value": T.ArrayType(T.StringType())}, "Column value has type"),
        ({"topic": T.BinaryType()}, "Column topic"),
        ({"partition": T.LongType()}, "a record needs int"),
        ({"partition": T.StringType()}, "Column partition"),
        ({"timestamp": T.LongType()}, "a record needs timestamp"),
        ({"timestamp": T.TimestampNTZType()}, "Column timestamp"),
        ({"headers": T.MapType(T.StringType(), T.BinaryType())}, "Column headers"),
        ({"headers": headers(key=T.BinaryType)}, "Column headers"),
        ({"headers": headers(names=("k", "v"))}, "Column headers"),
    ],
)
def test_a_wrong_column_is_refused_with_the_type_it_needs(columns, message):
    with pytest.raises(OptionInvalid, match=message):
        check_columns(schema(**{"value": T.BinaryType(), **columns}), TO_TOPIC)


def test_a_row_needs_a_value():
    with pytest.raises(OptionInvalid, match="needs the column value"):
        check_columns(schema(key=T.BinaryType()), TO_TOPIC)


def test_a_topic_must_be_named_somewhere():
    with pytest.raises(OptionInvalid, match="option topic"):
        check_columns(schema(value=T.BinaryType()), SinkOptions({}))


def batch(**columns):
    return pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))


def test_every_field_is_taken_as_it_is():
    made = batch(
        topic=pa.array(["a", None]),
        partition=pa.array([2, None], pa.int32()),
        key=pa.array(["k", None]),
        value=pa.array([b"\xff", None]),
        headers=pa.array([[{"key": "", "value": None}, {"key": "h", "value": b""}], None], HEADERS),
        timestamp=pa.array([1_999, None], pa.timestamp("us", tz="UTC")),
    )
    assert [*chain.from_iterable(rows_of(iter([made]), TO_TOPIC))] == [
        RowToWrite("a", 2, b"k", b"\xff", [("", None), ("h", b"")], 1),
        RowToWrite("t", -1, None, None, [], 0),
    ]


@pytest.mark.parametrize(
    ("column", "values", "message"),
    [
        ("timestamp", pa.array([0], pa.timestamp("us", tz="UTC")), "timestamp before 1970"),
        ("timestamp", pa.array([999], pa.timestamp("us", tz="UTC")), "timestamp before 1970"),
        ("timestamp", pa.array([-5_000], pa.timestamp("us", tz="UTC")), "timestamp before 1970"),
        ("headers", pa.array([[{"key": None, "value": b"x"}]], HEADERS), "null key"),
        ("headers", pa.array([[None]], HEADERS), "null key"),
        ("partition", pa.array([-1], pa.int32()), "negative partition number"),
    ],
)
def test_a_row_that_would_be_changed_is_refused(column, values, message):
    made = batch(value=pa.array([b"v"]), **{column: values})
    with pytest.raises(RowInvalid, match=message):
        list(rows_of(iter([made]), TO_TOPIC))


def test_a_row_without_a_topic_is_refused():
    made = batch(value=pa.array([b"v"]), topic=pa.array([None], pa.string()))
    with pytest.raises(RowInvalid, match="null in the column topic"):
        list(rows_of(iter([made]), SinkOptions({})))


def test_rows_of_a_large_batch_come_in_pieces_of_bounded_size_and_in_order():
    values = [b"%d" % number * 1_000_000 for number in range(8)] * 4
    large = pa.record_batch([pa.array(values)], names=["value"])
    small = pa.record_batch([pa.array([b"end"])], names=["value"])
    pieces = list(rows_of(iter([large, small]), TO_TOPIC))
    assert [row.value for row in chain.from_iterable(pieces)] == [*values, b"end"]
    assert max(sum(len(row.value) for row in piece) for piece in pieces) <= 8 << 20
    assert len(pieces) <= 10
