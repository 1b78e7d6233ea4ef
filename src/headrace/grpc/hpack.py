"""Header compression of HTTP/2 (RFC 7541): decodes a peer's header blocks, encodes our own.

Invariants: bytes in, fields out; knows nothing of streams. The dynamic table is bounded by
`TABLE_BYTES`, a decoded list by `LIST_BYTES_MAX`, whatever a block says. A server that announces a
table of 0 bytes gets blocks without references to earlier ones; until a peer has acknowledged that,
its table is kept. Our own blocks use no dynamic table and no Huffman code.

Most fields of a call are those of the call before it. A literal that was decoded and classified
once is found by its encoded bytes: 0.2 us instead of 1-3.
"""

from __future__ import annotations

import re
from typing import Final

from headrace.grpc.hpack_tables import HUFFMAN_LENGTHS, STATIC_TABLE

TABLE_BYTES: Final = 4096
"""SETTINGS_HEADER_TABLE_SIZE until a peer has acknowledged another (RFC 9113, 6.5.2)."""
FIELD_OVERHEAD: Final = 32
"""What each field counts beside its bytes (RFC 7541, 4.1; RFC 9113, 6.5.2)."""
LIST_BYTES_MAX: Final = 64 * 1024
"""Of a decoded list: a block of one-byte references to a large field would be 4,000 times as
large."""
LITERAL_BYTES_MAX: Final = 256
LITERALS_MAX: Final = 1024
"""Longer literals, and more of them, are not remembered: 0.5 MiB per process."""
TRANSITIONS_MAX: Final = 16_384
"""Remembered steps of the Huffman decoder; text needs some hundreds of them."""
_STATIC_COUNT: Final = len(STATIC_TABLE)
_STATIC_NAMES: Final = {
    name: len(STATIC_TABLE) - place for place, (name, _value) in enumerate(reversed(STATIC_TABLE))
}
"""Name -> its first index."""

REGULAR, KNOWN, PSEUDO, INVALID = 0, 1, 2, 3
"""Classes of fields: passed on; meant for the server; begins with a colon; must not occur in any
request (RFC 9113, 8.2)."""
Field = tuple[bytes, bytes, int, int]
"""Name, value, class, size as counted."""
_KNOWN: Final = frozenset(
    [b"content-length", b"content-type", b"grpc-encoding", b"grpc-timeout", b"host", b"te"]
)
_FORBIDDEN: Final = frozenset(
    [b"connection", b"keep-alive", b"proxy-connection", b"transfer-encoding", b"upgrade"]
)
"""They belong to a connection of HTTP/1.1 (RFC 9113, 8.2.2)."""
_NAME: Final = re.compile(rb":?[\x21-\x39\x3b-\x40\x5b-\x7e]+")
_VALUE: Final = re.compile(rb"(?:[^\0\r\n\t ](?:[^\0\r\n]*[^\0\r\n\t ])?)?")


class CompressionInvalid(Exception):
    """A header block that cannot be decoded: the connection has no common state any more."""


class HeaderListTooLarge(Exception):
    """A header list that exceeds LIST_BYTES_MAX."""


class HeaderDecoder:
    """Decodes the header blocks of one connection, in the order in which they arrive."""

    __slots__ = ("_size", "_size_limit", "_size_max", "_table")

    def __init__(self) -> None:
        self._table: list[Field] = []
        """The dynamic table; the newest field is the last."""
        self._size = 0
        self._size_max = TABLE_BYTES
        """As the peer last chose."""
        self._size_limit = TABLE_BYTES
        """What the peer may choose."""

    @property
    def table_bytes(self) -> int:
        """The size of the dynamic table as counted."""
        return self._size

    def limit_table(self, size: int) -> None:
        """The peer has acknowledged this SETTINGS_HEADER_TABLE_SIZE, 4096 at most.

        Its next block should shrink its table; one that does not keeps what it had, which is
        bounded.
        """
        assert 0 <= size <= TABLE_BYTES, size
        self._size_limit = size

    def decode(self, block: bytes) -> list[Field]:
        """The fields of a whole header block.

        Raises CompressionInvalid, or HeaderListTooLarge: the connection must be closed then.
        """
        try:
            return self._decode(block)
        except IndexError as error:
            raise CompressionInvalid("a header block that ends within a field") from error

    def _decode(self, block: bytes) -> list[Field]:
        fields: list[Field] = []
        total, at, end = 0, 0, len(block)
        while at < end:
            first = block[at]
            if first >= 0x80:
                index = first & 0x7F
                at += 1
                if index == 0x7F:
                    index, at = _integer(block, at, 0x7F)
                field = self._indexed(index)
            elif 0x20 <= first < 0x40:
                if fields:
                    raise CompressionInvalid("a table size update after a field")
                at = self._resize(block, at)
                continue
            else:
                next_at = _literal_end(block, at, first)
                found = _literals.get(block[at:next_at])
                field = self._literal(block, at, next_at, first) if found is None else found
                at = next_at
                if first >= 0x40:
                    self._insert(field)
            total += field[3]
            if total > LIST_BYTES_MAX:
                raise HeaderListTooLarge(f"more than {LIST_BYTES_MAX} bytes of header fields")
            fields.append(field)
        return fields

    def _indexed(self, index: int) -> Field:
        if 0 < index <= _STATIC_COUNT:
            return _STATIC_FIELDS[index]
        place = index - _STATIC_COUNT
        if place <= 0 or place > len(self._table):
            raise CompressionInvalid(f"no field has the index {index}")
        return self._table[-place]

    def _literal(self, block: bytes, at: int, end: int, first: int) -> Field:
        """The literal field that takes these bytes."""
        start = at
        mask = 0x3F if first >= 0x40 else 0x0F
        index = first & mask
        at += 1
        if index == mask:
            index, at = _integer(block, at, mask)
        if index == 0:
            value_at = _string_end(block, at)
            name = _string(block, at, value_at)
            at = value_at
        else:
            name = self._indexed(index)[0]
        field = classify(name, _string(block, at, end))
        # References into the dynamic table mean something else in each connection.
        if index <= _STATIC_COUNT and end - start <= LITERAL_BYTES_MAX:
            if len(_literals) >= LITERALS_MAX:
                _literals.clear()
            _literals[block[start:end]] = field
        return field

    def _resize(self, block: bytes, at: int) -> int:
        size, at = block[at] & 0x1F, at + 1
        if size == 0x1F:
            size, at = _integer(block, at, 0x1F)
        if size > self._size_limit:
            raise CompressionInvalid(f"a table of {size} bytes, {self._size_limit} are allowed")
        self._size_max = size
        self._evict(0)
        return at

    def _insert(self, field: Field) -> None:
        self._evict(field[3])
        if field[3] <= self._size_max:
            self._table.append(field)
            self._size += field[3]

    def _evict(self, size: int) -> None:
        """Make room for a field of this size (RFC 7541, 4.4)."""
        count = 0
        while self._size + size > self._size_max and count < len(self._table):
            self._size -= self._table[count][3]
            count += 1
        del self._table[:count]


def classify(name: bytes, value: bytes) -> Field:
    """The field with its class."""
    kind = _kinds.get(name)
    if kind is None:
        kind = _kind_of(name)
        if len(name) <= LITERAL_BYTES_MAX:
            if len(_kinds) >= LITERALS_MAX:
                _kinds.clear()
            _kinds[name] = kind
    if _VALUE.fullmatch(value) is None or (name == b"te" and value != b"trailers"):
        kind = INVALID
    return name, value, kind, len(name) + len(value) + FIELD_OVERHEAD


def _kind_of(name: bytes) -> int:
    if _NAME.fullmatch(name) is None or name in _FORBIDDEN:
        return INVALID
    if name[0] == 0x3A:
        return PSEUDO
    return KNOWN if name in _KNOWN else REGULAR


def _integer(block: bytes, at: int, prefix: int) -> tuple[int, int]:
    """An integer that its prefix, all ones, does not hold (RFC 7541, 5.1). Raises IndexError."""
    value, shift = prefix, 0
    while True:
        octet = block[at]
        at += 1
        value += (octet & 0x7F) << shift
        if octet < 0x80:
            return value, at
        shift += 7
        if shift > 28:  # nothing is that long; endless zeros would be read for ever
            raise CompressionInvalid("an integer of more than five bytes")


def _literal_end(block: bytes, at: int, first: int) -> int:
    """Where the literal field that begins at `at` ends. Raises IndexError, CompressionInvalid."""
    mask = 0x3F if first >= 0x40 else 0x0F
    index = first & mask
    at += 1
    if index == mask:
        at = _integer(block, at, mask)[1]
    if index == 0:
        length = block[at]
        at = _string_end(block, at) if length & 0x7F == 0x7F else at + 1 + (length & 0x7F)
    length = block[at]
    at = _string_end(block, at) if length & 0x7F == 0x7F else at + 1 + (length & 0x7F)
    if at > len(block):
        raise IndexError(at)
    return at


def _string_end(block: bytes, at: int) -> int:
    """Where the string that begins at `at` ends. Raises IndexError if the block ends before."""
    length = block[at] & 0x7F
    at += 1
    if length == 0x7F:
        length, at = _integer(block, at, 0x7F)
    at += length
    if at > len(block):
        raise IndexError(at)
    return at


def _string(block: bytes, at: int, end: int) -> bytes:
    """The string that takes these bytes, with its length."""
    first = block[at]
    at += 1
    if first & 0x7F == 0x7F:
        at = _integer(block, at, 0x7F)[1]
    return huffman_decode(block[at:end]) if first >= 0x80 else block[at:end]


def encode_field(name: bytes, value: bytes) -> bytes:
    """A literal field that no table remembers (RFC 7541, 6.2.2)."""
    index = _STATIC_NAMES.get(name, 0)
    encoded = bytes([0x0F, index - 0x0F] if index >= 0x0F else [index])
    if index == 0:
        encoded += _encode_length(len(name)) + name
    return encoded + _encode_length(len(value)) + value


def _encode_length(length: int) -> bytes:
    if length < 0x7F:
        return bytes([length])
    encoded = bytearray([0x7F])
    length -= 0x7F
    while length >= 0x80:
        encoded.append(length & 0x7F | 0x80)
        length >>= 7
    encoded.append(length)
    return bytes(encoded)


# --- Huffman code ----------------------------------------------------------------------------

_END_OF_STRING: Final = 256


def _build_tree() -> tuple[list[int], list[bool]]:
    """The code as a tree: the two successors of each node, and which nodes may end a string.

    A successor is a node, or the complement (`~`) of a byte. A string ends at the root or within
    up to seven ones, with which its last byte is filled (RFC 7541, 5.2).
    """
    successors = [0, 0]
    code, length = 0, 0
    ordered = sorted(range(len(HUFFMAN_LENGTHS)), key=lambda one: (HUFFMAN_LENGTHS[one], one))
    for symbol in ordered:
        code <<= HUFFMAN_LENGTHS[symbol] - length
        length = HUFFMAN_LENGTHS[symbol]
        node = 0
        for place in range(length - 1, -1, -1):
            slot = 2 * node + (code >> place & 1)
            if place == 0:
                successors[slot] = ~symbol
            elif successors[slot] == 0:
                node = successors[slot] = len(successors) // 2
                successors += [0, 0]
            else:
                node = successors[slot]
        code += 1
    may_end = [False] * (len(successors) // 2)
    node = 0
    for _ in range(8):
        may_end[node] = True
        node = successors[2 * node + 1]
    return successors, may_end


_SUCCESSORS, _MAY_END = _build_tree()
_transitions: dict[int, tuple[int, bytes]] = {}
"""Node and byte -> next node, shifted, and the bytes that are complete by then."""


def huffman_decode(data: bytes) -> bytes:
    """Raises CompressionInvalid."""
    node = 0
    parts: list[bytes] = []
    for octet in data:
        step = _transitions.get(node | octet)
        if step is None:
            step = _transition(node | octet)
        node = step[0]
        parts.append(step[1])
    if not _MAY_END[node >> 8]:
        raise CompressionInvalid("a Huffman-encoded string that is not filled with ones")
    return b"".join(parts)


def _transition(key: int) -> tuple[int, bytes]:
    node, octet = key >> 8, key & 0xFF
    complete = bytearray()
    for place in range(7, -1, -1):
        successor = _SUCCESSORS[2 * node + (octet >> place & 1)]
        if successor >= 0:
            node = successor
            continue
        if ~successor == _END_OF_STRING:
            raise CompressionInvalid("a Huffman-encoded string that holds the end of strings")
        complete.append(~successor)
        node = 0
    step = (node << 8, bytes(complete))
    if len(_transitions) < TRANSITIONS_MAX:
        _transitions[key] = step
    return step


_kinds: dict[bytes, int] = {}
"""The class of each name that was seen lately."""
_STATIC_FIELDS: Final = (
    (b"", b"", INVALID, 0),
    *(classify(name, value) for name, value in STATIC_TABLE),
)
_literals: dict[bytes, Field] = {}
