"""Reads the journals of share groups: any broker accepts the call, the partition's owner reads.

Invariants: knows no protocol; changes nothing. A group that was deleted is not named any more, so
its changes are not returned.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headrace.broker.services.owner_calls import checked
from headrace.broker.shares.journal_pages import CHANGES_MAX, Change, JournalPage, read_page

if TYPE_CHECKING:
    from headrace.broker.services.owner_calls import OwnerCalls
    from headrace.broker.shares.share_partitions import SharePartitions
    from headrace.broker.topics.topic import Topic
    from headrace.runtime.fair_locks import FairLock


class JournalReads:
    """See the module."""

    def __init__(self, calls: OwnerCalls, shares: SharePartitions, running: FairLock) -> None:
        """`running` is held while a page is read."""
        self._running = running
        self._calls = calls
        self._shares = shares
        calls.offer("journal.page", self._page_here)

    async def page(
        self, topic: Topic, number: int, start: tuple[int, int], count_max: int
    ) -> JournalPage:
        """The changes of one partition's share groups from `start` on: (position, changes to skip).

        Raises PartitionUnknown, BrokerUnreachable, StorageUnavailable.
        """
        asked = *start, count_max
        row = await self._calls.ask_partition("journal.page", topic, number, asked)
        changes, first_position, after = row
        return JournalPage(
            [Change(*one) for one in changes],
            first_position,
            None if after is None else (after[0], after[1]),
        )

    async def _page_here(self, topic: Topic, number: int, asked: Any) -> Any:
        position, skipped, count_max = checked(asked, int, int, int)
        journal = await self._shares.journal(topic, number)
        if journal is None:
            return [], 0, None
        count = min(max(count_max, 1), CHANGES_MAX)
        async with self._running:
            await journal.wait_loaded()
            within = journal.log_start_offset, journal.high_watermark
            names = await self._shares.numbered_groups(topic, number)
            page = await read_page(journal, names, (position, skipped), within, count)
        return [list(one) for one in page.changes], page.first_position, page.next
