"""Loads the ledgers of a partition's chain.

Invariants: does not change the chain. A sealed ledger is loaded as its chain describes it; an open
one is recovered, which fences its writer on shared storage, and scanned.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.log.remote_copies import attach
from headrace.log.segment import Segment, producers_after, sealed_segment
from headrace.metadata.lost_offsets import is_given_up
from headrace.storage.ledger import LedgerId

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headrace.log.environment import Environment
    from headrace.log.producer_state import ProducerState
    from headrace.metadata.facts import PartitionFact


async def load_segments(
    fact: PartitionFact, ahead: Segment | None, environment: Environment, *, can_shrink: bool
) -> tuple[list[Segment], ProducerState]:
    """The segments of a chain, and the producer state at their end.

    `ahead`, if the chain names it, is this broker's own and empty: a recovery would seal it.
    `can_shrink`: a power loss may have lost acknowledged records (`flush.ms`).
    Raises DataCorrupt, and what storage raises.
    """
    store, now_ms = environment.store, environment.clock.now_ms()
    producers: ProducerState | None = None
    segments: list[Segment] = []
    for link in fact.ledgers:
        base = link.base_offset
        if segments:
            start, end = fact.log_start_offset, segments[-1].end_offset
            if is_given_up(fact, end, link.base_offset):
                start = link.base_offset
            base = segments[-1].base_after(link, start, can_shrink=can_shrink)
        if link.is_sealed:
            segments.append(sealed_segment(link))
            attach(link, environment.tier)
            # Its footer is more recent than a ledger before it whose seal failed.
            producers = None
            continue
        segment = Segment(LedgerId(link.ledger), base, link.leader_epoch)
        if producers is None:
            producers = await producers_after(segments, store, now_ms)
        if ahead is None or link.ledger != ahead.ledger:
            info = await store.recover(segment.ledger)
            producers = await segment.load_by_scan(store, info.end, producers, now_ms)
            segment.is_sealed = info.is_sealed
            if not info.is_sealed and link is not fact.ledgers[-1]:
                segment.footer = segment.footer_with(producers)
        segments.append(segment)
    if producers is None:
        producers = await producers_after(segments, store, now_ms)
    latest_ms = now_ms
    for segment in reversed(segments):  # nothing was appended to it after the next one was begun
        segment.last_append_ms = latest_ms
        if segment.first_append_ms >= 0:
            latest_ms = segment.first_append_ms
    return segments, producers


def appendable(
    segments: Sequence[Segment], producers: ProducerState, end_offset: int, leader_epoch: int
) -> Segment | None:
    """The last ledger, if it is open for appends; otherwise its footer is set for sealing."""
    active = segments[-1] if segments and not segments[-1].is_sealed else None
    if active is not None and (
        # Its tail was lost (`flush.ms`) below a log start that was kept: there would be a hole.
        active.end_offset < end_offset
        # All batches of a ledger have the same leader epoch.
        or active.leader_epoch != leader_epoch
    ):
        active.footer = active.footer_with(producers)
        return None
    return active
