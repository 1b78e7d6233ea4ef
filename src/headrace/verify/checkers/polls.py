"""Checkers of what a consumer sees: nothing left out, nothing going back.

Rules of the room: pure and linear. A step is measured in known offsets, so holes are no skips.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING

from headrace.verify.checkers.facts import Anomaly, Facts, Ownership, Poll
from headrace.verify.checkers.values import known_offsets

if TYPE_CHECKING:
    from collections.abc import Iterator


class _Steps:
    """Judges the step from one offset of a partition to the next that was polled."""

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


def poll_steps(facts: Facts) -> Iterator[Anomaly]:
    """Steps within a poll (internal) and from one poll of a consumer to its next (external)."""
    steps = _Steps(facts)
    last: dict[tuple[str, str, int], int] = {}
    ownerships = iter(facts.ownerships)
    change = next(ownerships, None)
    for poll in facts.polls:
        while change is not None and change.at_ns <= poll.at_ns:
            _forget(last, change)
            change = next(ownerships, None)
        yield from _of_poll(steps, poll, last)


def _forget(last: dict[tuple[str, str, int], int], change: Ownership) -> None:
    for topic, number in change.partitions:
        last.pop((change.process, topic, number), None)


def _of_poll(steps: _Steps, poll: Poll, last: dict[tuple[str, str, int], int]) -> Iterator[Anomaly]:
    process, topic = poll.process, poll.topic
    inside: dict[int, int] = {}
    for number, offset, _ in poll.records:
        before = inside.get(number)
        where = "internal"
        if before is None:
            before = last.get((process, topic, number))
            where = "external"
        inside[number] = offset
        if before is None or offset == before + 1:
            continue
        if offset <= before:
            what = f"{process} polled offset {offset} after {before}"
            yield Anomaly(f"{where} non-monotonic poll", what, poll.at_ns, topic, number)
            continue
        missed = steps.skipped(topic, number, before, offset)
        if missed >= 0:
            what = f"{process} polled offset {offset} after {before}, and {missed} lies between"
            yield Anomaly(f"{where} poll skip", what, poll.at_ns, topic, number)
    for number, offset in inside.items():
        last[process, topic, number] = offset


def precommitted_reads(facts: Facts) -> Iterator[Anomaly]:
    """A transaction that polls what it has itself sent."""
    for transaction in facts.transactions.values():
        own = {(topic, number, send.value) for topic, number, send in transaction.sends}
        for poll in transaction.polls:
            for number, offset, value in poll.records:
                if (poll.topic, number, value) in own:
                    what = f"transaction {transaction.name} polled its own value {value}"
                    what += f" at offset {offset}"
                    yield Anomaly("precommitted read", what, poll.at_ns, poll.topic, number)
