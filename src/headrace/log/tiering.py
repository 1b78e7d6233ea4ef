"""Decides which sealed ledgers of a partition are offloaded, and which local copies are deleted.

Invariants: decisions and their records in the chain; the tier transfers the bytes. The chain
records each step before anything relies on it: *offloaded* once the copy was written and read back,
*local deleted* before the local bytes are deleted. So a crash between two steps leaves at most an
unreferenced copy, local or remote, and both are garbage collected.

The newest sealed ledger with a footer keeps its local copy, and so do the recovered ones after it:
the footer contains the producer states, so a partition can open and accept appends while object
storage is unavailable.

A ledger whose object is its only copy may give that up, too, for a recipe that takes its records
from the topic's table. The recipe is written, and the whole ledger rebuilt from it and verified,
before the chain records *tabled*, and the object is deleted after that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.log.ledger_chain import OBJECT_KEPT_MS_MAX

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from headrace.log.partition_log import PartitionLog
    from headrace.log.segment import Segment
    from headrace.storage.ledger import LedgerStore
    from headrace.storage.tiering.recipe_format import TableFile
    from headrace.storage.tiering.tier import Tier

SAME_AS_RETENTION = -2
"""The default of `local.retention.ms` and `local.retention.bytes`, as in Kafka."""
UNPROTECTED = "the table's snapshot that has its records was expired meanwhile"


# --- decisions -----------------------------------------------------------------------------------


def to_offload(log: PartitionLog) -> list[Segment]:
    """Sealed ledgers with records that are not offloaded yet, oldest first.

    For a compacted topic, only those already compacted: the others would soon be replaced.
    """
    if not log.config.is_remote_enabled:
        return []
    # The chain must record the seal, too: it is updated last.
    fact = log.lifecycle_host.chain.fact
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
    """Offloaded ledgers whose local copies have expired, oldest first."""
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


def to_borrow(log: PartitionLog, now_ms: int) -> list[Segment]:
    """Ledgers whose object is their only copy, and whose records the table may have instead.

    Without those that the table could not replace until their next attempt is due.
    """
    if not log.config.is_table_replacing or log.config.is_compacted:
        return []
    return [
        one
        for one in log.closed
        if one.is_offloaded
        and not one.is_local
        and not one.is_tabled
        and not now_ms < (one.object_kept_until_ms or 0) <= now_ms + OBJECT_KEPT_MS_MAX
    ]


# --- queries -------------------------------------------------------------------------------------


def local_size_bytes(log: PartitionLog) -> int:
    """Size of the ledgers with a local copy, whether or not they are offloaded."""
    return sum(segment.end_position for segment in log.segments if segment.is_local)


def local_start_offset(log: PartitionLog) -> int:
    """The first offset readable without object storage (ListOffsets -4, KIP-405)."""
    for segment in log.segments:
        if segment.is_local and segment.end_offset > log.log_start_offset:
            return max(segment.base_offset, log.log_start_offset)
    return log.high_watermark


def last_offloaded_offset(log: PartitionLog) -> int:
    """The last offloaded offset, -1 for none (ListOffsets -5, KIP-1005)."""
    return max((s.end_offset - 1 for s in log.segments if s.is_offloaded), default=-1)


def first_pending_offset(log: PartitionLog) -> int:
    """The first offset not offloaded yet; -1 if offloading is disabled (ListOffsets -6)."""
    if not log.config.is_remote_enabled:
        return -1
    return max(last_offloaded_offset(log) + 1, log.log_start_offset)


# --- actions -------------------------------------------------------------------------------------


async def offload(log: PartitionLog, segment: Segment, tier: Tier, now_ms: int) -> int:
    """Offload one sealed ledger and record it; returns its size, 0 if it was removed meanwhile.

    Raises StorageUnavailable, LedgerUnknown, DataCorrupt, and what metadata raises.
    """
    size = await tier.offload(segment.ledger)
    noted: bool | None = None

    async def note() -> None:
        nonlocal noted
        noted = await log.lifecycle_host.chain.offloaded(segment.ledger, now_ms)
        if noted:
            tier.attach(segment.ledger, size, is_local=True)
            segment.is_offloaded = True

    await log.lifecycle_host.do(note(), "note of an offload")
    if noted is False:  # trimmed or deleted meanwhile; None: the broker is stopping
        tier.discard(segment.ledger)
    return size if noted else 0


async def _not_needed_to_open(log: PartitionLog, store: LedgerStore) -> list[Segment]:
    """The ledgers before the newest one with a footer; recovered ledgers have none."""
    closed = log.closed
    for at in range(len(closed) - 1, 0, -1):
        if not closed[at].is_local:
            break
        if closed[at].is_sealed and (await store.recover(closed[at].ledger)).footer is not None:
            return closed[:at]
    return []


async def drop_local(log: PartitionLog, store: LedgerStore, tier: Tier, now_ms: int) -> int:
    """Delete the local copies that have expired; returns how many. Raises like `offload`."""
    if not to_drop(log, now_ms):
        return 0
    free = await _not_needed_to_open(log, store)
    for segment in to_drop(log, now_ms):
        if segment in free and not await tier.is_whole(segment.ledger):
            await tier.offload(segment.ledger)  # the copy has been deleted: recreate it
    if not any(segment in free for segment in to_drop(log, now_ms)):
        return 0
    count = 0

    async def step() -> None:
        nonlocal count
        # Evaluated again, as retention may have removed some.
        due = [segment for segment in to_drop(log, now_ms) if segment in free]
        await log.lifecycle_host.chain.local_deleted({segment.ledger for segment in due}, now_ms)
        for segment in due:
            segment.is_local = False
        for segment in due:
            await tier.drop_local(segment.ledger)
            count += 1

    await log.lifecycle_host.do(step(), "drop of local copies")
    return count


async def borrow(
    log: PartitionLog,
    segment: Segment,
    tier: Tier,
    files: Sequence[TableFile],
    now_ms: int,
    is_protected: Callable[[], Awaitable[bool]],
) -> str | None:
    """Replace the object of a ledger by a recipe with the records of these files, and record it.

    Returns why the object stays, if the files have too little of the ledger, or are protected no
    more once the recipe is written. Raises like `offload`, and what `is_protected` raises.
    """
    reason = await tier.write_recipe(segment.ledger, files)
    if reason is not None:
        return reason
    if not await is_protected():
        return UNPROTECTED
    noted: bool | None = None

    async def note() -> None:
        nonlocal noted
        noted = await log.lifecycle_host.chain.tabled(segment.ledger, now_ms)
        if noted:
            segment.is_tabled = True
            tier.attach(segment.ledger, segment.end_position, is_local=False, is_tabled=True)
            tier.discard_object(segment.ledger)

    await log.lifecycle_host.do(note(), "note of a recipe")
    if noted is False:  # trimmed or deleted meanwhile
        tier.discard(segment.ledger)
    return None


async def keep_object(log: PartitionLog, segment: Segment, now_ms: int) -> None:
    """Record that the table cannot replace the object of a ledger for now.

    Raises what metadata raises.
    """

    async def note() -> None:
        chain = log.lifecycle_host.chain
        segment.object_kept_until_ms = await chain.object_kept(segment.ledger, now_ms)

    await log.lifecycle_host.do(note(), "note of an object that stays")
