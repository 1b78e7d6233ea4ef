"""Taking over a partition whose owner was killed in the midst of a ledger: how long it takes.

    python -m benchmarks.takeover [MiB in the ledger] [rounds]

Invariants: a real ZooKeeper and real bookies on this machine. A store writes one ledger from
an idempotent producer and is left as a killed broker would leave it; another store takes the
partition over, from the claim in the chain until the log can take appends.
"""

from __future__ import annotations

import asyncio
import sys
import time
from uuid import UUID

from tests.cluster.fixtures import cluster

from headrace.dev_cluster.parts import find_parts
from headrace.log.environment import Environment
from headrace.log.log_config import LogConfig
from headrace.log.partition_log import PartitionLog
from headrace.metadata.memory import MemoryMetadata, MemoryMetadataStore
from headrace.records.batch import check_batch
from headrace.records.codec import Record, encode_batch
from headrace.runtime.clock import SystemClock
from headrace.runtime.tasks import Tasks
from headrace.storage.bookkeeper.ledger_store import BookKeeperLedgerStore
from headrace.storage.bookkeeper.settings import BookKeeperSettings
from headrace.zookeeper.client import ZooKeeper, ZooKeeperOptions

BATCH_BYTES = 16 << 10
OUTSTANDING = 64


def _open(store: BookKeeperLedgerStore, metadata: MemoryMetadata, epoch: int) -> PartitionLog:
    facts = MemoryMetadataStore(metadata)
    environment = Environment(store, facts, SystemClock(), Tasks(), is_shared=True)
    return PartitionLog("t-0", UUID(int=7), 0, LogConfig(), environment, epoch)


async def _fill(log: PartitionLog, size_bytes: int) -> None:
    now_ms = SystemClock().now_ms()
    value, sequence, waiting = bytes(BATCH_BYTES), 0, []
    while log.end_offset * BATCH_BYTES < size_bytes:
        batch = encode_batch(
            [Record(0, now_ms, None, value, [])],
            producer_id=5,
            producer_epoch=0,
            base_sequence=sequence,
        )
        appended = log.append(batch, check_batch(batch))
        if appended is None:
            assert log.ready is not None
            await log.ready.wait()
            continue
        sequence += 1
        waiting.append(appended.completion)
        if len(waiting) == OUTSTANDING:
            await waiting.pop(0).wait()
    for completion in waiting:
        await completion.wait()


async def takeover(address: str, size_bytes: int) -> tuple[float, float]:
    """(seconds, seconds of CPU) of one takeover."""
    zookeeper = await ZooKeeper.connect(ZooKeeperOptions(address), SystemClock())
    settings = BookKeeperSettings(add_timeout_ms=20_000)
    former = await BookKeeperLedgerStore.open(zookeeper, settings, SystemClock())
    metadata = MemoryMetadata()
    log = _open(former, metadata, 1)
    log.config.segment_bytes = 2 * size_bytes
    await _fill(log, size_bytes)
    await former.close()
    rival = await BookKeeperLedgerStore.open(zookeeper, settings, SystemClock())
    new = _open(rival, metadata, 2)
    began, cpu = time.perf_counter(), time.process_time()
    await new.wait_loaded()
    elapsed, used = time.perf_counter() - began, time.process_time() - cpu
    assert new.end_offset == log.end_offset
    for info in rival.list():
        await rival.delete(info.ledger)
    await rival.close()
    await zookeeper.close()
    return elapsed, used


def main(mib: int, rounds: int) -> None:
    """Print one line a round."""
    with cluster(find_parts(), bookie_count=3) as servers:
        for _ in range(rounds):
            elapsed, used = asyncio.run(takeover(servers.zookeeper.address, mib << 20))
            print(f"{mib} MiB: taken over in {elapsed:.2f} s, {used:.2f} s of CPU", flush=True)


if __name__ == "__main__":
    words = [int(word) for word in sys.argv[1:]]
    main(*(words + [256, 3][len(words) :]))
