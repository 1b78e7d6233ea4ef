"""Fencing and recovering a ledger whose writer was killed in the midst of it: how long it takes.

    python -m benchmarks.recovery [rounds]

Invariants: a real ZooKeeper and three real bookies as they are shipped (journal synced) on
this machine. A process of its own keeps 16 appends of 16 KiB under way and is killed with kill -9;
a store that was open before, and has no connection to any bookie yet, recovers the ledger at once.
The figure is the time from `recover` until the ledger is closed and open for reading.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from statistics import median

from tests.cluster.fixtures import cluster
from tests.cluster.writer_process import WriterProcess

from headrace.dev_cluster.parts import find_parts
from headrace.runtime.clock import SystemClock
from headrace.storage.bookkeeper.ledger_store import BookKeeperLedgerStore
from headrace.storage.bookkeeper.settings import BookKeeperSettings
from headrace.storage.ledger import LedgerId
from headrace.zookeeper.client import ZooKeeper, ZooKeeperOptions

APPEND_BYTES, OUTSTANDING = 16 << 10, 16


async def recover(address: str) -> tuple[float, int]:
    """(seconds, bytes found) of one recovery."""
    zookeeper = await ZooKeeper.connect(ZooKeeperOptions(address), SystemClock())
    store = await BookKeeperLedgerStore.open(zookeeper, BookKeeperSettings(), SystemClock())
    writer = await asyncio.to_thread(WriterProcess, address, (3, 3, 2), APPEND_BYTES, OUTSTANDING)
    await asyncio.to_thread(writer.wait_more, 500)
    writer.process.kill()
    began = time.perf_counter()
    info = await store.recover(LedgerId(writer.ledger))
    elapsed = time.perf_counter() - began
    await asyncio.to_thread(writer.end)
    assert info.end >= writer.acked, "all that was acknowledged is found"
    await store.delete(LedgerId(writer.ledger))
    await store.close()
    await zookeeper.close()
    return elapsed, info.end


def main(rounds: int) -> None:
    """Print one line a round, and what they come to."""
    import uvloop

    found = []
    with cluster(find_parts(), bookie_count=3) as servers:
        for _ in range(rounds):
            elapsed, size = uvloop.run(recover(servers.zookeeper.address))
            found.append(elapsed * 1e3)
            print(f"{elapsed * 1e3:6.1f} ms, {size >> 20} MiB, load {os.getloadavg()[0]:.1f}")
    found.sort()
    print(f"median {median(found):.0f} ms, from {found[0]:.0f} to {found[-1]:.0f}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 10)
