"""A process that writes a ledger until it is killed; its parent reads what was acknowledged.

Arguments: ZooKeeper's address, E, W, A, bytes of an append, appends outstanding, the time-out of
adds in ms. It prints the ledger, then the end of what is acknowledged, whenever that moves, and in
the end why it stopped.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections import deque

from tests.cluster.oracle import stream

from headrace.errors import HeadraceError
from headrace.runtime.clock import SystemClock
from headrace.storage.bookkeeper.ledger_store import BookKeeperLedgerStore
from headrace.storage.bookkeeper.quorum import Quorum
from headrace.storage.bookkeeper.settings import BookKeeperSettings
from headrace.zookeeper.client import ZooKeeper, ZooKeeperOptions


def say(*words: object) -> None:
    sys.stdout.write(" ".join(map(str, words)) + "\n")
    sys.stdout.flush()


async def main(address: str, *numbers: int) -> None:
    ensemble, write, ack, size, outstanding, timeout_ms = numbers
    zookeeper = await ZooKeeper.connect(ZooKeeperOptions(address), SystemClock())
    settings = BookKeeperSettings(quorum=Quorum(ensemble, write, ack), add_timeout_ms=timeout_ms)
    store = await BookKeeperLedgerStore.open(zookeeper, settings, SystemClock())
    ledger = await store.create()
    say("ledger", ledger)
    pending: deque[tuple[int, object]] = deque()
    end = 0
    try:
        while True:
            while len(pending) < outstanding:
                data = stream(end, size)
                end += size
                _, completion = store.append(ledger, [data], size, None)
                pending.append((end, completion))
                await asyncio.sleep(0)  # a turn of its own: an entry of its own, mostly
            reached, completion = pending.popleft()
            await completion.wait()
            say("acked", reached, time.monotonic_ns())
    except HeadraceError as error:
        say("failed", type(error).__name__, time.monotonic_ns(), error)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], *map(int, sys.argv[2:])))
