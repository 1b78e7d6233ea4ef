"""Reserves the last part of the disk: appends are refused before it is completely full.

Invariants: knows free bytes, not what is written. A full disk accepts no metadata either, so that
not even a topic could be deleted to free space; and file systems behave badly on their last blocks.
So appends are refused while less than the reserve is free, and after that until a margin above the
reserve is free: otherwise small appends would succeed and large ones fail by turns. The start and
the end of a shortage are logged once each.
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
"""Enough for metadata, a checkpoint and a new WAL file, several times over."""
RESERVE_FRACTION = 20
"""On a small disk, the reserve is 1/RESERVE_FRACTION of it."""
MARGIN_FRACTION = 4
"""Margin above the reserve, as a divisor of it, before appends are accepted again."""
MARGIN_DISK_FRACTION = 8
"""Upper limit of the margin, as a divisor of the disk, however large the refused append was."""
BUDGET_BYTES_MAX = 64 << 20
"""Bytes written between two checks of the disk, which other processes fill up, too."""
WATCH_S = 1.0
"""Interval between checks of a full disk without appends."""
FULL_ERRORS: Final = frozenset({errno.ENOSPC, errno.EDQUOT})


class NoRoomError(OSError):
    """ENOSPC raised before the disk reports it; `size` is the number of bytes requested."""

    size = 0


class DiskReserve:
    """The space available for appends."""

    __slots__ = ("_began", "_budget", "_disk", "_is_quota", "_path", "_wanted", "is_full")

    def __init__(self, disk: Disk, path: str) -> None:
        self._disk = disk
        self._path = path
        self._budget = 0
        self.is_full = False
        """Whether appends are refused for lack of space."""
        self._is_quota = False
        """Whether writes fail although there is free space: only a write can detect the end."""
        self._wanted = 0
        """The number of bytes for which there was no space."""
        self._began = asyncio.Event()

    def take(self, size: int) -> None:
        """Reserve `size` bytes for an append. Raises NoRoomError."""
        self._budget -= size
        if self._budget < 0:
            self._budget = 0
            if self.is_full and not self._is_quota:
                self.space()
            # Half of the rest: both the segment and its WAL frame may need space.
            left = self.require(2 * size)
            if self.is_full and not self._is_quota:
                raise self._refusal(self._look(), 2 * size)
            self._budget = min(left // 2, BUDGET_BYTES_MAX)

    def require(self, size: int) -> int:
        """The bytes that remain available after writing `size` bytes; for any thread.

        Raises NoRoomError if they would use the reserve.
        """
        space = self._look()
        left = space.free_bytes - space.reserve_bytes - size
        if left < 0:
            raise self._refusal(space, size)
        return left

    def share(self) -> int:
        """The disk space that a cache may use, in bytes; for any thread. Raises OSError."""
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
        """The error for clients if `action` failed for lack of space; None for other causes."""
        if error.errno not in FULL_ERRORS:
            return None
        self._budget = 0
        if not self.is_full:
            space = self._look()
            self._wanted = error.size if isinstance(error, NoRoomError) else 0
            self._is_quota = not isinstance(error, NoRoomError) and self._has_room(space)
            self._begin(error.strerror or str(error))
        return DiskFull(
            f"the disk is full ({error.strerror or error}): nothing of this request was stored."
            " Delete topics, shorten their retention or enlarge the disk, then try again",
            action=action,
            cause=str(error),
        )

    def wrote(self) -> None:
        """A write succeeded while the disk counts as full: a quota was raised."""
        if self._is_quota:
            self._end(self._look())

    async def watch(self) -> None:
        """Detect the end of a shortage while there are no appends; runs until cancelled."""
        while True:
            await self._began.wait()
            await asyncio.sleep(WATCH_S)
            try:
                self.space()
            except OSError as error:
                log.warning("cannot determine the free disk space: %s", error)

    def _has_room(self, space: DiskSpace) -> bool:
        """Whether there is enough space to accept appends for more than a moment."""
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
            f"{space.free_bytes >> 20} MiB of {space.total_bytes >> 20} MiB are free, the last"
            f" {space.reserve_bytes >> 20} MiB are reserved for metadata"
        )

    def _begin(self, reason: str) -> None:
        if not self.is_full:
            self.is_full = True
            self._began.set()
            log.error(
                "the disk is full (%s): appends are refused until space is freed; reads continue."
                " Delete topics, shorten their retention or enlarge the disk",
                reason,
            )

    def _end(self, space: DiskSpace) -> None:
        self.is_full = self._is_quota = False
        self._wanted = 0
        self._began.clear()
        log.warning(
            "the disk has free space again (%d MiB): appends are accepted", space.free_bytes >> 20
        )
