"""Keeps the last of the disk free: appends are refused before it is really full.

Invariants: knows free bytes, not what is written. A disk with no byte left takes no metadata
either, so that not even a topic could be deleted to make room; and file systems behave badly on
their last blocks. So appends are refused while less than the reserve is free, and, once they were,
until a margin above the reserve is free again: otherwise small appends would pass and large ones
fail in turn. The log says once when that begins and once when it ends.
"""

from __future__ import annotations

import asyncio
import errno
import logging
from typing import TYPE_CHECKING, Final

from headrace.errors import DiskFull
from headrace.storage.ledger import DiskSpace

if TYPE_CHECKING:
    from headrace.runtime.disk import Disk

log = logging.getLogger(__name__)

RESERVE_BYTES_MAX = 64 << 20
"""Metadata, a checkpoint and a new WAL file, several times over."""
RESERVE_FRACTION = 20
"""On a small disk: one part in so many."""
MARGIN_FRACTION = 4
"""Of the reserve: what must at least be free besides before appends are taken again."""
MARGIN_DISK_FRACTION = 8
"""Of the disk: what may at most be asked for, however much was refused."""
BUDGET_BYTES_MAX = 64 << 20
"""Written between two looks at the disk, which others fill up, too."""
WATCH_S = 1.0
"""Between two looks at a full disk that nothing is appended to."""
FULL_ERRORS: Final = frozenset({errno.ENOSPC, errno.EDQUOT})


class NoRoomError(OSError):
    """ENOSPC before the disk says so; `size` is what was asked for."""

    size = 0


class DiskReserve:
    """How much may still be appended."""

    __slots__ = ("_began", "_budget", "_disk", "_is_quota", "_path", "_wanted", "is_full")

    def __init__(self, disk: Disk, path: str) -> None:
        self._disk = disk
        self._path = path
        self._budget = 0
        self.is_full = False
        """Whether appends are refused for lack of space."""
        self._is_quota = False
        """Whether writes fail although the file system has space: only a write can tell the end."""
        self._wanted = 0
        """The bytes for which there was no room."""
        self._began = asyncio.Event()

    def take(self, size: int) -> None:
        """Count `size` bytes that will be appended. Raises NoRoomError."""
        self._budget -= size
        if self._budget < 0:
            self._budget = 0
            if self.is_full and not self._is_quota:
                self.space()
            # Half of what is there: the segment and its frame in the WAL may both need room.
            left = self.require(2 * size)
            if self.is_full and not self._is_quota:
                raise self._refusal(self._look(), 2 * size)
            self._budget = min(left // 2, BUDGET_BYTES_MAX)

    def require(self, size: int) -> int:
        """The bytes that may be written after these `size`; for any thread.

        Raises NoRoomError if they would need the reserve.
        """
        space = self._look()
        left = space.free_bytes - space.reserve_bytes - size
        if left < 0:
            raise self._refusal(space, size)
        return left

    def share(self) -> int:
        """The bytes that a cache on the disk may take of it; for any thread. Raises OSError."""
        return self._disk.space(self._path)[1] // RESERVE_FRACTION

    def space(self) -> DiskSpace:
        """See ReportsSpace. Raises OSError."""
        space = self._look()
        if space.free_bytes < space.reserve_bytes:
            self._begin(self._describe(space))
        elif self.is_full and not self._is_quota and self._has_room(space):
            self._end(space)
        return space._replace(is_full=self.is_full)

    def failure(self, error: OSError, action: str) -> DiskFull | None:
        """What clients get if `action` failed for lack of space; None if it failed otherwise."""
        if error.errno not in FULL_ERRORS:
            return None
        self._budget = 0
        if not self.is_full:
            space = self._look()
            self._wanted = error.size if isinstance(error, NoRoomError) else 0
            self._is_quota = not isinstance(error, NoRoomError) and self._has_room(space)
            self._begin(error.strerror or str(error))
        return DiskFull(
            f"the disk is full ({error.strerror or error}): nothing of this request is stored."
            " Delete topics, shorten their retention or enlarge the disk, then try again",
            action=action,
            cause=str(error),
        )

    def wrote(self) -> None:
        """A write went through, though the disk counts as full: a quota has been raised."""
        if self._is_quota:
            self._end(self._look())

    async def watch(self) -> None:
        """Notice the end of a shortage that no append would notice; runs until cancelled."""
        while True:
            await self._began.wait()
            await asyncio.sleep(WATCH_S)
            try:
                self.space()
            except OSError as error:
                log.warning("how much of the disk is free cannot be found out: %s", error)

    def _has_room(self, space: DiskSpace) -> bool:
        """Whether it is worth while to take appends again, rather than for a moment."""
        wanted = min(self._wanted, space.total_bytes // MARGIN_DISK_FRACTION)
        margin = max(wanted, space.reserve_bytes // MARGIN_FRACTION)
        return space.free_bytes - space.reserve_bytes >= margin

    def _refusal(self, space: DiskSpace, size: int) -> NoRoomError:
        error = NoRoomError(errno.ENOSPC, self._describe(space))
        error.size = size
        return error

    def _look(self) -> DiskSpace:
        free, total = self._disk.space(self._path)
        return DiskSpace(free, total, min(RESERVE_BYTES_MAX, total // RESERVE_FRACTION), False)

    def _describe(self, space: DiskSpace) -> str:
        return (
            f"{space.free_bytes >> 20} MiB of {space.total_bytes >> 20} MiB are free, and the last"
            f" {space.reserve_bytes >> 20} MiB are kept for metadata"
        )

    def _begin(self, reason: str) -> None:
        if not self.is_full:
            self.is_full = True
            self._began.set()
            log.error(
                "the disk is full (%s): appends are refused until there is room; reading goes on."
                " Delete topics, shorten their retention or enlarge the disk",
                reason,
            )

    def _end(self, space: DiskSpace) -> None:
        self.is_full = self._is_quota = False
        self._wanted = 0
        self._began.clear()
        log.warning(
            "the disk has room again (%d MiB free): appends are taken", space.free_bytes >> 20
        )
