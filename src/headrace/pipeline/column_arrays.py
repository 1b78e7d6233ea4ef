"""Arrow batches from columns of positions (`records.columnar`).

Invariants: no byte of a key or value becomes an object. Arrow sees the body as one binary array
whose elements are, in turn, a gap, a key, a gap and a value, and copies the elements it is asked
for. The batches equal those of `arrow.to_arrow`.
"""

from __future__ import annotations

from array import array
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from headrace.pipeline.arrow import COLUMNS, binary, header_kind, raw_column, repeated
from headrace.records.columnar import LOG_APPEND_TIME, NO_KEY, NO_TIME, NO_VALUE

if TYPE_CHECKING:
    from headrace.records.columnar import RecordColumns

_FIRST, _SECOND, _STEP = 1, 3, 4
"""Of the elements of a row, the key and the value; of those of a header, its name and value."""


def batch_of(rows: RecordColumns, topic: str, partition: int) -> Any:
    """Return one Arrow batch with the columns of `arrow.SCHEMA`."""
    import pyarrow as pa

    count = int(rows.row_count)
    body = pa.py_buffer(rows.body())
    flags, used = rows.flags.getvalue(), rows.flags_used
    fields = _elements(rows.positions.getvalue(), count, body)
    times = pa.py_buffer(rows.times.getvalue())
    headers, raw_keys = _headers_of(rows, count, body)
    columns = [
        _topic_column(topic, count),
        _int_column(partition, count),
        pa.Array.from_buffers(pa.int64(), count, [None, pa.py_buffer(rows.offsets.getvalue())]),
        pa.Array.from_buffers(
            pa.timestamp("us", tz="UTC"), count, [_validity(flags, used, NO_TIME), times]
        ),
        _kinds(flags, count) if used & LOG_APPEND_TIME else _int_column(0, count),
        _taken(fields, _FIRST, count, _validity(flags, used, NO_KEY)),
        headers,
        _taken(fields, _SECOND, count, _validity(flags, used, NO_VALUE)),
        raw_column(count, dict(rows.strange_ms), raw_keys),
    ]
    return pa.RecordBatch.from_arrays(columns, names=list(COLUMNS))


def _elements(positions: bytes, count: int, body: Any) -> Any:
    """The body as gaps and fields."""
    import pyarrow as pa

    return pa.Array.from_buffers(
        pa.large_binary(), _STEP * count, [None, pa.py_buffer(positions), body]
    )


def _taken(elements: Any, which: int, count: int, validity: Any) -> Any:
    """Every fourth element as a column of its own."""
    import pyarrow as pa

    taken = elements.take(_indices(which, count)).cast(pa.binary())
    if validity is None:
        return taken
    return pa.Array.from_buffers(pa.binary(), count, [validity, *taken.buffers()[1:]])


@lru_cache(maxsize=16)
def _indices(which: int, count: int) -> Any:
    import pyarrow as pa

    numbers = array("q", range(which, _STEP * count, _STEP))
    return pa.Array.from_buffers(pa.int64(), count, [None, pa.py_buffer(numbers)])


@lru_cache(maxsize=16)
def _topic_column(topic: str, count: int) -> Any:
    return repeated(topic, count)


@lru_cache(maxsize=16)
def _int_column(number: int, count: int) -> Any:
    import pyarrow as pa

    return pa.Array.from_buffers(
        pa.int32(), count, [None, pa.py_buffer(array("i", [number]) * count)]
    )


def _validity(flags: bytes, used: int, flag: int) -> Any:
    """The bitmap of rows without a flag; None if no row has it."""
    from pyarrow import compute

    if not used & flag:
        return None
    return compute.equal(compute.bit_wise_and(_octets(flags), _octet(flag)), _octet(0)).buffers()[1]


def _kinds(flags: bytes, count: int) -> Any:
    import pyarrow as pa
    from pyarrow import compute

    is_append = compute.bit_wise_and(_octets(flags), _octet(LOG_APPEND_TIME))
    return compute.divide(is_append, _octet(LOG_APPEND_TIME)).cast(pa.int32())


def _octets(flags: bytes) -> Any:
    import pyarrow as pa

    return pa.Array.from_buffers(pa.uint8(), len(flags), [None, pa.py_buffer(flags)])


def _octet(number: int) -> Any:
    import pyarrow as pa

    return pa.scalar(number, pa.uint8())


def _headers_of(rows: RecordColumns, count: int, body: Any) -> tuple[Any, dict[int, list[bytes]]]:
    """The column `headers`, and all header keys, by row, of records that have one that is not
    UTF-8."""
    import pyarrow as pa
    from pyarrow import compute

    header_count = int(rows.header_count)
    if not header_count:
        return pa.nulls(count, header_kind()), {}
    fields = _elements(rows.headers.getvalue(), header_count, body)
    missing = _validity(rows.header_flags.getvalue(), rows.header_flags_used, NO_VALUE)
    keys = _taken(fields, _FIRST, header_count, None)
    values = _taken(fields, _SECOND, header_count, missing)
    ends = pa.Array.from_buffers(
        pa.int64(), count + 1, [None, pa.py_buffer(rows.header_counts.getvalue())]
    )
    raw_keys: dict[int, list[bytes]] = {}
    try:
        names = keys.cast(pa.string())
    except pa.ArrowInvalid:
        names, raw_keys = _decoded(keys, ends.to_pylist())
    children = pa.StructArray.from_arrays([names, values], names=["key", "value"])
    validity = compute.not_equal(ends.slice(1), ends.slice(0, count)).buffers()[1]
    column = pa.Array.from_buffers(
        header_kind(), count, [validity, ends.cast(pa.int32()).buffers()[1]], children=[children]
    )
    return column, raw_keys


def _decoded(keys: Any, ends: list[int]) -> tuple[Any, dict[int, list[bytes]]]:
    """Readable names for keys of any bytes, and the keys of the rows where these differ."""
    import pyarrow as pa

    found: list[bytes] = keys.to_pylist()
    names = [key.decode("utf-8", "replace") for key in found]
    raw_keys = {}
    for row in range(len(ends) - 1):
        own = range(ends[row], ends[row + 1])
        if any(names[each].encode() != found[each] for each in own):
            raw_keys[row] = [found[each] for each in own]
    return binary([name.encode() for name in names]).cast(pa.string()), raw_keys
