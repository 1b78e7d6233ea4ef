"""Codecs of all APIs except Produce and Fetch, generated from Kafka's message definitions.

Responsibilities: the seam between handlers and bytes. Handlers read attributes, named as in Kafka's
definitions in snake case (types: `messages.pyi`); they return mappings of the same names. A field
that a version lacks is decoded as its default and not encoded; one without a default must be
supplied. Times and durations are integer milliseconds.

A codec is built when its API is first used in a version (a millisecond or two), so an idle broker
has none; decoding raises only FrameInvalid, whatever the bytes are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, Final

from headrace.kafka.wire.codecs import Encoded, build_reader, build_writer
from headrace.kafka.wire.definitions import REQUEST, RESPONSE
from headrace.kafka.wire.primitives import STRUCT_ERROR, FrameInvalid, elements

Answer = Mapping[str, Any]
API_VERSIONS: Final = 18

_reader = lru_cache(maxsize=512)(build_reader)
_writer = lru_cache(maxsize=512)(build_writer)


def read_request(api_key: int, version: int, data: bytes, at: int) -> Any:
    """The request's body. Raises FrameInvalid, whatever is wrong with it.

    Bytes after the body are ignored, as in Kafka: librdkafka 2 sends three of them when it requests
    the metadata of all topics (Metadata v9 and later).
    """
    elements.begin()
    return _read(api_key, version, REQUEST, data, at)


def read_response(api_key: int, version: int, data: bytes, at: int) -> Any:
    """The body of another broker's response. Raises FrameInvalid, whatever is wrong with it."""
    elements.left = len(data)  # each takes at least a byte; the caller has limited the response
    return _read(api_key, version, RESPONSE, data, at)


def _read(api_key: int, version: int, kind: str, data: bytes, at: int) -> Any:
    read = _reader(api_key, version, kind)
    try:
        message, _end = read(data, at, len(data))
    except FrameInvalid:
        raise
    except (STRUCT_ERROR, IndexError, ValueError) as error:
        raise FrameInvalid(f"{type(error).__name__}: {str(error)[:200]}") from error
    return message


def write_response(api_key: int, version: int, answer: Answer) -> bytes:
    """The response's header tags and body. Raises KeyError if a field is missing."""
    is_flexible, write, _structs = _writer(api_key, version, RESPONSE)
    # KIP-511: clients read ApiVersions with header v0, which has no tagged fields.
    parts = [b"\x00"] if is_flexible and api_key != API_VERSIONS else []
    write(answer, parts.append)
    return b"".join(parts)


def encode_elements(
    api_key: int, version: int, kind: str, elements: Sequence[Answer], to: Encoded
) -> None:
    """Add elements of a response's array, whose kind Kafka's definition names."""
    write, parts = _writer(api_key, version, RESPONSE).structs[kind], list[bytes]()
    for one in elements:
        write(one, parts.append)
    to.add(len(elements), b"".join(parts))


def write_request(api_key: int, version: int, body: Answer) -> bytes:
    """The body of a request to another broker. Raises KeyError if a field is missing."""
    parts: list[bytes] = []
    _writer(api_key, version, REQUEST).write(body, parts.append)
    return b"".join(parts)
