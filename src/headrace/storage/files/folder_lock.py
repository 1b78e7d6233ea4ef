"""Locks a data folder for one process.

Invariants: the lock is an flock, so the kernel releases it when the process ends for any reason;
the pid in the file is for error messages only.
"""

from __future__ import annotations

import os

from headrace.errors import FolderInUse
from headrace.runtime.disk import CREATE, Disk, write_fully

LOCK = "lock"
"""The file's name. Do not change: stored."""
_PID_BYTES_MAX = 32


def lock_folder(disk: Disk, folder: str) -> int:
    """Lock the folder until the returned descriptor is closed.

    Raises FolderInUse, naming the process that holds it.
    """
    path = f"{folder}/{LOCK}"
    fd = disk.open(path, CREATE)
    if not disk.lock(fd):
        holder = disk.pread(fd, _PID_BYTES_MAX, 0).decode("ascii", "replace").strip()
        disk.close(fd)
        raise FolderInUse(
            f"{folder} is in use by process {holder or 'unknown'}: "
            "stop that process, or choose another data folder",
            folder=folder,
            pid=holder,
        )
    disk.truncate(fd, 0)
    write_fully(disk, fd, f"{os.getpid()}\n".encode(), 0)
    return fd
