"""How one lite topic goes on for a group when deliveries of it end.

Invariants: pure functions of the group's state. A record is finished once it is accepted, or given
up and, if the group has a dead letter topic, copied there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from headrace.coordination.shares.commands import (
    ACCEPT,
    FAILED_BY_CONSUMER,
    FAILED_BY_COUNT,
    GAP,
    REJECT,
    RELEASE,
    RENEW,
    UNDELIVERED,
    DeadLetter,
)
from headrace.coordination.shares.lite_group import BEGINNING
from headrace.coordination.shares.lite_records import (
    Delivery,
    LiteDelivering,
    LiteProgress,
    Progress,
)

if TYPE_CHECKING:
    from headrace.coordination.shares.lite_group import LiteGroup
    from headrace.coordination.shares.lite_records import LiteRecord

FOR_EVER: Final = 2**62
COPIED: Final = -2
"""The copy of a record that was given up is in the dead letter topic."""
LOCK_EXPIRED: Final = -1
"""Besides the kinds of settlements."""


class Ended(NamedTuple):
    """One delivery ends so, or goes on (RENEW)."""

    offset: int
    kind: int
    delay_ms: int = -1
    reason: str = ""


class LiteLine:
    """One lite topic, while a decision changes it."""

    def __init__(self, group: LiteGroup, name: str, now_ms: int) -> None:
        self._group = group
        self._name = name
        self._now_ms = now_ms
        self._before = group.progress.get(name, BEGINNING)
        self._finished = {*self._before.finished}
        self._counts = dict(self._before.counts)
        self._at_ms = self._before.at_ms
        self._deliveries = dict(group.delivering.get(name, {}))
        self.effects: list[DeadLetter] = []

    def end(self, ended: Ended) -> None:
        """End, or renew, the delivery of a record that is being delivered."""
        offset, kind, delay_ms, reason = ended
        one, config = self._deliveries[offset], self._group.config
        if kind == RENEW:
            lock_ms = config.lock_ms if delay_ms < 0 else delay_ms
            self._deliveries[offset] = one._replace(until_ms=self._now_ms + lock_ms)
            return
        del self._deliveries[offset]
        if kind in {ACCEPT, COPIED, GAP}:  # GAP: there is no record
            self._finish(offset)
        elif kind == REJECT:
            self._give_up(offset, one.deliveries, reason or FAILED_BY_CONSUMER)
        elif kind == UNDELIVERED:
            pass
        elif one.deliveries >= config.delivery_count_max:
            self._give_up(offset, one.deliveries, FAILED_BY_COUNT)
        else:
            assert kind in {RELEASE, LOCK_EXPIRED}, kind
            self._counts[offset] = one.deliveries
            wait_ms = config.retry_after_ms(one.deliveries) if delay_ms < 0 else delay_ms
            if wait_ms > 0:
                self._at_ms = max(self._at_ms, self._now_ms + wait_ms)

    def _finish(self, offset: int) -> None:
        self._finished.add(offset)
        self._counts.pop(offset, None)

    def _give_up(self, offset: int, deliveries: int, reason: str) -> None:
        group = self._group
        has_copy = group.config.has_dead_letters
        self.effects.append(
            DeadLetter(group.group_id, offset, offset, deliveries, reason, self._now_ms, has_copy)
        )
        if has_copy:
            self._counts[offset] = deliveries
            self._deliveries[offset] = Delivery("", FOR_EVER, deliveries)
        else:
            self._finish(offset)

    def pass_time(self) -> None:
        """End deliveries whose locks have expired, and the delay before the next one."""
        for offset, one in list(self._deliveries.items()):
            if one.until_ms <= self._now_ms:
                self.end(Ended(offset, LOCK_EXPIRED))
        if self._at_ms <= self._now_ms:
            self._at_ms = 0

    def records(self) -> list[LiteRecord]:
        """What has changed."""
        group, name = self._group, self._name
        found: list[LiteRecord] = []
        progress = self._progress()
        if progress != self._before:
            found.append(LiteProgress(group.number, name, progress))
        if self._deliveries != group.delivering.get(name, {}):
            found.append(LiteDelivering(group.number, name, self._deliveries))
        return found

    def _progress(self) -> Progress:
        """Everything before the first unfinished record is finished."""
        position = self._before.position
        finished = self._finished
        if finished:
            first = next(self._group.left_after(self._name, position, finished), None)
            if first is None:  # of those that are known: the index may not be complete yet
                known = [one for one in finished if one < self._group.known_end]
                first = max(known) + 1 if known else position
            position = max(first, position)
            finished = {offset for offset in finished if offset > position}
        counts = tuple(sorted(one for one in self._counts.items() if one[0] >= position))
        return Progress(position, tuple(sorted(finished)), counts, self._at_ms)
