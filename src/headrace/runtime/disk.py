"""The file system interface of Headrace.

Invariants: all I/O on stored data goes through a Disk, so that tests can inject faults (EIO,
ENOSPC, short writes, slow syncs) and a power-loss model can record every operation. Errors are the
operating system's OSError. The interface is deliberately thin: on the hot path a call costs 30 ns
more than `os.pwrite` itself.
"""

from __future__ import annotations

import ctypes
import errno
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
"""Stored records are readable by the broker's user only."""

_NOWAIT = getattr(os, "RWF_NOWAIT", 0)


_libc = ctypes.CDLL(None, use_errno=True)
_CACHESTAT = 451  # do not change: the kernel's system call number, on every architecture
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")

_begin_write = getattr(_libc, "sync_file_range", None)  # Linux has it
if _begin_write is not None:
    _begin_write.argtypes = (ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint)
_WAIT_BEFORE, _WRITE = 1, 2  # SYNC_FILE_RANGE_...; do not change: the kernel's
_UNSUPPORTED = {errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP, errno.ESPIPE}
"""Errors of a kernel or file system that does not offer the call, or not these flags."""


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
    """Operations on open files."""

    def pread(self, fd: int, size: int, position: int, /) -> bytes:
        """Read up to `size` bytes at `position`; shorter at the end of the file."""
        ...

    def pread_cached(self, fd: int, buffer: bytearray, position: int, /) -> int:
        """Fill `buffer` from the page cache; returns the bytes read, -1 if the disk is needed."""
        ...

    def is_cached(self, fd: int, size: int, position: int, /) -> bool:
        """Whether the page cache holds all these bytes; False also if this is unknown."""
        ...

    def pwrite(self, fd: int, data: Buffer, position: int, /) -> int:
        """Write at `position`; returns the bytes written, which may be fewer than given."""
        ...

    def pwritev(self, fd: int, parts: Sequence[Buffer], position: int, /) -> int:
        """Like pwrite, for up to 1,024 parts written contiguously."""
        ...

    def begin_sync(self, fd: int, /) -> None:
        """Start writeback of the file's dirty pages; guarantees nothing and reports no errors.

        Starting it for many files before each is synced saves most of the time.
        """
        ...

    def write_back(self, fd: int, position: int, size: int, /) -> None:
        """Wait until the disk has written what it has begun to write of these bytes, then have it
        begin with the rest of them. Called after each piece that was written to a file, for that
        and the one before, it keeps the disk at most two pieces behind.

        No promise; but an error that it raises may be raised by no later sync.
        """
        ...

    def fdatasync(self, fd: int, /) -> None:
        """Make everything written to the file before this call durable, including its size."""
        ...

    def truncate(self, fd: int, size: int, /) -> None:
        """Set the size of the file."""
        ...

    def allocate(self, fd: int, size: int, /) -> None:
        """Allocate disk space for the first `size` bytes."""
        ...

    def size(self, fd: int, /) -> int:
        """The size of the file in bytes."""
        ...


class Folders(Protocol):
    """Operations on folders and names. A changed name is durable after `sync_folder`."""

    def open(self, path: str, flags: int, /) -> int:
        """Open or create the file; returns its descriptor."""
        ...

    def close(self, fd: int, /) -> None:
        """Close the descriptor."""
        ...

    def list(self, path: str, /) -> list[str]:
        """The names in the folder, sorted."""
        ...

    def make_folder(self, path: str, /) -> bool:
        """Create the folder; False if it already exists."""
        ...

    def rename(self, old: str, new: str, /) -> None:
        """Rename the file, replacing any file with the new name."""
        ...

    def unlink(self, path: str, /) -> None:
        """Remove the name."""
        ...

    def sync_folder(self, path: str, /) -> None:
        """Make the folder's names durable."""
        ...

    def space(self, path: str, /) -> tuple[int, int]:
        """(free bytes, total bytes) of the file system that holds the folder."""
        ...

    def lock(self, fd: int, /) -> bool:
        """Lock the file for this process until it is closed; False if another process holds it."""
        ...

    def threads(self, name: str, count: int, /) -> Executor:
        """An executor whose threads may block; the caller shuts it down."""
        ...


class Disk(OpenFiles, Folders, Protocol):
    """A file system."""


class SystemDisk:
    """The operating system's file system."""

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
        """See OpenFiles. Without RWF_NOWAIT in kernel and file system, it may block."""
        try:
            return os.preadv(fd, [buffer], position, _NOWAIT)
        except BlockingIOError:
            return -1
        except OSError:  # EOPNOTSUPP on file systems without it; a real error recurs below
            return os.preadv(fd, [buffer], position)

    def is_cached(self, fd: int, size: int, position: int, /) -> bool:
        """See OpenFiles. Requires Linux 6.5 (cachestat)."""
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

    def write_back(self, fd: int, position: int, size: int, /) -> None:
        """See OpenFiles."""
        if _begin_write is not None and _begin_write(fd, position, size, _WAIT_BEFORE | _WRITE):
            number = ctypes.get_errno()
            if number not in _UNSUPPORTED:
                raise OSError(number, os.strerror(number))

    def allocate(self, fd: int, size: int, /) -> None:
        """See OpenFiles."""
        os.posix_fallocate(fd, 0, size)

    def size(self, fd: int, /) -> int:
        """See OpenFiles."""
        return os.fstat(fd).st_size

    def open(self, path: str, flags: int, /) -> int:
        """See Folders. Symbolic links are not followed: Headrace creates none."""
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
        """See Folders. Space reserved for the superuser does not count as free."""
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
    """The maximum number of open descriptors of this process."""
    soft, _hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return soft if soft > 0 else 1 << 20  # RLIM_INFINITY is -1


def write_fully(disk: OpenFiles, fd: int, data: Buffer, position: int) -> None:
    """Write all of `data`, continuing after short writes. Raises OSError; part may be written."""
    size = len(data)
    written = disk.pwrite(fd, data, position)
    while written < size:  # after a short write, the next call reports the reason, if any
        with memoryview(data) as view:
            step = disk.pwrite(fd, view[written:], position + written)
        if step <= 0:
            raise OSError(5, "the disk accepts no more bytes")
        written += step


def read_fully(disk: OpenFiles, fd: int, size: int, position: int) -> bytes:
    """Read `size` bytes; fewer only at end of file. Raises OSError."""
    data = disk.pread(fd, size, position)
    while len(data) < size:
        more = disk.pread(fd, size - len(data), position + len(data))
        if not more:
            break
        data += more
    return data
