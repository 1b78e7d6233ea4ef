"""Joins the settlements that arrive in one turn of the event loop.

Invariants: each call gets the outcomes of its own receipts, once they and those of the same
partitions that came with it are durable or refused (`settle_receipts`). Clients that settle message
by message settle neighbours, which are one range together; a command for each cost most of an
acknowledgement's time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from headrace.broker.services.queue_receipts import ReceiptSettlements, settle_receipts
from headrace.runtime.joined_calls import JoinedCalls

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headrace.broker.services.queue_owners import QueueOwners
    from headrace.broker.topics.topic import Topic
    from headrace.errors import HeadraceError
    from headrace.runtime.tasks import Tasks

RECEIPTS_MAX: Final = 1_000
"""Of one batch; a call with more is alone."""

Outcomes = Sequence["HeadraceError | None"]
"""Of the receipts of one call, in order."""
Settled = Callable[["Outcomes | Exception"], None]
_Key = tuple["Topic", str, Callable[[str], str], frozenset[int]]


class JoinedSettlements:
    """See the module."""

    def __init__(self, owners: QueueOwners, tasks: Tasks) -> None:
        self._owners = owners
        self._joined = JoinedCalls(tasks, "settlements", self._settle, _batches)

    def settle(
        self,
        topic: Topic,
        group_id: str,
        asked: ReceiptSettlements,
        member_id: Callable[[str], str],
        settled: Settled,
    ) -> None:
        """Settle as `settle_receipts`; `settled` gets the outcomes, never before this returns."""
        # Only with calls of the same partitions: one that does not answer delays no other.
        partitions = frozenset(number for number, _member in asked.deliveries)
        self._joined.call((topic, group_id, member_id, partitions), asked, settled)

    async def _settle(self, key: _Key, calls: Sequence[ReceiptSettlements]) -> Sequence[Outcomes]:
        topic, group_id, member_id, _partitions = key
        asked = calls[0] if len(calls) == 1 else ReceiptSettlements.joined(calls)
        found = await settle_receipts(self._owners, topic, group_id, asked, member_id)
        at = 0
        return [found[at : (at := at + len(call.receipts))] for call in calls]


def _batches(calls: Sequence[ReceiptSettlements]) -> Iterator[Sequence[ReceiptSettlements]]:
    """A receipt that is settled again is in a batch that follows, to learn that it is settled."""
    some: list[ReceiptSettlements] = []
    known: set[str] = set()
    for call in calls:
        if some and (
            len(known) + len(call.receipts) > RECEIPTS_MAX or not known.isdisjoint(call.receipts)
        ):
            yield some
            some, known = [], set()
        some.append(call)
        known.update(call.receipts)
    yield some
