"""Attack: a partition's log against a plain model of its guarantees to producers and readers.

Invariants: the log is the real one, over a store on a modelled disk; the model is a list. Producers
retry batches up to eight batches back, wrap their sequences, and send non-monotonic timestamps;
readers look up every offset and various times. Ledgers roll, and the process is killed and
restarted.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import UUID

from headrace.errors import HeadraceError, OutOfOrderSequence
from headrace.log.environment import Environment
from headrace.log.largest_timestamp import offset_of_max_timestamp
from headrace.log.log_config import LogConfig
from headrace.log.partition_log import PartitionLog
from headrace.metadata.memory import MemoryMetadata, MemoryMetadataStore
from headrace.records.batch import read_header
from headrace.records.codec import Record, decode_batch, encode_batch
from headrace.runtime.tasks import Tasks
from headrace_verify.crash.data_folder import SlowClock, open_ledgers
from headrace_verify.crash.model_disk import ModelDisk
from headrace_verify.crash.scenario import abandon
from headrace_verify.rng import seeded

if TYPE_CHECKING:
    from headrace.storage.files import FileLedgerStore
    from headrace_verify.task import Task

SESSIONS = 3
TURNS = 60
PRODUCERS = 3
WINDOW = 5
"""How many batches back a retry is recognised (Kafka's contract with idempotent producers)."""
SEQUENCE_END = 2**31
_FIRST_SEQUENCES = (0, SEQUENCE_END - 7, SEQUENCE_END - 40)
_TOPIC_ID = UUID(int=43)


class _Sent(NamedTuple):
    batch: bytes
    base_offset: int


class _Model:
    """The acknowledged records."""

    def __init__(self, rng: Any) -> None:
        self.rng = rng
        self.records: list[int] = []
        """The timestamp of each, by offset."""
        self.sent: list[list[_Sent]] = [[] for _ in range(PRODUCERS)]
        self.next_sequence = list(_FIRST_SEQUENCES)

    def new_batch(self, producer: int) -> bytes:
        """Return its next batch, with timestamps in any order."""
        count = self.rng.choice((1, 1, 2, 5))
        records = [
            Record(0, self.rng.randrange(1, 3_000_000), None, self.rng.randbytes(size))
            for size in self.rng.choices((3, 200, 2_000), k=count)
        ]
        return encode_batch(
            records,
            producer_id=producer,
            producer_epoch=0,
            base_sequence=self.next_sequence[producer],
        )

    def accept(self, producer: int, batch: bytes, base_offset: int, times: list[int]) -> None:
        """Record that it was acknowledged at this offset."""
        sequence = self.next_sequence[producer]
        self.sent[producer].append(_Sent(batch, base_offset))
        self.next_sequence[producer] = (sequence + len(times)) % SEQUENCE_END
        self.records += times


def run_log(task: Task) -> None:
    """Test one log after the other."""
    logging.getLogger("headrace").setLevel(logging.CRITICAL)
    while task.has_time():
        seed = task.seed + task.runs
        try:
            wrong = asyncio.run(_life(task, seed))
        except (HeadraceError, AssertionError, OSError) as error:
            wrong = [f"the log failed a valid request: {error!r}"]
        task.runs += 1
        for text in wrong:
            task.wrong(text, seed=seed)


async def _life(task: Task, seed: int) -> list[str]:
    model = _Model(seeded(seed))
    facts = MemoryMetadata()
    disk = ModelDisk()
    for session in range(SESSIONS):
        store = await open_ledgers(disk, 32 << 10, 64 << 10)
        tasks = Tasks()
        try:
            metadata = MemoryMetadataStore(facts)
            environment = Environment(store, metadata, SlowClock(), tasks)
            config = LogConfig(segment_bytes=30_000)
            log = PartitionLog("p-0", _TOPIC_ID, 0, config, environment)
            log.load()
            assert log.ready is not None
            await log.ready.wait()
            wrong = await _session(task, log, store, model, is_first=session == 0)
            await asyncio.sleep(0.005)  # so that seals have mostly finished
        finally:
            await tasks.close()
            await abandon(store)
        if wrong:
            return wrong
        disk = ModelDisk(disk.image())
    return []


async def _session(
    task: Task, log: PartitionLog, store: FileLedgerStore, model: _Model, *, is_first: bool
) -> list[str]:
    rng = model.rng
    if not is_first:
        wrong = [text for one in range(PRODUCERS) for text in await _retries(log, model, one)]
        if wrong:
            return wrong
    for _ in range(TURNS):
        producer = rng.randrange(PRODUCERS)
        batch = model.new_batch(producer)
        base_offset = await _append(log, batch)
        task.checked += 1
        if base_offset != len(model.records):
            return [f"offset {base_offset} was assigned, expected {len(model.records)}"]
        model.accept(producer, batch, base_offset, _times(batch))
        draw = rng.random()
        wrong = []
        if draw < 0.15:
            wrong = await _retries(log, model, producer)
        elif draw < 0.25:
            wrong = await _gap(log, model, producer)
        elif draw < 0.4:
            wrong = await _times_asked(log, store, model)
        if wrong:
            return wrong
    return await _times_asked(log, store, model)


def _times(batch: bytes) -> list[int]:
    return [record.timestamp_ms for record in decode_batch(batch)]


async def _append(log: PartitionLog, batch: bytes) -> int:
    header = read_header(batch)
    while True:
        appended = log.append(batch, header)
        if appended is not None:
            await appended.completion.wait()
            return appended.base_offset
        ready = log.ready
        if ready is not None:
            await ready.wait()


async def _retries(log: PartitionLog, model: _Model, producer: int) -> list[str]:
    """Retry: the last five batches are recognised, older ones are rejected; none is appended
    again."""
    sent = model.sent[producer]
    for back, one in enumerate(reversed(sent[-8:]), 1):
        try:
            offset: int | str = await _append(log, one.batch)
        except OutOfOrderSequence:
            offset = "refused"
        expected = one.base_offset if back <= WINDOW else "refused"
        if offset != expected:
            return [f"a retry {back} batches back returned {offset}, expected {expected}"]
    return []


async def _gap(log: PartitionLog, model: _Model, producer: int) -> list[str]:
    """Skip a batch: the next one is rejected."""
    sequence = model.next_sequence[producer]
    model.next_sequence[producer] = (sequence + 1) % SEQUENCE_END
    batch = model.new_batch(producer)
    model.next_sequence[producer] = sequence
    try:
        offset = await _append(log, batch)
    except OutOfOrderSequence:
        return []
    return [f"sequence {sequence} was skipped, but the following batch was appended at {offset}"]


async def _times_asked(log: PartitionLog, store: FileLedgerStore, model: _Model) -> list[str]:
    """Look up the first record at or after a time, and the one with the largest timestamp."""
    records = model.records
    for time_ms in (0, *model.rng.choices(records, k=4), max(records) + 1):
        expected = next((at for at, found in enumerate(records) if found >= time_ms), -1)
        found = await log.reader.offset_of_time(time_ms)
        if found.offset != expected:
            return [f"time {time_ms} returns offset {found.offset}, expected {expected}"]
    largest = await offset_of_max_timestamp(log)
    if largest.offset != records.index(max(records)):
        return [f"the largest timestamp is reported at {largest.offset}"]
    return []
