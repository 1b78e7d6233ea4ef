"""Bounds of what delayed records and half messages take of a broker's memory, and shares of users.

Invariants: as `kept_state`. Who sent a record is not stored, nor kept with it, which would double
its size: of each user and partition it is known how many bytes it has added in this tenure, and
until when they are needed at most, in steps of up to a quarter of the delay. What is cancelled or
delivered early is taken from all users of a partition alike. What was there when the partition was
taken over counts for nobody.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

from headrace.broker.coordinators.kept_state import Room, counted_by
from headrace.broker.security.tenant_shares import NOBODY, Held, Holder
from headrace.coordination.timers.halves import HALF_BYTES
from headrace.coordination.timers.schedule import ENTRY_BYTES, PART_BYTES
from headrace.errors import PolicyViolation
from headrace.records.tenant_names import tenant_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from headrace.broker.timers.hosted_timers import HostedTimers
    from headrace.coordination.timers.commands import NewTimer
    from headrace.runtime.clock import Clock

STEP_BITS: Final = 3
STEP_MS_MIN: Final = 8_192
TIMES_MAX: Final = 512
"""Of what one user has added to a partition; a few in each power of two of the delay are needed."""
HALF_MS: Final = 24 * 3_600_000
"""For so long a half message counts for who sent it: it may be settled before."""
AT_ONCE: Final = 100
"""Partitions that are looked at in one step."""


class Added:
    """What users have added to the timers of one partition."""

    def __init__(self) -> None:
        self._by_user: dict[str, Counter[int]] = {}
        """Bytes, by the time from which on they are not needed."""

    def note(self, user: str, sizes: Iterable[tuple[int, int]], now_ms: int) -> None:
        """A user has added (due time, bytes)."""
        until = self._by_user.setdefault(user, Counter())
        if len(until) >= TIMES_MAX:  # until there is much, nothing asks `by_user`
            _drop_past(until, now_ms)
        for due_ms, size in sizes:
            step = max(1 << max((due_ms - now_ms).bit_length() - STEP_BITS, 0), STEP_MS_MIN)
            until[(due_ms // step + 1) * step] += size

    def by_user(self, total: int, now_ms: int) -> dict[str, int]:
        """How much each user has of what is there."""
        for user, until in list(self._by_user.items()):
            _drop_past(until, now_ms)
            if not until:
                del self._by_user[user]
        sums = {user: until.total() for user, until in self._by_user.items()}
        added = max(sum(sums.values()), 1)
        return {user: size * min(total, added) // added for user, size in sums.items()}


def _drop_past(until: Counter[int], now_ms: int) -> None:
    for end_ms in [one for one in until if one <= now_ms]:
        del until[end_ms]


class TimerRoom:
    """See the module."""

    def __init__(
        self, most: Callable[[], int], hosted: Callable[[], Iterable[HostedTimers]], clock: Clock
    ) -> None:
        """`most`: bytes; `hosted`: the timers of all partitions of this broker."""
        self._hosted = hosted
        self._clock = clock
        self._room = Room("bytes of delayed records", most, counted_by(self._count), clock.now_ns)

    async def take(
        self, hosted: HostedTimers, user: str, timers: Sequence[NewTimer]
    ) -> Callable[[bool], None]:
        """Take room for what a user adds; returns what to call with whether it was added. Raises
        PolicyViolation."""
        holder = Holder(tenant_of(hosted.topic.name), user)
        size = self._size(hosted, timers)
        if excess := await self._room.take(holder, size):
            raise PolicyViolation(
                f"{excess} (headrace.delayed.max.bytes): the batch is not stored; send it when"
                " others are due, with a shorter delay, or raise the setting"
            )

        def ended(is_added: bool) -> None:
            if not is_added:
                self._room.add(holder, -size)
            elif user:
                now_ms, each = self._clock.now_ms(), size // len(timers)
                ends = (now_ms + HALF_MS if timer.group else timer.due_ms for timer in timers)
                hosted.added.note(user, ((end_ms, each) for end_ms in ends), now_ms)

        return ended

    @staticmethod
    def _size(hosted: HostedTimers, timers: Sequence[NewTimer]) -> int:
        due = [timer.due_ms for timer in timers if not timer.group]
        state = hosted.state
        if state is None:  # still being read
            size = (ENTRY_BYTES + PART_BYTES) * len(due)
        else:
            size = state.schedule.size_with(due)
        return size + HALF_BYTES * (len(timers) - len(due))

    def _count(self, held: Held) -> Iterator[None]:
        now_ms = self._clock.now_ms()
        for count, hosted in enumerate(self._hosted()):
            state = hosted.state
            if state is not None:
                tenant, left = tenant_of(hosted.topic.name), state.size_bytes
                for user, size in hosted.added.by_user(left, now_ms).items():
                    held.add(Holder(tenant, user), size)
                    left -= size
                held.add(Holder(tenant, NOBODY), left)
            if count % AT_ONCE == 0:
                yield
