"""Transactions as one partition's log sees them: markers, fencing, the last stable offset."""

from __future__ import annotations

import pytest
from tests.unit.log.log_rig import LogHarness, forget_before, rig, settle
from tests.unit.log.transaction_rig import Producer

from headrace.errors import (
    ProducerFenced,
    RecordInvalid,
    StorageUnavailable,
    TransactionCoordinatorFenced,
    TransactionStateInvalid,
)
from headrace.records.batch import check_batch
from headrace.records.codec import Record, encode_batch
from headrace.records.marker import Marker, read_marker


def marks(bench: LogHarness) -> tuple[int, int]:
    """(last stable offset, high watermark)."""
    return bench.log.visibility.last_stable_offset, bench.log.visibility.high_watermark


@pytest.mark.parametrize("is_commit", [True, False])
async def test_an_open_transaction_holds_the_last_stable_offset_until_its_marker(is_commit) -> None:
    async with rig() as bench:
        producer = Producer(bench)
        await bench.append(b"plain")
        assert marks(bench) == (1, 1)
        assert await producer.send(2) == 1
        await bench.append(b"plain")
        await producer.send()
        assert marks(bench) == (1, 5)
        assert bench.log.producers.open_transaction(7) == 1
        assert await producer.end(is_commit=is_commit) == 5
        assert marks(bench) == (6, 6)
        assert bench.log.producers.open_transaction(7) is None
        marker = check_batch(data := await bench.log.reader.read(5, 1000))
        assert marker.is_control
        assert marker.is_transactional
        assert (marker.producer_id, marker.producer_epoch, marker.base_sequence) == (7, 0, -1)
        assert read_marker(data) == Marker(is_commit, 0)


async def test_the_first_of_several_open_transactions_holds_it() -> None:
    async with rig() as bench:
        first, second, third = (Producer(bench, number) for number in (1, 2, 3))
        await first.send()
        await second.send()
        await third.send()
        await second.end()
        assert marks(bench) == (0, 4)
        await first.end(is_commit=False)
        assert marks(bench) == (2, 5)
        await second.send()
        await third.end()
        assert marks(bench) == (5, 7)


async def test_a_marker_counts_when_it_is_safe_and_not_before() -> None:
    async with rig() as bench:
        producer = Producer(bench)
        await producer.send()
        bench.store.is_held = True
        appended = producer.begin_end()
        assert appended is not None
        await settle()
        assert marks(bench) == (0, 1)
        assert producer.begin_send() is not None, "the next transaction need not wait for it"
        await settle()
        bench.store.complete_all()
        await settle()
        assert marks(bench) == (2, 3)


async def test_failed_appends_leave_no_transaction_state() -> None:
    async with rig() as bench:
        producer, other = Producer(bench), Producer(bench, 8)
        await producer.send()
        bench.store.is_held = True
        assert producer.begin_end(version=2) is not None
        assert producer.begin_send() is not None
        assert other.begin_send() is not None
        assert other.begin_end(is_commit=False) is not None
        await settle()
        bench.store.fail_newest()
        bench.store.complete_all()
        await settle()
        assert marks(bench) == (0, 1)
        assert bench.log.producers.open_transaction(7) == 0
        assert bench.log.producers.open_transaction(8) is None
        producer.epoch, other.sequence = 0, 0
        assert await producer.end(version=2) == 1, "the marker is not taken for a repeat"
        assert marks(bench) == (2, 2)
        assert await other.send() == 2
        assert marks(bench) == (2, 3)


@pytest.mark.parametrize("is_first", [True, False])
async def test_a_failed_append_of_a_first_marker_can_be_repeated(is_first) -> None:
    async with rig() as bench:
        producer = Producer(bench)
        if not is_first:
            await producer.send()
        bench.store.refuse_appends = True
        with pytest.raises(StorageUnavailable):
            await producer.end()
        bench.store.refuse_appends = False
        await settle()
        assert await producer.end() >= 0
        assert marks(bench)[0] == bench.log.end_offset


async def test_older_producers_and_coordinators_are_fenced() -> None:
    async with rig() as bench:
        producer = Producer(bench, epoch=3)
        await producer.send()
        await producer.end(coordinator_epoch=5)
        await producer.send()
        with pytest.raises(TransactionCoordinatorFenced):
            await producer.end(coordinator_epoch=4)
        old = Producer(bench, epoch=2)
        with pytest.raises(ProducerFenced):
            await old.end(coordinator_epoch=5)
        with pytest.raises(ProducerFenced):
            await old.send()
        assert marks(bench) == (2, 3)
        # A coordinator that fences a producer ends its transaction under the next epoch.
        fencing = Producer(bench, epoch=4)
        await fencing.end(is_commit=False, coordinator_epoch=6)
        with pytest.raises(ProducerFenced):
            await producer.send()
        assert marks(bench) == (4, 4)


async def test_markers_of_version_2_carry_a_new_epoch() -> None:
    async with rig() as bench:
        producer = Producer(bench)
        await producer.send()
        with pytest.raises(ProducerFenced):
            bench.log.append_marker(7, 0, 0, is_commit=True, transaction_version=2)
        assert await producer.end(version=2) == 1
        repeat = bench.log.append_marker(7, 1, 0, is_commit=True, transaction_version=2)
        assert repeat is not None
        assert repeat.base_offset == -1
        late = Producer(bench)
        late.sequence = 1
        with pytest.raises(ProducerFenced):
            await late.send()
        assert await producer.send() == 2, "the sequence begins again at 0"


async def test_a_repeated_marker_changes_nothing_and_waits_for_the_first() -> None:
    async with rig() as bench:
        producer = Producer(bench)
        await producer.send()
        bench.store.is_held = True
        producer.begin_end()
        repeat = producer.begin_end()
        assert repeat is not None
        await settle()
        assert repeat.base_offset == -1
        assert not repeat.completion.done
        bench.store.complete_all()
        await settle()
        assert repeat.completion.done
        assert bench.log.end_offset == 2


async def test_a_marker_for_a_producer_that_wrote_nothing_fences_its_older_epochs() -> None:
    async with rig() as bench:
        producer = Producer(bench, epoch=4)
        assert await producer.end() == 0
        assert marks(bench) == (1, 1)
        await bench.reload()
        with pytest.raises(ProducerFenced):
            await Producer(bench, epoch=3).send()


async def test_control_batches_and_invalid_transactional_batches_are_refused() -> None:
    async with rig() as bench:
        await bench.append(b"plain")
        producer = Producer(bench)
        control = producer.batch(is_control=True)
        with pytest.raises(RecordInvalid, match="control"):
            bench.log.append(control, check_batch(control))
        anonymous = encode_batch([Record(0, 0, None, b"")], is_transactional=True)
        with pytest.raises(RecordInvalid, match="producer id"):
            bench.log.append(anonymous, check_batch(anonymous))
        await producer.send()
        with pytest.raises(TransactionStateInvalid):
            await producer.send(is_transactional=False)
        await producer.end()
        assert await producer.send(is_transactional=False) == 3
        assert marks(bench) == (4, 4)


async def test_a_retry_within_a_transaction_is_recognised_also_after_its_end() -> None:
    async with rig() as bench:
        producer = Producer(bench)
        for _ in range(3):
            await producer.send()
        await producer.end()
        producer.sequence = 1
        assert await producer.send() == 1
        assert marks(bench) == (4, 4), "it has not opened a transaction"


async def test_open_transactions_and_epochs_survive_a_restart() -> None:
    async with rig() as bench:
        producer, ended, aborted = (Producer(bench, number) for number in (7, 8, 9))
        await ended.send()
        await producer.send()
        await aborted.send()
        await ended.end(coordinator_epoch=3)
        await aborted.end(is_commit=False)
        await bench.reload()
        assert marks(bench) == (1, 5)
        assert bench.log.producers.open_transaction(7) == 1
        with pytest.raises(TransactionCoordinatorFenced):
            await ended.end(coordinator_epoch=2)
        await producer.send()
        assert marks(bench) == (1, 6)
        await producer.end()
        assert marks(bench) == (7, 7)


async def test_a_producer_with_an_open_transaction_never_expires() -> None:
    async with rig() as bench:
        producer = Producer(bench)
        await producer.send()
        forget_before(bench.log.producers, bench.clock.ms + 1)
        assert 7 in bench.log.producers
        await producer.end()
        forget_before(bench.log.producers, bench.clock.ms + 1)
        assert 7 not in bench.log.producers


async def test_records_that_are_deleted_hold_back_nothing() -> None:
    async with rig() as bench:
        producer = Producer(bench)
        await producer.send(3)
        await bench.append(b"plain")
        await bench.log.lifecycle_host.trim(2)
        assert marks(bench) == (2, 4)
        await bench.reload()
        assert marks(bench) == (2, 4)
        await producer.end()
        assert marks(bench) == (5, 5)
