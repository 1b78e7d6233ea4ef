"""The operation log of a real process: operations on its folder's files, and its events, in order.

Invariants: `recorder.c`, loaded into the process by LD_PRELOAD, records; this module compiles it
and parses its record into the operations that `power_loss` understands. So SQLite's files are
truncated at the same instant as the ledgers'. A record that does not reproduce the final files is
rejected: a system call that bypassed the recorder would invalidate every verdict.
"""

from __future__ import annotations

import json
import os
import struct
import sys
from pathlib import Path
from typing import Any

from headrace_verify.crash.model_disk import Image, split, truncate, write_into
from headrace_verify.native import COMPILERS, compile_library, find_compiler
from headrace_verify.verdicts import NotRun

HEAD = struct.Struct("<IiqIBBH")  # as `struct record` of recorder.c
SOURCE = Path(__file__).with_name("recorder.c")
_NOT_KEPT = ("-shm",)
"""SQLite's WAL index, in shared memory: the first process that opens the file recreates it."""


class RecordUnsound(NotRun):
    """The record is unusable."""


def compile_recorder(folder: Path) -> Path | str:
    """The shared object, or why there is none."""
    if not sys.platform.startswith("linux"):
        return "the recorder of real processes needs Linux (LD_PRELOAD)"
    compiler = find_compiler()
    if compiler is None:
        return f"no C compiler found ({', '.join(COMPILERS)}): real processes are not recorded"
    built = folder / "recorder.so"
    wrong = compile_library(compiler, SOURCE, built, "-ldl", "-lpthread")
    return built if wrong is None else f"{compiler} cannot compile the recorder: {wrong}"


def recording(recorder: Path, root: Path, record: Path) -> dict[str, str]:
    """The environment of a process whose files under `root` are recorded."""
    return {
        **os.environ,
        "LD_PRELOAD": str(recorder),
        "HEADRACE_RECORD_ROOT": str(root),
        "HEADRACE_RECORD_FILE": str(record),
    }


def without(image: Image, ending: str) -> Image:
    """Return it without the files with these suffixes."""
    return Image(
        image.inodes,
        {
            folder: {name: inode for name, inode in names.items() if not name.endswith(ending)}
            for folder, names in image.names.items()
        },
    )


class RecordReader:
    """Turns a record into operations, and tracks the expected final files."""

    def __init__(self, root: Path, before: Image) -> None:
        """`before`: the folder's contents when the process began."""
        self.operations: list[tuple[Any, ...]] = []
        self.inodes = [bytearray(data) for data in before.inodes]
        self.names = {folder: dict(names) for folder, names in before.names.items()}
        self._root = str(root)
        self._open: dict[int, int | str] = {}
        """What a descriptor refers to: an inode, or the path of a folder."""
        self._syncs: dict[int, tuple[int | str, int]] = {}

    def read(self, data: bytes) -> list[tuple[Any, ...]]:
        """Parse the operations of a whole record. Raises RecordUnsound."""
        at = 0
        while at + HEAD.size <= len(data):
            size, fd, number, path_size, kind, is_new, _zero = HEAD.unpack_from(data, at)
            at += HEAD.size
            path = data[at : at + path_size].decode()
            rest = data[at + path_size : at + size]
            at += size
            if at > len(data):
                break  # killed while writing it
            self._take(chr(kind), fd, number, bool(is_new), path, rest)
        return self.operations

    def _take(self, kind: str, fd: int, number: int, is_new: bool, path: str, rest: bytes) -> None:
        if kind == "O":
            self._opened(fd, self._relative(path), is_new, is_empty=bool(number))
        elif kind == "C":
            self._open.pop(fd, None)
        elif kind in "WTA":
            self._changed(kind, fd, number, rest)
        elif kind in "SEF":
            self._synced(kind, fd, number)
        elif kind == "N":
            self.operations.append(tuple(json.loads(rest)))
        elif kind in "RUM":
            self._renamed(kind, self._relative(path), rest.decode())
        else:
            raise RecordUnsound(f"the recorder does not support this process: it calls {path}")

    def _relative(self, path: str) -> str:
        return os.path.normpath(path)[len(self._root) :].strip("/")

    def _opened(self, fd: int, path: str, is_new: bool, *, is_empty: bool) -> None:
        if path in self.names:
            self._open[fd] = path
            return
        folder, name = split(path)
        if is_new:
            inode = len(self.inodes)
            self.inodes.append(bytearray())
            self.operations.append(("link", folder, name, inode))
            self.names[folder][name] = inode
        inode = self.names[folder][name]
        if is_empty and self.inodes[inode]:
            self.operations.append(("truncate", inode, 0))
            self.inodes[inode].clear()
        self._open[fd] = inode

    def _inode(self, fd: int) -> int:
        found = self._open[fd]
        assert isinstance(found, int), "bytes go to files"
        return found

    def _changed(self, kind: str, fd: int, number: int, rest: bytes) -> None:
        inode = self._inode(fd)
        content = self.inodes[inode]
        if kind == "W":
            self.operations.append(("write", inode, number, rest))
            write_into(content, number, rest)
        elif kind == "T" or len(content) < number:
            self.operations.append(("truncate", inode, number))
            truncate(content, number)

    def _synced(self, kind: str, fd: int, number: int) -> None:
        if kind == "S":
            what = self._open[fd]
            self._syncs[number] = (what, len(self.operations))
            start = "sync_start" if isinstance(what, int) else "sync_folder_start"
            self.operations.append((start, what))
            return
        what, began = self._syncs.pop(number)
        if kind == "F":
            assert isinstance(what, int), "syncs of folders do not fail here"
            self.operations.append(("sync_failed", what, began, False))
        else:
            end = "sync_end" if isinstance(what, int) else "sync_folder_end"
            self.operations.append((end, what, began))

    def _renamed(self, kind: str, path: str, new: str) -> None:
        folder, name = split(path)
        if kind == "M":
            self.operations.append(("folder", path))
            self.names[path] = {}
        elif kind == "U":
            self.operations.append(("unlink", folder, name))
            del self.names[folder][name]
        else:
            new_folder, new_name = split(self._relative(new))
            if new_folder != folder:
                raise RecordUnsound(
                    "the recorder does not support this process: it moves files between folders"
                )
            self.operations.append(("rename", folder, name, new_name))
            self.names[folder][new_name] = self.names[folder].pop(name)

    def differences(self) -> list[str]:
        """Return the differences between the record and the actual files."""
        wrong = []
        for folder, names in self.names.items():
            place = Path(self._root, folder)
            there = {path.name for path in place.iterdir() if path.is_file()}
            wrong += [f"{folder}/{name}" for name in there.symmetric_difference(names)]
            for name, inode in names.items():
                if name in there and not name.endswith(_NOT_KEPT):
                    content = (place / name).read_bytes()
                    if content != self.inodes[inode]:
                        wrong.append(f"{folder}/{name}")
        return sorted(wrong)
