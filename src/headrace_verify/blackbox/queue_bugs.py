"""Bugs of queues, planted like those of `bugs`.

Invariants: as in `bugs`. Bugs that the simulation plants too are in `simulation.delivery_bugs`.
"""

# ruff: noqa: SLF001 - a planted bug patches private parts

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from headrace.broker.shares.dead_letters import DeadLetters
from headrace.broker.shares.share_reads import BatchesRead
from headrace.coordination.shares import share_machine
from headrace.coordination.shares.commands import ACCEPT
from headrace.coordination.shares.delivery import RowDelivery
from headrace.coordination.shares.lite_group import LiteGroup
from headrace.coordination.shares.lite_progress import LOCK_EXPIRED, LiteLine
from headrace.coordination.shares.settlements import decide_settle
from headrace.coordination.shares.share_group import ShareGroup
from headrace.records.attributes import PRODUCER

if TYPE_CHECKING:
    from headrace_verify.self_proof import Patch

EARLY_MS = 2_000
LOST_OF = 3
"""One dead letter in this many is not copied."""


def end_locks_before_their_time(patch: Patch) -> None:
    acquire = ShareGroup.decide_acquire

    def hasty(self: Any, *arguments: Any) -> Any:
        return [
            locked._replace(until_ms=locked.until_ms - EARLY_MS)
            for locked in acquire(self, *arguments)
        ]

    patch(ShareGroup, "decide_acquire", hasty)


def redeliver_without_a_back_off(patch: Patch) -> None:
    released = ShareGroup.released

    def hasty(self: Any, *arguments: Any) -> Any:
        return released(self, *arguments)._replace(at_ms=0)

    patch(ShareGroup, "released", hasty)


def finish_dead_letters_without_a_copy(patch: Patch) -> None:
    copy, count = DeadLetters._copy, 0

    async def forgetful(self: Any, job: Any) -> None:
        nonlocal count
        count += 1
        if count % LOST_OF:
            await copy(self, job)

    patch(DeadLetters, "_copy", forgetful)


def copy_dead_letters_twice(patch: Patch) -> None:
    append = DeadLetters._append_batch

    async def eager(self: Any, target: Any, copies: Any) -> None:
        await append(self, target, copies)
        renamed = [
            replace(copy, headers=[(n, v + b"*" if n == PRODUCER else v) for n, v in copy.headers])
            for copy in copies
        ]
        await append(self, target, renamed)

    patch(DeadLetters, "_append_batch", eager)


def deliver_expired_messages(patch: Patch) -> None:
    add = RowDelivery.add

    def blind(self: Any, rows: Any, rows_from: int, rows_end: int) -> None:
        add(self, [row._replace(expires_ms=-1) for row in rows], rows_from, rows_end)

    patch(RowDelivery, "add", blind)


def answer_settlements_that_are_not_made(patch: Patch) -> None:
    decide, count = decide_settle, 0

    def forgetful(*arguments: Any) -> Any:
        nonlocal count
        errors, runs, locks, letters = decide(*arguments)
        count += 1
        return (errors, runs, locks, letters) if count % LOST_OF else (errors, [], [], [])

    patch(share_machine, "decide_settle", forgetful)


def stop_at_a_gap_of_compaction(patch: Patch) -> None:
    add = BatchesRead.add

    def short_sighted(self: Any, data: bytes, offset: int, last: int, aborted: Any) -> int:
        known = len(self.skipped)
        reached = add(self, data, offset, last, aborted)
        is_past = len(self.skipped) > known and self.skipped[-1][1] == reached - 1 > last
        return self.skipped.pop()[0] if is_past else reached

    patch(BatchesRead, "add", short_sighted)


def finish_what_a_client_of_lite_topics_gives_back(patch: Patch) -> None:
    end = LiteLine.end

    def hasty(self: Any, ended: Any) -> None:
        end(self, ended._replace(kind=ACCEPT) if ended.kind == LOCK_EXPIRED else ended)

    patch(LiteLine, "end", hasty)


def deliver_a_lite_topic_that_is_in_flight(patch: Patch) -> None:
    refresh = LiteGroup.refresh

    def hasty(self: Any, name: str) -> None:
        delivering, self.delivering = self.delivering, {}
        refresh(self, name)
        self.delivering = delivering

    patch(LiteGroup, "refresh", hasty)
