"""Checkers of leader epochs: they only grow along a log, and each has one owner who acknowledges.

Invariants: pure; sorted, then linear. A batch carries the epoch under which its leader has
stored it. Who acknowledged counts only where a send was answered at its first try: the answer to a
later one may come from a successor who has found the record.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING

from headrace_verify.checkers.facts import Anomaly, Facts
from headrace_verify.history import OK

if TYPE_CHECKING:
    from collections.abc import Iterator


def epoch_regress(facts: Facts) -> Iterator[Anomaly]:
    """A batch of an older leader epoch behind one of a newer."""
    for (topic, number), partition in facts.partitions.items():
        highest = -1
        for first, (_, epoch, at_ns) in sorted(partition.epochs.items()):
            if epoch < highest:
                what = f"offset {first} is of epoch {epoch}, behind one of epoch {highest}"
                yield Anomaly("epoch regressed", what, at_ns, topic, number)
            highest = max(highest, epoch)


def two_acknowledging_owners(facts: Facts) -> Iterator[Anomaly]:
    """Two nodes that have acknowledged appends of one partition in one leader epoch."""
    for (topic, number), partition in facts.partitions.items():
        if not partition.epochs:
            continue
        batches = sorted(partition.epochs.items())
        firsts = [first for first, _ in batches]
        owners: dict[int, str] = {}
        for send in partition.sends.values():
            if send.outcome != OK or not send.by or send.offset < 0:
                continue
            place = bisect_right(firsts, send.offset) - 1
            if place < 0 or send.offset >= batches[place][1][0]:
                continue  # not there: that is for others to say
            epoch = batches[place][1][1]
            owner = owners.setdefault(epoch, send.by)
            if owner != send.by:
                what = (
                    f"epoch {epoch}: {send.by} has stored offset {send.offset}, and {owner} others"
                )
                yield Anomaly("two owners in one epoch", what, send.ended_ns, topic, number)
