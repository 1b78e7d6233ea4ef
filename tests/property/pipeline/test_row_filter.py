"""Predicates that the source takes, against SQL's meaning of them, row by row."""

from datetime import UTC, datetime, timedelta

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.datasource import (
    EqualTo,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringStartsWith,
)

from headrace.pipeline.row_filter import RowFilter

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
times = st.integers(-3, 12).map(lambda n: EPOCH + timedelta(microseconds=n))
keys = st.sampled_from([b"", b"a", b"b"])
numbers = st.integers(-2, 12)
COMPARE = {
    GreaterThan: lambda a, b: a > b, GreaterThanOrEqual: lambda a, b: a >= b,
    LessThan: lambda a, b: a < b, LessThanOrEqual: lambda a, b: a <= b,
    EqualTo: lambda a, b: a == b, In: lambda a, b: a in b,
}  # fmt: skip


def predicates(column, values, kinds):
    return st.sampled_from(kinds).flatmap(
        lambda kind: (st.lists(values, min_size=1, max_size=3).map(tuple) if kind is In else values)
        .map(lambda value: kind((column,), value))
    )  # fmt: skip


ORDERED = [GreaterThan, GreaterThanOrEqual, LessThan, LessThanOrEqual, EqualTo]
any_predicate = (
    predicates("offset", numbers, ORDERED)
    | predicates("partition", numbers, [*ORDERED, In])
    | predicates("timestamp", times, ORDERED)
    | predicates("key", keys, [EqualTo, In])
    | predicates("topic", st.sampled_from(["s", "t"]), [EqualTo, In])
)
row = st.tuples(
    st.sampled_from(["s", "t"]), st.integers(0, 2), st.integers(0, 9), st.none() | times,
    st.none() | keys,
)  # fmt: skip
NAMES = ["topic", "partition", "offset", "timestamp", "key"]


def passes(one, predicate):
    value = one[NAMES.index(predicate.attribute[0])]
    return value is not None and COMPARE[type(predicate)](value, predicate.value)


@given(st.lists(any_predicate, max_size=4), st.lists(row, max_size=12))
def test_pushed_down_predicates_keep_exactly_the_rows_that_sql_keeps(taken, rows):
    found = RowFilter()
    for predicate in taken:
        found = found.with_predicate(predicate)
        assert found is not None
    kept = []
    start = {t: {str(p): 0 for p in range(3)} for t in ("s", "t")}
    end = {t: {str(p): 10 for p in range(3)} for t in ("s", "t")}
    begin, stop = found.bounded(start, found.chosen(end))
    for one in rows:
        low, high = (
            begin.get(one[0], {}).get(str(one[1]), 0),
            stop.get(one[0], {}).get(str(one[1]), 0),
        )
        if not low <= one[2] < high:
            continue
        batch = pa.record_batch(
            [pa.array([one[3]], pa.timestamp("us", tz="UTC")), pa.array([one[4]], pa.binary())],
            names=["timestamp", "key"],
        )
        kept += [one] * found.apply(batch).num_rows
    assert kept == [one for one in rows if all(passes(one, each) for each in taken)]
    assert all(0 <= low <= 10 for each in begin.values() for low in each.values())


def test_others_are_left_to_spark():
    for predicate in (
        IsNull(("key",)), Not(EqualTo(("offset",), 1)), StringStartsWith(("topic",), "t"),
        EqualTo(("value",), b"x"), EqualTo(("headers", "key"), "x"), EqualTo(("key",), "text"),
        EqualTo(("key",), None), In(("offset",), (1, 2)), In(("key",), (b"a", None)),
        GreaterThan(("key",), b"a"), EqualTo(("offset",), True), LessThan(("timestamp",), "2020"),
    ):  # fmt: skip
        assert RowFilter().with_predicate(predicate) is None, predicate
