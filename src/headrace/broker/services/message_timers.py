"""Delayed records and half messages of whole topics: list, cancel, settle, check back.

Invariants: knows no protocol. Any broker accepts a call; the owner of each partition carries out
its part (`OwnerCalls`). Listing, cancelling and settling are idempotent; a dry run of a change says
what it would do now. A message id may name
several messages, in one partition or in several: whoever names it means all that are pending, and
only where none is pending the newest known outcome. Where a partition cannot be asked, nothing is
said about messages that it may hold.
"""

from __future__ import annotations

from functools import partial
from heapq import nsmallest
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from headrace.broker.services.check_backs import CheckBacks
from headrace.broker.services.owner_calls import checked, split
from headrace.broker.services.timer_receipts import DelayedReceipt
from headrace.coordination.timers.commands import Half, SettleHalfCommand
from headrace.coordination.timers.schedule import ScheduleEntry
from headrace.coordination.timers.state_records import Settled
from headrace.errors import HeadraceError, RecordStateInvalid
from headrace.records.attributes import MESSAGE_ID, find_header

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from headrace.broker.services.owner_calls import OwnerCalls
    from headrace.broker.timers.deliveries import RefusedRecord
    from headrace.broker.timers.half_messages import HalfShown
    from headrace.broker.timers.timer_partitions import TimerPartitions
    from headrace.broker.topics.topic import Topic
    from headrace.metadata.facts import BrokerFact
    from headrace.runtime.tasks import Tasks

    Change = Callable[
        [Topic, int, Sequence[ScheduleEntry], Sequence[str]],
        Awaitable[tuple[list[bool], list[int]]],
    ]

PAGE_BYTES_MAX: Final = 8 * 1024 * 1024
"""Of the keys of one page; the last one may go beyond."""
LISTED_MAX: Final = 1_000
ITEMS_MAX: Final = 2_000

Failed = dict[int, HeadraceError]
"""The partitions, or brokers, that could not be asked."""


class DelayedShown(NamedTuple):
    """A delayed record without its value."""

    partition: int
    due_ms: int
    offset: int
    """In the timer log."""
    number: int
    timestamp_ms: int
    message_id: bytes | None
    key: bytes | None
    value_bytes: int


class HalfReference(NamedTuple):
    """Which half messages to settle, and how."""

    partition: int
    """-1: all, of the message id"""
    number: int
    message_id: str
    is_commit: bool
    reason: str


class HalfOutcome(NamedTuple):
    """What became of the half messages of a reference."""

    outcome: int
    """COMMITTED, ROLLED_BACK, EXPIRED"""
    settled: int
    """Messages that were settled now; 0: all of them had been settled before."""


class MessageTimers:
    """See the module."""

    def __init__(
        self,
        calls: OwnerCalls,
        timers: TimerPartitions,
        brokers: Callable[[], Sequence[BrokerFact]],
        broker_id: int,
        tasks: Tasks,
    ) -> None:
        self._calls = calls
        self._timers = timers
        self._check_backs = CheckBacks(calls, timers.halves, brokers, broker_id, tasks)
        calls.offer("delayed.list", self._list_here)
        calls.offer("delayed.refused", self._refused_here)
        calls.offer("delayed.cancel", partial(self._each_here, timers.delayed.cancel))
        calls.offer("delayed.deliver", partial(self._each_here, timers.delayed.deliver))
        calls.offer("delayed.look_at", partial(self._each_here, timers.delayed.look_at))
        calls.offer("halves.list", self._halves_here)
        calls.offer("halves.settle", self._settle_here)
        calls.offer("halves.look_at", partial(self._settle_here, is_dry_run=True))

    # --- delayed records ---------------------------------------------------------------------

    async def list_delayed(
        self, topic: Topic, numbers: Sequence[int], after: tuple[int, int, int], count_max: int
    ) -> tuple[list[DelayedShown], bool, Failed]:
        """(records after (partition, due_ms, offset), whether there are more, failed)."""
        found: list[DelayedShown] = []
        failed: Failed = {}
        bytes_left = PAGE_BYTES_MAX
        for number in numbers:
            if number < after[0]:
                continue
            place = after[1:] if number == after[0] else (-1, -1)
            while True:
                asked = (*place, min(count_max - len(found) + 1, LISTED_MAX))
                try:
                    rows = await self._calls.ask_partition("delayed.list", topic, number, asked)
                except HeadraceError as error:
                    failed[number] = error
                    break
                for row in rows:
                    if len(found) >= count_max or bytes_left <= 0:
                        return found, True, failed
                    one = DelayedShown(number, *row)
                    found.append(one)
                    bytes_left -= len(one.key or b"")
                    place = one.due_ms, one.offset
                if not rows:
                    break
        return found, False, failed

    async def _list_here(self, topic: Topic, number: int, asked: Any) -> list[Any]:
        due_ms, offset, count = checked(asked, int, int, int)
        after, count = ScheduleEntry(due_ms, offset), min(max(count, 1), LISTED_MAX)
        return [
            DelayedShown(
                *(number, one.due_ms, one.offset, one.number, one.timestamp_ms),
                find_header(one.body.headers, MESSAGE_ID),
                one.body.key,
                len(one.body.value or b""),
            )[1:]
            for one in await self._timers.delayed.list_delayed(topic, number, after, count)
        ]

    async def list_refused(self, topic: Topic) -> tuple[dict[int, list[RefusedRecord]], Failed]:
        """The newest records of each partition that were due and could not be read."""
        return split(await self._calls.ask_partitions("delayed.refused", topic, ()))

    async def _refused_here(self, topic: Topic, number: int, _asked: Any) -> list[Any]:
        return [tuple(one) for one in await self._timers.delayed.list_refused(topic, number)]

    async def cancel(
        self,
        topic: Topic,
        receipts: Sequence[tuple[int, int, int]],
        message_ids: Sequence[str],
        *,
        is_dry_run: bool = False,
    ) -> tuple[list[bool | HeadraceError], list[int | HeadraceError], Failed]:
        """(for each (partition, due_ms, number) whether it was cancelled, for each message id how
        many records were, failed)."""
        name = "delayed.look_at" if is_dry_run else "delayed.cancel"
        return await self._each(name, topic, receipts, message_ids)

    async def deliver(
        self,
        topic: Topic,
        receipts: Sequence[tuple[int, int, int]],
        message_ids: Sequence[str],
        *,
        is_dry_run: bool = False,
    ) -> tuple[list[bool | HeadraceError], list[int | HeadraceError], Failed]:
        """The same of records that are due now, rather than when they were to be."""
        name = "delayed.look_at" if is_dry_run else "delayed.deliver"
        return await self._each(name, topic, receipts, message_ids)

    async def _each(
        self,
        name: str,
        topic: Topic,
        receipts: Sequence[tuple[int, int, int]],
        message_ids: Sequence[str],
    ) -> tuple[list[bool | HeadraceError], list[int | HeadraceError], Failed]:
        numbers = None if message_ids else sorted({one[0] for one in receipts})
        asked = [list(one) for one in receipts], list(message_ids)
        answers = await self._calls.ask_partitions(name, topic, asked, numbers)
        found, failed = split(answers)
        by_receipt = [
            failed[partition] if partition in failed else bool(found[partition][0][place])
            for place, (partition, *_) in enumerate(receipts)
        ]
        by_id: list[int | HeadraceError] = []
        for place in range(len(message_ids)):
            count = sum(one[1][place] for one in found.values())
            by_id.append(next(iter(failed.values())) if failed and not count else count)
        return by_receipt, by_id, failed

    async def recall(self, topic: Topic, receipt: str, now_ms: Callable[[], int]) -> bool:
        """Cancel the delayed record of a receipt (`Sent.receipt`); False: it was cancelled before.

        `now_ms`: the clock, read after the attempt, during which the record may have become due.
        Raises ReceiptInvalid, TopicUnknown, RecordStateInvalid where it was due before, and what
        its owner answers, or BrokerUnreachable.
        """
        found = DelayedReceipt.parse(receipt)
        topic.check_partition(found.partition)
        ((outcome,), _none, _failed) = await self.cancel(topic, [found], [])
        if isinstance(outcome, HeadraceError):
            raise outcome
        if not outcome and found.due_ms <= now_ms():
            raise RecordStateInvalid("the record was due before, and has been delivered")
        return outcome

    @staticmethod
    async def _each_here(change: Change, topic: Topic, number: int, asked: Any) -> Any:
        receipts, message_ids = checked(asked, list, list)
        checked(message_ids, *[str] * len(message_ids))
        rows = [checked(one, int, int, int) for one in receipts[:ITEMS_MAX]]
        here = [ScheduleEntry(*row[1:]) for row in rows if row[0] == number]
        done, counts = await change(topic, number, here, message_ids[:ITEMS_MAX])
        outcomes = iter(done)
        return [row[0] == number and next(outcomes) for row in rows], counts

    # --- half messages -----------------------------------------------------------------------

    async def list_halves(
        self,
        topic: Topic,
        numbers: Sequence[int],
        after: tuple[int, int],
        count_max: int,
        *,
        is_settled: bool,
    ) -> tuple[list[tuple[int, Half | Settled]], Failed]:
        """((partition, pending message or outcome) after (partition, number), failed); one more
        than `count_max` if there are more."""
        found: list[tuple[int, Half | Settled]] = []
        failed: Failed = {}
        for number in numbers:
            if number < after[0] or len(found) > count_max:
                continue
            start = after[1] if number == after[0] else -1
            asked = is_settled, start, count_max + 1 - len(found)
            try:
                rows = await self._calls.ask_partition("halves.list", topic, number, asked)
            except HeadraceError as error:
                failed[number] = error
                continue
            kind = Settled if is_settled else Half
            found += [(number, kind(*row)) for row in rows]
        return found, failed

    async def _halves_here(self, topic: Topic, number: int, asked: Any) -> list[Any]:
        is_settled, after, count = checked(asked, bool, int, int)
        pending, outcomes = await self._timers.halves.list_halves(topic, number)
        # There may be a million of them: only those of the page are written out.
        listed: list[Settled] | list[Half] = outcomes if is_settled else pending
        wanted = (one for one in listed if one.number > after)
        some = nsmallest(min(count, LISTED_MAX + 1), wanted, key=lambda one: one.number)
        return [_row(one) for one in some]

    async def settle(
        self, topic: Topic, references: Sequence[HalfReference], *, is_dry_run: bool = False
    ) -> tuple[list[HalfOutcome | HeadraceError | None], Failed]:
        """(the outcome of each reference, None: no such message is known, failed).

        RecordStateInvalid: it has the other outcome already. BrokerUnreachable: a partition that
        may hold such a message could not be asked.
        """
        numbers = None
        if all(one.partition >= 0 for one in references):
            numbers = sorted({one.partition for one in references})
        asked = [list(one) for one in references]
        name = "halves.look_at" if is_dry_run else "halves.settle"
        answers = await self._calls.ask_partitions(name, topic, asked, numbers)
        found, failed = split(answers)
        outcomes: list[HalfOutcome | HeadraceError | None] = []
        for place, one in enumerate(references):
            missing = [e for n, e in failed.items() if one.partition in {-1, n}]
            rows = [row for part in found.values() if (row := part[place]) is not None]
            outcomes.append(_outcome_of(rows, missing))
        return outcomes, failed

    async def _settle_here(
        self, topic: Topic, number: int, asked: Any, *, is_dry_run: bool = False
    ) -> list[Any]:
        """For each reference (count, outcome, at_ms, refusal), or None."""
        found: list[Any] = []
        for one in asked[:ITEMS_MAX]:
            reference = HalfReference(*checked(one, int, int, str, bool, str))
            reply = None
            if reference.partition in {-1, number}:
                command = SettleHalfCommand(*reference[1:], is_dry_run)
                reply = await self._timers.halves.settle(topic, number, command)
            if reply is None or reply.outcome is None:
                found.append(None)
            else:
                refusal = "" if reply.error is None else str(reply.error)
                found.append((reply.count, reply.outcome.outcome, reply.outcome.at_ms, refusal))
        return found

    async def poll_checks(
        self, group: str, count_max: int, wait_s: float | None
    ) -> tuple[list[HalfShown], Failed]:
        """See CheckBacks.next."""
        return await self._check_backs.next(group, count_max, wait_s)


def _row(one: Half | Settled) -> Sequence[Any]:
    if isinstance(one, Settled):
        return tuple(one)
    return [getattr(one, name) for name in Half.__slots__]


def _outcome_of(
    rows: Sequence[Any], missing: Sequence[HeadraceError]
) -> HalfOutcome | HeadraceError | None:
    """What became of a reference, from what its partitions answered and those that did not."""
    count = sum(row[0] for row in rows)
    if count:
        return HalfOutcome(next(row[1] for row in rows if row[0]), count)
    if missing:
        return missing[0]
    if not rows:
        return None
    _count, outcome, _at_ms, refusal = max(rows, key=lambda row: row[2])
    return RecordStateInvalid(refusal) if refusal else HalfOutcome(outcome, 0)
