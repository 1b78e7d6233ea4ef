"""Checkers of leader epochs: they never decrease along a log, and only one node acknowledges in
each.

Invariants: pure; sorted, then linear. A batch carries the leader epoch under which it was stored.
Acknowledging nodes count only for sends that succeeded at the first attempt: a later response may
come from a successor that found the record.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING

from headrace_verify.checkers.facts import Anomaly, Facts
from headrace_verify.history import OK

if TYPE_CHECKING:
    from collections.abc import Iterator


def epoch_regress(facts: Facts) -> Iterator[Anomaly]:
    """A batch of an older leader epoch after one of a newer epoch."""
    for (topic, number), partition in facts.partitions.items():
        highest = -1
        for first, (_, epoch, at_ns) in sorted(partition.epochs.items()):
            if epoch < highest:
                what = f"offset {first} has epoch {epoch}, after one with epoch {highest}"
                yield Anomaly("epoch regressed", what, at_ns, topic, number)
            highest = max(highest, epoch)


def two_acknowledging_owners(facts: Facts) -> Iterator[Anomaly]:
    """Two nodes that acknowledged appends to one partition in one leader epoch."""
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
                continue  # missing: another checker's responsibility
            epoch = batches[place][1][1]
            owner = owners.setdefault(epoch, send.by)
            if owner != send.by:
                what = f"epoch {epoch}: {send.by} stored offset {send.offset}, and {owner} others"
                yield Anomaly("two owners in one epoch", what, send.ended_ns, topic, number)
