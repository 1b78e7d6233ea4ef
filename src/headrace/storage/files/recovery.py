"""Opens a folder: replays the WAL into the segments, by position.

Invariants: recovery may be interrupted at any point and run again, so it does not change anything
the checkpoint covers: it writes only what the WAL has beyond it, and only a new checkpoint (which
the store writes next) advances. A segment shorter than the checkpoint records is quarantined; a
corrupt WAL or checkpoint prevents opening.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.errors import DataCorrupt, FormatUnsupported
from headrace.runtime.disk import READ_ONLY, Disk, read_fully
from headrace.storage.files.checkpoint import (
    read_checkpoint,
    write_checkpoint,
    write_durable_file,
)
from headrace.storage.files.format import (
    APPEND,
    CREATE,
    DELETE,
    EXTEND,
    SEAL,
    Checkpoint,
    WalEntry,
    decode_folder,
    encode_folder,
)
from headrace.storage.files.group import Catalog, Ledger

if TYPE_CHECKING:
    from headrace.storage.files.segments import Segments
    from headrace.storage.files.wal_reader import WalReader

_KINDS = {APPEND, CREATE, SEAL, DELETE, EXTEND}
_NAMES_OF_A_NEW_FOLDER = {"lock", "wal", "ledgers", "checkpoint", "checkpoint.tmp", "format.tmp"}


class RecoveredFolder:
    """The state recovered from a folder."""

    __slots__ = ("catalog", "next_wal_number", "old_wal_numbers", "sequence")

    def __init__(self) -> None:
        self.catalog = Catalog()
        self.sequence = 0
        """The last frame of the WAL."""
        self.next_wal_number = 1
        self.old_wal_numbers: list[int] = []


def prepare_folder(disk: Disk, folder: str, new_salt: int) -> int:
    """Check the folder's format, or initialize a new folder; returns its salt.

    Raises FormatUnsupported, DataCorrupt, OSError.
    """
    path = f"{folder}/format"
    try:
        fd = disk.open(path, READ_ONLY)
    except FileNotFoundError:
        _lay_out(disk, folder, new_salt)
        return new_salt
    try:
        return decode_folder(read_fully(disk, fd, disk.size(fd), 0), path)
    finally:
        disk.close(fd)


def _lay_out(disk: Disk, folder: str, salt: int) -> None:
    """The file `format` is written last: until it exists, the folder counts as empty."""
    names = disk.list(folder)
    is_foreign = any(name not in _NAMES_OF_A_NEW_FOLDER for name in names)
    if is_foreign or ("ledgers" in names and disk.list(f"{folder}/ledgers")):
        raise FormatUnsupported(
            f"{folder} has no file `format` but is not empty: choose an empty data folder, "
            "or restore that file",
            path=folder,
        )
    disk.make_folder(f"{folder}/wal")
    disk.make_folder(f"{folder}/ledgers")
    for name in disk.list(f"{folder}/wal"):
        disk.unlink(f"{folder}/wal/{name}")
    try:
        # The folder may have been created by another program that did not sync its name.
        disk.sync_folder(folder.rpartition("/")[0] or ("/" if folder.startswith("/") else "."))
    except PermissionError:  # then its parent is not ours to sync
        pass
    write_checkpoint(disk, folder, Checkpoint(1, 0, 1, ()))
    write_durable_file(disk, folder, "format", encode_folder(salt))


def recover(disk: Disk, folder: str, segments: Segments, reader: WalReader) -> RecoveredFolder:
    """Replay the WAL into the segments. Raises DataCorrupt, OSError."""
    checkpoint = read_checkpoint(disk, folder)
    found = RecoveredFolder()
    found.sequence = checkpoint.sequence
    found.catalog.next_ledger = checkpoint.next_ledger
    found.old_wal_numbers = reader.numbers()
    found.next_wal_number = max([checkpoint.wal_number, *found.old_wal_numbers]) + 1
    for number, length, is_sealed in checkpoint.ledgers:
        ledger = found.catalog.ledgers[number] = Ledger(number, length)
        if is_sealed:
            ledger.seal()
        size = segments.size(number)
        if size < length:
            ledger.corrupt = ledger.blocked = _too_short(segments, number, size, length)
    for frame in reader.frames(checkpoint.wal_number, checkpoint.sequence):
        for entry in frame.entries():
            _replay(entry, found, segments)
        found.sequence = frame.sequence
    segments.remove_unknown(found.catalog.ledgers)
    for ledger in found.catalog.ledgers.values():
        if ledger.corrupt is None and segments.size(ledger.id) > ledger.end:
            segments.cut(ledger)
    return found


def _replay(entry: WalEntry, found: RecoveredFolder, segments: Segments) -> None:
    if entry.kind not in _KINDS:
        raise FormatUnsupported(
            f"the write-ahead log contains an entry of unknown kind {entry.kind}: the folder was"
            " not opened; use the version of Headrace that wrote it",
            kind=entry.kind,
        )
    if entry.kind == CREATE:
        found.catalog.ledgers.setdefault(entry.ledger, Ledger(entry.ledger))
        found.catalog.next_ledger = max(found.catalog.next_ledger, entry.ledger + 1)
        return
    ledger = found.catalog.ledgers.get(entry.ledger)
    if ledger is None:
        if entry.kind == DELETE:
            return
        raise DataCorrupt(
            f"the WAL writes to ledger {entry.ledger}, which was never created; "
            "restore the folder from a backup",
            ledger=entry.ledger,
        )
    if entry.kind == DELETE:
        segments.drop_written(ledger)
        del found.catalog.ledgers[entry.ledger]
    elif ledger.corrupt is not None:
        return
    elif entry.kind == APPEND:
        _replay_append(entry, ledger, segments)
    elif entry.kind == EXTEND:
        _replay_extend(entry, ledger, segments)
    else:
        segments.write_footer(ledger.id, entry.position, entry.payload)
        ledger.seal()


def _replay_append(entry: WalEntry, ledger: Ledger, segments: Segments) -> None:
    skipped = ledger.end - entry.position
    if skipped < 0:
        ledger.corrupt = ledger.blocked = DataCorrupt(
            f"ledger {ledger.id}: the WAL continues at {entry.position}, the segment ends at "
            f"{ledger.end}; restore the folder from a backup",
            ledger=ledger.id,
            position=ledger.end,
        )
    elif skipped < len(entry.payload):
        part = entry.payload[skipped:]
        segments.write(ledger, part, ledger.end)
        ledger.end += len(part)
        ledger.readable = ledger.end


def _replay_extend(entry: WalEntry, ledger: Ledger, segments: Segments) -> None:
    """The bytes were durable in the segment before the frame was written."""
    if entry.position <= ledger.end:
        return
    size = segments.size(ledger.id)
    if size < entry.position:
        ledger.corrupt = ledger.blocked = _too_short(segments, ledger.id, size, entry.position)
        return
    ledger.end = ledger.readable = entry.position
    ledger.has_file = True


def _too_short(segments: Segments, ledger: int, size: int, length: int) -> DataCorrupt:
    path = segments.path(ledger)
    return DataCorrupt(
        f"{path} holds {size} bytes although {length} were durable: ledger {ledger} is "
        "quarantined. Restore the file from a backup",
        path=path,
        ledger=ledger,
        size=size,
        length=length,
    )
