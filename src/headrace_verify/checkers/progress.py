"""Checkers of values that never decrease: high watermark, log start offset, committed offsets.

Invariants: pure; sorted, then linear. A read must reflect what was known before it began; it may
reflect what happened during it.
"""

from __future__ import annotations

from bisect import bisect_left
from itertools import accumulate
from typing import TYPE_CHECKING

from headrace_verify.checkers.facts import Anomaly, Commit, CommittedRead, Facts
from headrace_verify.history import FAIL, OK

if TYPE_CHECKING:
    from collections.abc import Iterator

NEVER_NS = 1 << 63


def high_watermark_regress(facts: Facts) -> Iterator[Anomaly]:
    """A log end below what was acknowledged, read or listed before the request."""
    for (topic, number), partition in facts.partitions.items():
        if not partition.ends:
            continue
        known = [(until, end, how) for _, until, end, how in partition.marks]
        known += [(until, end, "listed") for _, until, end in partition.ends]
        known.sort()
        times = [until for until, _, _ in known]
        highest = list(accumulate(known, _further))
        for since, until, end in partition.ends:
            place = bisect_left(times, since)
            if place and highest[place - 1][1] > end:
                _, before, how = highest[place - 1]
                what = f"the log ended at {end}, after {before - 1} had been {how}"
                yield Anomaly("high watermark regressed", what, until, topic, number)


def _further(one: tuple[int, int, str], other: tuple[int, int, str]) -> tuple[int, int, str]:
    return one if one[1] >= other[1] else other


def log_start_regress(facts: Facts) -> Iterator[Anomaly]:
    """A log start offset below one that was listed before."""
    for (topic, number), partition in facts.partitions.items():
        highest, since_last = 0, 0
        for since, until, start in partition.starts:
            if since > since_last and start < highest:
                what = f"the log began at {start}, after it had begun at {highest}"
                yield Anomaly("log start regressed", what, until, topic, number)
            if start > highest:
                highest, since_last = start, until


class _Progress:
    """The commits of one group in one partition."""

    def __init__(self) -> None:
        self.commits: list[tuple[Commit, int]] = []
        self.reads: list[tuple[CommittedRead, int]] = []


def committed_regress(facts: Facts) -> Iterator[Anomaly]:
    """A group's committed offset was read as a value that an acknowledged commit had already
    replaced.

    Commits of one generation only move forward here, so this is a regression.
    """
    places: dict[tuple[str, str, int], _Progress] = {}
    for commit in facts.commits:
        if commit.outcome != FAIL:
            for topic, number, offset in commit.offsets:
                key = commit.group, topic, number
                places.setdefault(key, _Progress()).commits.append((commit, offset))
    for read in facts.committed:
        for topic, number, offset in read.offsets:
            key = read.group, topic, number
            if key in places:
                places[key].reads.append((read, offset))
    for (group, topic, number), progress in places.items():
        for read, offset, latest in _stale(progress):
            what = f"group {group} had committed {latest}, but {offset} was found"
            yield Anomaly("committed regressed", what, read.at_ns, topic, number)


def _began_later(one: tuple[int, int, int], other: tuple[int, int, int]) -> tuple[int, int, int]:
    return one if one[1] >= other[1] else other


def _stale(progress: _Progress) -> Iterator[tuple[CommittedRead, int, int]]:
    """Yield (read, its result, the offset acknowledged before).

    A commit is replaced if another began after its end and had ended when the read began. A commit
    with an unknown end may take effect at any time, so it is never replaced.
    """
    ended = sorted(
        (commit.ended_ns, commit.invoked_ns, offset)
        for commit, offset in progress.commits
        if commit.outcome == OK
    )
    times = [until for until, _, _ in ended]
    latest = list(accumulate(ended, _began_later))
    began = sorted(progress.commits, key=lambda one: one[0].invoked_ns)
    valid_until: dict[int, int] = {}
    """Offset -> the end of the last commit of it that has begun."""
    place = 0
    for read, found in sorted(progress.reads, key=lambda one: one[0].at_ns):
        while place < len(began) and began[place][0].invoked_ns < read.at_ns:
            commit, offset = began[place]
            until = commit.ended_ns if commit.outcome == OK else NEVER_NS
            valid_until[offset] = max(until, valid_until.get(offset, 0))
            place += 1
        before = bisect_left(times, read.since_ns)
        if before == 0:
            if found >= 0 and found not in valid_until:
                yield read, found, -1
            continue
        _, last_began, last_offset = latest[before - 1]
        if valid_until.get(found, 0) < last_began:
            yield read, found, last_offset
