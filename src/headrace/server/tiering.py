"""Opens the configured object storage and checks that it works.

Invariants: a broker that has never used its object storage does not start before it has written,
read and deleted there: a wrong bucket should be reported at once, not when the disk is full. If
ledgers were offloaded before, the broker starts in any case and logs a warning: unavailable object
storage must not block access to local data.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from headrace.errors import HeadraceError, RequestInvalid, StorageUnavailable
from headrace.metadata.decoding import decode_fact
from headrace.metadata.facts import PARTITIONS, PartitionFact, ensure_cluster_id
from headrace.records.cluster_ids import WORKER

if TYPE_CHECKING:
    from headrace.metadata.store import MetadataStore
    from headrace.runtime.clock import Clock
    from headrace.runtime.randomness import Randomness
    from headrace.server.settings import Settings
    from headrace.storage.ledger import LedgerStore
    from headrace.storage.tiering.tiered_store import TieredLedgerStore

log = logging.getLogger(__name__)

NEW_TIMEOUT_MS = 5_000
"""For responses of storage that was never used before."""
KNOWN_TIMEOUT_MS = 500
"""If ledgers were offloaded before: the start does not wait for the storage."""


async def open_tier(
    settings: Settings,
    store: LedgerStore,
    metadata: MetadataStore,
    clock: Clock,
    randomness: Randomness,
    *,
    is_storage_shared: bool = False,
) -> TieredLedgerStore:
    """The ledger store with object storage beneath. Raises RequestInvalid, StorageUnavailable."""
    try:
        from headrace.storage.tiering.blob_store import BlobLimits, BlobStore
        from headrace.storage.tiering.tiered_store import TieredLedgerStore
    except ImportError as error:
        raise RequestInvalid(
            f"--objects needs a package that is not installed ({error.name}): pip install"
            " 'headrace[objects]'"
        ) from error
    url = settings.objects_url
    assert url is not None
    cluster_id = await ensure_cluster_id(metadata, randomness)
    if settings.worker_count > 1 and settings.broker.broker_id:
        # Each worker numbers its ledgers itself. The first one continues the stand-alone broker's.
        cluster_id += f"{WORKER}{settings.broker.broker_id}"
    tables = None
    if settings.tables is not None:
        from headrace.storage.tiering.iceberg_tables import IcebergTables

        tables = IcebergTables.open(settings.tables, cluster_id, settings.tables_catalog)
    is_known = await has_offloaded(metadata)
    timeout_ms = KNOWN_TIMEOUT_MS if is_known else NEW_TIMEOUT_MS
    probed = BlobStore.open(url, BlobLimits(timeout_ms, timeout_ms, 1, timeout_ms))
    try:
        await probed.probe(f"{cluster_id}/probe/{randomness.uuid().hex}")
    except StorageUnavailable as error:
        if not is_known:
            raise
        log.warning("object storage is unavailable: offloading and cold reads wait: %s", error)
    return TieredLedgerStore(
        store,
        BlobStore.open(url),
        cluster_id,
        clock,
        offload_bytes_per_s=settings.offload_bytes_per_s,
        is_inner_shared=is_storage_shared,
        tables=tables,
    )


async def has_offloaded(metadata: MetadataStore) -> bool:
    """Whether any ledger was copied to object storage. Raises MetadataUnavailable."""
    for entry in await metadata.list(PARTITIONS):
        try:
            ledgers = decode_fact(PartitionFact, entry).ledgers
        except HeadraceError:
            continue  # its partition reports the error when it is used
        if any(link.offloaded_ms is not None for link in ledgers):
            return True
    return False
