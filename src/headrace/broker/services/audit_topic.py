"""Writes the audit log into a topic as well, so that it outlives the machine and can be queried.

Invariants: never blocks a request: lines wait in a bounded queue, and one that finds it full is
counted, which the next record says. While the topic cannot be written (it has no owner, the disk is
full), lines wait. After a crash those that waited are in the log file only. The topic is an
ordinary one: who may read it or write to it is what its access control lists say.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

from headrace.broker.services.record_sends import Outgoing
from headrace.broker.services.topic_service import NewTopic
from headrace.errors import HeadraceError, TopicExists, TopicUnknown
from headrace.records.codec import Record

if TYPE_CHECKING:
    from headrace.broker.services.audit_lines import AuditLines
    from headrace.broker.services.record_sends import RecordSends
    from headrace.broker.services.topic_service import TopicService
    from headrace.broker.topics.topic import Topic
    from headrace.runtime.clock import Clock

log = logging.getLogger(__name__)

BATCH_MAX: Final = 500
RETRY_S: Final = 1.0
LINGER_S: Final = 0.05
"""How long lines of one burst are collected."""


class AuditTopic:
    """See the module."""

    def __init__(
        self, name: str, lines: AuditLines, topics: TopicService, sends: RecordSends, clock: Clock
    ) -> None:
        self._name = name
        self._lines = lines
        self._topics = topics
        self._sends = sends
        self._clock = clock
        self._is_reported = False

    async def run(self) -> None:
        """Write the lines, for ever."""
        while True:
            await self._lines.has_some.wait()
            await self.write_all()

    async def write_all(self) -> None:
        """Write the lines that wait, until there are none, or no more are to be written."""
        while len(self._lines) and not self._lines.is_closed:
            await asyncio.sleep(LINGER_S)
            try:
                await self._write()
                self._is_reported = False
            except HeadraceError as error:
                if not self._is_reported:
                    self._is_reported = True
                    log.warning(
                        "the audit topic %s cannot be written (%s): lines wait, up to a bound, and"
                        " are in the log file",
                        *(self._name, error),
                    )
                await asyncio.sleep(RETRY_S)

    async def _write(self) -> None:
        """Write all that waits. Raises what creating the topic and appending raise."""
        while len(self._lines) and not self._lines.is_closed:
            lines = self._lines.first(BATCH_MAX)
            now_ms = self._clock.now_ms()
            records = [Outgoing(Record(0, now_ms, None, line.encode()), 0) for line in lines]
            topic = await self._topic()
            results = await self._sends.send(topic, records)
            failed = [at for at, found in enumerate(results) if isinstance(found, HeadraceError)]
            self._lines.done(len(lines), [lines[at] for at in failed])
            if failed:
                error = results[failed[0]]
                assert isinstance(error, HeadraceError)
                raise error

    async def _topic(self) -> Topic:
        """The topic, which is created if it is missing, with one partition, for the order."""
        await self._topics.look_up(self._name)
        try:
            return self._topics.get(self._name)
        except TopicUnknown:
            if await self._topics.readable.is_reserved(self._name):
                raise
            try:
                await self._topics.create(NewTopic(self._name, 1))
            except TopicExists:  # another broker was faster
                await self._topics.look_up(self._name)
            return self._topics.get(self._name)
