"""The delivery states of the records between a share partition's start and end offset.

Invariants: runs of equal state are adjacent, do not overlap and cover [start, end) exactly; the
first run is never terminal, since the start offset moves past finished records. Knows no groups,
sessions or keys, and no time beyond the numbers passed in.

How it works: two parallel lists, ordered by first offset, hold the runs; a change of a range splits
at its two ends and merges with its neighbours, so a batch that is acknowledged as a whole costs one
run whatever its size. Offsets are found by bisection.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

AVAILABLE: Final = 0
"""May be delivered, from `at_ms` on. The numbers are Kafka's. Do not change: stored."""
ACQUIRED: Final = 1
"""Delivered to `owner`, whose lock ends at `at_ms`."""
ACKNOWLEDGED: Final = 2
ARCHIVING: Final = 3
"""Given up; a copy is being written to the dead letter topic."""
ARCHIVED: Final = 4

STATE_NAMES: Final = ("available", "acquired", "acknowledged", "archiving", "archived")


class OffsetRun:
    """Consecutive offsets in one state.

    `at_ms`: end of the lock (acquired), earliest next delivery (available; 0: at once), or when it
    was taken back before its first delivery (archived; 0: it was not).
    """

    __slots__ = ("at_ms", "count", "first", "last", "owner", "state")

    def __init__(
        self, first: int, last: int, state: int, count: int, owner: str = "", at_ms: int = 0
    ) -> None:
        self.first = first
        self.last = last
        self.state = state
        self.count = count
        self.owner = owner
        self.at_ms = at_ms

    @property
    def is_terminal(self) -> bool:
        """Whether its records are finished."""
        return self.state == ACKNOWLEDGED or self.state == ARCHIVED

    @property
    def is_taken_back(self) -> bool:
        """Whether its records were taken back before their first delivery."""
        return self.state == ARCHIVED and self.at_ms > 0

    def continues(self, other: OffsetRun) -> bool:
        """Whether `other`, which follows, has the same state in every relevant respect."""
        if self.is_terminal and other.is_terminal:
            # Otherwise the reason does not matter: the start moves past both.
            return self.at_ms == other.at_ms
        return (
            self.state == other.state
            and self.count == other.count
            and self.at_ms == other.at_ms
            and self.owner == other.owner
        )

    def __repr__(self) -> str:
        """For test failures."""
        return f"{self.first}-{self.last} {STATE_NAMES[self.state]} x{self.count} @{self.at_ms}"


class Window:
    """The runs of one share partition."""

    __slots__ = ("_firsts", "_runs", "acquired_records", "end", "finished_records", "start")

    def __init__(self, start: int) -> None:
        self.start = start
        """The first unfinished offset, or the end."""
        self.end = start
        """The first offset that was never delivered."""
        self.acquired_records = 0
        self.finished_records = 0
        """Terminal records between start and end, which delay nothing but the window."""
        self._firsts: list[int] = []
        self._runs: list[OffsetRun] = []

    def __iter__(self) -> Iterator[OffsetRun]:
        """All runs, in order of offset."""
        return iter(self._runs)

    def __len__(self) -> int:
        """The number of runs, which determines memory and scan cost."""
        return len(self._runs)

    @property
    def span(self) -> int:
        """Offsets between start and end, including finished ones."""
        return self.end - self.start

    def run_at(self, offset: int) -> OffsetRun | None:
        """The run that contains `offset`."""
        if not self.start <= offset < self.end:
            return None
        return self._runs[bisect_right(self._firsts, offset) - 1]

    def between(self, first: int, last: int) -> list[tuple[int, int, OffsetRun]]:
        """(first, last, run) of each part of a run inside [first, last], clipped to it."""
        pieces: list[tuple[int, int, OffsetRun]] = []
        if last < max(first, self.start) or first >= self.end:
            return pieces
        at = max(bisect_right(self._firsts, first) - 1, 0)
        while at < len(self._runs):
            run = self._runs[at]
            if run.first > last:
                break
            pieces.append((max(run.first, first), min(run.last, last), run))
            at += 1
        return pieces

    def each(self, first: int, last: int) -> Iterator[tuple[int, int, OffsetRun]]:
        """As `between`, lazily, for callers that rarely need all; the window must not change
        meanwhile."""
        if last < max(first, self.start) or first >= self.end:
            return
        runs = self._runs
        for at in range(max(bisect_right(self._firsts, first) - 1, 0), len(runs)):
            run = runs[at]
            if run.first > last:
                return
            yield max(run.first, first), min(run.last, last), run

    def validate(self) -> None:
        """Assert the invariants of the module."""
        end, acquired, finished = self.start, 0, 0
        former: OffsetRun | None = None
        for first, run in zip(self._firsts, self._runs, strict=True):
            assert first == run.first == end <= run.last, f"{former!r} and {run!r} do not adjoin"
            assert former is None or not former.continues(run), f"{former!r} includes {run!r}"
            end, former = run.last + 1, run
            acquired += (run.last - run.first + 1) * (run.state == ACQUIRED)
            finished += (run.last - run.first + 1) * run.is_terminal
        assert end == self.end, "the runs end before the window"
        assert (acquired, finished) == (self.acquired_records, self.finished_records)
        assert not self._runs or not self._runs[0].is_terminal, "the start has stopped"

    # --- changes -----------------------------------------------------------------------------

    def set(
        self, first: int, last: int, state: int, count: int, owner: str = "", at_ms: int = 0
    ) -> None:
        """Set the state of [first, last]; the range may begin before the start, extend past the
        end, or leave a hole at the end, which becomes available. The start moves if it can."""
        first = max(first, self.start)
        if last < first:
            return
        if first > self.end:
            self._append(OffsetRun(self.end, first - 1, AVAILABLE, 0))
        if last >= self.end:
            if first < self.end:
                self._replace(first, self.end - 1, state, count, owner, at_ms)
            self._append(OffsetRun(max(first, self.end), last, state, count, owner, at_ms))
        else:
            self._replace(first, last, state, count, owner, at_ms)
        self._advance()

    def lock(self, first: int, last: int, count: int, owner: str, until_ms: int) -> None:
        """[first, last] is delivered for the `count`-th time, or its lock is renewed."""
        assert first <= last, "a delivery has records"
        assert count > 0, "a delivery is counted"
        assert first >= self.start, "what ended before the start is not delivered again"
        assert not any(run.is_terminal for _first, _last, run in self.each(first, last)), (
            "what has ended is not delivered again"
        )
        self.set(first, last, ACQUIRED, count, owner, until_ms)
        assert last < self.end, "the window holds what is locked"

    def skip_to(self, offset: int) -> None:
        """Drop everything before `offset`: it is deleted, or skipped on purpose."""
        if offset <= self.start:
            return
        if offset >= self.end:
            self._firsts.clear()
            self._runs.clear()
            self.acquired_records = self.finished_records = 0
            self.start = self.end = offset
            return
        self._replace(self.start, offset - 1, ARCHIVED, 0, "", 0)
        self._advance()

    def _append(self, run: OffsetRun) -> None:
        self._count(run, 1)
        self.end = run.last + 1
        if self._runs and self._runs[-1].continues(run):
            self._runs[-1].last = run.last
        else:
            self._firsts.append(run.first)
            self._runs.append(run)

    def _replace(
        self, first: int, last: int, state: int, count: int, owner: str, at_ms: int
    ) -> None:
        low = self._boundary(first)
        high = self._boundary(last + 1)
        for run in self._runs[low:high]:
            self._count(run, -1)
        run = OffsetRun(first, last, state, count, owner, at_ms)
        self._count(run, 1)
        if low > 0 and self._runs[low - 1].continues(run):
            low -= 1
            run.first = self._runs[low].first
        if high < len(self._runs) and run.continues(self._runs[high]):
            run.last = self._runs[high].last
            high += 1
        self._firsts[low:high] = [run.first]
        self._runs[low:high] = [run]

    def _boundary(self, offset: int) -> int:
        """The index of the run that begins at `offset`, after splitting the one that contains
        it."""
        if offset >= self.end:
            return len(self._runs)
        at = bisect_right(self._firsts, offset) - 1
        run = self._runs[at]
        if run.first == offset:
            return at
        rest = OffsetRun(offset, run.last, run.state, run.count, run.owner, run.at_ms)
        run.last = offset - 1
        self._firsts.insert(at + 1, offset)
        self._runs.insert(at + 1, rest)
        return at + 1

    def _advance(self) -> None:
        """Move the start past finished records."""
        finished = 0
        for run in self._runs:
            if not run.is_terminal:
                break
            finished += 1
            self._count(run, -1)
        if finished:
            del self._firsts[:finished]
            del self._runs[:finished]
            self.start = self._firsts[0] if self._firsts else self.end

    def _count(self, run: OffsetRun, sign: int) -> None:
        records = sign * (run.last - run.first + 1)
        if run.state == ACQUIRED:
            self.acquired_records += records
        elif run.is_terminal:
            self.finished_records += records
