"""Reads the WAL back: which frames are valid, where the log ends, and whether it is corrupt.

Invariants: read-only. An invalid frame ends the log if it may have been torn; it is corruption if
a later frame records that it was synced (`synced_sequence`). No frames are skipped, except those
covered by the checkpoint.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.errors import DataCorrupt
from headrace.runtime.disk import READ_ONLY, Disk, read_fully
from headrace.storage.files.format import FRAME_MAGIC, SECTOR_BYTES, Frame, decode_frame
from headrace.storage.files.write_ahead_log import wal_path

if TYPE_CHECKING:
    from collections.abc import Iterator


class WalReader:
    """Reader of a folder's WAL files."""

    def __init__(self, disk: Disk, folder: str, salt: int) -> None:
        self._disk = disk
        self._folder = folder
        self._salt = salt

    def numbers(self) -> list[int]:
        """The numbers of the existing files, ascending."""
        names = self._disk.list(f"{self._folder}/wal")
        return sorted(int(name[:-4], 16) for name in names if name.endswith(".wal"))

    def frames(self, first_number: int, covered: int) -> Iterator[Frame]:
        """The frames after sequence `covered`, in order, up to the log's end.

        Raises DataCorrupt if a synced frame is invalid, or its file is missing.
        """
        expected = covered + 1
        numbers = [number for number in self.numbers() if number >= first_number]
        if numbers and numbers[0] != first_number:
            raise self._missing(first_number, numbers[0], expected)
        for number in numbers:
            data = self._read(number)
            view = memoryview(data)
            at = 0
            last_covered = 0
            while True:
                frame = self._frame_at(view, at, number)
                if frame is None and last_covered < covered:
                    frame = self._next_frame(data, view, at, number, expected)
                if frame is None or frame.sequence > expected:
                    break
                at = frame.end
                if frame.sequence < expected:
                    last_covered = frame.sequence
                    continue
                last_covered = covered
                expected += 1
                yield frame
            self._check_rest(data, view, at, number, expected)

    def _missing(self, number: int, later: int, expected: int) -> DataCorrupt:
        """The error for a missing file: a later file is created only after the first one."""
        path = wal_path(self._folder, number)
        return DataCorrupt(
            f"{path} is missing, but {wal_path(self._folder, later)} exists: records from"
            f" frame {expected} on are lost. Restore the folder from a backup",
            path=path,
            sequence=expected,
        )

    def _frame_at(self, view: memoryview, at: int, number: int) -> Frame | None:
        frame = decode_frame(view, at, self._salt, number)
        if frame is None:
            aligned = -(-at // SECTOR_BYTES) * SECTOR_BYTES
            frame = decode_frame(view, aligned, self._salt, number) if aligned > at else None
        return frame

    def _valid_frames(self, data: bytes, view: memoryview, at: int, number: int) -> Iterator[Frame]:
        """All valid frames from `at` on, at any alignment."""
        at = data.find(FRAME_MAGIC, at)
        while at >= 0:
            frame = decode_frame(view, at, self._salt, number)
            if frame is not None:
                yield frame
            at = data.find(FRAME_MAGIC, at + 1 if frame is None else frame.end)

    def _next_frame(
        self, data: bytes, view: memoryview, at: int, number: int, expected: int
    ) -> Frame | None:
        """The frame with which the log continues after damage covered by the checkpoint."""
        for frame in self._valid_frames(data, view, at, number):
            return frame if frame.sequence <= expected else None
        return None

    def _check_rest(
        self, data: bytes, view: memoryview, at: int, number: int, expected: int
    ) -> None:
        for frame in self._valid_frames(data, view, at, number):
            if frame.synced_sequence >= expected:
                path = wal_path(self._folder, number)
                raise DataCorrupt(
                    f"{path}: checksum mismatch in frame {expected}, at or before byte {at}, "
                    f"but frame {frame.sequence} at byte {frame.start} records that it was "
                    "durable: acknowledged data is corrupt. Restore the folder from a backup",
                    path=path,
                    position=at,
                    sequence=expected,
                )

    def _read(self, number: int) -> bytes:
        path = wal_path(self._folder, number)
        fd = self._disk.open(path, READ_ONLY)
        try:
            return read_fully(self._disk, fd, self._disk.size(fd), 0)
        finally:
            self._disk.close(fd)
