"""Appends to Apache BookKeeper: Headrace's client beside BookKeeper's own, in turns, in one run.

    python -m benchmarks.bookkeeper [rounds]

A ZooKeeper and three bookies as they are shipped (journal synced), E=W=3, A=2, on one machine. Each
round writes the same appends with both clients, each in a process of its own that is warmed first.
"gathered" is the store as brokers use it, which puts several appends into one entry; "one by one"
makes every append an entry, as the Java client does. Ours is the compiled core where `make fast`
has built it, as a broker is; HEADRACE_COMPILED=0 keeps to the plain modules.
"""

from __future__ import annotations

import asyncio
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from tests.cluster.fixtures import cluster
from tests.cluster.oracle import Oracle, oracle, stream

from headrace.dev_cluster.parts import find_parts
from headrace.runtime import compiled
from headrace.runtime.clock import SystemClock
from headrace.zookeeper.client import ZooKeeper, ZooKeeperOptions

if TYPE_CHECKING:
    from headrace.storage.bookkeeper.ledger_store import BookKeeperLedgerStore

LOADS = ((200, 256, 40_000), (16 << 10, 32, 8_000), (128 << 10, 16, 1_500))
"""(bytes, outstanding, count)"""


async def write(store: BookKeeperLedgerStore, size: int, outstanding: int, count: int) -> None:
    """Append and wait, with so many outstanding; then seal and delete."""
    ledger = await store.create()
    data = stream(0, size)
    room = asyncio.Semaphore(outstanding)

    def stored(error: BaseException | None, _context: object) -> None:
        if error is not None:
            raise error
        room.release()

    for _ in range(count):
        await room.acquire()
        store.append(ledger, [data], size, None)[1].then(stored, None)
    for _ in range(outstanding):
        await room.acquire()
    await store.seal(ledger, b"")
    await store.delete(ledger)


async def child(address: str, target: int) -> None:
    """Do what the parent says, a line each: size, outstanding, count. `target` 0: the default."""
    print(f"ours: {compiled.use()}", file=sys.stderr, flush=True)
    from headrace.storage.bookkeeper.ledger_store import BookKeeperLedgerStore
    from headrace.storage.bookkeeper.settings import BookKeeperSettings

    zookeeper = await ZooKeeper.connect(ZooKeeperOptions(address), SystemClock())
    settings = BookKeeperSettings(add_timeout_ms=20_000)
    if target:
        settings = replace(settings, entry_bytes_target=target)
    store = await BookKeeperLedgerStore.open(zookeeper, settings, SystemClock())
    loop = asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        size, outstanding, count = map(int, line.split())
        begin, cpu = time.perf_counter(), time.process_time()
        await write(store, size, outstanding, count)
        elapsed, used = time.perf_counter() - begin, time.process_time() - cpu
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        print(int(elapsed * 1e9), int(used * 1e9), memory >> 10, flush=True)
    await store.close()
    await zookeeper.close()


def report(name: str, size: int, outstanding: int, count: int, words: list[str]) -> None:
    """One line of the table."""
    elapsed, cpu = int(words[0]) / 1e9, int(words[1]) / 1e9
    rate = count / elapsed
    print(
        f"{size:>7} B x{outstanding:<4} {name:<12} {rate:>8,.0f}/s {rate * size / 1e6:>7.1f} MB/s"
        f" {cpu / count * 1e6:>8.1f} us CPU an append"
        + (f" {words[2]:>5} MB" if len(words) > 2 else ""),
        flush=True,
    )


def sum_up(size: int, outstanding: int, rows: dict[str, list[list[str]]]) -> None:
    """Medians of a load beside those of Java."""
    elapsed = {name: median(int(words[0]) for words in found) for name, found in rows.items()}
    cpu = {name: median(int(words[1]) for words in found) for name, found in rows.items()}
    for name in rows:
        if name != "Java":
            print(
                f"{size:>7} B x{outstanding:<4} {name:<12} medians, of Java's:"
                f" CPU {cpu[name] / cpu['Java']:.2f}, rate {elapsed['Java'] / elapsed[name]:.2f}",
                flush=True,
            )


def measure(side: subprocess.Popen[str] | Oracle, load: tuple[int, int, int]) -> list[str]:
    """[nanoseconds, nanoseconds of CPU, ...] of one load on one side."""
    if isinstance(side, Oracle):
        return side.ask("measure", 3, 3, 2, *load)
    assert side.stdin is not None
    assert side.stdout is not None
    print(*load, file=side.stdin, flush=True)
    return side.stdout.readline().split()


def main(rounds: int) -> None:
    """Print the table."""
    parts = find_parts()
    with (
        cluster(parts, bookie_count=3) as servers,
        tempfile.TemporaryDirectory() as folder,
        oracle(parts, Path(folder), servers.zookeeper.address, heap_mb=512, is_warm=True) as java,
    ):
        command = [sys.executable, "-m", "benchmarks.bookkeeper", "child"]
        command.append(servers.zookeeper.address)
        sides: dict[str, subprocess.Popen[str] | Oracle] = {
            name: subprocess.Popen(
                [*command, str(gathered)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            )
            for name, gathered in (("gathered", 0), ("one by one", 1))
        }
        sides["Java"] = java
        for load in LOADS:
            rows: dict[str, list[list[str]]] = {name: [] for name in sides}
            for number in range(rounds + 1):
                # Alternate the order: the one that runs second has another result.
                for name in list(sides)[:: -1 if number % 2 else 1]:
                    words = measure(sides[name], load)
                    if number:  # the first round warms
                        report(name, *load, words)
                        rows[name].append(words)
            sum_up(*load[:2], rows)
        for side in sides.values():
            if not isinstance(side, Oracle):
                side.communicate()


if __name__ == "__main__":
    if sys.argv[1:2] == ["child"]:
        import uvloop

        uvloop.run(child(sys.argv[2], int(sys.argv[3])))
    else:
        main(int(sys.argv[1]) if len(sys.argv) > 1 else 3)
