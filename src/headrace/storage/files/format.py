"""The on-disk encoding (described in docs/FORMAT.md).

Invariants: pure. Knows layouts and checksums, not files. Everything is little-endian, and every
byte that is trusted later is covered by a CRC-32C. A WAL frame's checksum is seeded with the
folder's random salt, so bytes sent by a client never look like a frame.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final, NamedTuple

from crc32c import crc32c

from headrace.errors import DataCorrupt, FormatUnsupported

if TYPE_CHECKING:
    from collections.abc import Iterator

Buffer = bytes | bytearray | memoryview
View = memoryview  # mypyc resolves the type of a field by its name in this module only

FORMAT_VERSION: Final = 1  # do not change: stored
FOLDER_MAGIC: Final = b"headrace"  # do not change: stored
FRAME_MAGIC: Final = b"HRWF"  # do not change: stored
CHECKPOINT_MAGIC: Final = b"HRCP"  # do not change: stored
FOOTER_MAGIC: Final = b"HRFT"  # do not change: stored

# Entry kinds: do not change, stored.
APPEND: Final = 1
CREATE: Final = 2
SEAL: Final = 3
DELETE: Final = 4
EXTEND: Final = 5

SECTOR_BYTES: Final = 512
"""The atomic write unit assumed of a disk; a synced frame never shares one with a later frame."""

# magic, crc, body bytes, entries, generation, seq, synced
FRAME_HEAD: Final = struct.Struct("<4sIIIQQQ")
FRAME_CHECKED: Final = struct.Struct("<IIQQQ")  # the head after its crc
ENTRY: Final = struct.Struct("<IIQQ")  # kind, length, ledger, position
FOLDER: Final = struct.Struct("<8sIII")  # magic, version, salt, crc
# magic, crc, version, 0, wal, seq, next, ledgers
CHECKPOINT_HEAD: Final = struct.Struct("<4sIIIQQQQ")
CHECKPOINT_LEDGER: Final = struct.Struct("<QQII")  # ledger, length, flags, 0
FOOTER_HEAD: Final = struct.Struct("<4sIQQ")  # magic, crc, ledger, end

FLAG_SEALED: Final = 1  # do not change: stored

FRAME_BYTES_MAX: Final = (1 << 32) - 1
_CRC_AT: Final = 4
_CRC_END: Final = 8


class WalEntry(NamedTuple):
    """One change in a WAL frame."""

    kind: int
    ledger: int
    position: int
    payload: View


class Frame(NamedTuple):
    """One group commit, as decoded."""

    start: int
    end: int
    sequence: int
    synced_sequence: int
    entry_count: int
    body: View
    generation: int
    """The number of its file."""

    def entries(self) -> Iterator[WalEntry]:
        """The entries in order. Raises DataCorrupt if their size differs from the frame's."""
        at = self.entry_count * ENTRY.size
        for index in range(self.entry_count):
            kind, length, ledger, position = ENTRY.unpack_from(self.body, index * ENTRY.size)
            payload = self.body[at : at + length]
            at += length
            yield WalEntry(kind, ledger, position, payload)
        if at != len(self.body):
            raise DataCorrupt(f"WAL frame {self.sequence}: its entries do not match its size")


class LedgerRow(NamedTuple):
    """One ledger in a checkpoint."""

    ledger: int
    length: int
    is_sealed: bool


class Checkpoint(NamedTuple):
    """The state covered by the segments, and where the WAL continues."""

    wal_number: int
    """The first WAL file that recovery reads."""
    sequence: int
    """The last frame covered by the segments."""
    next_ledger: int
    ledgers: tuple[LedgerRow, ...]


def encode_frame_head(
    salt: int,
    generation: int,
    sequence: int,
    synced_sequence: int,
    entries: bytes,
    body: list[Buffer],
) -> bytes:
    """The head and entries of a frame; `body` holds the entries' payloads, in order."""
    size = len(entries)
    for part in body:
        size += len(part)
    checked = FRAME_CHECKED.pack(
        size, len(entries) // ENTRY.size, generation, sequence, synced_sequence
    )
    head = checked + entries
    crc = crc32c(head, salt)
    for part in body:
        crc = crc32c(part, crc)
    return FRAME_MAGIC + crc.to_bytes(4, "little") + head


def decode_frame(data: memoryview, start: int, salt: int, generation: int) -> Frame | None:
    """The frame of this generation at `start`; None if there is no valid one."""
    if start + FRAME_HEAD.size > len(data):
        return None
    magic, crc, size, count, found, sequence, synced = FRAME_HEAD.unpack_from(data, start)
    if magic != FRAME_MAGIC or found != generation:
        return None
    body_start = start + FRAME_HEAD.size
    end = body_start + size
    if end > len(data) or count * ENTRY.size > size:
        return None
    if crc32c(data[start + _CRC_END : end], salt) != crc:
        return None
    return Frame(start, end, sequence, synced, count, data[body_start:end], generation)


def encode_folder(salt: int) -> bytes:
    """The contents of the file `format`."""
    head = FOLDER.pack(FOLDER_MAGIC, FORMAT_VERSION, salt, 0)[:-4]
    return head + crc32c(head).to_bytes(4, "little")


def decode_folder(data: bytes, path: str) -> int:
    """The folder's salt. Raises FormatUnsupported, DataCorrupt."""
    if len(data) != FOLDER.size or not data.startswith(FOLDER_MAGIC):
        raise FormatUnsupported(
            f"{path} is not a Headrace format file: choose another data folder", path=path
        )
    _magic, version, salt, crc = FOLDER.unpack(data)
    if crc32c(data[:-4]) != crc:
        raise DataCorrupt(f"{path}: checksum mismatch; restore this 20-byte file", path=path)
    if version != FORMAT_VERSION:
        raise FormatUnsupported(
            f"{path} has format {version}, this version supports {FORMAT_VERSION}: "
            "use the version of Headrace that wrote it",
            version=version,
            path=path,
        )
    return int(salt)


def encode_checkpoint(checkpoint: Checkpoint) -> bytes:
    """The contents of the file `checkpoint`."""
    head = CHECKPOINT_HEAD.pack(
        CHECKPOINT_MAGIC,
        0,
        FORMAT_VERSION,
        0,
        checkpoint.wal_number,
        checkpoint.sequence,
        checkpoint.next_ledger,
        len(checkpoint.ledgers),
    )
    rows = b"".join(
        CHECKPOINT_LEDGER.pack(ledger, length, FLAG_SEALED if is_sealed else 0, 0)
        for ledger, length, is_sealed in checkpoint.ledgers
    )
    return _with_crc(head + rows)


def decode_checkpoint(data: bytes, path: str) -> Checkpoint:
    """Decode the file `checkpoint`. Raises DataCorrupt, FormatUnsupported."""
    if len(data) < CHECKPOINT_HEAD.size or not _crc_is_right(data, CHECKPOINT_MAGIC):
        raise DataCorrupt(
            f"{path}: checksum mismatch, so the ledgers' lengths are unknown; "
            "restore the folder from a backup",
            path=path,
        )
    head = CHECKPOINT_HEAD.unpack_from(data)
    _magic, _crc, version, _zero, wal_number, sequence, next_ledger, count = head
    if version != FORMAT_VERSION:
        raise FormatUnsupported(
            f"{path} has format {version}, this version supports {FORMAT_VERSION}: "
            "use the version of Headrace that wrote it",
            version=version,
            path=path,
        )
    if len(data) != CHECKPOINT_HEAD.size + count * CHECKPOINT_LEDGER.size:
        raise DataCorrupt(f"{path}: {len(data)} bytes do not hold {count} ledgers", path=path)
    rows = tuple(
        LedgerRow(ledger, length, bool(flags & FLAG_SEALED))
        for ledger, length, flags, _zero in CHECKPOINT_LEDGER.iter_unpack(
            data[CHECKPOINT_HEAD.size :]
        )
    )
    return Checkpoint(wal_number, sequence, next_ledger, rows)


def encode_footer(ledger: int, end: int, footer: Buffer) -> bytes:
    """The contents of the file beside a sealed segment."""
    return _with_crc(FOOTER_HEAD.pack(FOOTER_MAGIC, 0, ledger, end) + footer)


def decode_footer(data: bytes, ledger: int, end: int, path: str) -> bytes:
    """The footer passed to `seal`. Raises DataCorrupt."""
    if len(data) >= FOOTER_HEAD.size and _crc_is_right(data, FOOTER_MAGIC):
        _magic, _crc, found_ledger, found_end = FOOTER_HEAD.unpack_from(data)
        if found_ledger == ledger and found_end == end:
            return data[FOOTER_HEAD.size :]
    raise DataCorrupt(
        f"{path}: checksum mismatch in the footer of ledger {ledger}; "
        "restore it or rebuild it from the segment",
        path=path,
        ledger=ledger,
    )


def _with_crc(data: bytes) -> bytes:
    crc = crc32c(data[_CRC_END:]).to_bytes(4, "little")
    return data[:_CRC_AT] + crc + data[_CRC_END:]


def _crc_is_right(data: bytes, magic: bytes) -> bool:
    found = int.from_bytes(data[_CRC_AT:_CRC_END], "little")
    return data[:_CRC_AT] == magic and crc32c(data[_CRC_END:]) == found
