"""A view of the sealed part of a log that another broker owns.

Invariants: reads sealed ledgers, and changes and fences nothing. What is sealed does not change; it
may be deleted meanwhile, and then a read fails.
"""

from __future__ import annotations

from itertools import takewhile
from typing import TYPE_CHECKING

from headrace.log.remote_copies import attach
from headrace.log.segment import sealed_segment

if TYPE_CHECKING:
    from headrace.log.environment import Environment
    from headrace.log.partition_log import PartitionLog
    from headrace.metadata.facts import PartitionFact


def show_sealed(view: PartitionLog, fact: PartitionFact, environment: Environment) -> None:
    """Make the sealed ledgers at the beginning of the chain `fact` readable in `view`: its high
    watermark is where they end. The view must be new, and never be served."""
    for link in takewhile(lambda link: link.is_sealed, fact.ledgers):
        attach(link, environment.tier)
        view.segments.append(sealed_segment(link))
    end_offset = view.segments[-1].end_offset if view.segments else 0
    view.log_start_offset = start = fact.log_start_offset
    view.visibility.reset(max(end_offset, start), 0, start, ())
