"""Checks a history: runs every checker over the same facts, and returns one verdict.

Invariants: checkers are pure functions from facts to anomalies, each in linear time.
`tests/property/verify` plants every kind of anomaly, because an untested checker proves nothing.
"""

from __future__ import annotations

import gc
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from headrace_verify.checkers.epochs import epoch_regress, two_acknowledging_owners
from headrace_verify.checkers.facts import Anomaly, Facts, gather
from headrace_verify.checkers.ownership import (
    commits_of_former_owners,
    commits_of_old_generations,
    two_owners,
)
from headrace_verify.checkers.polls import REVIVED, poll_steps, precommitted_reads
from headrace_verify.checkers.progress import (
    committed_regress,
    high_watermark_regress,
    log_start_regress,
)
from headrace_verify.checkers.share_ends import share_ends
from headrace_verify.checkers.shares import share_deliveries
from headrace_verify.checkers.transactions import (
    copies,
    copies_in_order,
    dirty_cycles,
    dirty_reads,
    torn_transactions,
    zombie_commits,
)
from headrace_verify.checkers.values import (
    aborted_reads,
    above_the_high_watermark,
    changed_bytes,
    duplicates,
    early,
    inconsistent_offsets,
    lost_writes,
    misplaced,
    non_monotonic_sends,
    strangers,
    unseen,
    unseen_by_group,
    vanished,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from headrace_verify.history import Event

CHECKERS: tuple[Callable[[Facts], Iterator[Anomaly]], ...] = (
    inconsistent_offsets,
    duplicates,
    misplaced,
    lost_writes,
    unseen,
    unseen_by_group,
    vanished,
    strangers,
    changed_bytes,
    early,
    aborted_reads,
    non_monotonic_sends,
    above_the_high_watermark,
    poll_steps,
    precommitted_reads,
    high_watermark_regress,
    log_start_regress,
    committed_regress,
    two_owners,
    commits_of_former_owners,
    commits_of_old_generations,
    epoch_regress,
    two_acknowledging_owners,
    torn_transactions,
    dirty_reads,
    copies,
    copies_in_order,
    zombie_commits,
    dirty_cycles,
    share_deliveries,
    share_ends,
)
KEPT = 20
"""How many anomalies of one kind are kept in full; the rest is only counted."""


@dataclass(slots=True)
class Verdict:
    """The checkers' results."""

    counts: dict[str, int] = field(default_factory=dict)
    """Kind -> how many."""
    anomalies: list[Anomaly] = field(default_factory=list)
    excused: dict[str, int] = field(default_factory=dict)
    """Known client behaviour -> how often it occurred."""

    @property
    def is_clean(self) -> bool:
        """Whether no anomaly was found."""
        return not self.counts

    def as_json(self) -> dict[str, Any]:
        """Convert to plain values."""
        return {
            "counts": self.counts,
            "excused": self.excused,
            "anomalies": [anomaly._asdict() for anomaly in self.anomalies],
        }


def check_history(facts: Facts) -> Verdict:
    """Run every checker."""
    verdict = Verdict()
    for checker in CHECKERS:
        for anomaly in checker(facts):
            counts = verdict.excused if anomaly.kind == REVIVED else verdict.counts
            count = counts[anomaly.kind] = counts.get(anomaly.kind, 0) + 1
            if counts is verdict.counts and count <= KEPT:
                verdict.anomalies.append(anomaly)
    return verdict


def check_events(events: Iterable[Event]) -> Verdict:
    """Gather the facts, then run every checker."""
    with without_collector():
        return check_history(gather(events))


@contextmanager
def without_collector() -> Iterator[None]:
    """Facts are a tree of many small objects: cycle collection would take half of the time."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
