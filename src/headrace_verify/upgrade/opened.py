"""Opens a data folder with the broker's own parts, and returns its complete contents.

Invariants: no sockets; the clock stands still, so that nothing in a golden set ever expires. The
contents are plain values, so they can be stored and compared.
"""

# ruff: noqa: SLF001 - reads a group's generation, and leaves the store as after a kill

from __future__ import annotations

import hashlib
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from headrace.broker.broker_config import BrokerConfig
from headrace.broker.node import Node
from headrace.coordination.groups.commands import FetchOffsetsCommand, ListGroupsCommand
from headrace.errors import HeadraceError
from headrace.metadata.facts import ensure_cluster_id
from headrace.metadata.sqlite import SqliteMetadataStore
from headrace.storage.files import FileLedgerStore
from headrace_verify.crash.broker_scenario import batches_in, has_quick_groups, read_all
from headrace_verify.crash.data_folder import SlowClock
from headrace_verify.crash.power_broker import SeededRandomness
from headrace_verify.crash.scenario import abandon

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from headrace.storage.ledger import LedgerStore

CONFIG = BrokerConfig(offsets_partition_count=2)
METADATA = "metadata.sqlite"
OBJECTS = "objects"
WAL_FILE_BYTES = 64 << 10
"""Of the packed folders."""


class Opened(NamedTuple):
    """A broker without network servers."""

    node: Node
    files: FileLedgerStore
    metadata: SqliteMetadataStore


@asynccontextmanager
async def opened(
    folder: Path, seed: str, objects: Path | None = None, *, is_killed: bool = False
) -> AsyncIterator[Opened]:
    """Open a folder; at the end stop cleanly, or leave it as a kill does.

    `objects`: where its sealed ledgers may be, too. Raises the errors of the broker's start.
    """
    clock, randomness = SlowClock(), SeededRandomness(seed)
    files = await FileLedgerStore.open(
        folder, clock, wal_file_bytes=WAL_FILE_BYTES, checkpoint_bytes=WAL_FILE_BYTES
    )
    metadata: SqliteMetadataStore | None = None
    node: Node | None = None
    tier: Any = None
    is_clean = False
    try:
        metadata = await SqliteMetadataStore.open(folder / METADATA, clock)
        store: LedgerStore = files
        if objects is not None:
            from headrace.storage.tiering.blob_store import BlobStore
            from headrace.storage.tiering.tiered_store import TieredLedgerStore

            cluster_id = await ensure_cluster_id(metadata, randomness)
            blobs = BlobStore.open(f"file://{objects}")
            store = tier = TieredLedgerStore(files, blobs, cluster_id, clock)
        node = Node(CONFIG, store, metadata, clock, randomness, tier=tier)
        await node.open()
        has_quick_groups(node)
        yield Opened(node, files, metadata)
        is_clean = not is_killed
    finally:
        if node is not None:
            await (node.close() if is_clean else node.tasks.close())
        if metadata is not None:
            await metadata.close()
        if is_clean:
            await files.close()
        else:
            await abandon(files)
            files._release()  # the folder's lock, which a kill would have released


async def facts_in(folder: Path) -> dict[str, str]:
    """Every metadata fact, by key, as stored JSON."""
    metadata = await SqliteMetadataStore.open(folder / METADATA, SlowClock())
    try:
        return {entry.key: entry.value.decode() for entry in await metadata.list("/")}
    finally:
        await metadata.close()


async def everything(node: Node) -> tuple[dict[str, Any], dict[str, bytes]]:
    """Return (the folder's contents as plain values, each partition's bytes)."""
    topics: dict[str, Any] = {}
    partitions: dict[str, Any] = {}
    data: dict[str, bytes] = {}
    for name, topic in sorted(node.topics.by_name.items()):
        fact = topic.fact
        topics[name] = {
            "id": fact.id.hex,
            "partitions": fact.partition_count,
            "configs": fact.configs,
            "created_ms": fact.created_ms,
        }
        for number, partition in topic.logs:
            where = f"{name}-{number}"
            try:
                await partition.wait_loaded()
                data[where] = await read_all(node, partition)
                partitions[where] = {
                    "start": partition.log_start_offset,
                    "end": partition.high_watermark,
                    "sha256": hashlib.sha256(data[where]).hexdigest(),
                    "times": await _times(node, partition, data[where]),
                }
            except HeadraceError as error:
                partitions[where] = {"error": str(error)}
    return {"topics": topics, "partitions": partitions, "groups": await _groups(node)}, data


async def _times(node: Node, partition: Any, data: bytes) -> list[list[int]]:
    """[time, offset it returns] for the first record of each batch."""
    found = []
    for _at, header in batches_in(data):
        answer = await partition.reader.offset_of_time(header.first_timestamp_ms)
        found.append([header.first_timestamp_ms, answer.offset])
    return found


async def _groups(node: Node) -> dict[str, Any]:
    groups: dict[str, Any] = {}
    listing = await node.groups.list_groups(ListGroupsCommand())
    if listing.error is not None:
        return {"error": str(listing.error)}
    for one in sorted(listing.groups):
        reply = await node.groups.submit(FetchOffsetsCommand(one.group_id))
        machine: Any = node.groups.shards.shard(node.groups.partition_for(one.group_id)).machine
        found = machine.groups[one.group_id]
        groups[one.group_id] = {
            "protocol_type": one.protocol_type,
            "state": one.state,
            "generation": found.generation,
            "offsets": {
                f"{offset.topic}-{offset.partition}": [
                    offset.offset,
                    offset.leader_epoch,
                    offset.metadata,
                ]
                for offset in sorted(reply.offsets, key=lambda one: (one.topic, one.partition))
            },
        }
    return groups
