"""What a sealed ledger keeps beside its records: its index and its producers.

Rules of the room: bytes in, bytes out; the storage underneath guards them with a checksum. The
layout is in `docs/FORMAT.md`. Do not change: stored.
"""

from __future__ import annotations

from struct import Struct
from typing import NamedTuple

from headrace.errors import DataCorrupt, FormatUnsupported
from headrace.log.offset_index import OffsetIndex
from headrace.log.producer_state import ProducerState
from headrace.storage.ledger import FOOTER_BYTES_MAX

VERSION = 1
_HEAD = Struct(">BqqII")


class Footer(NamedTuple):
    """The footer of one sealed ledger."""

    end_offset: int
    first_append_ms: int
    offset_index: OffsetIndex
    producers: ProducerState


def encode_footer(footer: Footer) -> bytes:
    """Its stored bytes, no more than storage keeps: what does not fit are the oldest producers."""
    index = footer.offset_index.encode()
    producers = footer.producers.encode(FOOTER_BYTES_MAX - _HEAD.size - len(index))
    head = _HEAD.pack(
        VERSION, footer.end_offset, footer.first_append_ms, len(index), len(producers)
    )
    return head + index + producers


def decode_footer(data: bytes) -> Footer:
    """Read stored bytes. Raises DataCorrupt, FormatUnsupported."""
    if len(data) < _HEAD.size:
        raise DataCorrupt("a ledger footer is cut short")
    version, end_offset, first_append_ms, index_size, producers_size = _HEAD.unpack_from(data)
    if version != VERSION:
        raise FormatUnsupported(
            f"a ledger footer has version {version}, this Headrace reads {VERSION}: the partition"
            " is not served; start a newer one",
            version=version,
        )
    if len(data) != _HEAD.size + index_size + producers_size:
        raise DataCorrupt("a ledger footer has the wrong size")
    index = OffsetIndex.decode(data[_HEAD.size : _HEAD.size + index_size])
    producers = ProducerState.decode(data[_HEAD.size + index_size :])
    return Footer(end_offset, first_append_ms, index, producers)
