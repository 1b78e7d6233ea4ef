"""BookKeeper's wire protocol, version 2: frames of requests, responses and entries.

Invariants: bytes in, bytes out; no sockets, no state. The lengths in everything that a bookie sends
are validated.

Every frame is an int32 length and an int32 of version (8 bits), operation (8) and flags (16). An
entry carries its ledger, its id, the last add confirmed known to its writer, the ledger's payload
bytes up to and including it, and a CRC-32C over these and the payload. Responses carry no request
id, except for batch reads: they are matched by operation, ledger and entry.
Source: `BookieProtoEncoding` and `DigestManager` of BookKeeper 4.17.
"""

from __future__ import annotations

import hashlib
from struct import Struct
from typing import TYPE_CHECKING, Final, NamedTuple

from crc32c import crc32c

if TYPE_CHECKING:
    from headrace.storage.ledger import Buffer

View = memoryview
"""For field annotations: mypyc resolves their types by names of this module only."""

VERSION: Final = 2
ADD: Final = 1
READ: Final = 2
BATCH_READ: Final = 7

FLAG_FENCE: Final = 1
FLAG_RECOVERY_ADD: Final = 2
FLAG_HIGH_PRIORITY: Final = 4

OK: Final = 0
NO_LEDGER: Final = 1
NO_ENTRY: Final = 2
BAD_REQUEST: Final = 100
IO_ERROR: Final = 101
UNAUTHORIZED: Final = 102
BAD_VERSION: Final = 103
FENCED: Final = 104
READ_ONLY: Final = 105
TOO_MANY_REQUESTS: Final = 106
UNKNOWN_LEDGER_STATE: Final = 107
# Our own codes, for requests without an answer.
TIMED_OUT: Final = -1
DISCONNECTED: Final = -2
OVERLOADED: Final = -3
DAMAGED: Final = -4
_NAMES: Final = {
    NO_LEDGER: "does not have the ledger",
    NO_ENTRY: "does not have the entry",
    BAD_REQUEST: "rejected the request as malformed",
    IO_ERROR: "could not read or write its disk",
    UNAUTHORIZED: (
        "refused access: it requires a login (headrace.bookie.credential.file), or the ledger has"
        " another password"
    ),
    BAD_VERSION: "does not speak this version of the protocol",
    FENCED: "refused because the ledger is fenced",
    READ_ONLY: "is read-only: its disks are full or have failed",
    TOO_MANY_REQUESTS: "has too many requests",
    UNKNOWN_LEDGER_STATE: "does not know the state of the ledger until it is replicated",
    TIMED_OUT: "did not answer in time",
    DISCONNECTED: "is not reached: its connection was lost or refused",
    OVERLOADED: "exceeded the limit of pending request bytes",
    DAMAGED: "has a damaged copy",
}


def code_text(code: int) -> str:
    """What a bookie's answer means, in words that follow its address."""
    return _NAMES.get(code) or f"answered with the unknown code {code}"


LAST_ADD_CONFIRMED: Final = -1
"""The entry id that requests a bookie's last entry."""

ENTRY_OVERHEAD: Final = 36
"""Bytes before the payload in an entry: four int64 and the digest."""
PAYLOAD_AT: Final = 4 + 4 + 20 + ENTRY_OVERHEAD
"""The position of the payload in the frame of an add."""
FRAME_BYTES_MAX: Final = 64 << 20
"""Limit on responses: bookies' own frames are limited to 5 MiB by default."""

_LENGTH: Final = Struct(">I")
_ADD_HEAD: Final = Struct(">iI20sqqqq")
_ENTRY: Final = Struct(">qqqqI")
_READ: Final = Struct(">iIqq")
_FENCING_READ: Final = Struct(">iIqq20s")
_BATCH_READ: Final = Struct(">iIqqqiq")
_RESPONSE: Final = Struct(">Iiqq")
_RESPONSE_HEAD_SIZE: Final = 24
ADD_RESPONSE_SIZE: Final = 4 + _RESPONSE_HEAD_SIZE
_ADD_RESPONSE_BEGIN: Final = Struct(">II").pack(_RESPONSE_HEAD_SIZE, VERSION << 24 | ADD << 16)
_ADD_RESPONSE: Final = Struct(">iqq")
_REQUEST_ID: Final = Struct(">q")
_ENTRY_AT: Final = 28
_DIGEST_AT: Final = 60


START_TLS_FRAME = bytes.fromhex("0000000b 0a06 0803 1009 1801 d20600")
"""A request of version 3, in protobuf: header (version 3, operation 9, request 1), StartTLSRequest.
Do not change: on the wire."""
STATUS_OK: Final = 0
_HEADER_TAG: Final = 0x0A
_STATUS_TAG: Final = 0x10


class MalformedFrame(Exception):
    """A bookie sent an invalid frame: its connection must be closed."""


class Entry(NamedTuple):
    """A verified entry. `length` counts the ledger's payload bytes up to its end."""

    entry: int
    last_add_confirmed: int
    length: int
    payload: View


def master_key(password: bytes) -> bytes:
    """The 20 bytes that authorize a client to write to a ledger."""
    return hashlib.sha1(b"ledger" + password, usedforsecurity=False).digest()


def seal_add(
    frame: bytearray, ledger: int, entry: int, confirmed: int, length: int, key: bytes, flags: int
) -> None:
    """Fill in everything before the payload of an add, which begins at PAYLOAD_AT.

    One frame serves all bookies of the entry; it must not change after this.
    """
    header = VERSION << 24 | ADD << 16 | flags
    _ADD_HEAD.pack_into(frame, 0, len(frame) - 4, header, key, ledger, entry, confirmed, length)
    with memoryview(frame) as view:
        digest = crc32c(view[PAYLOAD_AT:], crc32c(view[_ENTRY_AT:_DIGEST_AT]))
    _LENGTH.pack_into(frame, _DIGEST_AT, digest)


def add_frame(
    ledger: int, entry: int, confirmed: int, length: int, key: bytes, flags: int, payload: Buffer
) -> bytearray:
    """The frame that adds one entry."""
    frame = bytearray(PAYLOAD_AT)
    frame += payload
    seal_add(frame, ledger, entry, confirmed, length, key, flags)
    return frame


def read_frame(ledger: int, entry: int) -> bytes:
    """The frame that reads one entry."""
    return _READ.pack(_READ.size - 4, VERSION << 24 | READ << 16, ledger, entry)


def fencing_read_frame(ledger: int, entry: int, key: bytes) -> bytes:
    """The frame that reads one entry and fences the ledger: ordinary adds are then refused."""
    flags = FLAG_FENCE | FLAG_HIGH_PRIORITY
    header = VERSION << 24 | READ << 16 | flags
    return _FENCING_READ.pack(_FENCING_READ.size - 4, header, ledger, entry, key)


def batch_read_frame(ledger: int, first: int, request_id: int, count: int, size: int) -> bytes:
    """The frame that reads up to `count` entries from `first` on, at most about `size` bytes."""
    header = VERSION << 24 | BATCH_READ << 16
    return _BATCH_READ.pack(_BATCH_READ.size - 4, header, ledger, first, request_id, count, size)


class Response(NamedTuple):
    """A response; `body` follows its head."""

    operation: int
    code: int
    ledger: int
    entry: int
    body: View


def start_tls_status(frame: memoryview) -> int:
    """The status in a version 3 response, without its length. Raises MalformedFrame.

    402 and above are refusals; see `StatusCode` of BookkeeperProtocol.proto.
    """
    # Response: header = 1 (a short message), status = 2 (a varint), then fields we ignore.
    at = 2 + frame[1] if len(frame) > 1 and frame[0] == _HEADER_TAG else len(frame)
    if at + 1 < len(frame) and frame[at] == _STATUS_TAG:
        low = frame[at + 1]
        if low < 0x80:
            return low
        if at + 2 < len(frame) and frame[at + 2] < 0x80:
            return low & 0x7F | frame[at + 2] << 7
    raise MalformedFrame(f"{len(frame)} bytes that are not a response to START_TLS")


def decode_response(frame: memoryview) -> Response:
    """Decode a response frame, without its length. Raises MalformedFrame."""
    if len(frame) and frame[0] == _HEADER_TAG:  # a bookie may refuse a client after the handshake
        raise MalformedFrame(
            f"it refused this client (status {start_tls_status(frame)} of version 3): check that"
            " its authorizedRoles include the role in this client's certificate"
        )
    if len(frame) < _RESPONSE_HEAD_SIZE:
        raise MalformedFrame(f"a response of {len(frame)} bytes")
    header, code, ledger, entry = _RESPONSE.unpack_from(frame)
    if header >> 24 != VERSION:
        raise MalformedFrame(f"a response of protocol version {header >> 24}")
    return Response(header >> 16 & 0xFF, code, ledger, entry, frame[_RESPONSE_HEAD_SIZE:])


def is_add_response(data: bytes, at: int) -> bool:
    """Whether a complete response to an add, including its length, begins at `at`."""
    return data.startswith(_ADD_RESPONSE_BEGIN, at) and len(data) - at >= ADD_RESPONSE_SIZE


def add_response(data: bytes, at: int) -> tuple[int, int, int]:
    """(code, ledger, entry) of the add response at `at`."""
    found: tuple[int, int, int] = _ADD_RESPONSE.unpack_from(data, at + 8)
    return found


def batch_request_id(body: memoryview) -> int:
    """The request id in a batch read response. Raises MalformedFrame."""
    if len(body) < _REQUEST_ID.size:
        raise MalformedFrame("a batch read response without a request id")
    request_id: int = _REQUEST_ID.unpack_from(body)[0]
    return request_id


def batch_entries(body: memoryview) -> list[memoryview]:
    """The entries in a batch read response, not verified yet. Raises MalformedFrame."""
    entries = []
    at, end = _REQUEST_ID.size, len(body)
    while at < end:
        if at + 4 > end:
            raise MalformedFrame("a truncated batch read response")
        (size,) = _LENGTH.unpack_from(body, at)
        at += 4
        if size > end - at:
            raise MalformedFrame(f"an entry of {size} bytes in {end - at} bytes of response")
        entries.append(body[at : at + size])
        at += size
    return entries


def check_entry(ledger: int, entry: int, data: memoryview) -> Entry | None:
    """The entry in `data` if it is valid and the one requested, else None.

    `entry` LAST_ADD_CONFIRMED matches any.
    """
    if len(data) < ENTRY_OVERHEAD:
        return None
    found_ledger, found_entry, confirmed, length, digest = _ENTRY.unpack_from(data)
    if found_ledger != ledger or entry not in {LAST_ADD_CONFIRMED, found_entry}:
        return None
    payload = data[ENTRY_OVERHEAD:]
    if crc32c(payload, crc32c(data[:32])) != digest:
        return None
    return Entry(found_entry, confirmed, length, payload)
