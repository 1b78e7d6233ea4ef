"""Log compaction against a plain model: keys, tombstones, transactions, crashes, many rounds."""

from __future__ import annotations

import asyncio
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.clocks import HandClock
from tests.kit.records import append

from headrace.errors import MetadataUnavailable, StorageUnavailable
from headrace.log.compaction import rounds as compaction
from headrace.log.compaction.cleaner import Cleaner
from headrace.log.compaction.worker_service import RoundServer
from headrace.log.compaction.workers import Job, ProcessWorker
from headrace.log.environment import Environment
from headrace.log.log_config import LogConfig
from headrace.log.partition_log import PartitionLog
from headrace.log.visibility import READ_COMMITTED, READ_UNCOMMITTED
from headrace.metadata.memory import MemoryMetadataStore
from headrace.records.batch import iterate_headers
from headrace.records.codec import Record, decode_batch, encode_batch
from headrace.records.marker import read_marker
from headrace.runtime import compiled
from headrace.runtime.memory_file import close_memory_file, memory_file
from headrace.runtime.tasks import Tasks
from headrace.storage.memory import MemoryLedgerStore

TOPIC_ID = UUID(int=7)
DELETE_RETENTION_MS = 1_000
CODECS = 5


class CrashingStore(MemoryLedgerStore):
    """Ends, or refuses, one call of a round."""

    def __init__(self) -> None:
        super().__init__()
        self.calls_left: int | None = None
        self.folder: Path | None = None
        """Where ledgers are files, too."""

    def file_of(self, ledger):
        if self.folder is None or ledger % 3 == 0:
            return None
        path = self.folder / str(ledger)
        path.write_bytes(self._find(ledger).data)
        return str(path)

    def _count(self) -> None:
        if self.calls_left is not None:
            self.calls_left -= 1
            if self.calls_left == 0:
                raise StorageUnavailable("an outage")

    async def create(self, labels=None, copies=None):
        self._count()
        return await super().create(labels, copies)

    async def read(self, ledger, position, size):
        self._count()
        return await super().read(ledger, position, size)

    async def seal(self, ledger, footer):
        self._count()
        await super().seal(ledger, footer)


class DoubtfulMetadata(MemoryMetadataStore):
    """Loses the answer of one change, which was stored or not."""

    def __init__(self) -> None:
        super().__init__()
        self.puts_left: int | None = None
        self.is_stored = False

    async def put(self, key, value, version):
        if self.puts_left is not None:
            self.puts_left -= 1
            if self.puts_left == 0:
                if self.is_stored:
                    await super().put(key, value, version)
                raise MetadataUnavailable("no answer")
        return await super().put(key, value, version)


class WithoutPipes(ProcessWorker):
    """The process's requests and answers, without a process."""

    def __init__(self, job: Job) -> None:
        self.served, self.answers = RoundServer(), []
        self._left, self._under_way, self._is_mapping = memory_file(), 0, False

    @classmethod
    async def start(cls, job: Job) -> WithoutPipes:
        worker = cls(job)
        await worker.begin(job)
        return worker

    async def send(self, operation, first, second, body):
        self.answers.append(self.served.answer(operation, first, second, bytes(body)))

    async def receive(self):
        answer = self.answers.pop(0)
        return answer.status, answer.first, answer.second, b"".join(answer.parts)

    async def close(self) -> None:
        self.served.close()
        close_memory_file(self._left)


@pytest.fixture(autouse=True, scope="module")
def no_processes():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("headrace.log.compaction.cleaner.ProcessWorker", WithoutPipes)
        yield


class CompactedLog:
    """One log, its producers, and everything that committed readers may ever see of it."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.clock, self.store, self.metadata = (
            HandClock(1_700_000_000_000),
            CrashingStore(),
            DoubtfulMetadata(),
        )
        self.config = LogConfig(
            segment_bytes=self.random.choice((600, 1_500, 4_000)),
            is_compacted=True,
            is_deleted_by_retention=False,
            delete_retention_ms=DELETE_RETENTION_MS,
        )
        self.history: dict[int, tuple[bytes, bytes | None]] = {}
        """Offset -> (key, value) of what is committed."""
        self.open: dict[int, list[tuple[int, bytes, bytes | None]]] = {}
        self.sequences: dict[int, int] = {}
        self.compacted_ms: dict[int, int] = {}
        """Offset of a tombstone -> when the first round that may have seen it began."""
        self.value = 0
        self.start()

    def start(self) -> None:
        self.tasks = Tasks()
        self.environment = Environment(self.store, self.metadata, self.clock, self.tasks)
        self.log = PartitionLog("t-0", TOPIC_ID, 0, self.config, self.environment)

    async def restart(self) -> None:
        """What the process knew is lost; orphans are collected as a broker collects them."""
        await self.tasks.close()
        self.store.calls_left = self.metadata.puts_left = None
        end_offset = self.log.end_offset
        self.start()
        await self.log.wait_loaded()
        assert self.log.end_offset == end_offset
        named = {link.ledger for link in self.log.lifecycle_host.chain.fact.ledgers}
        for ledger in await self.store.all_ledgers():
            if ledger not in named:
                await self.store.delete(ledger)

    async def put(self, batch: bytes) -> int:
        return await append(self.log, batch)

    async def write(self) -> None:
        random = self.random
        producer = random.choice((-1, -1, 1, 2, 3))
        records = []
        for _ in range(random.choice((1, 1, 2, 5))):
            self.value += 1
            key = random.choice((b"a", b"b", b"c", b"d", b"e" * 16, b"f" * 40))
            value = None if random.random() < 0.25 else b"%d" % self.value
            records.append(Record(0, self.clock.ms - random.choice((0, 7)), key, value))
        sequence = self.sequences.get(producer, 0)
        is_transactional = producer > 1
        batch = encode_batch(
            records,
            codec=random.randrange(CODECS),
            producer_id=producer,
            producer_epoch=0 if producer > 0 else -1,
            base_sequence=sequence if producer > 0 else -1,
            is_transactional=is_transactional,
        )
        base = await self.put(batch)
        if producer > 0:
            self.sequences[producer] = sequence + len(records)
        written = [(base + i, r.key, r.value) for i, r in enumerate(records)]
        if is_transactional:
            self.open.setdefault(producer, []).extend(written)
        else:
            self.history |= {offset: (key, value) for offset, key, value in written}

    async def end(self) -> None:
        if not self.open:
            return
        producer = self.random.choice(sorted(self.open))
        is_commit = self.random.random() < 0.5
        while (appended := self.log.append_marker(producer, 0, 0, is_commit=is_commit)) is None:
            await asyncio.sleep(0)
        await appended.completion.wait()
        written = self.open.pop(producer)
        if is_commit:
            self.history |= {offset: (key, value) for offset, key, value in written}

    async def round(self) -> None:
        for offset, (_, value) in self.history.items():
            if value is None:
                self.compacted_ms.setdefault(offset, self.clock.ms)
        fate = self.random.random()
        if fate < 0.2:
            self.store.calls_left = self.random.randrange(1, 12)
        elif fate < 0.4:
            self.metadata.puts_left = self.random.randrange(1, 4)
            self.metadata.is_stored = self.random.random() < 0.5
        keys_max = self.random.choice((1, 3, 1_000))
        process_bytes_min = self.random.choice((None, 0))
        cleaner = Cleaner(
            self.log, self.environment, keys_max=keys_max, process_bytes_min=process_bytes_min
        )
        try:
            await cleaner.run()
        except (StorageUnavailable, MetadataUnavailable):
            if self.random.random() < 0.5:
                await self.restart()
        self.store.calls_left = self.metadata.puts_left = None
        for segment in cleaner.replaced:
            if segment.ledger in await self.store.all_ledgers():
                await self.store.delete(segment.ledger)

    async def read(self, offset: int, bytes_max: int) -> dict[int, tuple[bytes, bytes | None]]:
        """As a client that reads committed records does."""
        found: dict[int, tuple[bytes, bytes | None]] = {}
        end = self.log.visibility.last_stable_offset
        while offset < end:
            data, aborted = await self.log.reader.fetch(offset, bytes_max, READ_COMMITTED)
            waiting, cut = list(aborted or ()), set()
            assert len(data), f"nothing at {offset}, before {end}"
            for at, header in iterate_headers(bytes(data)):
                assert header.last_offset >= offset, "offsets rise"
                while waiting and waiting[0][0] <= header.last_offset:
                    cut.add(waiting.pop(0)[1])
                records = decode_batch(data, at)
                if header.is_control:
                    marker = read_marker(data, at)
                    assert marker is not None
                    if not marker.is_commit:
                        cut.discard(header.producer_id)
                elif not (header.is_transactional and header.producer_id in cut):
                    for record in records:
                        if record.offset >= offset:
                            assert not found or record.offset > max(found)
                            found[record.offset] = (record.key, record.value)
                offset = header.last_offset + 1
        assert offset == end
        return found

    async def check(self) -> None:
        end = self.log.visibility.last_stable_offset
        visible = {offset: pair for offset, pair in self.history.items() if offset < end}
        begin = self.random.randrange(end) if end else 0
        for start in (0, begin):
            found = await self.read(start, self.random.choice((1, 300, 100_000)))
            expected = {o: pair for o, pair in visible.items() if o >= start}
            for offset, pair in found.items():
                assert expected.get(offset) == pair, f"{pair} at {offset} was never committed"
            latest = {key: offset for offset, (key, _) in sorted(visible.items())}
            for key, offset in latest.items():
                if offset < start or offset in found:
                    continue
                assert visible[offset][1] is None, f"the value of {key!r} at {offset} is lost"
                due_ms = self.compacted_ms[offset] + DELETE_RETENTION_MS
                assert self.clock.ms >= due_ms, f"the tombstone of {key!r} went too early"
                older = [o for o, (other, _) in found.items() if other == key and o < offset]
                assert not older, f"{key!r} has come back, at {older}"
        await self.check_markers()

    async def check_markers(self) -> None:
        """A transaction of which records are left has its marker, or is open."""
        offset, unmarked = 0, set()
        while offset < self.log.high_watermark:
            data = (await self.log.reader.fetch(offset, 1_000, READ_UNCOMMITTED)).data
            for _, header in iterate_headers(bytes(data)):
                if header.is_control:
                    unmarked.discard(header.producer_id)
                elif header.is_transactional and header.record_count:
                    unmarked.add(header.producer_id)
                offset = header.last_offset + 1
        assert unmarked <= set(self.open), "a marker went before its records"

    async def check_producers(self) -> None:
        """A retry of each producer's last batch is still known."""
        for producer, sequence in self.sequences.items():
            assert producer in self.log.producers, sequence


async def run(seed: int, steps: int = 60) -> CompactedLog:
    with TemporaryDirectory() as folder:
        return await run_in(Path(folder), seed, steps)


async def run_in(folder: Path, seed: int, steps: int) -> CompactedLog:
    bench = CompactedLog(seed)
    bench.store.folder = folder if seed % 2 else None
    random = bench.random
    await bench.log.wait_loaded()
    try:
        for _ in range(steps):
            bench.clock.ms += random.choice((1, 10, DELETE_RETENTION_MS // 2))
            kind = random.random()
            if kind < 0.6:
                await bench.write()
            elif kind < 0.8:
                await bench.end()
            elif kind < 0.85:
                await bench.log.lifecycle_host.roll_now()
            elif kind < 0.88:
                await bench.restart()
            else:
                end = bench.log.end_offset
                await bench.round()
                assert bench.log.end_offset == end
                await bench.check()
        while bench.open:
            await bench.end()
        await bench.log.lifecycle_host.roll_now()
        for _ in range(3):
            bench.clock.ms += 2 * DELETE_RETENTION_MS
            await bench.round()
            await bench.check()
        await bench.check_producers()
        await bench.log.reader.offset_of_time(bench.clock.ms - 100)
        whole = await bench.log.reader.fetch(0, 10**9, READ_UNCOMMITTED)
        assert whole.data is not None
        await bench.restart()
        await bench.check()
    finally:
        await bench.tasks.close()
    return bench


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32))
def test_compaction_keeps_the_latest_committed_record_of_each_key(seed):
    asyncio.run(run(seed))


def _drop_a_live_key(monkeypatch):
    latest = compaction.KeyMap.latest
    monkeypatch.setattr(
        compaction.KeyMap, "latest", lambda self, keys: [one + 1 for one in latest(self, keys)]
    )


def _drop_tombstones_early(monkeypatch):
    monkeypatch.setattr(compaction, "delete_horizon_ms", lambda header: 0)


def _drop_markers_early(monkeypatch):
    rewrite = compaction.Compaction._rewrite_marker

    def without_data(self, stored, header, *, is_edge):
        self._with_data.discard(header.producer_id)
        return rewrite(self, stored, header, is_edge=is_edge)

    monkeypatch.setattr(compaction.Compaction, "_rewrite_marker", without_data)


def _map_aborted_records(monkeypatch):
    monkeypatch.setattr(compaction.AbortedRanges, "has", lambda self, header: False)


@pytest.mark.skipif(compiled.is_used(), reason="bugs are planted in plain modules")
@pytest.mark.parametrize(
    "plant",
    [
        _drop_a_live_key,
        _drop_tombstones_early,
        _drop_markers_early,
        _map_aborted_records,
    ],
)
def test_planted_bugs_are_found(monkeypatch, plant):
    plant(monkeypatch)
    for seed in range(60):
        try:
            asyncio.run(run(seed))
        except AssertionError:
            return
    pytest.fail("60 runs have not found it")
