"""The five compression codecs of a record batch, with a limit on the decompressed size.

Invariants: bytes in, bytes out; the C and Rust libraries are imported on first use.
The codec numbers are Kafka's (`CompressionType`). Do not change: stored.

A few bytes can claim gigabytes, so every codec stops at `bytes_max`, and no buffer exceeds what
the codec's best ratio allows for the input. A batch holds one stream: data after it is an error.
"""

from __future__ import annotations

import sys
import zlib
from struct import Struct
from typing import TYPE_CHECKING

from headrace.errors import BatchCorrupt, BatchExpandsTooFar

if TYPE_CHECKING:
    from types import ModuleType

Buffer = bytes | bytearray | memoryview

NONE, GZIP, SNAPPY, LZ4, ZSTD = range(5)
CODEC_NAMES = ("none", "gzip", "snappy", "lz4", "zstd")

_GZIP_WBITS = 31  # zlib's number for a gzip header and trailer
_GZIP_RATIO_MAX = 1032
_LZ4_RATIO_MAX = 255
_ZSTD_RATIO_MAX = 32_768  # an RLE block: 4 bytes for 128 KiB
_SLACK_BYTES = 131_072  # the largest block of any codec

# Snappy in snappy-java's (xerial) framing: magic, version 1, compatible with 1, then blocks.
_XERIAL_MAGIC = b"\x82SNAPPY\x00"
_XERIAL_HEADER = _XERIAL_MAGIC + b"\x00\x00\x00\x01\x00\x00\x00\x01"
_XERIAL_BLOCK_BYTES = 32_768
_BLOCK_SIZE = Struct(">i")


def codec_of_name(name: str) -> int | None:
    """The codec with this name in Kafka's configuration; None if there is none."""
    return CODEC_NAMES.index(name) if name in CODEC_NAMES else None


def compress(codec: int, data: Buffer) -> bytes:
    """Compress `data` so that all Kafka clients can read it."""
    if codec == NONE:
        return bytes(data)
    if codec == GZIP:
        return zlib.compress(data, wbits=_GZIP_WBITS)
    if codec == SNAPPY:
        return _compress_snappy(data)
    if codec == LZ4:
        import lz4.frame

        # Java's reader accepts only independent blocks (KafkaLZ4BlockInputStream).
        compressed: bytes = lz4.frame.compress(data, block_linked=False, store_size=False)
        return compressed
    assert codec == ZSTD, codec
    compressed = _zstd().compress(data)
    assert isinstance(compressed, bytes)
    return compressed


def decompress(codec: int, data: Buffer, bytes_max: int) -> bytes:
    """Decompress what `compress` or another implementation of the format produced.

    Raises BatchCorrupt on anything but one complete stream and on an unknown codec;
    BatchExpandsTooFar as soon as the output exceeds `bytes_max`.
    """
    assert bytes_max >= 0, bytes_max
    if codec == NONE:
        plain = bytes(data)
    elif codec == GZIP:
        plain = _decompress_gzip(data, bytes_max)
    elif codec == SNAPPY:
        plain = _decompress_snappy(data, bytes_max)
    elif codec == LZ4:
        plain = _decompress_lz4(data, bytes_max)
    elif codec == ZSTD:
        plain = _decompress_zstd(data, bytes_max)
    else:
        raise BatchCorrupt(f"unknown compression codec {codec}", codec=codec)
    if len(plain) > bytes_max:
        raise _too_large(codec, bytes_max)
    return plain


def _too_large(codec: int, bytes_max: int) -> BatchExpandsTooFar:
    return BatchExpandsTooFar(
        f"a {CODEC_NAMES[codec]} batch exceeds {bytes_max} bytes: send smaller batches",
        codec=codec,
        limit=bytes_max,
    )


def _garbage(codec: int, problem: object) -> BatchCorrupt:
    return BatchCorrupt(f"the batch is not valid {CODEC_NAMES[codec]}: {problem}", codec=codec)


def _whole(codec: int, plain: bytes, is_whole: bool, bytes_max: int) -> bytes:
    """What was decompressed, if that is all of one stream, within the limit."""
    if len(plain) > bytes_max:
        raise _too_large(codec, bytes_max)
    if not is_whole:
        raise _garbage(codec, "it is truncated, or followed by other data")
    return plain


def _zstd() -> ModuleType:
    """The standard library's module (PEP 784), or the same for earlier versions of Python."""
    if sys.version_info >= (3, 14):
        from compression import zstd
    else:
        from backports import zstd
    return zstd


def _output_max(data: Buffer, ratio_max: int, bytes_max: int) -> int:
    """The most to decompress: one byte over the limit shows that it is exceeded."""
    return min(bytes_max + 1, len(data) * ratio_max + _SLACK_BYTES)


def _decompress_gzip(data: Buffer, bytes_max: int) -> bytes:
    stream = zlib.decompressobj(wbits=_GZIP_WBITS)
    try:
        plain = stream.decompress(data, _output_max(data, _GZIP_RATIO_MAX, bytes_max))
    except zlib.error as error:
        raise _garbage(GZIP, error) from error
    return _whole(GZIP, plain, stream.eof and not stream.unused_data, bytes_max)


def _compress_snappy(data: Buffer) -> bytes:
    import cramjam

    view = memoryview(data)
    parts = [_XERIAL_HEADER]
    for start in range(0, len(view), _XERIAL_BLOCK_BYTES):
        block = bytes(cramjam.snappy.compress_raw(view[start : start + _XERIAL_BLOCK_BYTES]))
        parts += (_BLOCK_SIZE.pack(len(block)), block)
    return b"".join(parts)


def _decompress_snappy(data: Buffer, bytes_max: int) -> bytes:
    if bytes(data[: len(_XERIAL_MAGIC)]) != _XERIAL_MAGIC:
        return _decompress_snappy_block(data, bytes_max, bytes_max)
    size, position, left = len(data), len(_XERIAL_HEADER), bytes_max
    if size < position:
        raise _garbage(SNAPPY, "its header is truncated")
    view = memoryview(data)
    parts = []
    while position < size:
        if size - position < _BLOCK_SIZE.size:
            raise _garbage(SNAPPY, "the size of a block is truncated")
        (block_size,) = _BLOCK_SIZE.unpack_from(data, position)
        position += _BLOCK_SIZE.size
        if not 0 < block_size <= size - position:
            raise _garbage(SNAPPY, f"a block of {block_size} bytes, {size - position} are left")
        block = _decompress_snappy_block(view[position : position + block_size], left, bytes_max)
        parts.append(block)
        left -= len(block)
        position += block_size
    return b"".join(parts)


def _decompress_snappy_block(data: Buffer, left: int, bytes_max: int) -> bytes:
    """`left`: what is left of `bytes_max` for this block."""
    import cramjam

    try:
        if cramjam.snappy.decompress_raw_len(data) > left:
            raise _too_large(SNAPPY, bytes_max)
        return bytes(cramjam.snappy.decompress_raw(data))
    except cramjam.DecompressionError as error:
        raise _garbage(SNAPPY, error) from error


def _decompress_lz4(data: Buffer, bytes_max: int) -> bytes:
    import lz4.frame

    stream = lz4.frame.LZ4FrameDecompressor()
    try:
        plain: bytes = stream.decompress(data, _output_max(data, _LZ4_RATIO_MAX, bytes_max))
    except (RuntimeError, EOFError) as error:
        raise _garbage(LZ4, error) from error
    return _whole(LZ4, plain, stream.eof and not stream.unused_data, bytes_max)


def _decompress_zstd(data: Buffer, bytes_max: int) -> bytes:
    zstd = _zstd()
    stream = zstd.ZstdDecompressor()
    try:
        plain = stream.decompress(data, _output_max(data, _ZSTD_RATIO_MAX, bytes_max))
    except zstd.ZstdError as error:
        raise _garbage(ZSTD, error) from error
    return _whole(ZSTD, plain, stream.eof and not stream.unused_data, bytes_max)
