"""Joins the messages that arrive in one turn of the event loop to batches.

Invariants: each message keeps its own result, in whichever batch it is (`record_sends`). Messages
of one batch are appended in the order in which they arrived; batches are sent side by side, so
that a message which must follow another is sent when that one is answered, as RocketMQ's clients
do. They send message by message; a batch for each cost most of a send's time. A batch is a task,
a message is none: a task and a future for each cost a quarter of the rest.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from headrace.broker.services.batch_search import record_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from headrace.broker.services.record_sends import Outgoing, RecordSends, Sent
    from headrace.broker.topics.topic import Topic
    from headrace.errors import HeadraceError
    from headrace.runtime.tasks import Tasks

log = logging.getLogger(__name__)

RECORDS_MAX: Final = 500
BYTES_MAX: Final = 256 * 1024
"""Of one batch: a fraction of what a topic takes by default. A larger message is alone."""

Stored = Callable[["list[Sent | HeadraceError] | Exception"], None]
"""Gets the result of each record, or why none is known."""
_Call = tuple["Sequence[Outgoing]", Stored]


class JoinedSends:
    """See the module."""

    def __init__(self, sends: RecordSends, tasks: Tasks) -> None:
        self._sends = sends
        self._tasks = tasks
        self._arrived: dict[Topic, list[_Call]] = {}

    def send(self, topic: Topic, records: Sequence[Outgoing], stored: Stored) -> None:
        """Append records; `stored` is called once they are durable or refused (RecordSends.send),
        and never before this returns."""
        if not self._arrived:
            asyncio.get_running_loop().call_soon(self._begin)
        self._arrived.setdefault(topic, []).append((records, stored))

    def _begin(self) -> None:
        arrived, self._arrived = self._arrived, {}
        for topic, calls in arrived.items():
            for some in _batches(calls):
                self._tasks.spawn(self._send(topic, some), f"messages for {topic.name}")

    async def _send(self, topic: Topic, calls: list[_Call]) -> None:
        try:
            records = [record for given, _stored in calls for record in given]
            found = await self._sends.send(topic, records)
        except Exception as error:  # noqa: BLE001 - each caller gets it
            for _given, stored in calls:
                _tell(stored, error)
            return
        at = 0
        for given, stored in calls:
            _tell(stored, found[at : at + len(given)])
            at += len(given)


def _tell(stored: Stored, found: list[Sent | HeadraceError] | Exception) -> None:
    try:
        stored(found)
    except Exception:  # of one call: the others of its batch get theirs
        log.exception("internal error while a send of RocketMQ's protocol was answered")


def _batches(calls: list[_Call]) -> Iterator[list[_Call]]:
    if len(calls) == 1:  # whose size does not matter
        yield calls
        return
    some: list[_Call] = []
    count = size = 0
    for call in calls:
        added = sum(record_bytes(one.record) for one in call[0])
        if some and (count + len(call[0]) > RECORDS_MAX or size + added > BYTES_MAX):
            yield some
            some, count, size = [], 0, 0
        some.append(call)
        count += len(call[0])
        size += added
    yield some
