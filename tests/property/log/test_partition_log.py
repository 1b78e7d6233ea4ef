"""A partition's log against a plain list, through rolls, trims, failures and reloads."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.kit.records import append
from tests.unit.log.log_rig import LogHarness, settle

from headrace.errors import HeadraceError, OffsetOutOfRange, OutOfOrderSequence, StorageUnavailable
from headrace.log.log_config import LogConfig
from headrace.records.batch import check_batch, iterate_headers
from headrace.records.codec import Record, decode_batch, encode_batch
from headrace.storage.memory import MemoryLedgerStore


class FailingStore(MemoryLedgerStore):
    """Fails whole groups on demand, as a full disk would: they leave no trace."""

    def __init__(self) -> None:
        super().__init__()
        self.failures = 0

    def _commit(self) -> None:
        if not self.failures or not self._pending:
            super()._commit()
            return
        self.failures -= 1
        group, self._group = self._group, None
        pending, self._pending = self._pending, []
        for number, _parts, _completion in pending:
            ledger = self._find(number)
            ledger.end = ledger.readable
        assert group is not None
        group.fail(StorageUnavailable("the disk is full"))


@dataclass
class Model:
    """What must be in the log: (offset, value, timestamp) of every acknowledged record."""

    records: list[tuple[int, bytes, int]] = field(default_factory=list)
    start: int = 0

    @property
    def end(self) -> int:
        return self.records[-1][0] + 1 if self.records else self.start


class ModelledLog(LogHarness):
    """One log, its stores and its model."""

    def __init__(self, segment_bytes: int) -> None:
        super().__init__(LogConfig(segment_bytes=segment_bytes), store=FailingStore())
        self.model = Model()
        self.sequence = 0
        self.counter = 0

    def batch(self, count: int, size: int, *, sequence: int = -1) -> tuple[bytes, list[bytes]]:
        values = []
        for _ in range(count):
            self.counter += 1
            values.append(b"%08d" % self.counter + b"x" * size)
        records = [Record(i, self.clock.ms + i, None, v, []) for i, v in enumerate(values)]
        producer_id, epoch = (77, 0) if sequence >= 0 else (-1, -1)
        return (
            encode_batch(
                records, producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence
            ),
            values,
        )

    async def append_acknowledged(self, batch: bytes, values: list[bytes]) -> None:
        try:
            base = await append(self.log, batch)
        except StorageUnavailable:
            return
        assert base == self.model.end
        for i, value in enumerate(values):
            self.model.records.append((base + i, value, self.clock.ms + i))

    async def check(self) -> None:
        """All that is acknowledged is there, once, in order, byte for byte; nothing else."""
        if not self.log.is_loaded:
            await self.reload()
        log, model = self.log, self.model
        assert log.log_start_offset == model.start
        assert log.high_watermark == model.end
        seen, offset = [], model.start
        while offset < log.high_watermark:
            data = await log.reader.read(offset, 300)
            headers = [header for _at, header in iterate_headers(data)]
            assert headers[0].base_offset <= offset <= headers[0].last_offset
            at = 0
            for header in headers:
                for record in decode_batch(data, at):
                    if record.offset >= offset:
                        seen.append((record.offset, record.value))
                at += header.size
            offset = headers[-1].last_offset + 1
        assert seen == [(o, v) for o, v, _ts in model.records if o >= model.start]


OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.integers(1, 5), st.integers(0, 200)),
        st.tuples(st.just("burst"), st.integers(1, 8), st.integers(0, 60)),
        st.tuples(st.just("idempotent"), st.integers(1, 4), st.booleans()),
        st.tuples(st.just("fail"), st.integers(1, 2), st.integers(0, 0)),
        st.tuples(st.just("trim"), st.integers(0, 100), st.integers(0, 0)),
        st.tuples(st.just("roll"), st.integers(0, 0), st.integers(0, 0)),
        st.tuples(st.just("reload"), st.integers(0, 0), st.integers(0, 0)),
        st.tuples(st.just("time"), st.integers(1, 50), st.integers(0, 0)),
    ),
    max_size=40,
)


async def _burst(bench: ModelledLog, count: int, size: int) -> None:
    """Appends that are under way together: they fail or succeed in order."""
    batches = [bench.batch(1, size) for _ in range(count)]
    outcomes = await asyncio.gather(
        *(append(bench.log, batch) for batch, _values in batches), return_exceptions=True
    )
    for (_batch, values), outcome in zip(batches, outcomes, strict=True):
        if isinstance(outcome, StorageUnavailable):
            continue
        assert isinstance(outcome, int), outcome
        assert outcome == bench.model.end
        bench.model.records.append((outcome, values[0], bench.clock.ms))


async def _idempotent(bench: ModelledLog, count: int, *, is_retried: bool) -> None:
    batch, values = bench.batch(count, 10, sequence=bench.sequence)
    before = bench.model.end
    await bench.append_acknowledged(batch, values)
    if bench.model.end == before:
        return  # it failed: the sequence is still to come
    bench.sequence += count
    if is_retried:
        assert await append(bench.log, batch) == before, "a retry gets the offset it already has"
    gap, _values = bench.batch(1, 1, sequence=bench.sequence + 3)
    with pytest.raises((OutOfOrderSequence, StorageUnavailable)):
        await append(bench.log, gap)


async def _run(segment_bytes: int, operations: list[tuple[str, int, int]]) -> None:
    bench = ModelledLog(segment_bytes)
    for name, first, second in operations:
        match name:
            case "append":
                batch, values = bench.batch(first, second)
                await bench.append_acknowledged(batch, values)
            case "burst":
                await _burst(bench, first, second)
            case "idempotent":
                await _idempotent(bench, first, is_retried=bool(second))
            case "fail":
                bench.store.failures = first
            case "trim":
                await bench.check()
                target = bench.model.start + (bench.model.end - bench.model.start) * first // 100
                await bench.log.lifecycle_host.trim(target)
                bench.model.start = target
            case "roll":
                bench.store.failures = 0
                await settle()
                await bench.log.lifecycle_host.roll_now()
            case "reload":
                await bench.reload()
            case "time":
                bench.clock.ms += first
    bench.store.failures = 0
    await bench.check()
    await _check_times(bench)
    await bench.reload()
    await bench.check()
    await bench.tasks.close()


async def _check_times(bench: ModelledLog) -> None:
    kept = [(o, ts) for o, _v, ts in bench.model.records if o >= bench.model.start]
    for probe in {ts for _o, ts in kept[:: max(1, len(kept) // 5)]}:
        found = await bench.log.reader.offset_of_time(probe)
        assert found.offset == min(o for o, ts in kept if ts >= probe)


@settings(max_examples=300, deadline=None)
@given(st.integers(100, 2_000), OPERATIONS)
def test_acknowledged_batches_are_read_back_once_and_in_order(
    segment_bytes: int, operations: list[tuple[str, int, int]]
) -> None:
    asyncio.run(_run(segment_bytes, operations))


async def test_an_offset_outside_the_log_is_refused() -> None:
    bench = ModelledLog(10_000)
    batch, values = bench.batch(3, 1)
    await bench.append_acknowledged(batch, values)
    for offset in (-1, 4):
        with pytest.raises(OffsetOutOfRange):
            await bench.log.reader.read(offset, 100)
    assert not len(await bench.log.reader.read(3, 100))


async def test_damaged_bytes_are_reported_not_served() -> None:
    bench = ModelledLog(10_000)
    for _ in range(5):
        batch, values = bench.batch(2, 50)
        await bench.append_acknowledged(batch, values)
    ledger = bench.store._ledgers[1]
    ledger.data[200] ^= 1
    bench.log = bench.open()
    bench.log.load()
    assert bench.log.ready is not None
    with pytest.raises(HeadraceError, match="corrupt at byte"):
        await bench.log.ready.wait()
    with pytest.raises(HeadraceError, match="corrupt at byte"):
        bench.log.append(batch, check_batch(batch))
    await bench.tasks.close()
