"""Checkers of a consumer's polls: no skips, no steps backwards.

Invariants: pure and linear. A step is measured in known offsets, so holes are not skips.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING

from headrace_verify.checkers.facts import Anomaly, Facts, Ownership, Poll
from headrace_verify.checkers.values import known_offsets

if TYPE_CHECKING:
    from collections.abc import Iterator


class _Steps:
    """Check the step from one polled offset of a partition to the next."""

    def __init__(self, facts: Facts) -> None:
        self._facts = facts
        self._known: dict[tuple[str, int], list[int]] = {}

    def skipped(self, topic: str, number: int, last: int, offset: int) -> int:
        """The first known offset between the two, or -1."""
        key = topic, number
        known = self._known.get(key)
        if known is None:
            known = self._known[key] = known_offsets(
                self._facts, self._facts.partition(topic, number)
            )
        place = bisect_right(known, last)
        return known[place] if place < len(known) and known[place] < offset else -1


REVIVED = "fetched while given up"
"""Known librdkafka behaviour: reported, but not a violation (see `_is_revived`)."""
REVIVES = "librdkafka-member"
_Place = tuple[str, str, int]
"""Process, topic, partition."""


class _Read:
    """How far a process has read one partition since its assignment."""

    __slots__ = ("first", "last", "polls")

    def __init__(self, first: int) -> None:
        self.first = self.last = first
        self.polls = 0
        """How many polls returned records of it."""


def poll_steps(facts: Facts) -> Iterator[Anomaly]:
    """Check steps within a poll (internal) and between consecutive polls of a consumer
    (external)."""
    steps = _Steps(facts)
    reads: dict[_Place, _Read] = {}
    ownerships = iter(facts.ownerships)
    change = next(ownerships, None)
    for poll in facts.polls:
        while change is not None and change.at_ns <= poll.at_ns:
            _forget(reads, change)
            change = next(ownerships, None)
        yield from _of_poll(facts, steps, poll, reads)


def _forget(reads: dict[_Place, _Read], change: Ownership) -> None:
    for topic, number in change.partitions:
        reads.pop((change.process, topic, number), None)


def _of_poll(
    facts: Facts, steps: _Steps, poll: Poll, reads: dict[_Place, _Read]
) -> Iterator[Anomaly]:
    process, topic = poll.process, poll.topic
    inside: dict[int, int] = {}
    for number, offset, _ in poll.records:
        place = process, topic, number
        before = inside.get(number)
        where = "internal"
        if before is None:
            read = reads.get(place)
            if read is None:
                reads[place] = _Read(offset)
            else:
                before, where = read.last, "external"
        inside[number] = offset
        if before is None or offset == before + 1:
            continue
        what, kind = f"{process} polled offset {offset} after {before}", "non-monotonic poll"
        if offset > before:
            missed = steps.skipped(topic, number, before, offset)
            if missed < 0:
                continue
            what, kind = f"{what}, skipping {missed}", "poll skip"
        is_revived = where == "external" and _is_revived(facts, poll, number, offset, reads[place])
        kind = REVIVED if is_revived else f"{where} {kind}"
        yield Anomaly(kind, what, poll.at_ns, topic, number)
    for number, offset in inside.items():
        read = reads[process, topic, number]
        read.last = offset
        read.polls += 1


def _is_revived(facts: Facts, poll: Poll, number: int, offset: int, read: _Read) -> bool:
    """Whether librdkafka (2.16.0) returned records fetched while it did not own the partition.

    A ListOffsets response that arrives after the partition was revoked makes it retry and fetch
    from there, assigned or not. The records in its queue when the partition is assigned again may
    reach the application before the queue is purged; then it starts at the group's committed
    offset. So the first poll since the assignment began at the log start, where it fetches from,
    and the second at the committed offset, or at the log start if there was none.
    """
    if facts.clients.get(poll.process) != REVIVES or read.polls != 1:
        return False
    known = facts.partition(poll.topic, number)
    starts = {0, *(start for _since, _until, start in known.starts)}
    stood = {
        end
        for commit in facts.commits
        if commit.group == poll.group and commit.invoked_ns < poll.at_ns
        for topic, part, end in commit.offsets
        if (topic, part) == (poll.topic, number)
    }
    return read.first in starts and offset in starts | stood


def precommitted_reads(facts: Facts) -> Iterator[Anomaly]:
    """A transaction that polls its own records."""
    for transaction in facts.transactions.values():
        own = {(topic, number, send.value) for topic, number, send in transaction.sends}
        for poll in transaction.polls:
            for number, offset, value in poll.records:
                if (poll.topic, number, value) in own:
                    what = f"transaction {transaction.name} polled its own value {value}"
                    what += f" at offset {offset}"
                    yield Anomaly("precommitted read", what, poll.at_ns, poll.topic, number)
