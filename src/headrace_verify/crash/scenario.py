"""A random workload on a store, and the model of what any recovery may restore.

Payloads are self-describing: ledger, position and generation determine every byte, so data of
another place or an earlier life is never mistaken for the right one.
"""

# ruff: noqa: SLF001 - inspects and polls the store's private state

from __future__ import annotations

import asyncio
import errno
from pathlib import Path
from typing import Any

from headrace.errors import DataCorrupt, HeadraceError, StorageUnavailable
from headrace.storage.files import FileLedgerStore
from headrace_verify.crash.model_disk import ROOT, ModelDisk
from headrace_verify.rng import seeded

WAL_FILE_BYTES = 12 << 10
CHECKPOINT_BYTES = 16 << 10
OUTAGE_TURNS_MAX = 1_000
_PATTERN_BYTES = 1 << 16
_patterns: dict[tuple[int, int], bytes] = {}


class StillClock:
    """Syncs take no time, so the store syncs in the loop unless set otherwise."""

    def now_ms(self) -> int:
        return 0

    def now_ns(self) -> int:
        return 0


class FixedSalt:
    def uuid(self) -> Any:
        raise NotImplementedError

    def below(self, bound: int) -> int:
        return 0x5EED5A17 % bound


def payload(ledger: int, position: int, size: int, generation: int) -> bytes:
    key = (ledger, generation)
    pattern = _patterns.get(key)
    if pattern is None:
        pattern = _patterns[key] = seeded(ledger * 1_000 + generation).randbytes(_PATTERN_BYTES)
    at = position % (_PATTERN_BYTES - size)
    return pattern[at : at + size]


async def open_store(disk: ModelDisk) -> FileLedgerStore:
    return await FileLedgerStore.open(
        Path(ROOT),
        StillClock(),
        wal_file_bytes=WAL_FILE_BYTES,
        checkpoint_bytes=CHECKPOINT_BYTES,
        retry_ms=1,
        disk=disk,
        randomness=FixedSalt(),
    )


async def abandon(store: FileLedgerStore) -> None:
    """Abandon the store as a killed process does."""
    await store._tasks.close()
    store._maintenance._thread.shutdown()
    store._commit._sync.close()
    store._threads.shutdown()
    await asyncio.sleep(0)  # a thread's last result


class Expected:
    """One ledger, as the test knows it."""

    def __init__(self) -> None:
        self.data = bytearray()
        self.boundaries = {0}
        self.acknowledged = 0
        self.is_created = False
        self.footer: bytes | None = None
        self.is_sealed = False
        self.is_deleting = False
        self.is_deleted = False
        self.lingering = b""
        """Failed appends may reappear until their positions are reused, not later."""
        self.lingering_boundaries: set[int] = set()


class Oracle:
    """Requests and acknowledgements, up to some point of the operation log."""

    def __init__(self) -> None:
        self.ledgers: dict[int, Expected] = {}

    def step(self, note: tuple[Any, ...]) -> None:
        kind, ledger = note[0], note[1]
        if kind == "creating":
            self.ledgers[ledger] = Expected()
            return
        expected = self.ledgers[ledger]
        if kind == "created":
            expected.is_created = True
        elif kind == "append":
            for other in self.ledgers.values():
                other.lingering = b""
            assert len(expected.data) == note[2], "the store returned another position"
            expected.data += note[3]
            expected.boundaries.add(len(expected.data))
        elif kind == "acknowledged":
            expected.acknowledged = max(expected.acknowledged, note[2])
        elif kind == "failed":
            if not expected.lingering:
                expected.lingering = bytes(expected.data)
                expected.lingering_boundaries = set(expected.boundaries)
            del expected.data[note[2] :]
            expected.boundaries = {at for at in expected.boundaries if at <= len(expected.data)}
        elif kind == "sealing":
            expected.footer = note[2]
        elif kind == "sealed":
            expected.is_sealed = True
        elif kind == "deleting":
            expected.is_deleting = True
        elif kind == "deleted":
            expected.is_deleted = True

    def violations(self, store: FileLedgerStore) -> list[str]:
        """Compare what recovery restored with what it may restore."""
        found: dict[int, Any] = {info.ledger: info for info in store.list()}
        wrong = [
            f"ledger {number} was never created" for number in found if number not in self.ledgers
        ]
        for number, expected in self.ledgers.items():
            info = found.get(number)
            if info is None:
                if expected.is_created and not expected.is_deleting:
                    wrong.append(f"ledger {number} is lost")
                continue
            if expected.is_deleted:
                wrong.append(f"ledger {number} reappeared after its deletion")
            wrong += self._ledger_violations(store, info, expected)
        return wrong

    def _ledger_violations(self, store: Any, info: Any, expected: Expected) -> list[str]:
        number = info.ledger
        wrong = []
        if info.end < expected.acknowledged:
            wrong.append(
                f"ledger {number}: {expected.acknowledged} acknowledged, {info.end} remain"
            )
        try:
            data = bytes(store.read_cached(number, 0, 1 << 30))
        except DataCorrupt as error:
            return [f"ledger {number}: {error}"]
        if expected.lingering and info.end > len(expected.data):
            if data != expected.lingering[: info.end]:
                wrong.append(f"ledger {number} holds bytes that were not appended")
            if info.end not in expected.lingering_boundaries:
                wrong.append(f"ledger {number} ends inside a failed append, at {info.end}")
            return wrong
        if info.end not in expected.boundaries:
            wrong.append(f"ledger {number} ends inside an append, at {info.end}")
        if data != expected.data[: info.end]:
            wrong.append(f"ledger {number} holds bytes that were not appended in order")
        if expected.is_sealed and not info.is_sealed:
            wrong.append(f"ledger {number} lost its seal")
        if info.is_sealed and info.footer != expected.footer:
            wrong.append(f"ledger {number} has another footer")
        return wrong

    @staticmethod
    def after_recovery(store: FileLedgerStore) -> Oracle:
        """Require what was recovered from now on: it is durable."""
        oracle = Oracle()
        for info in store.list():
            expected = oracle.ledgers[info.ledger] = Expected()
            expected.data += bytes(store.read_cached(info.ledger, 0, 1 << 30) or b"")
            expected.boundaries = {info.end}
            expected.acknowledged = info.end
            expected.is_created = True
            expected.is_sealed = info.is_sealed
            expected.footer = info.footer
        return oracle


async def run_workload(
    store: FileLedgerStore, disk: ModelDisk, seed: int, turns: int, generation: int
) -> None:
    """Random appends, creations, seals and deletions, all recorded in the operation log."""
    rng = seeded(seed)
    open_ledgers = [info.ledger for info in store.list() if not info.is_sealed]
    waiting: list[Any] = []

    def acknowledge(error: BaseException | None, context: tuple[int, int]) -> None:
        if error is None:
            disk.note("acknowledged", *context)

    async def create() -> None:
        disk.note("creating", store._catalog.next_ledger)
        ledger = await store.create()
        disk.note("created", ledger)
        open_ledgers.append(ledger)

    await create()
    for _ in range(turns):
        draw = rng.random()
        if draw < 0.08:
            await create()
        elif draw < 0.13 and len(open_ledgers) > 1:
            ledger = open_ledgers.pop(rng.randrange(len(open_ledgers)))
            footer = b"footer of %d" % ledger
            disk.note("sealing", ledger, footer)
            await store.seal(ledger, footer)
            disk.note("sealed", ledger)
        elif draw < 0.17 and len(open_ledgers) > 1:
            ledger = open_ledgers.pop(rng.randrange(len(open_ledgers)))
            disk.note("deleting", ledger)
            await store.delete(ledger)
            disk.note("deleted", ledger)
        for _ in range(rng.choice((0, 1, 1, 2, 5))):
            ledger = rng.choice(open_ledgers)
            size = rng.choice((1, 17, 100, 511, 700, 2_500))
            position = store._ledgers[ledger].end
            data = payload(ledger, position, size, generation)
            flush_ms = None if rng.random() < 0.8 else rng.choice((0, 1, 50))
            disk.note("append", ledger, position, data)
            given, completion = store.append(ledger, [data], size, flush_ms)
            assert given == position, "positions must be consecutive"
            if flush_ms is None:
                completion.then(acknowledge, (ledger, position + size))
            waiting.append(completion)
        if rng.random() < 0.5 and waiting:
            await waiting[-1].wait()
        else:
            await asyncio.sleep(0)
    for completion in waiting:
        try:
            await completion.wait()
        except HeadraceError:
            continue


async def run_faulty_workload(
    store: FileLedgerStore, disk: ModelDisk, seed: int, turns: int, generation: int
) -> None:
    """Appends on a disk with occasional faults: failing syncs and partial writes."""
    rng = seeded(seed)
    disk.note("creating", store._catalog.next_ledger)
    first = await store.create()
    disk.note("created", first)
    disk.note("creating", store._catalog.next_ledger)
    second = await store.create()
    disk.note("created", second)
    disk.are_failed_syncs_dropped = rng.random() < 0.5

    def fault(action: str, path: str) -> int | None:
        is_segment_sync = action == "sync" and path.endswith(".ledger")  # a checkpoint's: rare
        share = 0.2 if is_segment_sync else 0.04
        if not path.endswith((".wal", ".ledger")) or rng.random() > share:
            return None
        if action == "write":
            return rng.choice((0, 1, 100, 600))
        raise OSError(errno.EIO, "injected", path)

    def ended(error: BaseException | None, context: tuple[int, int, int, bool]) -> None:
        ledger, position, end, is_synced = context
        if error is not None:
            disk.note("failed", ledger, position)
        elif is_synced:
            disk.note("acknowledged", ledger, end)

    disk.fault = fault
    completion: Any = None
    for _ in range(turns):
        for _ in range(rng.choice((1, 1, 3))):
            if store._commit.outage is not None:
                await asyncio.sleep(0.002)
                continue
            ledger = rng.choice((first, second))
            size = rng.choice((1, 100, 511, 1_500))
            position = store._ledgers[ledger].end
            # The bytes differ from those that failed at this position before.
            data = payload(ledger, len(disk.operations), size, generation)
            is_synced = rng.random() < 0.8
            disk.note("append", ledger, position, data)
            _, completion = store.append(ledger, [data], size, None if is_synced else 5)
            completion.then(ended, (ledger, position, position + size, is_synced))
        if rng.random() < 0.6 and completion is not None:
            try:
                await completion.wait()
            except StorageUnavailable:
                continue
        else:
            await asyncio.sleep(0)
    disk.fault = lambda action, path: None
    for _ in range(OUTAGE_TURNS_MAX):
        if store._commit.outage is None:
            return
        await asyncio.sleep(0.002)
    raise AssertionError("the disk works again, but the store's outage does not end")
