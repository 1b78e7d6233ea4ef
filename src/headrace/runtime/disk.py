"""Files and folders, as the rest of Headrace sees them.

Invariants: all file work of stored data goes through a Disk, so that a test can
inject faults (EIO, ENOSPC, short writes, slow syncs) and a power-loss model can record every
operation. Errors are OSError, as the operating system gave them. The seam is thin on purpose: on
the hot path a call through it costs 30 ns more than `os.pwrite` itself.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import resource
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

Buffer = bytes | bytearray | memoryview

READ_ONLY = os.O_RDONLY | os.O_CLOEXEC
READ_WRITE = os.O_RDWR | os.O_CLOEXEC
CREATE = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
CREATE_EMPTY = CREATE | os.O_TRUNC
FILE_MODE, FOLDER_MODE = 0o600, 0o700
"""Records are their owner's alone."""

_NOWAIT = getattr(os, "RWF_NOWAIT", 0)


_libc = ctypes.CDLL(None, use_errno=True)
_CACHESTAT = 451  # do not change: the kernel's, on every architecture
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")

_begin_write = getattr(_libc, "sync_file_range", None)  # Linux has it
if _begin_write is not None:
    _begin_write.argtypes = (ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint)
_WRITE = 2  # SYNC_FILE_RANGE_WRITE; do not change: the kernel's


class _CacheSpan(ctypes.Structure):
    _fields_ = (("position", ctypes.c_uint64), ("size", ctypes.c_uint64))


class _CacheStat(ctypes.Structure):
    _fields_ = (
        ("cached", ctypes.c_uint64),
        ("dirty", ctypes.c_uint64),
        ("writeback", ctypes.c_uint64),
        ("evicted", ctypes.c_uint64),
        ("recently_evicted", ctypes.c_uint64),
    )


class OpenFiles(Protocol):
    """What can be done with an open file."""

    def pread(self, fd: int, size: int, position: int, /) -> bytes:
        """Read up to `size` bytes at `position`; shorter at the end of the file."""
        ...

    def pread_cached(self, fd: int, buffer: bytearray, position: int, /) -> int:
        """Fill `buffer` from memory alone and say how far; -1 if that needs the disk."""
        ...

    def is_cached(self, fd: int, size: int, position: int, /) -> bool:
        """Whether memory holds all of these bytes; False also if that cannot be told."""
        ...

    def pwrite(self, fd: int, data: Buffer, position: int, /) -> int:
        """Write at `position` and say how many bytes were taken: perhaps fewer than given."""
        ...

    def pwritev(self, fd: int, parts: Sequence[Buffer], position: int, /) -> int:
        """Like pwrite, of at most 1,024 parts that lie next to each other."""
        ...

    def begin_sync(self, fd: int, /) -> None:
        """Have the disk begin to write what was written to the file: no promise, and no errors.

        Before each of many files is synced, it saves most of the time.
        """
        ...

    def fdatasync(self, fd: int, /) -> None:
        """Make durable what was written to the file before this call, its size too."""
        ...

    def truncate(self, fd: int, size: int, /) -> None:
        """Set the size of the file."""
        ...

    def allocate(self, fd: int, size: int, /) -> None:
        """Make sure that the first `size` bytes have room on the disk."""
        ...

    def size(self, fd: int, /) -> int:
        """How many bytes the file holds."""
        ...


class Folders(Protocol):
    """What can be done with names. A change of a name is durable after `sync_folder`."""

    def open(self, path: str, flags: int, /) -> int:
        """Open or make the file and give its descriptor."""
        ...

    def close(self, fd: int, /) -> None:
        """Give the descriptor back."""
        ...

    def list(self, path: str, /) -> list[str]:
        """The names in the folder, sorted."""
        ...

    def make_folder(self, path: str, /) -> bool:
        """Make the folder; False if it was there."""
        ...

    def rename(self, old: str, new: str, /) -> None:
        """Give the file a new name, replacing what had it."""
        ...

    def unlink(self, path: str, /) -> None:
        """Remove the name."""
        ...

    def sync_folder(self, path: str, /) -> None:
        """Make the names in the folder durable."""
        ...

    def space(self, path: str, /) -> tuple[int, int]:
        """(free bytes, all bytes) of the file system that holds the folder."""
        ...

    def lock(self, fd: int, /) -> bool:
        """Take the file for this process until it is closed; False if another has it."""
        ...

    def threads(self, name: str, count: int, /) -> Executor:
        """Threads in which calls may block; the caller shuts them down."""
        ...


class Disk(OpenFiles, Folders, Protocol):
    """A file system."""


class SystemDisk:
    """The machine's file system."""

    __slots__ = ()

    pread = staticmethod(os.pread)
    pwrite = staticmethod(os.pwrite)
    pwritev = staticmethod(os.pwritev)
    fdatasync = staticmethod(os.fdatasync)
    truncate = staticmethod(os.ftruncate)
    close = staticmethod(os.close)
    unlink = staticmethod(os.unlink)
    rename = staticmethod(os.replace)

    def pread_cached(self, fd: int, buffer: bytearray, position: int, /) -> int:
        """See OpenFiles. Where the kernel or file system has no RWF_NOWAIT, it may wait."""
        try:
            return os.preadv(fd, [buffer], position, _NOWAIT)
        except BlockingIOError:
            return -1
        except OSError:  # EOPNOTSUPP of a file system without it: a real error comes back below
            return os.preadv(fd, [buffer], position)

    def is_cached(self, fd: int, size: int, position: int, /) -> bool:
        """See OpenFiles. Linux has told it since 6.5."""
        start = position // PAGE_BYTES
        pages = -(-(position + size) // PAGE_BYTES) - start
        cache = _CacheStat()
        span = _CacheSpan(start * PAGE_BYTES, pages * PAGE_BYTES)
        if _libc.syscall(_CACHESTAT, fd, ctypes.byref(span), ctypes.byref(cache), 0) != 0:
            return False
        return bool(cache.cached >= pages)

    def begin_sync(self, fd: int, /) -> None:
        """See OpenFiles."""
        if _begin_write is not None:
            _begin_write(fd, 0, 0, _WRITE)

    def allocate(self, fd: int, size: int, /) -> None:
        """See OpenFiles."""
        os.posix_fallocate(fd, 0, size)

    def size(self, fd: int, /) -> int:
        """See OpenFiles."""
        return os.fstat(fd).st_size

    def open(self, path: str, flags: int, /) -> int:
        """See Folders. A link in a file's place is no file of ours, and is not followed."""
        return os.open(path, flags | os.O_NOFOLLOW, FILE_MODE)

    def list(self, path: str, /) -> list[str]:
        """See Folders."""
        return sorted(os.listdir(path))

    def make_folder(self, path: str, /) -> bool:
        """See Folders."""
        try:
            os.mkdir(path, FOLDER_MODE)
        except FileExistsError:
            return False
        return True

    def sync_folder(self, path: str, /) -> None:
        """See Folders."""
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def space(self, path: str, /) -> tuple[int, int]:
        """See Folders: what is free for this process, which the superuser's share may not be."""
        found = os.statvfs(path)
        return found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize

    def lock(self, fd: int, /) -> bool:
        """See Folders."""
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def threads(self, name: str, count: int, /) -> Executor:
        """See Folders."""
        return ThreadPoolExecutor(count, thread_name_prefix=name)


def open_files_limit() -> int:
    """How many descriptors this process may have open."""
    soft, _hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return soft if soft > 0 else 1 << 20  # RLIM_INFINITY is -1


def write_fully(disk: OpenFiles, fd: int, data: Buffer, position: int) -> None:
    """Write all of `data`, going on after a short write. Raises OSError: a part may be there."""
    size = len(data)
    written = disk.pwrite(fd, data, position)
    while written < size:  # a short write: the next call brings the reason, if there is one
        with memoryview(data) as view:
            step = disk.pwrite(fd, view[written:], position + written)
        if step <= 0:
            raise OSError(5, "the disk takes no more bytes")
        written += step


def read_fully(disk: OpenFiles, fd: int, size: int, position: int) -> bytes:
    """Read `size` bytes, fewer only at the end of the file. Raises OSError."""
    data = disk.pread(fd, size, position)
    while len(data) < size:
        more = disk.pread(fd, size - len(data), position + len(data))
        if not more:
            break
        data += more
    return data
