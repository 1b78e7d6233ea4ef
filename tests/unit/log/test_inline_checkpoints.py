"""What a log notes in its open ledger: the next owner knows as much, and reads little."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

import pytest
from tests.unit.log.log_rig import LogHarness, forget_before, rig, settle

from headrace.log import segment as segment_module
from headrace.records.batch import check_batch, iterate_headers
from headrace.records.codec import Record, encode_batch
from headrace.storage.memory import MemoryLedgerStore

if TYPE_CHECKING:
    from headrace.log.partition_log import PartitionLog
    from headrace.log.segment import Segment
    from headrace.storage.ledger import LedgerId

INTERVAL_BYTES = 20_000


@pytest.fixture(autouse=True)
def _notes_come_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segment_module, "CHECKPOINT_INTERVAL_BYTES", INTERVAL_BYTES)
    monkeypatch.setattr(segment_module, "CHECKPOINT_RATIO", 1)


class CountingStore(MemoryLedgerStore):
    """Counts the bytes that are read."""

    bytes_read = 0

    async def read(self, ledger: LedgerId, position: int, size: int):
        data = await super().read(ledger, position, size)
        self.bytes_read += len(data)
        return data


class Producers:
    """Idempotent producers whose batches are of many sizes and times."""

    def __init__(self, seed: int) -> None:
        self.rng = Random(seed)
        self.sequences: dict[int, int] = {}

    def batch(self, now_ms: int) -> bytes:
        producer_id = self.rng.randrange(4)
        count = self.rng.randrange(1, 4)
        sequence = self.sequences.get(producer_id, 0)
        self.sequences[producer_id] = sequence + count
        value = bytes(self.rng.choice((10, 500, 3_000, 6_000)))
        times = [now_ms + self.rng.randrange(-9_999, 9_999) for _ in range(count)]
        return encode_batch(
            [Record(n, at, None, value, []) for n, at in enumerate(times)],
            producer_id=producer_id,
            producer_epoch=0,
            base_sequence=sequence,
        )


def picture(log: PartitionLog, segment: Segment) -> tuple[object, ...]:
    index = segment.index
    sequences = [
        (producer_id, [batch[:3] for batch in producer.batches[-5:]])
        for producer_id, producer in sorted(log.producers._producers.items())
    ]
    columns = [list(index.offsets), list(index.positions), list(index.max_timestamps)]
    ends = (segment.base_offset, segment.end_offset, segment.end_position)
    return ends, segment.max_timestamp_ms, columns, sequences


def rival_of(bench: LogHarness, epoch: int) -> tuple[LogHarness, CountingStore]:
    rival = bench.rival(epoch)
    counting = CountingStore()
    counting._is_shared = True
    counting._ledgers, counting._ids = rival.store._ledgers, rival.store._ids
    rival.store = counting  # type: ignore[assignment]
    rival.log = rival.open()
    return rival, counting


@pytest.mark.parametrize("seed", range(12))
async def test_a_new_owner_restores_all_state_and_reads_only_the_tail(seed: int) -> None:
    async with rig(leader_epoch=0) as bench:
        await bench.append(b"")
        producers = Producers(seed)
        for _ in range(producers.rng.randrange(20, 120)):
            bench.clock.ms += 1
            batch = producers.batch(bench.clock.ms)
            appended = bench.log.append(batch, check_batch(batch))
            assert appended is not None
            if producers.rng.random() < 0.2:
                await appended.completion.wait()
        await settle()
        active = bench.log.active
        assert active is not None
        known = picture(bench.log, active)
        rival, counting = rival_of(bench, 1)
        await rival.ready()
        assert picture(rival.log, rival.log.segments[0]) == known
        assert counting.bytes_read <= INTERVAL_BYTES + 4 * 6_200
        # The same again from the bytes alone, without the notes.
        for stored in counting._ledgers.values():
            stored.notes.clear()
        third, counting = rival_of(rival, 2)
        await third.ready()
        assert picture(third.log, third.log.segments[0]) == known
        data = await third.log.reader.read(0, 1 << 30)
        offsets = [header.base_offset for _at, header in iterate_headers(data)]
        assert offsets == sorted(set(offsets))


async def test_a_checkpoint_without_producers_brings_back_no_forgotten_one() -> None:
    async with rig(leader_epoch=0) as bench:
        await bench.append(b"")
        batch = Producers(1).batch(bench.clock.ms)
        assert bench.log.append(batch, check_batch(batch)) is not None
        await bench.log.lifecycle_host.roll_now()
        await settle()
        forget_before(bench.log.producers, bench.clock.ms + 1)
        for _ in range(5):
            await bench.append(b"b", size=5_000)
        assert len(bench.store._ledgers) == 2
        rival, _ = rival_of(bench, 1)
        await rival.ready()
        assert not len(rival.log.producers)


async def test_a_note_with_records_that_were_never_stored_is_not_believed() -> None:
    async with rig(leader_epoch=0) as bench:
        await bench.append(b"a", size=5_000)
        bench.store.is_held = True
        for _ in range(5):
            bench.begin(b"b", size=5_000)
        (stored,) = bench.store._ledgers.values()
        assert stored.notes, "one was due"
        rival, _ = rival_of(bench, 1)
        await rival.ready()
        assert rival.log.end_offset == 1
        assert await rival.append(b"c") == 1
        bench.store.complete_all()
        await settle()


async def test_a_log_that_no_other_broker_can_take_over_writes_no_checkpoints() -> None:
    async with rig() as bench:
        for _ in range(10):
            await bench.append(b"a", size=5_000)
        assert not any(stored.notes for stored in bench.store._ledgers.values())
