"""The files of a data folder, opened read-only.

Invariants: nothing in the folder is created, changed, locked or deleted. Whether a broker is
running on it is read from the kernel's lock table, so that a broker which starts meanwhile is not
refused. A folder in use gives a snapshot of a moment.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from headrace.errors import RequestInvalid
from headrace.metadata.sqlite_file import METADATA
from headrace.runtime.disk import READ_ONLY, SystemDisk, read_fully
from headrace.storage.files.folder_lock import LOCK

_LOCKS = Path("/proc/locks")
_WORKER = "worker-"
_DISK: Final = SystemDisk()


class Folder:
    """One folder of ledgers: the data folder itself, or that of one of several workers."""

    def __init__(self, root: Path, number: int = 0) -> None:
        self.root = root
        self.number = number
        """The worker it belongs to."""
        self.path = root / f"{_WORKER}{number}" if number else root

    def name(self, path: str) -> str:
        """The path of one of its files, relative to the data folder."""
        return f"{_WORKER}{self.number}/{path}" if self.number else path

    def full(self, path: str) -> Path:
        """The full path of one of its files."""
        return self.path / path

    def read(self, path: str) -> bytes | None:
        """Read a whole file; None if it does not exist. Raises OSError."""
        try:
            fd = _DISK.open(str(self.full(path)), READ_ONLY)
        except FileNotFoundError:
            return None
        try:
            return read_fully(_DISK, fd, _DISK.size(fd), 0)
        finally:
            _DISK.close(fd)

    def read_part(self, path: str, position: int, size: int) -> bytes:
        """Read up to `size` bytes at `position`: fewer at the end, none if the file does not
        exist."""
        try:
            fd = _DISK.open(str(self.full(path)), READ_ONLY)
        except FileNotFoundError:
            return b""
        try:
            return read_fully(_DISK, fd, size, position)
        finally:
            _DISK.close(fd)

    def size(self, path: str) -> int | None:
        """The size of a file; None if it does not exist."""
        try:
            return self.full(path).stat().st_size
        except FileNotFoundError:
            return None

    def names(self, path: str) -> list[str]:
        """The names in one of its subfolders, sorted; empty if it does not exist."""
        try:
            return sorted(os.listdir(self.full(path)))
        except FileNotFoundError:
            return []

    @property
    def user(self) -> int | None:
        """The process that holds the folder's lock; None if no such process is visible."""
        return _holder(self.full(LOCK))


def _holder(lock: Path) -> int | None:
    try:
        found = lock.stat()
        lines = _LOCKS.read_text().splitlines()
    except OSError:
        return None
    device = f"{os.major(found.st_dev):02x}:{os.minor(found.st_dev):02x}:{found.st_ino}"
    for line in lines:
        words = line.split()  # 1: FLOCK ADVISORY WRITE 4711 00:2f:1234 0 EOF
        if len(words) >= 6 and words[1] == "FLOCK" and words[5] == device:
            return int(words[4])
    return None


def folders_of(root: Path) -> list[Folder]:
    """Return the folders of ledgers under a data folder. Raises RequestInvalid if it is none."""
    if not root.is_dir():
        raise RequestInvalid(f"{root} is not a folder: give a broker's --data-dir")
    numbers = {
        int(name.removeprefix(_WORKER))
        for name in os.listdir(root)
        if name.startswith(_WORKER) and name.removeprefix(_WORKER).isdigit()
    }
    known = {"format", "checkpoint", "ledgers", "wal", METADATA}
    if not numbers and not known & set(os.listdir(root)):
        raise RequestInvalid(
            f"{root} is not a Headrace data folder: it contains no `format` file, ledgers or"
            " metadata; give a broker's --data-dir"
        )
    return [Folder(root, number) for number in sorted(numbers | {0})]
