"""The half messages of one partition: pending, being checked back, settled.

Invariants: holds what identifies a message, never its bytes; the numbers of pending messages and of
outcomes are bounded. Each pending message has one live entry in the heap of check-backs. The
machine's `decide` only reads; `keep`, `check`, `settle` and `take_checks` change state.
"""

from __future__ import annotations

from collections import deque
from heapq import heappop, heappush
from itertools import islice
from typing import TYPE_CHECKING, Final

from headrace.coordination.timers.commands import Half

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from headrace.coordination.timers.config import HalfConfig
    from headrace.coordination.timers.state_records import Settled

HALVES_MAX: Final = 20_000
"""Pending in one partition."""
HALF_BYTES: Final = 850
"""Of memory, of a pending one."""
SETTLED_AT_ONCE: Final = 500
"""Messages with the same id that one command settles, so that its records fit into a batch."""
OUTCOMES_MAX: Final = 10_000
"""Kept for the audit of one partition; the oldest are dropped first."""


class Halves:
    """See the module."""

    def __init__(self, config: HalfConfig) -> None:
        self.config = config
        self.by_number: dict[int, Half] = {}
        self.outcomes: deque[Settled] = deque()
        self._numbers: dict[str, dict[int, None]] = {}
        """Of pending messages, by message id: a producer may send an id more than once."""
        self._settled: dict[int, Settled] = {}
        self._settled_ids: dict[str, int] = {}
        self._checks: list[tuple[int, int]] = []
        self._asked: dict[str, dict[int, None]] = {}
        """Producer group -> messages whose check-back no producer has taken."""

    def __len__(self) -> int:
        return len(self.by_number)

    # --- queries -----------------------------------------------------------------------------

    def find(self, number: int, message_id: str) -> list[Half]:
        """The pending message with this number, or those with this id if the number is -1, oldest
        first, at most SETTLED_AT_ONCE."""
        numbers: Iterable[int] = (number,) if number >= 0 else self._numbers.get(message_id, ())
        found = (self.by_number[one] for one in numbers if one in self.by_number)
        return list(islice(found, SETTLED_AT_ONCE))

    def count(self, number: int, message_id: str) -> int:
        """How many `find` would return without its bound."""
        if number >= 0:
            return int(number in self.by_number)
        return len(self._numbers.get(message_id, ()))

    def outcome(self, number: int, message_id: str) -> Settled | None:
        """The outcome of a message, as long as it is kept; of an id, the newest one."""
        if number < 0:
            number = self._settled_ids.get(message_id, -1)
        return self._settled.get(number)

    def first_check_ms(self) -> int | None:
        """When the next message is due for a check-back; may be early."""
        return self._checks[0][0] if self._checks else None

    def due(self, now_ms: int, count_max: int) -> list[Half]:
        """Messages whose check-back is due, earliest first, about `count_max` of them."""
        heap, found, places = self._checks, dict[int, Half](), [0]
        while places and len(found) < count_max:
            place = places.pop()
            if place < len(heap) and heap[place][0] <= now_ms:
                at_ms, number = heap[place]
                half = self.by_number.get(number)
                if half is not None and half.next_check_ms == at_ms:
                    found[number] = half
                places += (2 * place + 1, 2 * place + 2)
        return [found[number] for number in sorted(found)]

    def asked(self, group: str, count_max: int) -> list[Half]:
        """Messages that are waiting for a producer of the group to poll."""
        numbers = list(self._asked.get(group, ()))[:count_max]
        return [self.by_number[number] for number in numbers]

    def asked_groups(self) -> Iterable[str]:
        """The producer groups of such messages."""
        return self._asked.keys()

    def expired(self, now_ms: int) -> bool:
        """Whether an outcome has exceeded the audit period."""
        return bool(self.outcomes) and self.outcomes[0].at_ms < now_ms - self.config.audit_ms

    def saved(self) -> Iterator[Half]:
        """All pending messages, by number."""
        for number in sorted(self.by_number):
            yield self.by_number[number]

    def validate(self) -> None:
        """Assert the invariants: each pending message has its check-back and is found by its id."""
        checks = {*self._checks}
        named = 0
        for number, half in self.by_number.items():
            assert half.number == number
            assert (half.next_check_ms, number) in checks, "it would never be checked back"
            if half.message_id:
                named += 1
                assert number in self._numbers[half.message_id]
        assert named == sum(map(len, self._numbers.values()))
        asked = [number for numbers in self._asked.values() for number in numbers]
        assert all(number in self.by_number for number in asked), "one asked about is not pending"
        assert len(self.outcomes) == len(self._settled) <= OUTCOMES_MAX

    # --- changes -----------------------------------------------------------------------------

    def keep(self, half: Half) -> None:
        """Add a pending message."""
        self.by_number[half.number] = half
        if half.message_id:
            self._numbers.setdefault(half.message_id, {})[half.number] = None
        heappush(self._checks, (half.next_check_ms, half.number))

    def check(self, number: int, next_ms: int) -> None:
        """The message's producer group is being checked back."""
        half = self.by_number.get(number)
        if half is None:
            return
        half.checks += 1
        half.next_check_ms = next_ms
        heappush(self._checks, (next_ms, number))
        self._asked.setdefault(half.group, {})[number] = None

    def take_checks(self, group: str, numbers: tuple[int, ...]) -> None:
        """A producer has taken these check-backs."""
        asked = self._asked.get(group, {})
        for number in numbers:
            asked.pop(number, None)
        if not asked:
            self._asked.pop(group, None)

    def settle(self, settled: Settled) -> Half | None:
        """Record the outcome; returns the message if it was pending."""
        half = self.by_number.pop(settled.number, None)
        if half is not None:
            same_id = self._numbers.get(half.message_id, {})
            same_id.pop(half.number, None)
            if not same_id:
                self._numbers.pop(half.message_id, None)
            self.take_checks(half.group, (half.number,))
        if settled.number not in self._settled:
            self.outcomes.append(settled)
            self._settled[settled.number] = settled
            if settled.message_id:
                self._settled_ids[settled.message_id] = settled.number
        while len(self.outcomes) > OUTCOMES_MAX:
            self._forget_oldest()
        return half

    def pass_time(self, now_ms: int) -> None:
        """Drop expired outcomes and stale heap entries."""
        while self.expired(now_ms):
            self._forget_oldest()
        while self._checks:
            at_ms, number = self._checks[0]
            half = self.by_number.get(number)
            if half is not None and half.next_check_ms == at_ms:
                break
            heappop(self._checks)

    def _forget_oldest(self) -> None:
        oldest = self.outcomes.popleft()
        self._settled.pop(oldest.number, None)
        if self._settled_ids.get(oldest.message_id) == oldest.number:
            del self._settled_ids[oldest.message_id]
