"""The broker's part of tables that replace objects: schedules recipes, and audits what they need.

Invariants: works in the background, on one ledger at a time and `ROUND_BYTES` of them in a round,
so that offloading does not wait. A table that is unavailable, altered or missing delays this work
alone: nothing is raised, and the object stays. Only ledgers whose records the table's maintenance
has compacted take part: their files stay as they are.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from headrace.errors import HeadraceError, LedgerUnknown
from headrace.log.tiering import borrow, keep_object, to_borrow
from headrace.storage.tiering.table_files import TablePlace
from headrace.storage.tiering.table_tags import tag_name

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Sequence

    from headrace.broker.topics.topic import Topic
    from headrace.broker.topics.topics import Topics
    from headrace.log.partition_log import PartitionLog
    from headrace.log.segment import Segment
    from headrace.runtime.clock import Clock
    from headrace.storage.ledger import LedgerId
    from headrace.storage.tiering.table_files import Protection, TableFiles
    from headrace.storage.tiering.tier import Tier

log = logging.getLogger(__name__)

ROUND_BYTES: Final = 256 << 20
AUDITS_AT_ONCE: Final = 16
REST_MS: Final = 600_000
"""Pause after a failure of one topic's table."""
NOT_YET: Final = "maintenance of the table has not compacted its records yet"
NOT_THERE: Final = "the table does not have its records"
TRIED: Final = "the table could not replace it when that was last tried"
NO_TAG: Final = (
    "the tag %s of ledger %d is missing in the topic's table: maintenance of the table may delete"
    " files that are the only copy of records; stop it, and give this tag to a snapshot that has"
    " these files (ENDROW: the offset after the last of their rows): %s"
)


class Tabling:
    """Replaces objects by recipes for one broker, and looks for the files that recipes need."""

    def __init__(self, topics: Topics, tier: Tier, tables: TableFiles, clock: Clock) -> None:
        self._topics = topics
        self._tier = tier
        self._tables = tables
        self._clock = clock
        self._resting: dict[str, int] = {}
        """Topics whose table failed, and the end of their pause."""
        self._kept: dict[LedgerId, str] = {}
        """Why ledgers of this broker keep their objects, as far as this process has seen."""
        self._last = ""
        """The topic of the last ledger: the next round begins after it."""
        self.missing = 0
        """Ledgers that the last audit found without a file or a tag of their own."""
        self.unread = 0
        """Topics with recipes whose tags the last audit could not read."""

    def why_kept(self, segment: Segment) -> str:
        """Why an offloaded ledger of a topic that replaces objects keeps its own."""
        if segment.is_local:
            return "a copy is in the ledger store, too"
        otherwise = NOT_YET if segment.object_kept_until_ms is None else TRIED
        return self._kept.get(segment.ledger, otherwise)

    async def round(self) -> None:
        """Replace objects whose records the topics' tables have. Raises nothing of the tables."""
        left = ROUND_BYTES
        self._prune()
        waiting = deque([one async for one in self._due()])
        while waiting and left > 0:
            one = waiting.popleft()
            segment = one.segments.popleft()
            left -= segment.end_position
            self._last = one.topic
            try:
                await self._replace(one, segment)
            except LedgerUnknown:
                log.debug("ledger %d was deleted by retention", segment.ledger)
            except HeadraceError as error:
                self._failed(one.topic, error)
                waiting = deque(each for each in waiting if each.topic != one.topic)
                continue
            if one.segments and not one.log.is_deleted:
                waiting.append(one)

    async def _due(self) -> AsyncIterator[_Due]:
        names = sorted(self._topics.by_name)
        at = next((at for at, name in enumerate(names) if name > self._last), 0)
        for name in names[at:] + names[:at]:
            topic = self._topics.by_name.get(name)
            if topic is None or self._resting.get(name, 0) > self._clock.now_ms():
                continue
            found = [one for one in self._of_topic(topic) if one.segments]
            if not found:
                continue
            try:
                ends = await self._tables.settled(name)
            except HeadraceError as error:
                self._failed(name, error)
                continue
            for one in found:
                end = ends.get(one.number, 0)
                ready = deque(each for each in one.segments if each.end_offset <= end)
                if ready:
                    yield one._replace(segments=ready)

    def _of_topic(self, topic: Topic) -> Iterator[_Due]:
        for number, partition in self._mine(topic):
            if partition.config.is_table_replacing:
                due = to_borrow(partition, self._clock.now_ms())
                yield _Due(topic.name, number, partition, deque(due))

    def _prune(self) -> None:
        """Forget the reasons for ledgers that retention has deleted, or another broker has."""
        kept, self._kept = self._kept, {}
        for topic in self._topics.by_name.values() if kept else ():
            for _, partition in self._mine(topic):
                ledgers = kept.keys() & {one.ledger for one in partition.closed}
                self._kept |= {ledger: kept[ledger] for ledger in ledgers}

    def _mine(self, topic: Topic) -> Iterator[tuple[int, PartitionLog]]:
        for number, partition in list(topic.logs):
            is_mine = self._topics.ownership.is_mine(topic, number)
            if is_mine and partition.is_loaded and not partition.is_deleted:
                yield number, partition

    async def _replace(self, due: _Due, segment: Segment) -> None:
        place = TablePlace(due.topic, due.number, segment.ledger)
        found = await self._tables.protect(place, segment.base_offset, segment.end_offset)
        now_ms = self._clock.now_ms()
        reason: str | None = NOT_THERE
        if found is not None:
            is_protected = partial(
                self._tables.is_protected, due.topic, segment.ledger, found.snapshot
            )
            reason = await borrow(due.log, segment, self._tier, found.files, now_ms, is_protected)
            if reason is not None:
                await self._tables.release(due.topic, segment.ledger, found.snapshot)
        self._kept.pop(segment.ledger, None)
        if reason is not None:
            self._kept[segment.ledger] = reason
            await keep_object(due.log, segment, now_ms)

    def _failed(self, topic: str, error: HeadraceError) -> None:
        self._resting[topic] = self._clock.now_ms() + REST_MS
        log.warning("%s: its table replaces no objects now: %s", topic, error)

    # --- once a day ----------------------------------------------------------------------------

    async def protected(self) -> Protection | None:
        """See TableFiles; None if the tables cannot be used now."""
        try:
            found = await self._tables.protected(list(self._topics.by_name))
        except HeadraceError as error:
            log.warning("tags of tables are neither checked nor released now: %s", error)
            return None
        for topic, reason in found.unread.items():
            log.warning(
                "%s: its table cannot be read (%s): its tags are neither checked nor released now;"
                " restore the table's metadata",
                topic,
                reason,
            )
        return found

    async def release(self, tags: Sequence[tuple[str, LedgerId]]) -> None:
        """End the protection for ledgers that no chain names, and that have no recipe."""
        for topic, ledger in tags:
            try:
                await self._tables.release(topic, ledger)
            except HeadraceError as error:
                log.warning("%s: the tag of ledger %d is not released now: %s",
                            topic, ledger, error)  # fmt: skip

    async def audit(self, protection: Protection | None) -> None:
        """Look for the files and tags that recipes of this broker's partitions need."""
        missing, unread = 0, set()
        tabled = [
            TablePlace(name, number, segment.ledger)
            for name, topic in self._topics.by_name.items()
            for number, partition in self._mine(topic)
            for segment in partition.closed
            if segment.is_tabled or self._tier.has_recipe(segment.ledger)
        ]
        for first in range(0, len(tabled), AUDITS_AT_ONCE):
            part = tabled[first : first + AUDITS_AT_ONCE]
            checked = await asyncio.gather(*(self._checked(one.ledger) for one in part))
            for (name, number, ledger), (files, wrong) in zip(part, checked, strict=True):
                problem = wrong
                if protection is None or name in protection.unread:
                    unread.add(name)
                elif (name, ledger) not in protection.ledgers:
                    tag = tag_name(self._tier.prefix, number, "ENDROW", ledger)
                    problem = wrong or NO_TAG % (tag, ledger, ", ".join(files))
                if problem:
                    missing += 1
                    log.error("%s: %s", name, problem)
        self.missing, self.unread = missing, len(unread)

    async def _checked(self, ledger: LedgerId) -> tuple[Sequence[str], str]:
        """The files that the ledger's recipe needs, and what is wrong with one, or nothing."""
        try:
            return await self._tier.check_recipe(ledger), ""
        except LedgerUnknown:
            return (), ""  # retention has just deleted it
        except HeadraceError as error:
            return (), str(error)


class _Due(NamedTuple):
    """A partition with ledgers to replace, oldest first."""

    topic: str
    number: int
    log: PartitionLog
    segments: deque[Segment]
