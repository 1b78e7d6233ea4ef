"""Where the copy of a write-ahead log has to end, to be of the same moment as copied metadata.

Metadata and log are not one file: a log that was copied later has records in ledgers that the
metadata does not name yet. They would be missing in the copy, while records of other partitions
that refer to them (committed offsets) would be there. So the copy ends before the first of them.

Invariants: reads only. A partition appends to a ledger only after its chain names it. Damage is not
reported here: `headrace check` finds it in the copy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from headrace.errors import DataCorrupt, FormatUnsupported
from headrace.runtime.disk import SystemDisk
from headrace.storage.files.format import (
    APPEND,
    CREATE,
    EXTEND,
    decode_checkpoint,
    decode_folder,
)
from headrace.storage.files.wal_reader import WalReader

if TYPE_CHECKING:
    from collections.abc import Iterator
    from collections.abc import Set as AbstractSet
    from pathlib import Path

    from headrace.storage.files.format import Frame

CHECKPOINT: Final = "checkpoint"
FORMAT_FILE: Final = "format"
_UNNAMED_RECORDS: Final = {(APPEND, False), (EXTEND, False)}


class LogRecycled(Exception):
    """Files of a log were recycled while it was read, so the end of what was read is unknown."""


class LogEnd(NamedTuple):
    """A position in a log: the number of a file, and bytes in it."""

    number: int
    position: int


def last_frame(folder: Path) -> int:
    """The sequence of a log's last frame; a broker may write to it. Raises LogRecycled.

    All records that were acknowledged before the call are in frames up to this one.
    """
    before = _read(folder / CHECKPOINT)
    last = 0
    try:
        for sequence, _frame in _frames(folder):
            last = sequence
    except FileNotFoundError as error:
        raise LogRecycled from error
    # Only a checkpoint lets files be recycled. Without one, an error of the reader means that
    # frames were written between two reads: later than the call.
    if _read(folder / CHECKPOINT) != before:
        raise LogRecycled
    return last


def end_for(folder: Path, after: int, named: AbstractSet[int]) -> LogEnd | None:
    """Where a copied log has to end, if the metadata read after frame `after` names these ledgers.

    None: at its end. Frames that create a named ledger precede the metadata, too. Ledgers that
    are not named may also be those that were deleted before, or compaction's: ending there loses
    nothing that was acknowledged before frame `after`.
    """
    found = None
    for sequence, frame in _frames(folder):
        if frame is None:
            continue
        kinds = {(entry.kind, entry.ledger in named) for entry in frame.entries()}
        if (CREATE, True) in kinds:
            found = None
        elif found is None and sequence > after and kinds & _UNNAMED_RECORDS:
            found = LogEnd(frame.generation, frame.start)
    return found


def _frames(folder: Path) -> Iterator[tuple[int, Frame | None]]:
    """Yield (sequence, frame) of the checkpoint, which has none, and of the frames after it, up to
    the log's end or its first damage."""
    form, data = _read(folder / FORMAT_FILE), _read(folder / CHECKPOINT)
    if form is None or data is None:
        return
    try:
        salt = decode_folder(form, FORMAT_FILE)
        checkpoint = decode_checkpoint(data, CHECKPOINT)
        yield checkpoint.sequence, None
        reader = WalReader(SystemDisk(), str(folder), salt)
        for frame in reader.frames(checkpoint.wal_number, checkpoint.sequence):
            yield frame.sequence, frame
    except (DataCorrupt, FormatUnsupported):
        return


def _read(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None
