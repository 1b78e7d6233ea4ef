"""The ledgers of a folder as the broker would recover them, without writing anything.

Invariants: reads only. Data before the checkpoint is in the segments, later data in the write-ahead
log; a read combines them by position, as recovery does (`storage/files/recovery.py`). Where
recovery would stop with an error, this continues with the rest.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from headrace.errors import DataCorrupt, FormatUnsupported
from headrace.inspection.findings import (
    RESTORE,
    WHOLE_FOLDER,
    Finding,
    RecordRange,
    damage,
    note,
    unreadable,
)
from headrace.runtime.disk import SystemDisk
from headrace.storage.files.format import (
    APPEND,
    CREATE,
    DELETE,
    ENTRY,
    EXTEND,
    FRAME_HEAD,
    SEAL,
    Checkpoint,
    Frame,
    decode_checkpoint,
    decode_folder,
    decode_footer,
)
from headrace.storage.files.wal_reader import WalReader

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headrace.inspection.folder import Folder

_KINDS = {APPEND, CREATE, SEAL, DELETE, EXTEND}
_ATTEMPTS_MAX = 5
_USE_OTHER_VERSION = "start the version of Headrace that wrote it, or a newer one"


class _Piece(NamedTuple):
    """Bytes of a ledger in the write-ahead log."""

    position: int
    size: int
    file: str
    at: int


@dataclass(slots=True)
class StoredLedger:
    """One ledger."""

    id: int
    durable: int = 0
    """Bytes in the segment according to the checkpoint."""
    end: int = 0
    is_sealed: bool = False
    file_size: int = 0
    pieces: list[_Piece] = field(default_factory=list)
    footer: _Piece | None = None
    """The seal, if the write-ahead log still has it; `position` is its end."""

    @property
    def segment(self) -> str:
        """The path of its segment in the folder."""
        return f"ledgers/{self.id & 0xFF:02x}/{self.id:016x}.ledger"

    @property
    def footer_file(self) -> str:
        """The path of its footer in the folder."""
        return f"ledgers/{self.id & 0xFF:02x}/{self.id:016x}.footer"

    @property
    def is_short(self) -> bool:
        """Whether its segment has lost durable bytes."""
        return self.file_size < self.durable


class Ledgers:
    """All ledgers of one folder, and problems of the folder itself."""

    def __init__(self, folder: Folder) -> None:
        self.folder = folder
        self.by_id: dict[int, StoredLedger] = {}
        self.findings: list[Finding] = []
        self.checkpoint: Checkpoint | None = None
        self.is_known = True
        """Whether checkpoint and format were readable: else lengths are those of the files."""
        self._open()

    # --- the folder's own files ----------------------------------------------------------------

    def _open(self) -> None:
        folder = self.folder
        is_laid_out = folder.size("format") is not None or folder.size("checkpoint") is not None
        if not is_laid_out and not folder.names("ledgers"):
            return
        for _ in range(_ATTEMPTS_MAX):
            self.by_id.clear()
            self.findings.clear()
            before = folder.read("checkpoint")
            self._load(before)
            if folder.user is None or folder.read("checkpoint") == before:
                break
        self._check_files()

    def _load(self, checkpoint: bytes | None) -> None:
        salt = self._salt()
        found = self._read_checkpoint(checkpoint)
        self.checkpoint = found
        self.is_known = found is not None
        if found is None:
            self._take_files()
            return
        for number, length, is_sealed in found.ledgers:
            self.by_id[number] = StoredLedger(number, length, length, is_sealed)
        if salt is not None:
            self._replay(found, WalReader(SystemDisk(), str(self.folder.path), salt))

    def _salt(self) -> int | None:
        name = self.folder.name("format")
        data = self.folder.read("format")
        if data is None:
            cause = "the file is missing, so the write-ahead log cannot be read"
            self.findings.append(damage("format", name, None, cause, WHOLE_FOLDER))
            return None
        try:
            return decode_folder(data, name)
        except FormatUnsupported as error:
            if "version" in error.fields:
                self.findings.append(unreadable("format", name, str(error), _USE_OTHER_VERSION))
            else:
                cause = f"its {len(data)} bytes are not a Headrace format file"
                self.findings.append(damage("format", name, 0, cause, WHOLE_FOLDER))
        except DataCorrupt:
            cause = "its checksum does not match"
            self.findings.append(damage("format", name, 0, cause, WHOLE_FOLDER))
        return None

    def _read_checkpoint(self, data: bytes | None) -> Checkpoint | None:
        name = self.folder.name("checkpoint")
        if data is None:
            cause = "the file is missing, so the lengths of the ledgers are unknown"
            self.findings.append(damage("checkpoint", name, None, cause, WHOLE_FOLDER))
            return None
        try:
            return decode_checkpoint(data, name)
        except FormatUnsupported as error:
            self.findings.append(unreadable("checkpoint", name, str(error), _USE_OTHER_VERSION))
        except DataCorrupt:
            cause = "its checksum does not match, so the lengths of the ledgers are unknown"
            self.findings.append(damage("checkpoint", name, 0, cause, WHOLE_FOLDER))
        return None

    def _take_files(self) -> None:
        """Without a checkpoint, a ledger is as long as its file."""
        for _, number, suffix in self._files():
            ledger = self.by_id.setdefault(number, StoredLedger(number))
            if suffix == "footer":
                ledger.is_sealed = True
            else:
                ledger.end = ledger.durable = self.folder.size(ledger.segment) or 0

    def _files(self) -> Iterator[tuple[str, int, str]]:
        """Yield (path, ledger, `ledger` or `footer`) of each file under `ledgers`."""
        for part in self.folder.names("ledgers"):
            for name in self.folder.names(f"ledgers/{part}"):
                stem, _, suffix = name.partition(".")
                try:
                    yield f"ledgers/{part}/{name}", int(stem, 16), suffix
                except ValueError:
                    continue

    # --- the write-ahead log -----------------------------------------------------------------

    def _replay(self, checkpoint: Checkpoint, reader: WalReader) -> None:
        try:
            for frame in reader.frames(checkpoint.wal_number, checkpoint.sequence):
                self._apply(frame)
        except DataCorrupt as error:
            self.findings.append(self._of_the_log(error))

    def _of_the_log(self, error: DataCorrupt) -> Finding:
        path, sequence = error.fields.get("path"), error.fields.get("sequence")
        if path is None:
            return damage("wal-frame", self.folder.name("wal"), None, str(error), WHOLE_FOLDER)
        name, position = f"wal/{path.rpartition('/')[2]}", error.fields.get("position")
        if self.folder.size(name) is None:
            cause = "the file is missing, but a later file of the write-ahead log exists"
            return damage("wal-missing", self.folder.name(name), None, cause, WHOLE_FOLDER)
        cause = f"frame {sequence} does not match its checksum, but was acknowledged"
        return damage("wal-frame", self.folder.name(name), position, cause, WHOLE_FOLDER)

    def _apply(self, frame: Frame) -> None:
        path = f"wal/{frame.generation:016x}.wal"
        at = frame.start + FRAME_HEAD.size + frame.entry_count * ENTRY.size
        for kind, number, position, payload in frame.entries():
            self._apply_entry(kind, number, _Piece(position, len(payload), path, at))
            at += len(payload)

    def _apply_entry(self, kind: int, number: int, piece: _Piece) -> None:
        if kind not in _KINDS:
            cause = f"an entry of unknown kind {kind} at byte {piece.at}"
            name = self.folder.name(piece.file)
            self.findings.append(unreadable("wal-entry", name, cause, _USE_OTHER_VERSION))
            return
        if kind == CREATE:
            self.by_id.setdefault(number, StoredLedger(number))
            return
        ledger = self.by_id.get(number)
        if ledger is None:
            if kind != DELETE:
                self._never_made(number, piece)
            return
        if kind == DELETE:
            del self.by_id[number]
        elif kind == SEAL:
            ledger.is_sealed, ledger.footer = True, piece
        elif kind == EXTEND:
            if piece.position > ledger.end:  # the segment of a ledger that had no bytes
                ledger.durable = ledger.end = piece.position
        else:
            self._append(ledger, piece)

    def _never_made(self, number: int, piece: _Piece) -> None:
        cause = f"it writes to ledger {number}, which was never created"
        name = self.folder.name(piece.file)
        place = RecordRange(number)
        found = damage("wal-ledger", name, piece.at, cause, WHOLE_FOLDER, RESTORE, place)
        self.findings.append(found)

    def _append(self, ledger: StoredLedger, piece: _Piece) -> None:
        skipped = ledger.end - piece.position
        if skipped < 0:
            cause = f"the write-ahead log continues at {piece.position}, but the ledger ends there"
            name = self.folder.name(ledger.segment)
            effect = f"ledger {ledger.id} is quarantined: none of its records are served"
            self.findings.append(
                damage(
                    "ledger-gap", name, ledger.end, cause, effect, RESTORE, RecordRange(ledger.id)
                )
            )
        elif skipped < piece.size:
            size = piece.size - skipped
            ledger.pieces.append(_Piece(ledger.end, size, piece.file, piece.at + skipped))
            ledger.end += size

    # --- the files ---------------------------------------------------------------------------

    def _check_files(self) -> None:
        for ledger in self.by_id.values():
            ledger.file_size = self.folder.size(ledger.segment) or 0
        if not self.is_known:
            return
        stray = [
            path
            for path, number, suffix in self._files()
            if number not in self.by_id or (suffix == "footer" and not self._is_sealed(number))
        ]
        for path in stray:
            cause = "the file is in neither the checkpoint nor the write-ahead log"
            effect = "left by a crash; the next start deletes it"
            self.findings.append(note("stray-file", self.folder.name(path), cause, effect))

    def _is_sealed(self, number: int) -> bool:
        return self.by_id[number].is_sealed

    # --- reading -----------------------------------------------------------------------------

    def read(self, ledger: StoredLedger, position: int, size: int) -> bytes:
        """Read up to `size` bytes at `position`; fewer at the end, or if the segment is too
        short."""
        size = min(size, ledger.end - position)
        if size <= 0:
            return b""
        parts: list[bytes] = []
        if position < ledger.durable:
            want = min(size, ledger.durable - position)
            parts.append(self.folder.read_part(ledger.segment, position, want))
            if len(parts[0]) < want:
                return parts[0]
            position, size = position + want, size - want
        for piece in ledger.pieces:
            skipped = position - piece.position
            if size <= 0 or not 0 <= skipped < piece.size:
                continue
            want = min(size, piece.size - skipped)
            parts.append(self.folder.read_part(piece.file, piece.at + skipped, want))
            position, size = position + want, size - want
        return b"".join(parts)

    def footer(self, ledger: StoredLedger) -> bytes:
        """Return the footer that the ledger was sealed with. Raises DataCorrupt."""
        if ledger.footer is not None:  # recovery rewrites the file from it
            return self.folder.read_part(ledger.footer.file, ledger.footer.at, ledger.footer.size)
        name = self.folder.name(ledger.footer_file)
        data = self.folder.read(ledger.footer_file)
        if data is None:
            raise DataCorrupt(f"{name} is missing", path=name)
        return decode_footer(data, ledger.id, ledger.end, name)
