"""The process that `power-files` records: a complete broker with its servers, and its workload.

Invariants: started with the recorder preloaded; records requests and responses through it, in order
with its file operations. Its WAL files are small, to keep disk states small; everything else is as
`headrace serve` starts it.
"""

from __future__ import annotations

import asyncio
import ctypes
import json
import sys
from pathlib import Path
from typing import Any

from headrace.runtime.disk import SystemDisk
from headrace.server import assemble
from headrace.server.settings import Settings
from headrace.storage.files import FileLedgerStore, wal_sync
from headrace_verify.crash.broker_scenario import (
    CONFIG,
    has_quick_groups,
    run_broker_life,
    small_settings,
)
from headrace_verify.crash.scenario import CHECKPOINT_BYTES, WAL_FILE_BYTES
from headrace_verify.task import patched, replace_existing

_SETTLE_S = 0.2


async def _live(root: Path, seed: int, life: int, turns: int) -> None:
    record: Any = ctypes.CDLL(None).headrace_record_note

    def note(*event: Any) -> None:
        data = json.dumps(event).encode()
        record(data, ctypes.c_size_t(len(data)))

    nodes: list[Any] = []
    parts: Any = assemble
    make_node = parts.Node

    def make(*arguments: Any, **settings: Any) -> Any:
        nodes.append(make_node(*arguments, **settings))
        return nodes[-1]

    loopback = ("127.0.0.1", 0)
    settings = Settings(root / "data", loopback, loopback, broker=CONFIG)
    with patched(assemble, "Node", make):
        broker = await assemble.start_embedded(settings)
    note("opened")
    has_quick_groups(nodes[0])
    await run_broker_life(nodes[0], note, f"{seed} {life}", turns, life)
    await asyncio.sleep(_SETTLE_S)  # background work after the responses, and SQLite's checkpoint
    note("closing")
    await broker.stop()


def _plant(name: str) -> None:
    from headrace_verify.crash.bugs import BUGS

    next(bug for bug in BUGS if bug.name == name).plant(replace_existing)


def main() -> None:
    """Run one life."""
    root, seed, life, turns, sync_turns = Path(sys.argv[1]), *map(int, sys.argv[2:6])
    if sys.argv[6]:  # this attack must find a bug
        _plant(sys.argv[6])
    if sync_turns:
        wal_sync.INLINE_SYNC_NS = -1
    opened: Any = FileLedgerStore.open
    opened.__func__.__kwdefaults__.update(
        wal_file_bytes=WAL_FILE_BYTES, checkpoint_bytes=CHECKPOINT_BYTES, disk=SystemDisk()
    )
    with small_settings():
        asyncio.run(_live(root, seed, life, turns))


if __name__ == "__main__":
    main()
