"""The states that a power loss may leave on a disk, derived from a ModelDisk's operation log.

Two profiles. `posix-strict`: a name is durable only after a sync of its folder. `ext4-like`: names
are journaled in order, and a sync of a file includes its name. In both, bytes are durable after a
sync that began after they were written; the rest may be partially present, in any order, in units
of sectors.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headrace_verify.crash.model_disk import Image, truncate, write_into

if TYPE_CHECKING:
    from collections.abc import Iterator
    from random import Random  # noqa: TID251 - a type

SECTOR = 512
PROFILES = ("posix-strict", "ext4-like")
KEEPS = ("none", "all", "prefix", "suffix", "subset", "garbage", "sizes", "names only")


class _File:
    def __init__(self) -> None:
        self.durable = bytearray()
        self.pending: list[tuple[int, tuple[Any, ...]]] = []  # (index of the operation, operation)
        self.is_wal = False

    def sync(self, start: int) -> None:
        while self.pending and self.pending[0][0] < start:
            apply_to_content(self.durable, self.pending.pop(0)[1])


class _Folder:
    def __init__(self) -> None:
        self.durable: dict[str, int] = {}
        self.pending: list[tuple[int, tuple[Any, ...]]] = []

    def sync(self, start: int) -> None:
        while self.pending and self.pending[0][0] < start:
            apply_to_names(self.durable, self.pending.pop(0)[1])


class PowerLoss:
    """Walks an operation log; `states` yields what a power loss at this point may leave."""

    def __init__(self, before: Image, profile: str) -> None:
        self._profile = profile
        self._files = []
        for data in before.inodes:
            file = _File()
            file.durable += data
            self._files.append(file)
        self._folders: dict[str, _Folder] = {}
        for name, names in before.names.items():
            folder = self._folders[name] = _Folder()
            folder.durable = dict(names)
            for entry, inode in names.items():
                self._files[inode].is_wal = entry.endswith(".wal")
        self._durable_folders = set(before.names)
        self._index = 0

    def step(self, operation: tuple[Any, ...]) -> None:
        """Process the next operation of the log."""
        kind = operation[0]
        index = self._index
        self._index += 1
        if kind in ("write", "truncate"):
            self._files[operation[1]].pending.append((index, operation))
        elif kind == "link":
            self._files.append(_File())
            self._files[-1].is_wal = operation[2].endswith(".wal")
            self._folders[operation[1]].pending.append((index, operation))
        elif kind in ("rename", "unlink"):
            self._folders[operation[1]].pending.append((index, operation))
        elif kind == "folder":
            self._folders[operation[1]] = _Folder()
            parent = operation[1].rpartition("/")[0]
            self._folders[parent].pending.append((index, operation))
        elif kind == "sync_end":
            self._files[operation[1]].sync(operation[2])
            if self._profile == "ext4-like":
                self._sync_names(operation[2])
        elif kind == "sync_failed" and operation[3]:
            file = self._files[operation[1]]
            file.pending = [
                pending
                for pending in file.pending
                if pending[0] >= operation[2] or pending[1][0] != "write"
            ]
        elif kind == "sync_folder_end":
            if self._profile == "ext4-like":
                self._sync_names(operation[2])
            else:
                self._folders[operation[1]].sync(operation[2])
                self._note_folders()

    def _sync_names(self, start: int) -> None:
        for folder in self._folders.values():
            folder.sync(start)
        self._note_folders()

    def _note_folders(self) -> None:
        for name in self._folders:
            parent, _, base = name.rpartition("/")
            if name and base + "/" in self._folders[parent].durable:
                self._durable_folders.add(name)

    def states(self, rng: Random, keeps: tuple[str, ...] = KEEPS) -> Iterator[Image]:
        """Yield the states that a power loss may leave now."""
        for keep in keeps:
            yield self._state(keep, rng)

    def _state(self, keep: str, rng: Random) -> Image:
        keep_names = {"none": "none", "sizes": "all", "names only": "all"}.get(keep, keep)
        keep_names = {"garbage": "subset", "suffix": "subset"}.get(keep_names, keep_names)
        names = self._names(keep_names, rng)
        keep_data = "none" if keep == "names only" else keep
        contents = [bytes(self._content(file, keep_data, rng)) for file in self._files]
        return Image(contents, names)

    def _names(self, keep: str, rng: Random) -> dict[str, dict[str, int]]:
        kept: set[int] = set()
        pending = [
            (index, operation)
            for folder in self._folders.values()
            for index, operation in folder.pending
        ]
        pending.sort(key=lambda item: item[0])
        if self._profile == "ext4-like" and keep != "none":
            # One journal: a prefix of all operations is kept.
            cut = len(pending) if keep == "all" else rng.randint(0, len(pending))
            kept = {index for index, _operation in pending[:cut]}
        elif keep != "none":
            for folder in self._folders.values():
                some = folder.pending
                if keep == "prefix":
                    some = some[: rng.randint(0, len(some))]
                elif keep == "subset":
                    some = some[: rng.randint(0, len(some))] if rng.random() < 0.5 else some
                kept.update(index for index, _operation in some)
        result: dict[str, dict[str, int]] = {}
        for name, folder in self._folders.items():
            entries = dict(folder.durable)
            for index, operation in folder.pending:
                if index in kept:
                    apply_to_names(entries, operation)
            result[name] = entries
        present = {""}
        for name in sorted(result, key=lambda name: name.count("/") if name else -1):
            parent, _, base = name.rpartition("/")
            if name and parent in present and base + "/" in result[parent]:
                present.add(name)
        present |= self._durable_folders
        return {
            name: {entry: inode for entry, inode in result[name].items() if not entry.endswith("/")}
            for name in result
            if name in present
        }

    def _content(self, file: _File, keep: str, rng: Random) -> bytearray:
        content = bytearray(file.durable)
        operations = [operation for _index, operation in file.pending]
        if keep == "none" or not operations:
            return content
        if keep == "all":
            for operation in operations:
                apply_to_content(content, operation)
            return content
        if keep == "sizes":
            full = bytearray(content)
            for operation in operations:
                apply_to_content(full, operation)
            truncate(content, len(full))
            return content
        pieces = list(_sectors(operations))
        if keep == "prefix":
            pieces = pieces[: rng.randint(0, len(pieces))]
        elif keep == "suffix":
            pieces = pieces[rng.randint(0, len(pieces)) :]
        else:
            pieces = [piece for piece in pieces if rng.random() < 0.7]
        for operation in pieces:
            apply_to_content(content, operation)
        if keep == "garbage" and pieces and rng.random() < 0.8:
            # A sector being written holds noise, or the contents of an earlier write.
            _kind, _inode, position, data = rng.choice(
                [piece for piece in pieces if piece[0] == "write"] or [("write", 0, 0, b"")]
            )
            size = len(data)
            if file.is_wal:
                # The WAL does not trust even the rest of a sector that is being written. Segments
                # do: docs/FORMAT.md names that assumption.
                size = min(SECTOR, len(content) - position // SECTOR * SECTOR)
                position = position // SECTOR * SECTOR
            noise = bytes(rng.getrandbits(8) for _ in range(size))
            if rng.random() < 0.3:
                noise = bytes(size)
            write_into(content, position, noise)
        return content


def _sectors(operations: list[tuple[Any, ...]]) -> Iterator[tuple[Any, ...]]:
    for operation in operations:
        if operation[0] != "write":
            yield operation
            continue
        _kind, inode, position, data = operation
        at = 0
        while at < len(data):
            size = SECTOR - (position + at) % SECTOR
            yield ("write", inode, position + at, data[at : at + size])
            at += size


def apply_to_content(content: bytearray, operation: tuple[Any, ...]) -> None:
    if operation[0] == "write":
        write_into(content, operation[2], operation[3])
    else:
        truncate(content, operation[2])


def apply_to_names(names: dict[str, int], operation: tuple[Any, ...]) -> None:
    kind = operation[0]
    if kind == "link":
        names[operation[2]] = operation[3]
    elif kind == "rename":
        if operation[2] in names:
            names[operation[3]] = names.pop(operation[2])
    elif kind == "unlink":
        names.pop(operation[2], None)
    elif kind == "folder":
        names[operation[1].rpartition("/")[2] + "/"] = -1
