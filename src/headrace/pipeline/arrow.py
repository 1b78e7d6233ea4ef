"""Converts RecordColumns to Arrow batches in the source's column order.

Invariants: builds the buffers by hand, because `pa.array` on a list imports pandas, which takes a
second in each new worker. A value that its plain column cannot represent goes into `raw`: nothing
is changed silently.
"""

from __future__ import annotations

from array import array
from itertools import accumulate
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from headrace.pipeline.columns import Headers, RecordColumns

SCHEMA = (
    "topic string, partition int, offset bigint, timestamp timestamp, timestampType int, "
    "key binary, headers array<struct<key: string, value: binary>>, value binary, "
    "raw struct<timestampMs: bigint, headerKeys: array<binary>>"
)
COLUMNS = (
    "topic", "partition", "offset", "timestamp", "timestampType", "key", "headers", "value", "raw",
)  # fmt: skip
TIMESTAMP_MS_MIN = -62_135_596_800_000
"""The first millisecond of the year 1: Spark's timestamps range from there to the year 9999."""
TIMESTAMP_MS_MAX = 253_402_300_799_999
NO_TIMESTAMP = -1  # Kafka's own


def to_arrow(rows: RecordColumns, topic: str, partition: int) -> Any:
    """Return one Arrow batch with the columns of `SCHEMA`."""
    import pyarrow as pa

    count = len(rows)
    present, strange = _timestamps_of(rows)
    columns = [
        repeated(topic, count),
        _ints("i", [partition] * count),
        _ints("q", rows.offsets),
        _timestamps(rows.times_ms, present),
        _ints("i", [kind - 1 for kind in rows.kinds]),  # librdkafka's 1 and 2 are Kafka's 0 and 1
        binary(rows.keys),
        header_column(rows.headers),
        binary(rows.values),
        raw_column(len(rows), strange, _by_row(rows)),
    ]
    return pa.RecordBatch.from_arrays(columns, names=list(COLUMNS))


def _timestamps_of(rows: RecordColumns) -> tuple[list[bool] | None, dict[int, int]]:
    """Return which rows have a timestamp that Spark can represent (None: all), and the others'
    values."""
    low, high = min(rows.times_ms), max(rows.times_ms)
    # Smaller timestamps are rare (before 1970) and cheap to check.
    if low > NO_TIMESTAMP and high <= TIMESTAMP_MS_MAX and all(rows.kinds):
        return None, {}
    present = [
        kind > 0 and time_ms != NO_TIMESTAMP and TIMESTAMP_MS_MIN <= time_ms <= TIMESTAMP_MS_MAX
        for kind, time_ms in zip(rows.kinds, rows.times_ms, strict=True)
    ]
    strange = {
        index: time_ms
        for index, time_ms in enumerate(rows.times_ms)
        if not TIMESTAMP_MS_MIN <= time_ms <= TIMESTAMP_MS_MAX
    }
    return present, strange


def _by_row(rows: RecordColumns) -> dict[int, list[bytes]]:
    if not rows.raw_keys:
        return {}
    found = ((row, rows.raw_keys.get(offset)) for row, offset in enumerate(rows.offsets))
    return {row: keys for row, keys in found if keys is not None}


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


def header_column(rows: Sequence[Headers | None]) -> Any:
    """A list of (key, value) for each row; null where a record has none."""
    import pyarrow as pa

    kind = header_kind()
    if not any(rows):
        return pa.nulls(len(rows), kind)
    flat = [header for row in rows if row for header in row]
    keys = binary([key.encode() for key, _ in flat]).cast(pa.string())
    values = binary([value for _, value in flat])
    ends = array("i", accumulate((len(row) if row else 0 for row in rows), initial=0))
    children = pa.StructArray.from_arrays([keys, values], names=["key", "value"])
    validity = _bitmap([bool(row) for row in rows])
    return pa.Array.from_buffers(
        kind, len(rows), [validity, pa.py_buffer(ends)], children=[children]
    )


def header_kind() -> Any:
    """The type of the column `headers`."""
    import pyarrow as pa

    return pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


def repeated(word: str, count: int) -> Any:
    """A string column of one value."""
    import pyarrow as pa

    text = word.encode()
    ends = array("i", range(0, len(text) * count + 1, len(text))) if text else array("i", [0])
    return pa.Array.from_buffers(
        pa.string(), count, [None, pa.py_buffer(ends), pa.py_buffer(text * count)]
    )


def _ints(code: str, values: Sequence[int]) -> Any:
    import pyarrow as pa

    kind = pa.int64() if code == "q" else pa.int32()
    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(array(code, values))])


def _timestamps(times_ms: Sequence[int], present: Sequence[bool] | None) -> Any:
    """Convert to microseconds: Spark has no millisecond type. Values of null rows do not matter."""
    import pyarrow as pa

    validity = None
    if present is not None:
        validity = _bitmap(present)
        times_ms = [ms if here else 0 for ms, here in zip(times_ms, present, strict=True)]
    micros = array("q", [time_ms * 1000 for time_ms in times_ms])
    return pa.Array.from_buffers(
        pa.timestamp("us", tz="UTC"), len(micros), [validity, pa.py_buffer(micros)]
    )


def raw_column(
    count: int, strange_ms: Mapping[int, int], raw_keys: Mapping[int, Sequence[bytes]]
) -> Any:
    """Return what the other columns cannot represent: null for nearly every record.

    `timestampMs` is set if the timestamp is out of Spark's range, `headerKeys` if a header key is
    not UTF-8: both are given by row.
    """
    import pyarrow as pa

    keys_kind = pa.list_(pa.binary())
    kind = pa.struct([("timestampMs", pa.int64()), ("headerKeys", keys_kind)])
    if not strange_ms and not raw_keys:
        return pa.nulls(count, kind)
    rows = range(count)
    times = pa.Array.from_buffers(
        pa.int64(),
        count,
        [
            _bitmap([row in strange_ms for row in rows]),
            pa.py_buffer(array("q", [strange_ms.get(row, 0) for row in rows])),
        ],
    )
    ends = array("i", accumulate((len(raw_keys.get(row, ())) for row in rows), initial=0))
    keys = pa.Array.from_buffers(
        keys_kind,
        count,
        [_bitmap([row in raw_keys for row in rows]), pa.py_buffer(ends)],
        children=[binary([key for row in sorted(raw_keys) for key in raw_keys[row]])],
    )
    is_set = [row in strange_ms or row in raw_keys for row in rows]
    return pa.Array.from_buffers(kind, count, [_bitmap(is_set)], children=[times, keys])


def _bitmap(present: Sequence[bool]) -> Any:
    import pyarrow as pa

    bits = bytearray((len(present) + 7) // 8)
    for index, is_present in enumerate(present):
        if is_present:
            bits[index >> 3] |= 1 << (index & 7)
    return pa.py_buffer(bytes(bits))
