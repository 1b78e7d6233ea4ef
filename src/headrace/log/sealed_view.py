"""A view of the sealed part of a log that another broker owns.

Invariants: reads the chain and sealed ledgers, and changes and fences nothing. What is sealed does
not change; it may be deleted meanwhile, and then a read fails.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.log.segment import sealed_segment
from headrace.log.tiering import attach

if TYPE_CHECKING:
    from headrace.log.environment import Environment
    from headrace.log.partition_log import PartitionLog


async def open_sealed(view: PartitionLog, environment: Environment) -> None:
    """Make the sealed ledgers at the beginning of the chain readable in `view`: its high watermark
    is where they end. The view must be new, and never be served.

    Raises ChainMissing, MetadataUnavailable.
    """
    fact = await view.lifecycle_host.chain.load()
    for link in fact.ledgers:
        if not link.is_sealed:
            break
        attach(link, environment.tier)
        view.segments.append(sealed_segment(link))
    last = view.segments[-1] if view.segments else None
    view.log_start_offset = fact.log_start_offset
    end_offset = fact.log_start_offset if last is None else last.end_offset
    end_position = 0 if last is None else last.end_position
    view.end_offset = max(end_offset, fact.log_start_offset)
    view.visibility.reset(view.end_offset, end_position, fact.log_start_offset, ())
