"""How many lite topics one partition may get.

Invariants: belongs to one tenure of the partition. Counts those of which records are known, and
those of records that were appended and are not known yet, so that it holds whether or not a
consumer reads. Nothing is refused while the log's own ones are not known, nor a record of one that
is there.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

from headrace.errors import LiteTopicsFull

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from headrace.coordination.shares.lite_index import LiteIndex


class LiteRoom:
    """See the module."""

    def __init__(self, partition: str) -> None:
        self._partition = partition
        self._known: LiteIndex | None = None
        """The one that has had all records of the log: another one, after a reload, has not."""
        self._coming: dict[str, None] = {}

    def check(self, index: LiteIndex, records: Sequence[tuple[int, str]], most: int) -> None:
        """Raises LiteTopicsFull, naming those of some records (index in their batch, lite topic)
        for which there is no room."""
        if index is not self._known:
            return
        coming = self._coming
        new = dict.fromkeys(one for _, one in records if one not in index and one not in coming)
        room = max(most - len(index) - len(coming), 0)
        if len(new) <= room:
            return
        full = {*islice(new, room, None)}
        reason = (
            f"{self._partition} has as many lite topics as headrace.lite.topics.max={most} of the"
            " topic allows: send to one that is there, let others expire"
            " (headrace.lite.expiration.ms), or raise the limit"
        )
        refused = [(at, reason) for at, one in records if one in full]
        raise LiteTopicsFull(f"the batch is not stored: {reason}", record_errors=refused)

    def note(self, index: LiteIndex, records: Sequence[tuple[int, str]]) -> None:
        """They were appended."""
        if index is self._known:
            self._coming.update((one, None) for _, one in records if one not in index)

    def learned(self, names: Iterable[str]) -> None:
        """Records of these lite topics are known."""
        if self._coming:
            for name in names:
                self._coming.pop(name, None)

    def caught_up(self, index: LiteIndex, log_end: int) -> None:
        """All records that can be read are known; `log_end`: the end of the log."""
        self._known = index
        if index.end >= log_end:
            self._coming.clear()  # what is left was discarded by a failed append
