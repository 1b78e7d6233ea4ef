"""Attempts: receives that a member may repeat, to get the same records again.

Invariants: volatile and bounded; the window knows who holds which record, this index only where to
look. A member is one attempt, so what it holds is what the attempt delivered and nothing has
settled.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from headrace.coordination.shares.volatile_records import Locked
from headrace.coordination.shares.window import ACQUIRED

if TYPE_CHECKING:
    from headrace.coordination.shares.commands import RepeatCommand
    from headrace.coordination.shares.share_group import ShareGroup

ATTEMPTS_MAX: Final = 10_000
"""Of one group on one partition; beyond, the oldest cannot be repeated any more."""


class _Span(NamedTuple):
    """Where the records of an attempt lie."""

    first: int
    last: int
    until_ms: int


class Attempts:
    """See the module."""

    __slots__ = ("_spans",)

    def __init__(self) -> None:
        self._spans: dict[str, _Span] = {}
        """By member, oldest first."""

    def __len__(self) -> int:
        """The number of attempts, which determines memory."""
        return len(self._spans)

    def note(self, locked: Locked) -> None:
        """A member has received records, or renewed its lock on them."""
        span = self._spans.get(locked.owner)
        if span is not None:
            first, last = min(span.first, locked.first), max(span.last, locked.last)
            self._spans[locked.owner] = _Span(first, last, max(span.until_ms, locked.until_ms))
        elif locked.is_attempt:
            self._spans[locked.owner] = _Span(locked.first, locked.last, locked.until_ms)
            if len(self._spans) > ATTEMPTS_MAX:
                del self._spans[next(iter(self._spans))]

    def pass_time(self, now_ms: int) -> None:
        """Forget the oldest attempts if their locks have ended."""
        while self._spans:
            member, span = next(iter(self._spans.items()))
            if span.until_ms > now_ms:
                return
            del self._spans[member]

    def span_of(self, member_id: str) -> tuple[int, int] | None:
        """(first, last) offset between which the member's records lie; None: it has none."""
        span = self._spans.get(member_id)
        return None if span is None else (span.first, span.last)


def decide_repeat(group: ShareGroup, command: RepeatCommand, now_ms: int) -> list[Locked]:
    """The member's deliveries with new locks, in order of offset."""
    span = group.attempts.span_of(command.member_id)
    if span is None:
        return []
    until_ms = group.lock_until_ms(command.lock_ms, now_ms)
    return [
        Locked(group.number, first, last, run.count, run.owner, until_ms)
        for first, last, run in group.window.between(*span)
        if run.state == ACQUIRED and run.owner == command.member_id and run.at_ms > now_ms
    ]
