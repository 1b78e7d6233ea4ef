"""Keeps the last of the disk free: appends stop before it is really full.

Rules of the room: knows free bytes, not what is written. A disk with no byte left takes no metadata
either, so that not even a topic could be deleted to make room; and file systems behave badly on
their last blocks. So appends are refused while less than the reserve is free.
"""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headrace.runtime.disk import Disk

RESERVE_BYTES_MAX = 64 << 20
"""Metadata, a checkpoint and a new WAL file, several times over."""
RESERVE_FRACTION = 20
"""On a small disk: one part in so many."""
BUDGET_BYTES_MAX = 64 << 20
"""Written between two looks at the disk, which others fill up, too."""


class Room:
    """How much may still be appended."""

    __slots__ = ("_budget", "_disk", "_path")

    def __init__(self, disk: Disk, path: str) -> None:
        self._disk = disk
        self._path = path
        self._budget = 0

    def take(self, size: int) -> None:
        """Count `size` bytes that will be appended. Raises OSError (ENOSPC) if there is no room."""
        self._budget -= size
        if self._budget < 0:
            self._budget = 0
            # Half of what is there: the segment and its frame in the WAL may both need room.
            self._budget = min(self.require(2 * size) // 2, BUDGET_BYTES_MAX)

    def require(self, size: int) -> int:
        """The bytes that may be written behind these `size`; for any thread.

        Raises OSError (ENOSPC) if they would need the reserve.
        """
        free, total = self._disk.space(self._path)
        reserve = min(RESERVE_BYTES_MAX, total // RESERVE_FRACTION)
        left = free - reserve - size
        if left < 0:
            raise OSError(
                errno.ENOSPC,
                f"{free >> 20} MiB of the disk are free, of which {reserve >> 20} MiB are kept"
                " for metadata",
            )
        return left

    def share(self) -> int:
        """The bytes that a cache on the disk may take of it; for any thread. Raises OSError."""
        return self._disk.space(self._path)[1] // RESERVE_FRACTION
