"""Gaps in a partition's chain: the offsets of lost ledgers that an operator has given up.

Invariants: pure. A gap between ledgers that is not recorded here is corruption.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Container

    from headrace.metadata.facts import LedgerLink, PartitionFact


def is_given_up(fact: PartitionFact, offset: int, end_offset: int) -> bool:
    """Whether exactly this gap is recorded."""
    return f"{offset}-{end_offset}" in (fact.lost_offsets or "").split(",")


def without_lost(fact: PartitionFact, lost: Container[int]) -> PartitionFact:
    """The chain without these sealed ledgers, whose offsets become gaps.

    If nothing follows them, no ledger says where the log ends: then it begins after them, and what
    precedes is given up, too.
    """
    links: list[LedgerLink] = []
    gaps = (fact.lost_offsets or "").split(",")
    end, gap = fact.log_start_offset, -1
    for link in fact.ledgers:
        if link.ledger in lost:
            gap = link.base_offset if gap < 0 else gap
            end = max(end, link.end_offset or 0)
            continue
        if gap >= 0:
            gaps.append(f"{gap}-{link.base_offset}")
        links, gap = [*links, link], -1
    if gap >= 0:
        return replace(fact, ledgers=[], log_start_offset=end)
    return replace(fact, ledgers=links, lost_offsets=",".join(filter(None, gaps)) or None)
