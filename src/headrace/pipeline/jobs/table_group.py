"""Tells the brokers how far a table is: commits its ends as the offsets of a group of its own.

Invariants: what is committed is true (records/table_marks.py): it is read from the table after a
snapshot, never ahead of it, and read again every REPEAT_S, so that a table that was rolled back is
shown as it is. The archive never fails with a commit, and waits for none but the last: one runs at
a time, and what failed is committed with the next snapshot, or when the table is read again.
"""

from __future__ import annotations

import logging
from concurrent.futures import Future, wait
from time import monotonic
from typing import TYPE_CHECKING, Any, Final

from headrace.pipeline.planning import offset_of, walk
from headrace.records.table_marks import GROUP_PREFIX, TableMark

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace.pipeline.catalog import Progress, TableName
    from headrace.pipeline.cluster import ClusterClient
    from headrace.pipeline.planning import Offsets
    from headrace.pipeline.position import StreamPosition

log = logging.getLogger(__name__)

REPEAT_S: Final = 600
"""Far below the time after which brokers drop the offsets of a group without members (7 days)."""
FINISH_S: Final = 30
"""How long the end of a run waits for a commit."""
_OF_MEMBERS: Final = frozenset({
    "UNKNOWN_MEMBER_ID", "NON_EMPTY_GROUP", "ILLEGAL_GENERATION", "REBALANCE_IN_PROGRESS",
    "FENCED_MEMBER_EPOCH", "STALE_MEMBER_EPOCH",
})  # fmt: skip
"""The errors of a commit by a client that is not a member of a group that has some."""


class TableGroup:
    """The group of one table."""

    def __init__(self, cluster: ClusterClient, table: TableName, mode: str) -> None:
        self._cluster = cluster
        self._table = table.in_spark
        self._mode = mode
        self._committed: Progress | None = None
        self._truncated: set[tuple[str, int]] = set()
        """Partitions whose log ended before the table when that was committed."""
        self._committed_at_s = monotonic()
        self._pending: Future[Any] | None = None
        self._reported = ""

    def looked_again(self, progress: Progress, look: Callable[[], Progress]) -> Progress:
        """The progress, read again if what was committed is old."""
        if monotonic() - self._committed_at_s < REPEAT_S or not self._is_free():
            return progress
        try:
            return look()
        except Exception as error:  # noqa: BLE001 - the next round meets it, and says so
            self._report(f"the table cannot be read: {error}")
            self._committed_at_s = monotonic()
            return progress

    def commit(self, progress: Progress, start: Offsets, written: StreamPosition) -> None:
        """Commit what was read from the table, unless that was done, or another commit runs.

        `start`, `written`: where the archive goes on, and where the logs end, with records of open
        transactions. Of a log that ends before the table no mark is committed: its next records
        have offsets of ones that are in the table."""
        truncated = {
            (topic, partition)
            for topic, partition, end in walk(written.offsets)
            if offset_of(progress.offsets, topic, partition, -1) > end
        }
        is_known = progress is self._committed and truncated == self._truncated
        if is_known or not self._is_free():
            return
        self._committed, self._committed_at_s = progress, monotonic()
        self._truncated = truncated
        offsets = []
        for topic, partition, end in walk(written.offsets):
            topic_id = written.topic_ids.get(topic)
            if topic_id is None:
                continue  # of a broker without ids
            reached = offset_of(progress.offsets, topic, partition, -1)
            metadata, at = "", min(end, offset_of(start, topic, partition, 0))
            is_before = reached >= 0 and (topic, partition) not in truncated
            if progress.snapshot_id is not None and is_before:
                at = reached
                metadata = TableMark(
                    self._table, progress.table_uuid, progress.snapshot_id, self._mode, topic_id
                ).encode()
            offsets.append((topic, partition, at, metadata))
        if not offsets:
            return
        try:
            self._pending = self._cluster.commit(GROUP_PREFIX + self._table, offsets)
        except Exception as error:  # noqa: BLE001 - the archive goes on
            self._report(str(error))

    def finish(self, progress: Progress, start: Offsets, written: StreamPosition) -> None:
        """Commit for the last time: wait for a commit that runs, and for this one."""
        for _ in range(2):
            self.commit(progress, start, written)
            if self._pending is not None:
                wait([self._pending], FINISH_S)
            if not self._is_free():
                self._report(f"no answer within {FINISH_S} s")
                return

    def _is_free(self) -> bool:
        """Whether no commit runs; reports how the last one ended."""
        if self._pending is None:
            return True
        if not self._pending.done():
            return False
        self._report(*_failure_of(self._pending))
        self._pending = None
        return True

    def _report(self, reason: str, code: str = "") -> None:
        """Log why the brokers do not know how far the table is, once for each reason; `code` is
        that of a broker's error."""
        if reason and reason != self._reported:
            group = GROUP_PREFIX + self._table
            step = "It is tried again with the next snapshot."
            if code == "GROUP_AUTHORIZATION_FAILED":
                step = self._cluster.allowing("read", group, "group")
            elif code in _OF_MEMBERS:
                step = f"End the consumers of the group {group}: it must have no members."
            log.warning(
                "%s: its offsets were not committed, so lag and traces do not show how far it is:"
                " %s. The archive goes on. %s", self._table, reason.rstrip("."), step,
            )  # fmt: skip
        self._reported = reason


def _failure_of(done: Future[Any]) -> tuple[str, str]:
    """Why a commit failed, and the code of the broker's error; nothing if it did not."""
    error = done.exception()
    if error is None:
        found = [one.error for one in done.result().topic_partitions if one.error]
    else:
        found = [one for one in getattr(error, "args", ()) if hasattr(one, "name")]
        if not found:
            return str(error), ""
    reasons = ", ".join(sorted({str(one.str()) for one in found}))
    return reasons, str(found[0].name()) if found else ""
