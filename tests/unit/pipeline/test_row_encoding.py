"""The sink's rows as bytes: the stored formats, and records as the log's own codec writes them."""

from __future__ import annotations

from hashlib import blake2b
from struct import pack

from hypothesis import given
from hypothesis import strategies as st

from headrace.pipeline.row_encoding import ANYWHERE, bodies_of, encode_rows, places_of
from headrace.pipeline.written import RowToWrite, Stored, row_again, written_or_none
from headrace.records.bodies import encode_body
from headrace.records.partitioner import partition_of_key

octets = st.none() | st.binary(max_size=300)
rows = st.builds(
    RowToWrite,
    st.just("orders"),
    st.integers(-1, 9),
    octets,
    octets,
    st.lists(st.tuples(st.text(max_size=9), octets), max_size=3),
    st.just(0) | st.integers(1, 1 << 45),
)


def digest_of(row: RowToWrite) -> bytes:
    """As stored since the first version."""
    sizes = [-1 if each is None else len(each) for each in (row.key, row.value)]
    text = pack("<iiqii", *sizes, row.timestamp_ms, row.partition, len(row.headers))
    for name, content in row.headers:
        text += pack("<ii", len(name.encode()), -1 if content is None else len(content))
        text += name.encode() + (content or b"")
    return blake2b(text + (row.key or b"") + (row.value or b""), digest_size=12).digest()


@given(st.lists(rows, max_size=5))
def test_digests_and_headers_keep_their_format(given_rows):
    digests, written, total = encode_rows(given_rows, b"query/7/run/3/")
    assert digests == [digest_of(row) for row in given_rows]
    assert total == sum(int.from_bytes(digest, "big") for digest in digests)
    for row, digest, content in zip(given_rows, digests, written, strict=True):
        stored = Stored(
            max(row.partition, 0), row.key, row.value,
            [*row.headers, ("headrace-written", content)], row.timestamp_ms or 5,
        )  # fmt: skip
        found = written_or_none(b"query/7/", stored)
        assert found is not None
        assert (found.run, found.task, found.digest) == ("run", 3, digest)
        assert row_again("orders", found, stored) == row


@given(st.lists(rows, max_size=5), st.binary(max_size=100))
def test_bodies_are_those_of_the_codec(given_rows, content):
    found = bodies_of(given_rows, "headrace-written", [content] * len(given_rows))
    assert found == [
        encode_body(row.key, row.value, [*row.headers, ("headrace-written", content)])
        for row in given_rows
    ]


@given(st.lists(rows, max_size=5), st.integers(1, 20))
def test_a_row_goes_where_it_says_or_where_its_key_belongs(given_rows, count):
    for row, place in zip(given_rows, places_of(given_rows, count), strict=True):
        if row.partition >= 0:
            assert place == row.partition
        elif row.key is None:
            assert place == ANYWHERE
        else:
            assert place == partition_of_key(row.key, count)
