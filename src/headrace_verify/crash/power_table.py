"""Attack: power loss while a table is written in transactions and compacted.

Invariants: one worker writes to one partition of a compacted topic, so every state of the log is a
prefix of what it wrote. The clock stands still: no tombstone or marker may be removed.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from headrace.broker.housekeeping import compactor
from headrace.log.compaction import cleaner
from headrace.records.batch import check_batch, iterate_headers
from headrace.records.codec import Record, decode_batch, encode_batch
from headrace.records.marker import read_marker
from headrace_verify.crash.power_broker import Workload, run_cases, run_lives
from headrace_verify.rng import seeded
from headrace_verify.task import patched

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace.broker.node import Node
    from headrace.log.partition_log import PartitionLog
    from headrace_verify.crash.power_broker import Opened, State
    from headrace_verify.task import Task

TABLE = "table"
KEYS = 5
TURNS = 50
_CONFIGS = {
    "cleanup.policy": "compact",
    "min.cleanable.dirty.ratio": "0.01",
    "segment.bytes": "2500",
}


class TableOracle:
    """What the worker wrote, and what was acknowledged."""

    def __init__(self) -> None:
        self.is_made = False
        self.rows: list[tuple[int, int, bytes, bytes | None]] = []
        """(offset, producer or -1, key, value) in order."""
        self.ends: list[tuple[int, int, bool]] = []
        """(offset of the marker, producer, whether it committed) in order."""
        self.boundaries = {0}
        self.acknowledged = 0
        self.producer_id_last = -1
        self.version = 0

    def step(self, note: tuple[Any, ...]) -> None:
        """Process one note."""
        self.version += 1
        match note:
            case ("table made",):
                self.is_made = True
            case ("table row", offset, producer, key, value):
                self.rows.append((offset, producer, key, value))
                self.boundaries.add(offset + 1)
            case ("table end", offset, producer, is_commit):
                self.ends.append((offset, producer, is_commit))
                self.boundaries.add(offset + 1)
            case ("table acknowledged", end_offset):
                self.acknowledged = max(self.acknowledged, end_offset)
            case _:
                raise AssertionError(note)

    def latest(self, end_offset: int) -> dict[bytes, tuple[int, bytes | None]]:
        """The latest committed row of each key before `end_offset`."""
        ends = [end for end in self.ends if end[0] < end_offset]
        found: dict[bytes, tuple[int, bytes | None]] = {}
        for offset, producer, key, value in self.rows:
            if offset < end_offset and (producer < 0 or _is_committed(offset, producer, ends)):
                found[key] = (offset, value)
        return found

    async def violations(self, node: Node) -> list[str]:
        """Compare the reopened broker's contents with what it may hold."""
        topic = node.topics.by_name.get(TABLE)
        if topic is None:
            return ["the table is lost"] if self.is_made else []
        log = topic.require_log(0)
        await log.wait_loaded()
        end_offset = log.high_watermark
        if end_offset < self.acknowledged:
            return [f"{self.acknowledged} acknowledged, {end_offset} remain"]
        if end_offset not in self.boundaries:
            return [f"the table ends inside an append, at {end_offset}"]
        rows, ends = await _read(node, log)
        wrong = []
        sent = {row[0]: row for row in self.rows}
        wrong += [f"{row} was not sent" for row in rows if sent.get(row[0]) != row]
        found = TableOracle()
        found.rows, found.ends = rows, ends
        if found.latest(end_offset) != self.latest(end_offset):
            wrong.append(
                f"the table is {found.latest(end_offset)}, expected {self.latest(end_offset)}"
            )
        return wrong

    async def after_recovery(self, node: Node) -> TableOracle:
        """Require the recovered rows from now on."""
        oracle = TableOracle()
        topic = node.topics.by_name.get(TABLE)
        if topic is None:
            return oracle
        log = topic.require_log(0)
        await log.wait_loaded()
        end_offset = oracle.acknowledged = log.high_watermark
        oracle.is_made = True
        oracle.rows = [row for row in self.rows if row[0] < end_offset]
        oracle.ends = [end for end in self.ends if end[0] < end_offset]
        oracle.boundaries = {at for at in self.boundaries if at <= end_offset}
        return oracle


def _is_committed(offset: int, producer: int, ends: list[tuple[int, int, bool]]) -> bool:
    """Whether the producer's first marker after `offset` is a commit."""
    return next((end[2] for end in ends if end[1] == producer and end[0] > offset), False)


async def _read(
    node: Node, log: PartitionLog
) -> tuple[list[tuple[int, int, bytes, bytes | None]], list[tuple[int, int, bool]]]:
    rows: list[tuple[int, int, bytes, bytes | None]] = []
    ends: list[tuple[int, int, bool]] = []
    offset = log.log_start_offset
    while offset < log.high_watermark:
        data = bytes(await log.reader.read(offset, 1 << 20))
        for at, header in iterate_headers(data):
            offset = header.last_offset + 1
            if header.is_control:
                marker = read_marker(data, at)
                if marker is not None:
                    ends.append((header.base_offset, header.producer_id, marker.is_commit))
                continue
            producer = header.producer_id if header.is_transactional else -1
            for record in decode_batch(data, at):
                assert record.key is not None, "every row has a key"
                value = None if record.value is None else bytes(record.value)
                rows.append((record.offset, producer, bytes(record.key), value))
    return rows, ends


class _Writer:
    def __init__(self, node: Node, note: Callable[..., None], seed: str, life: int) -> None:
        self._node = node
        self._note = note
        self._rng = seeded(f"{seed} {TABLE}")
        self._producers = (10 * life + 1, 10 * life + 2)
        self._sequences = dict.fromkeys(self._producers, 0)
        self._last: Any = None
        self._log: PartitionLog

    async def run(self, turns: int) -> None:
        if TABLE not in self._node.topics.by_name:
            await self._node.topics.create(TABLE, 1, 1, _CONFIGS)
            self._note("table made")
        self._log = self._node.topics.get(TABLE).require_log(0)
        await self._log.wait_loaded()
        for producer in (1, 2):  # transactions left open by the previous life
            await self._end(producer, is_commit=False)
        for turn in range(turns):
            draw = self._rng.random()
            if draw < 0.6:
                await self._append(b"%d" % turn)
            elif draw < 0.75:
                await self._end(self._rng.choice(self._producers), is_commit=draw < 0.7)
            elif draw < 0.85:
                await self._log.roll_now()
            else:
                await self._node.compactor.round()
        if self._last is not None:
            await self._last.wait()

    async def _append(self, value: bytes) -> None:
        rng = self._rng
        producer = rng.choice((-1, *self._producers))
        key = b"k%d" % rng.randrange(KEYS)
        stored = None if rng.random() < 0.2 else value * rng.choice((1, 30))
        sequence = self._sequences.get(producer, -1)
        batch = encode_batch(
            [Record(0, self._node.clock.now_ms(), key, stored)],
            producer_id=producer,
            producer_epoch=0 if producer > 0 else -1,
            base_sequence=sequence,
            is_transactional=producer > 0,
        )
        if producer > 0:
            self._sequences[producer] += 1
        while (appended := self._log.append(batch, check_batch(batch))) is None:
            await self._ready()
        # Nothing is written to the disk before the next loop iteration.
        self._note("table row", appended.base_offset, producer, key, stored)
        await self._answered(appended.completion)

    async def _end(self, producer: int, *, is_commit: bool) -> None:
        while (ended := self._log.append_marker(producer, 0, 0, is_commit=is_commit)) is None:
            await self._ready()
        if ended.base_offset >= 0:
            self._note("table end", ended.base_offset, producer, is_commit)
            await self._answered(ended.completion)

    async def _ready(self) -> None:
        ready = self._log.ready
        if ready is None:
            await asyncio.sleep(0)
        else:
            await ready.wait()

    async def _answered(self, completion: Any) -> None:
        completion.then(self._appended, self._log.end_offset)
        self._last = completion
        if self._rng.random() < 0.5:
            await completion.wait()

    def _appended(self, error: BaseException | None, end_offset: int) -> None:
        assert error is None, error
        self._note("table acknowledged", end_offset)


def run_power_table(task: Task) -> None:
    """Run lives on a modelled disk."""
    with patched(compactor, "DELETE_DELAY_NS", 0), patched(compactor, "PAUSE_S", 0):
        run_cases(task, _explore)


async def _explore(task: Task, seed: int, profile: str, sync_turns: int) -> None:
    workload = Workload(TableOracle(), _live, _recovered)
    bulk_bytes_min = 0 if seed % 2 else cleaner.BULK_BYTES_MIN  # past the WAL, or through it
    with patched(cleaner, "BULK_BYTES_MIN", bulk_bytes_min):
        await run_lives(task, seed, profile, sync_turns, workload)


async def _live(opened: Opened, name: str, life: int) -> None:
    await _Writer(opened.node, opened.disk.note, name, life).run(TURNS)


async def _recovered(node: Node, before: TableOracle, _state: State) -> TableOracle:
    return await before.after_recovery(node)
