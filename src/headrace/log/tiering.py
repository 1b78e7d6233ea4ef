"""Which sealed ledgers of a partition go to object storage, and which local copies then go.

Invariants: decisions and their notes in the chain; the bytes are the tier's business. What
is done is noted in the chain before anything relies on it: *offloaded* once the copy has been
written and read back, *local deleted* before the local bytes go. So a crash between two steps
leaves at most a copy that nothing refers to, on one side or the other, and both are collected.

The newest sealed ledger that has a footer keeps its local copy, and so do those behind it, which
were recovered: the footer holds the producers' states, so a partition opens and takes appends while
object storage is away.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.log.sealing import let_go
from headrace.storage.ledger import LedgerId

if TYPE_CHECKING:
    from headrace.log.partition_log import PartitionLog
    from headrace.log.segment import Segment
    from headrace.metadata.facts import LedgerLink
    from headrace.storage.ledger import LedgerStore
    from headrace.storage.tiering.tier import Tier

SAME_AS_RETENTION = -2
"""Of `local.retention.ms` and `local.retention.bytes`, as Kafka has it."""


def attach(link: LedgerLink, tier: Tier | None) -> None:
    """Tell the tier of a ledger that the chain calls offloaded."""
    if tier is not None and link.offloaded_ms is not None:
        is_local = link.local_deleted_ms is None
        tier.attach(LedgerId(link.ledger), link.size_bytes or 0, is_local=is_local)


def discard(gone: list[Segment], tier: Tier | None, store: LedgerStore) -> None:
    """Let go of ledgers that the chain does not name any more, and of their copies.

    Their own bytes stay: a broker that was stopped for a while might still believe in them.
    """
    let_go(gone, store)
    for segment in gone:
        if tier is not None and segment.is_offloaded:
            tier.discard(segment.ledger)


# --- what is due ---------------------------------------------------------------------------------


def to_offload(log: PartitionLog) -> list[Segment]:
    """Sealed ledgers that hold records and have no copy yet, from old to new.

    Of a compacted topic those that compaction has seen: it would replace the others soon.
    """
    if not log.config.is_remote_enabled:
        return []
    # Sealed for the chain, too: it learns of it last.
    fact = log.upkeep.chain.fact
    sealed = {link.ledger for link in fact.ledgers if link.is_sealed}
    end_offset = (fact.cleaned_offset or 0) if log.config.is_compacted else log.end_offset
    return [
        segment
        for segment in log.segments
        if segment.end_position
        and not segment.is_offloaded
        and segment.ledger in sealed
        and segment.end_offset <= end_offset
    ]


def to_drop(log: PartitionLog, now_ms: int) -> list[Segment]:
    """Offloaded ledgers whose local copies local retention no longer keeps, from old to new."""
    config = log.config
    if not config.is_remote_enabled:
        return []
    keep_ms, keep_bytes = config.local_retention_ms, config.local_retention_bytes
    keep_ms = config.retention_ms if keep_ms == SAME_AS_RETENTION else keep_ms
    keep_bytes = config.retention_bytes if keep_bytes == SAME_AS_RETENTION else keep_bytes
    excess = local_size_bytes(log) - keep_bytes
    due: list[Segment] = []
    for segment in log.closed[:-1]:
        if not segment.is_local or not segment.end_position:
            continue
        is_old = keep_ms >= 0 and segment.newest_ms < now_ms - keep_ms
        is_excess = keep_bytes >= 0 and excess >= segment.end_position
        if not segment.is_offloaded or not (is_old or is_excess):
            break
        excess -= segment.end_position
        due.append(segment)
    return due


# --- what is so ----------------------------------------------------------------------------------


def local_size_bytes(log: PartitionLog) -> int:
    """Bytes of the ledgers that are here, whether or not they are offloaded too."""
    return sum(segment.end_position for segment in log.segments if segment.is_local)


def local_start_offset(log: PartitionLog) -> int:
    """The first offset that is read without object storage (ListOffsets -4, KIP-405)."""
    for segment in log.segments:
        if segment.is_local and segment.end_offset > log.log_start_offset:
            return max(segment.base_offset, log.log_start_offset)
    return log.high_watermark


def last_offloaded_offset(log: PartitionLog) -> int:
    """The last offset that object storage holds, -1 for none (ListOffsets -5, KIP-1005)."""
    return max((s.end_offset - 1 for s in log.segments if s.is_offloaded), default=-1)


def first_pending_offset(log: PartitionLog) -> int:
    """The first offset that is not offloaded yet; -1 where none ever is (ListOffsets -6)."""
    if not log.config.is_remote_enabled:
        return -1
    return max(last_offloaded_offset(log) + 1, log.log_start_offset)


# --- doing it ------------------------------------------------------------------------------------


async def offload(log: PartitionLog, segment: Segment, tier: Tier, now_ms: int) -> int:
    """Copy one sealed ledger to object storage and note it; its bytes, 0 if it went meanwhile.

    Raises StorageUnavailable, LedgerUnknown, DataCorrupt, and what metadata raises.
    """
    size = await tier.offload(segment.ledger)
    noted: bool | None = None

    async def note() -> None:
        nonlocal noted
        noted = await log.upkeep.chain.offloaded(segment.ledger, now_ms)
        if noted:
            tier.attach(segment.ledger, size, is_local=True)
            segment.is_offloaded = True

    await log.upkeep.do(note(), "note of an offload")
    if noted is False:  # trimmed or deleted while it was copied; None: the broker stops
        tier.discard(segment.ledger)
    return size if noted else 0


async def _not_needed_to_open(log: PartitionLog, store: LedgerStore) -> list[Segment]:
    """The ledgers before the newest that has a footer; one that was recovered has none."""
    closed = log.closed
    for at in range(len(closed) - 1, 0, -1):
        if not closed[at].is_local:
            break
        if closed[at].is_sealed and (await store.recover(closed[at].ledger)).footer is not None:
            return closed[:at]
    return []


async def drop_local(log: PartitionLog, store: LedgerStore, tier: Tier, now_ms: int) -> int:
    """Delete the local copies that are due; how many ledgers. Raises like `offload`."""
    if not to_drop(log, now_ms):
        return 0
    free = await _not_needed_to_open(log, store)
    for segment in to_drop(log, now_ms):
        if segment in free and not await tier.is_whole(segment.ledger):
            await tier.offload(segment.ledger)  # somebody removed the copy: make it anew
    if not any(segment in free for segment in to_drop(log, now_ms)):
        return 0
    count = 0

    async def step() -> None:
        nonlocal count
        # Again: retention may have been faster.
        due = [segment for segment in to_drop(log, now_ms) if segment in free]
        await log.upkeep.chain.local_deleted({segment.ledger for segment in due}, now_ms)
        for segment in due:
            segment.is_local = False
        for segment in due:
            await tier.drop_local(segment.ledger)
            count += 1

    await log.upkeep.do(step(), "drop of local copies")
    return count
