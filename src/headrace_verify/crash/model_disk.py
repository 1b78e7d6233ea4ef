"""An in-memory disk that logs every operation, in order, with acknowledgements.

`power_loss` derives the possible states after a power loss from this operation log. A sync is two
operations, its start and its end: only what was written before the start is durable at the end.
"""

from __future__ import annotations

import asyncio
import errno
import os
import threading
import time
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import builtins
    from collections.abc import Callable

ROOT = "/data"


class ModelDisk:
    """A Disk. `operations` lists all operations; `image` preloads a state."""

    def __init__(
        self, image: Image | None = None, sync_turns: int = 0, *, has_threads: bool = False
    ) -> None:
        self.operations: list[tuple[Any, ...]] = []
        self.sync_turns = sync_turns
        """Loop iterations between the start and the end of a sync in a thread."""
        self._has_threads = has_threads
        """Real threads, with syncs that take time: checkpoints run while appends continue."""
        self._mutex = threading.RLock()
        self.fault: Callable[[str, str], int | None] = lambda action, path: None
        """May raise on ("write", "sync" or "sync folder", path), or return how much is written of a
        failing write."""
        self.are_failed_syncs_dropped = False
        """A failed sync discards what it should have written; the page cache still shows it."""
        self.was_read: set[int] = set()
        """The inodes whose bytes were read."""
        self._paths: dict[int, str] = {}
        self.inodes: list[bytearray] = []
        self.names: dict[str, dict[str, int]] = {"": {}}
        self._open: dict[int, int] = {}
        self._next_fd = 100
        self._deferred: list[tuple[Any, ...]] | None = None
        if image is not None:
            self.inodes = [bytearray(data) for data in image.inodes]
            self.names = {folder: dict(names) for folder, names in image.names.items()}

    def note(self, *operation: Any) -> None:
        """Add an event of the test (an append, an acknowledgement) to `operations`."""
        self.operations.append(operation)

    def image(self) -> Image:
        return Image(
            [bytes(data) for data in self.inodes],
            {folder: dict(names) for folder, names in self.names.items()},
        )

    # --- open files ---

    def pread(self, fd: int, size: int, position: int, /) -> bytes:
        inode = self._open[fd]
        self.was_read.add(inode)
        return bytes(self.inodes[inode][position : position + size])

    def pread_cached(self, fd: int, buffer: bytearray, position: int, /) -> int:
        data = self.pread(fd, len(buffer), position)
        buffer[: len(data)] = data
        return len(data)

    def is_cached(self, fd: int, size: int, position: int, /) -> bool:
        return False  # unused by sockets

    def pwrite(self, fd: int, data: Any, position: int, /) -> int:
        inode = self._open[fd]
        data = bytes(data)
        limit = self.fault("write", self._paths[fd])
        if limit is not None:
            data = data[:limit]
        with self._mutex:
            self.operations.append(("write", inode, position, data))
            write_into(self.inodes[inode], position, data)
        if limit is not None:
            raise OSError(errno.ENOSPC, "no space", self._paths[fd])
        return len(data)

    def pwritev(self, fd: int, parts: Any, position: int, /) -> int:
        return self.pwrite(fd, b"".join(parts), position)

    def begin_sync(self, fd: int, /) -> None:
        """Discard operations that no crash state depends on."""

    def write_back(self, fd: int, position: int, size: int, /) -> None:
        """As above."""

    def fdatasync(self, fd: int, /) -> None:
        try:
            self.fault("sync", self._paths[fd])
        except OSError:
            start = len(self.operations)
            dropped = self.are_failed_syncs_dropped
            self.operations.append(("sync_failed", self._open[fd], start, dropped))
            raise
        self.sync("sync", self._open[fd])

    def sync(self, kind: str, what: Any) -> None:
        with self._mutex:
            start = len(self.operations)
            self.operations.append((kind + "_start", what))
        end = (kind + "_end", what, start)
        if self._has_threads and threading.current_thread() is not threading.main_thread():
            time.sleep(0.0003)
        if self._deferred is not None:
            self._deferred.append(end)
        else:
            self.operations.append(end)

    def truncate(self, fd: int, size: int, /) -> None:
        inode = self._open[fd]
        with self._mutex:
            self.operations.append(("truncate", inode, size))
            truncate(self.inodes[inode], size)

    def allocate(self, fd: int, size: int, /) -> None:
        if self.size(fd) < size:
            self.truncate(fd, size)

    def size(self, fd: int, /) -> int:
        return len(self.inodes[self._open[fd]])

    # --- names ---

    def open(self, path: str, flags: int, /) -> int:
        folder, name = split(path)
        inode = self._folder(folder).get(name)
        if inode is None:
            if not flags & os.O_CREAT:
                raise FileNotFoundError(errno.ENOENT, "no such file", path)
            with self._mutex:
                inode = len(self.inodes)
                self.inodes.append(bytearray())
                self.operations.append(("link", folder, name, inode))
                self.names[folder][name] = inode
        elif flags & os.O_TRUNC and self.inodes[inode]:
            self.operations.append(("truncate", inode, 0))
            self.inodes[inode].clear()
        with self._mutex:
            self._next_fd += 1
            self._open[self._next_fd] = inode
            self._paths[self._next_fd] = path
            return self._next_fd

    def close(self, fd: int, /) -> None:
        del self._open[fd]

    def list(self, path: str, /) -> builtins.list[str]:
        folder = path.strip("/")
        inside = [split(other)[1] for other in self.names if other and split(other)[0] == folder]
        return sorted([*self._folder(folder), *inside])

    def make_folder(self, path: str, /) -> bool:
        folder = path.strip("/")
        if folder in self.names:
            return False
        self._folder(split(path)[0])
        with self._mutex:
            self.operations.append(("folder", folder))
            self.names[folder] = {}
        return True

    def rename(self, old: str, new: str, /) -> None:
        (folder, old_name), (new_folder, new_name) = split(old), split(new)
        assert folder == new_folder, "renames stay in their folder"
        with self._mutex:
            names = self._folder(folder)
            if old_name not in names:
                raise FileNotFoundError(errno.ENOENT, "no such file", old)
            self.operations.append(("rename", folder, old_name, new_name))
            names[new_name] = names.pop(old_name)

    def unlink(self, path: str, /) -> None:
        folder, name = split(path)
        if name not in self._folder(folder):
            raise FileNotFoundError(errno.ENOENT, "no such file", path)
        with self._mutex:
            self.operations.append(("unlink", folder, name))
            del self.names[folder][name]

    def sync_folder(self, path: str, /) -> None:
        folder = path.strip("/")
        self._folder(folder)
        self.fault("sync folder", path)
        self.sync("sync_folder", folder)

    def space(self, path: str, /) -> tuple[int, int]:
        return 1 << 40, 1 << 40

    def lock(self, fd: int, /) -> bool:
        return True

    def threads(self, name: str, count: int, /) -> Executor:
        if self._has_threads:
            return ThreadPoolExecutor(count)
        return TurnExecutor(self, self.sync_turns if name == "headrace-sync" else 0)

    def _folder(self, folder: str) -> dict[str, int]:
        if folder not in self.names:
            raise FileNotFoundError(errno.ENOENT, "no such folder", folder)
        return self.names[folder]

    def run_deferred(
        self, function: Callable[[], Any]
    ) -> tuple[Any, builtins.list[tuple[Any, ...]]]:
        """Run `function`, after which its syncs have started; the caller decides when they end."""
        ends: builtins.list[tuple[Any, ...]] = []
        self._deferred = ends
        try:
            return function(), ends
        finally:
            self._deferred = None


class Image:
    """A disk state: contents and names."""

    def __init__(self, inodes: list[bytes], names: dict[str, dict[str, int]]) -> None:
        self.inodes = inodes
        self.names = names


class TurnExecutor(Executor):
    """Simulates threads: the result, and the end of a sync, arrive some loop iterations later."""

    def __init__(self, disk: ModelDisk, turns: int) -> None:
        self._disk = disk
        self._turns = turns

    def submit(self, function: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        ends: list[tuple[Any, ...]] = []
        try:
            if self._turns:
                result, ends = self._disk.run_deferred(lambda: function(*args, **kwargs))
            else:
                result = function(*args, **kwargs)
        except BaseException as error:  # noqa: BLE001 - an executor hands on whatever came
            future.set_exception(error)
            return future
        self._finish(future, result, ends, self._turns)
        return future

    def _finish(self, future: Future[Any], result: Any, ends: Any, turns: int) -> None:
        if turns:
            asyncio.get_running_loop().call_soon(self._finish, future, result, ends, turns - 1)
            return
        self._disk.operations.extend(ends)
        future.set_result(result)


def split(path: str) -> tuple[str, str]:
    folder, _, name = path.strip("/").rpartition("/")
    return folder, name


def write_into(content: bytearray, position: int, data: bytes) -> None:
    if len(content) < position:
        content.extend(bytes(position - len(content)))
    content[position : position + len(data)] = data


def truncate(content: bytearray, size: int) -> None:
    if size < len(content):
        del content[size:]
    else:
        content.extend(bytes(size - len(content)))
