"""Bugs of transactions, share groups and timers, planted like those of `bugs`.

Invariants: as in `bugs`: small patches of this process, reverted afterwards.
"""

# ruff: noqa: SLF001 - a planted bug patches private parts

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from headrace.broker.coordinators.marker_writer import MarkerWriter
from headrace.broker.timers import delayed_records
from headrace.coordination.shares.delivery import RowDelivery
from headrace.coordination.shares.share_machine import ShareMachine
from headrace.coordination.shares.state_records import ShareGroupChanged
from headrace.coordination.timers.state_records import Scheduled
from headrace.coordination.timers.timer_machine import TimerMachine
from headrace.coordination.timers.timer_state import Skipped
from headrace.coordination.transactions import rules
from headrace.log.aborted_index import AbortedIndex
from headrace.log.visibility import Bound, Visibility

if TYPE_CHECKING:
    from headrace_verify.self_proof import Patch

LOST_OF = 7
"""One marker in this many is lost."""
AGAIN_S = 0.7
EARLY_MS = 300


def lose_a_marker(patch: Patch) -> None:
    write, count = MarkerWriter.write, 0

    async def forgetful(self: Any, marker: Any, partitions: Any) -> Any:
        nonlocal count
        count += 1
        if count % LOST_OF == 0:
            return dict.fromkeys(partitions)
        return await write(self, marker, partitions)

    patch(MarkerWriter, "write", forgetful)


def write_a_marker_twice(patch: Patch) -> None:
    """The second one arrives when its producer may have begun its next transaction."""
    write = MarkerWriter.write

    async def eager(self: Any, marker: Any, partitions: Any) -> Any:
        outcomes = await write(self, marker, partitions)

        async def again() -> None:
            await asyncio.sleep(AGAIN_S)
            await write(self, marker, partitions)

        self.again = asyncio.get_running_loop().create_task(again())
        return outcomes

    patch(MarkerWriter, "write", eager)


def show_an_open_transactions_first_batch(patch: Patch) -> None:
    settle = Visibility._settle

    def generous(self: Any) -> None:
        settle(self)
        if self._unstable:
            high_watermark = self.acknowledged.offset
            later = list(self._unstable)[1:]
            first = min([*later, high_watermark])
            self.committed = Bound(first, -1) if first < high_watermark else self.acknowledged

    patch(Visibility, "_settle", generous)


def list_aborted_transactions_one_late(patch: Patch) -> None:
    find = AbortedIndex.find

    def late(self: Any, *bounds: int) -> Any:
        return [(first + 1, producer) for first, producer in find(self, *bounds)]

    patch(AbortedIndex, "find", late)


def begin_a_producer_without_a_new_epoch(patch: Patch) -> None:
    begin = rules._begin

    def lazy(record: Any, command: Any, now_ms: int) -> Any:
        return begin(record._replace(producer_epoch=record.producer_epoch - 1), command, now_ms)

    patch(rules, "_begin", lazy)


def forget_acknowledgements_on_takeover(patch: Patch) -> None:
    encode = ShareMachine.encode

    def forgetful(self: Any, record: Any) -> Any:
        return None if isinstance(record, ShareGroupChanged) else encode(self, record)

    patch(ShareMachine, "encode", forgetful)


def deliver_a_key_while_it_is_in_flight(patch: Patch) -> None:
    add = RowDelivery.add

    def expose_all(self: Any, rows: Any, rows_from: int, rows_end: int) -> None:
        rows = list(rows)
        add(self, rows, rows_from, rows_end)
        self._expose([row.offset for row in rows if row.offset in self._rows])

    patch(RowDelivery, "add", expose_all)


def deliver_a_key_of_which_later_records_are_in_flight(patch: Patch) -> None:
    patch(RowDelivery, "lock_together", lambda *_: None)


def deliver_before_the_time(patch: Patch) -> None:
    new_timer = delayed_records._new_timer

    def hasty(delayed: Any) -> Any:
        timer = new_timer(delayed)
        return timer._replace(due_ms=timer.due_ms - EARLY_MS) if timer.due_ms else timer

    patch(delayed_records, "_new_timer", hasty)


def forget_delayed_records_on_takeover(patch: Patch) -> None:
    decode, count = TimerMachine.decode, 0

    def forgetful(self: Any, key: Any, value: Any) -> Any:
        nonlocal count
        record = decode(self, key, value)
        if isinstance(record, Scheduled):
            count += 1
            return Skipped() if count % 3 == 0 else record
        return record

    patch(TimerMachine, "decode", forgetful)


def show_half_messages_at_once(patch: Patch) -> None:
    new_timer = delayed_records._new_timer

    def hasty(delayed: Any) -> Any:
        timer = new_timer(delayed)
        return timer._replace(due_ms=timer.due_ms or 1, group="", message_id="")

    patch(delayed_records, "_new_timer", hasty)
