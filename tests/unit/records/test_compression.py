"""Codecs: what clients send, and bombs."""

from __future__ import annotations

import gzip
import subprocess
import sys
import zlib

import cramjam
import lz4.frame
import pytest
import zstandard

from headrace.errors import BatchCorrupt
from headrace.records.compression import (
    CODEC_NAMES,
    GZIP,
    LZ4,
    NONE,
    SNAPPY,
    ZSTD,
    codec_of_name,
    compress,
    decompress,
)

TEXT = b"what a mill wheel turns by " * 5_000


def test_names_are_kafkas():
    assert [codec_of_name(name) for name in CODEC_NAMES] == [NONE, GZIP, SNAPPY, LZ4, ZSTD]
    assert codec_of_name("brotli") is None


def zstd_stream(data):
    stream = zstandard.ZstdCompressor(level=19, write_checksum=True).compressobj()
    return stream.compress(data) + stream.flush()  # does not say how large its content is


@pytest.mark.parametrize(
    ("codec", "stream"),
    [
        (GZIP, gzip.compress(TEXT, 9)),
        (GZIP, gzip.compress(TEXT, 0)),
        (SNAPPY, bytes(cramjam.snappy.compress_raw(TEXT))),
        (LZ4, lz4.frame.compress(TEXT, block_linked=True, content_checksum=True)),
        (LZ4, lz4.frame.compress(TEXT, block_size=lz4.frame.BLOCKSIZE_MAX4MB, block_checksum=True)),
        (ZSTD, zstd_stream(TEXT)),
        (ZSTD, zstandard.ZstdCompressor(level=1).compress(TEXT)),
        (ZSTD, zstandard.ZstdCompressor().compress(b"")),
    ],
    ids=[
        "gzip9",
        "gzip0",
        "raw-snappy",
        "lz4-linked",
        "lz4-4mb",
        "zstd-stream",
        "zstd",
        "zstd-empty",
    ],
)
def test_every_way_that_clients_write_is_read_and_only_whole(codec, stream):
    plain = decompress(codec, stream, len(TEXT))
    assert plain in {TEXT, b""}
    assert decompress(codec, memoryview(stream), len(plain)) == plain
    if plain:
        with pytest.raises(BatchCorrupt):
            decompress(codec, stream, len(plain) - 1)
    for cut in (1, 7, len(stream) // 2, len(stream) - 1):
        with pytest.raises(BatchCorrupt):
            decompress(codec, stream[:cut], len(TEXT))
    with pytest.raises(BatchCorrupt):
        decompress(codec, stream + b"behind it", len(TEXT))


def test_snappy_is_framed_as_java_frames_it():
    stream = compress(SNAPPY, bytes(70_000))
    assert stream[:16] == b"\x82SNAPPY\0\0\0\0\1\0\0\0\1"
    sizes, position = [], 16
    while position < len(stream):
        size = int.from_bytes(stream[position : position + 4], "big")
        sizes.append(len(cramjam.snappy.decompress_raw(stream[position + 4 : position + 4 + size])))
        position += 4 + size
    assert sizes == [32_768, 32_768, 4_464]


def test_lz4_is_framed_as_java_demands():
    flags = compress(LZ4, TEXT)[4]
    assert flags & 0b0010_0000, "blocks are independent"
    assert not flags & 0b0000_1000, "no content size"


@pytest.mark.parametrize("size", [0, -1, -(1 << 31), 1 << 30])
def test_a_lying_snappy_block_is_refused(size):
    stream = compress(SNAPPY, TEXT)
    lie = stream[:16] + size.to_bytes(4, "big", signed=True) + stream[20:]
    with pytest.raises(BatchCorrupt):
        decompress(SNAPPY, lie, 1 << 20)


def test_no_library_is_loaded_before_it_is_needed():
    code = (
        "import sys, headrace.records.codec;"
        "print(sorted({'backports', 'cramjam', 'compression', 'lz4'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


# --- bombs: a few bytes that unfold to 512 MiB -----------------------------------------------

MIB = bytes(1 << 20)
COUNT = 512


def gzip_bomb():
    stream = zlib.compressobj(9, wbits=31)
    return b"".join(stream.compress(MIB) for _ in range(COUNT)) + stream.flush()


def snappy_bomb():
    header, block = compress(SNAPPY, bytes(32_768))[:16], compress(SNAPPY, bytes(32_768))[16:]
    return header + block * (32 * COUNT)


def lz4_bomb():
    stream = lz4.frame.LZ4FrameCompressor()
    blocks = [stream.begin()] + [stream.compress(MIB) for _ in range(COUNT)]
    return b"".join(blocks) + stream.flush()


def zstd_bomb(size):
    stream = zstandard.ZstdCompressor().compressobj(size=size)
    return b"".join(stream.compress(MIB) for _ in range(COUNT)) + stream.flush()


BOMBS = {
    "gzip": (GZIP, gzip_bomb),
    "snappy": (SNAPPY, snappy_bomb),
    "snappy-that-claims-4-gib": (SNAPPY, lambda: b"\xff\xff\xff\xff\x0f" + b"\xfe" * 1000),
    "lz4": (LZ4, lz4_bomb),
    "zstd": (ZSTD, lambda: zstd_bomb(-1)),
    "zstd-that-says-so": (ZSTD, lambda: zstd_bomb(COUNT << 20)),
}

CHILD = """
import resource, sys
import cramjam, lz4.frame
from headrace.errors import BatchCorrupt
from headrace.records.compression import decompress

codec, bytes_max = int(sys.argv[1]), int(sys.argv[2])
data = sys.stdin.buffer.read()
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
try:
    decompress(codec, data, bytes_max)
except BatchCorrupt:
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="counts ru_maxrss in KiB")
@pytest.mark.parametrize("name", BOMBS)
def test_a_bomb_takes_hardly_more_memory_than_the_bound(name):
    codec, bomb = BOMBS[name]
    bound = 16 << 20
    done = subprocess.run(
        [sys.executable, "-c", CHILD, str(codec), str(bound)],
        input=bomb(),
        capture_output=True,
        check=True,
    )
    assert int(done.stdout) * 1024 < 2 * bound + (4 << 20)


def _as_streaming_clients_do(codec: int, data: bytes) -> bytes:
    """Compressed without a size at the beginning of the frame, where the codec allows that."""
    if codec == ZSTD:
        stream = zstandard.ZstdCompressor().compressobj()
        return stream.compress(data) + stream.flush()
    if codec == LZ4:
        return lz4.frame.compress(data, store_size=False)
    return compress(codec, data)


@pytest.mark.parametrize("codec", [GZIP, SNAPPY, LZ4, ZSTD], ids=CODEC_NAMES[1:])
def test_data_over_the_limit_is_distinguished_from_damaged_data(codec):
    data = TEXT * 10
    compressed = _as_streaming_clients_do(codec, data)
    assert decompress(codec, compressed, len(data)) == data
    for limit in (len(data) - 1, len(data) // 2, 1_000):
        with pytest.raises(BatchCorrupt) as caught:
            decompress(codec, compressed, limit)
        assert caught.value.fields["limit"] == limit
    with pytest.raises(BatchCorrupt) as caught:
        decompress(codec, compressed[:-6], len(data))
    assert caught.value.fields.get("limit") is None
