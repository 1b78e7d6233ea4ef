"""Joins the messages that arrive in one turn of the event loop to batches.

Invariants: each message keeps its own result, in whichever batch it is (`record_sends`). Messages
of one batch are appended in the order in which they arrived; batches are sent side by side, so
that a message which must follow another is sent when that one is answered, as RocketMQ's clients
do. They send message by message; a batch for each cost most of a send's time. Only calls for the
same partitions are joined: one that does not answer holds up no call without messages for it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from headrace.broker.services.batch_search import record_bytes
from headrace.broker.services.record_sends import ANY, Outgoing, own_partition
from headrace.runtime.joined_calls import JoinedCalls

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headrace.broker.services.record_sends import RecordSends, Sent
    from headrace.broker.topics.topic import Topic
    from headrace.errors import HeadraceError
    from headrace.runtime.tasks import Tasks

RECORDS_MAX: Final = 500
BYTES_MAX: Final = 256 * 1024
"""Of one batch: a fraction of what a topic takes by default. A larger message is alone."""

Stored = Callable[["Sequence[Sent | HeadraceError] | Exception"], None]
"""Gets the result of each record, or why none is known."""
_Call = Sequence[Outgoing]
_Key = tuple["Topic", frozenset[int]]
"""The topic, and the partitions that the messages decide."""


class JoinedSends:
    """See the module."""

    def __init__(self, sends: RecordSends, tasks: Tasks) -> None:
        self._sends = sends
        self._joined = JoinedCalls(tasks, "sends", self._send, _batches)

    def send(self, topic: Topic, records: _Call, stored: Stored) -> None:
        """Append records; `stored` is called once they are durable or refused (RecordSends.send),
        and never before this returns."""
        placed = [
            one if one.partition != ANY else Outgoing(one.record, own_partition(topic, one.record))
            for one in records
        ]
        self._joined.call((topic, frozenset(one.partition for one in placed)), placed, stored)

    async def _send(
        self, key: _Key, calls: Sequence[_Call]
    ) -> Sequence[Sequence[Sent | HeadraceError]]:
        topic, _partitions = key
        found = await self._sends.send(topic, [record for given in calls for record in given])
        at = 0
        return [found[at : (at := at + len(given))] for given in calls]


def _batches(calls: Sequence[_Call]) -> Iterator[Sequence[_Call]]:
    if len(calls) == 1:  # whose size does not matter
        yield calls
        return
    some: list[_Call] = []
    count = size = 0
    for call in calls:
        added = sum(record_bytes(one.record) for one in call)
        if some and (count + len(call) > RECORDS_MAX or size + added > BYTES_MAX):
            yield some
            some, count, size = [], 0, 0
        some.append(call)
        count += len(call)
        size += added
    yield some
