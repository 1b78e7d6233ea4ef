"""What share groups did with their records, by group and topic, for metrics and the log.

Invariants: counts since this broker started, in memory; a line in the log for records that were
given up without a copy, at most once a minute for each group and topic.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from headrace.coordination.shares.commands import ACCEPT, RELEASE

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from headrace.coordination.shares.commands import Acquired, DeadLetter, Settlement
    from headrace.errors import HeadraceError
    from headrace.runtime.clock import Clock

log = logging.getLogger(__name__)

QUEUES_MAX: Final = 1_000
"""Groups and topics with figures; beyond, those unused for longest start again at 0."""
WARNING_INTERVAL_NS: Final = 60_000_000_000


@dataclass(slots=True)
class QueueCounts:
    """Records of one group in one topic."""

    delivered: int = 0
    acknowledged: int = 0
    filtered: int = 0
    """Acknowledged without a delivery, because the group or a receive does not select them."""
    released: int = 0
    timed_out: int = 0
    """Records whose lock expired."""
    given_up: int = 0
    """With or without a copy in a dead letter topic."""
    unreported: int = 0
    """Given up without a copy since the last line in the log."""
    warned_ns: int | None = None


class QueueFigures:
    """See the module."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._counts: OrderedDict[tuple[str, str], QueueCounts] = OrderedDict()

    def __iter__(self) -> Iterator[tuple[str, str, QueueCounts]]:
        """(group, topic, counts)."""
        for (group_id, topic), counts in self._counts.items():
            yield group_id, topic, counts

    def of(self, group_id: str, topic: str) -> QueueCounts:
        """The counts of one group in one topic."""
        key = group_id, topic
        counts = self._counts.get(key)
        if counts is None:
            counts = self._counts[key] = QueueCounts()
            if len(self._counts) > QUEUES_MAX:
                self._counts.popitem(last=False)
        else:
            self._counts.move_to_end(key)
        return counts

    def note_acquired(self, group_id: str, topic: str, acquired: Sequence[Acquired]) -> None:
        """These records were delivered."""
        counts = self.of(group_id, topic)
        counts.delivered += sum(last - first + 1 for first, last, _deliveries in acquired)

    def note_settled(
        self,
        group_id: str,
        topic: str,
        settlements: Sequence[Settlement],
        errors: Sequence[HeadraceError | None],
    ) -> None:
        """These settlements were decided."""
        counts = self.of(group_id, topic)
        for one, error in zip(settlements, errors, strict=True):
            if error is None and one.kind == ACCEPT:
                counts.acknowledged += one.last - one.first + 1
            elif error is None and one.kind == RELEASE:
                counts.released += one.last - one.first + 1

    def note_given_up(self, topic: str, partition: int, letter: DeadLetter) -> None:
        """Records were given up."""
        counts = self.of(letter.group_id, topic)
        counts.given_up += letter.last - letter.first + 1
        if letter.has_copy:
            return
        counts.unreported += letter.last - letter.first + 1
        now_ns = self._clock.now_ns()
        if counts.warned_ns is not None and now_ns - counts.warned_ns < WARNING_INTERVAL_NS:
            return
        log.warning(
            "share group %s gave up %d records of %s, most recently offset %d of partition %d "
            "after %d deliveries (%s): they are not delivered again, and no copies are kept; to"
            " keep copies, set errors.deadletterqueue.topic.name for the group",
            letter.group_id,
            counts.unreported,
            topic,
            letter.last,
            partition,
            letter.deliveries,
            letter.reason,
        )
        counts.warned_ns, counts.unreported = now_ns, 0
