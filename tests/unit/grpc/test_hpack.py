"""HPACK: the examples of RFC 7541, and `hpack` as the oracle."""

from __future__ import annotations

import hpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.grpc.hpack import (
    CompressionInvalid,
    HeaderDecoder,
    HeaderListTooLarge,
    encode_field,
    huffman_decode,
)

REQUESTS = [
    [(":method", "GET"), (":scheme", "http"), (":path", "/"), (":authority", "www.example.com")],
    [(":method", "GET"), (":scheme", "http"), (":path", "/"), (":authority", "www.example.com"),
     ("cache-control", "no-cache")],
    [(":method", "GET"), (":scheme", "https"), (":path", "/index.html"),
     (":authority", "www.example.com"), ("custom-key", "custom-value")],
]  # fmt: skip
PLAIN = ["828684410f7777772e6578616d706c652e636f6d", "828684be58086e6f2d6361636865",
         "828785bf400a637573746f6d2d6b65790c637573746f6d2d76616c7565"]  # fmt: skip
HUFFMAN = ["828684418cf1e3c2e5f23a6ba0ab90f4ff", "828684be5886a8eb10649cbf",
           "828785bf408825a849e95ba97d7f8925a849e95bb8e8b4bf"]  # fmt: skip


def pairs(fields):
    return [(name.decode(), value.decode()) for name, value, _kind, _size in fields]


@pytest.mark.parametrize("blocks", [PLAIN, HUFFMAN], ids=["C.3", "C.4"])
def test_the_examples_of_the_rfc(blocks):
    decoder = HeaderDecoder()
    assert [pairs(decoder.decode(bytes.fromhex(one))) for one in blocks] == REQUESTS
    assert decoder.table_bytes == 164


TEXTS = st.binary(min_size=1, max_size=40).map(lambda data: data.hex() + "~")
FIELDS = st.lists(st.tuples(TEXTS, st.binary(max_size=300)), max_size=12)


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.tuples(FIELDS, st.booleans(), st.sampled_from([None, 0, 100, 4096])), max_size=6)
)
def test_blocks_encoded_by_hpack_are_decoded(blocks):
    encoder, decoder = hpack.Encoder(), HeaderDecoder()
    for fields, is_huffman, table_bytes in blocks:
        if table_bytes is not None:
            encoder.header_table_size = table_bytes
        given_fields = [(name.encode(), value) for name, value in fields]
        decoded = decoder.decode(encoder.encode(given_fields, huffman=is_huffman))
        assert [(name, value) for name, value, _kind, _size in decoded] == given_fields
        assert decoder.table_bytes <= 4096


@settings(max_examples=100, deadline=None)
@given(FIELDS)
def test_encoded_fields_are_decoded_by_hpack(fields):
    encoded = b"".join(encode_field(name.encode(), value) for name, value in fields)
    decoder = hpack.Decoder()
    assert decoder.decode(encoded, raw=True) == [(name.encode(), value) for name, value in fields]
    assert not decoder.header_table.dynamic_entries


@settings(max_examples=500, deadline=None)
@given(st.binary(max_size=60))
def test_the_decoder_accepts_and_refuses_the_same_blocks_as_hpack(block):
    expected = hpack.Decoder(max_header_list_size=1 << 16)
    try:
        fields = expected.decode(block, raw=True)
    except hpack.HPACKError:
        fields = None
    decoder = HeaderDecoder()
    try:
        decoded = [(name, value) for name, value, _kind, _size in decoder.decode(block)]
    except CompressionInvalid:
        decoded = None
    assert decoded == (None if fields is None else [(one[0], one[1]) for one in fields])


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=30))
def test_any_bytes_are_huffman_or_refused_as_by_hpack(data):
    from hpack.huffman_table import decode_huffman

    try:
        expected = decode_huffman(data)
    except hpack.HPACKDecodingError:
        expected = None
    try:
        found = huffman_decode(data)
    except CompressionInvalid:
        found = None
    assert found == expected


def test_a_small_block_does_not_become_a_large_list():
    decoder = HeaderDecoder()
    large = b"\x40\1a\x7f\xa1\x1e" + b"v" * 4000
    decoder.decode(large)
    with pytest.raises(HeaderListTooLarge):
        decoder.decode(b"\xbe" * 17)


def test_numbers_end():
    for block in (
        b"\xff" + b"\x80" * 100,
        b"\0\x7f" + b"\xff" * 10,
        b"\x3f" + b"\x80" * 20 + b"\0",
    ):
        with pytest.raises(CompressionInvalid):
            HeaderDecoder().decode(block)
