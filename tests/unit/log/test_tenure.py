"""A partition changes hands: what the former owner may still do, and what the next one finds."""

from __future__ import annotations

import asyncio

import pytest
from tests.kit.records import append, batch
from tests.unit.log.log_rig import TOPIC_ID, LogHarness, forget_before, rig, settle

from headrace.broker.coordinators.internal_topics import InternalPartition
from headrace.broker.coordinators.shard_log import PendingRecord
from headrace.coordination.kit.machine import EndsTransaction, InTransaction, TransactionEnded
from headrace.errors import HeadraceError, LedgerFenced, LedgerLost, MetadataUnavailable, NotOwner
from headrace.log.log_config import LogConfig
from headrace.records.batch import iterate_headers


async def taken_over(bench: LogHarness, leader_epoch: int = 1) -> LogHarness:
    rival = bench.rival(leader_epoch)
    await rival.ready()
    return rival


async def values_of(internal: InternalPartition) -> list[bytes | None]:
    """What its records hold, as they are read back."""
    return [value async for records in internal.replay() for _key, value in records]


async def epochs(bench: LogHarness) -> list[int]:
    data = await bench.log.reader.read(0, 1 << 20)
    return [header.leader_epoch for _at, header in iterate_headers(data)]


async def test_the_next_owner_goes_on_where_the_former_one_ended() -> None:
    async with rig(leader_epoch=0) as bench:
        assert [await bench.append(b"a"), await bench.append(b"b")] == [0, 1]
        rival = await taken_over(bench)
        assert await rival.append(b"c") == 2
        assert await rival.offsets() == [0, 1, 2]
        assert rival.log.segments[0].leader_epoch == 0
        assert rival.log.segments[1].leader_epoch == 1


async def test_a_former_owner_gets_nothing_acknowledged_and_learns_that_it_is_none() -> None:
    async with rig(leader_epoch=0) as bench:
        await bench.append(b"a")
        rival = await taken_over(bench)
        with pytest.raises(LedgerFenced):
            bench.begin(b"late")
        await settle()
        with pytest.raises(NotOwner):
            bench.begin(b"later")
        assert await rival.offsets() == [0]


async def test_appends_in_flight_when_a_rival_takes_over_are_not_acknowledged() -> None:
    async with rig(leader_epoch=0) as bench:
        await bench.append(b"a")
        bench.store.is_held = True
        pending = bench.begin(b"b")
        assert pending is not None
        await settle()
        rival = await taken_over(bench)
        assert await rival.append(b"c") == 1
        bench.store.complete_all()
        await settle()
        assert isinstance(pending.completion.error, LedgerFenced)
        assert await rival.offsets() == [0, 1]
        assert isinstance(bench.log.failure, NotOwner)


async def test_a_former_owner_cannot_roll_into_another_ledger() -> None:
    async with rig(LogConfig(segment_bytes=1_000), leader_epoch=0) as bench:
        await bench.append(b"a")
        rival = await taken_over(bench)
        await bench.log.lifecycle_host.roll_now()
        assert isinstance(bench.log.failure, NotOwner)
        for _ in range(4):
            await rival.append(b"b", size=400)
        assert await rival.offsets() == [0, 1, 2, 3, 4]


async def test_released_in_peace_the_ledger_is_sealed_and_what_was_under_way_is_safe() -> None:
    async with rig(leader_epoch=3) as bench:
        await bench.append(b"a")
        bench.store.is_held = True
        pending = bench.begin(b"b")
        releasing = bench.tasks.start(bench.log.tenure.settle_and_seal(), "release")
        await settle()
        assert bench.begin(b"c") is None, "it waits to be told where to go"
        waiting = bench.log.ready
        assert pending is not None
        assert not releasing.done()
        bench.store.complete_all()
        await releasing
        bench.log.tenure.record_seal()
        await settle()
        assert pending.completion.error is None
        assert not waiting.done
        bench.log.tenure.abandon(NotOwner("gone"))
        assert isinstance(waiting.error, NotOwner)
        with pytest.raises(NotOwner):
            bench.begin(b"c")
        rival = await taken_over(bench, 4)
        segment = rival.log.segments[0]
        assert segment.is_sealed
        assert segment.verified_to == 0, "nothing was scanned"
        assert await rival.append(b"d") == 2


async def test_an_owner_that_is_fenced_for_nothing_goes_on_in_another_ledger() -> None:
    """Somebody recovered the ledger, and did not take the partition."""

    async with rig(leader_epoch=0) as bench:
        await bench.append(b"a")
        await bench.store.beside().recover(bench.log.segments[0].ledger)
        with pytest.raises(LedgerFenced):
            bench.begin(b"b")
        await settle()
        assert await bench.append(b"c") == 1
        assert await bench.offsets() == [0, 1]


@pytest.mark.parametrize("is_stored", [True, False])
async def test_an_append_in_doubt_is_settled_by_reading_again(is_stored: bool) -> None:
    async with rig(leader_epoch=0) as bench:
        await bench.append(b"a")
        ledger = bench.log.segments[0].ledger
        with bench.store.in_doubt(is_stored=is_stored):
            doubtful = bench.begin(b"b")
            assert doubtful is not None
            await settle()
        assert isinstance(doubtful.completion.error, LedgerLost)
        assert await bench.append(b"c") == (2 if is_stored else 1)
        assert bench.log.segments[-1].ledger != ledger
        assert await bench.offsets() == ([0, 1, 2] if is_stored else [0, 1])


async def test_no_ledger_follows_one_in_doubt_before_it_has_been_read_again() -> None:
    """What is in doubt was stored, and reading it fails at first: its offsets stay its own."""

    async with rig(leader_epoch=0) as bench:
        await bench.append(b"a")
        get = bench.metadata.get

        async def away(_key):
            raise MetadataUnavailable("an outage")

        bench.metadata.get = away
        with bench.store.in_doubt(is_stored=True):
            assert bench.begin(b"b") is not None
            await settle()
        bench.metadata.get = get
        assert await bench.append(b"c") == 2
        assert await bench.offsets() == [0, 1, 2]
        await bench.reload()
        assert await bench.offsets() == [0, 1, 2]


async def test_a_coordinator_reads_its_log_again_with_what_was_in_doubt() -> None:
    """Whoever coordinates next finds it: the state here must not be another."""

    async with rig(leader_epoch=0) as bench:
        internal = InternalPartition(bench.log, bench.clock)
        await internal.append([(b"k", b"1")]).wait()
        recover, gate = bench.store.recover, asyncio.Event()

        async def slow(ledger):
            await gate.wait()
            return await recover(ledger)

        bench.store.recover = slow
        with bench.store.in_doubt(is_stored=True), pytest.raises(LedgerLost):
            await internal.append([(b"k", b"2")]).wait()
        found: list[object] = []

        async def replay():
            found.extend(await values_of(internal))

        replaying = bench.tasks.start(replay(), "replay")
        await settle()
        gate.set()
        await replaying
        rival = await taken_over(bench)
        next_one = InternalPartition(rival.log, rival.clock)
        assert found == await values_of(next_one) == [b"1", b"2"]


async def test_batches_carry_the_epoch_of_the_owner_that_wrote_them() -> None:
    async with rig(leader_epoch=0) as bench:
        await bench.append(b"a")
        second = await taken_over(bench, 1)
        await second.append(b"b")
        third = await taken_over(second, 5)
        await third.append(b"c")
        found = [await _epoch_at(third, offset) for offset in (0, 1, 2)]
        assert found == [0, 1, 5]
        await third.reload()
        assert await third.offsets() == [0, 1, 2]


async def _epoch_at(bench: LogHarness, offset: int) -> int:
    data = await bench.log.reader.read(offset, 1)
    return next(iter(iterate_headers(data)))[1].leader_epoch


async def test_a_log_that_was_overtaken_does_not_load() -> None:
    async with rig(leader_epoch=2) as bench:
        await bench.append(b"a")
        late = bench.rival(1)
        with pytest.raises(HeadraceError) as caught:
            await late.ready()
        assert isinstance(caught.value, NotOwner)
        assert await bench.append(b"b") == 1


async def append_of(bench: LogHarness, producer: int, sequence: int) -> int:
    of_producer = {"producer_id": producer, "producer_epoch": 0, "base_sequence": sequence}
    return await append(bench.log, batch(b"%d" % sequence, **of_producer))


@pytest.mark.parametrize("takeovers", [1, 2, 3])
def test_a_retry_is_recognised_however_often_the_partition_has_changed_hands(takeovers) -> None:
    """Found by `headrace verify blackbox`: a ledger that is recovered gets no footer; once the
    chain called it sealed, the next owner knew the producers of that ledger alone."""

    async def scenario() -> None:
        async with rig(leader_epoch=0) as bench:
            assert await append_of(bench, 7, 0) == 0
            assert await append_of(bench, 7, 1) == 1
            await bench.log.lifecycle_host.roll_now()
            assert await append_of(bench, 8, 0) == 2  # another producer, in the next ledger
            owner = bench
            for epoch in range(1, takeovers + 1):
                owner = await taken_over(bench, epoch)
                await settle()
                assert await append_of(owner, 8, epoch) == 2 + epoch
            assert await append_of(owner, 7, 1) == 1, "a retry is recognised"
            forget_before(owner.log.producers, owner.clock.ms)
            assert await append_of(owner, 7, 1) == 1, "it was seen lately"
            assert await append_of(owner, 7, 2) == 3 + takeovers


async def test_a_tenure_that_ends_lets_go_of_the_ledgers_that_are_open() -> None:
    async with rig(LogConfig(segment_bytes=1_000), leader_epoch=3) as bench:
        released: list[int] = []
        bench.store.release = released.append  # type: ignore[attr-defined]
        while len(bench.log.segments) < 3 or bench.log.lifecycle_host._prepared is None:
            await bench.append(b"fills", size=50)
            await settle()
        prepared = bench.log.lifecycle_host._prepared
        bench.log.tenure.abandon(NotOwner("gone"))
        assert released == [bench.log.segments[-1].ledger, prepared.ledger]


@pytest.mark.parametrize("is_sealed", [True, False])
async def test_trimmed_ledgers_are_released_though_their_bytes_stay_until_collected(
    is_sealed,
) -> None:
    async with rig(LogConfig(segment_bytes=1_000), leader_epoch=3) as bench:
        released: list[int] = []
        bench.store.release = released.append  # type: ignore[attr-defined]
        bench.store.refuse_seals = not is_sealed
        while len(bench.log.segments) < 4:
            await bench.append(b"fills", size=50)
            await settle()
        gone = bench.log.segments[:2]
        assert [segment.is_sealed for segment in gone] == [is_sealed] * 2
        await bench.log.lifecycle_host.trim(gone[-1].end_offset)
        assert released == [segment.ledger for segment in gone]
        assert set(released) < set(bench.store._ledgers)


async def test_a_ledger_that_did_not_enter_the_chain_is_released() -> None:
    async with rig(leader_epoch=3) as bench:
        released: list[int] = []
        bench.store.release = released.append  # type: ignore[attr-defined]
        put = bench.metadata.put

        async def away(*_arguments: object) -> int:
            raise MetadataUnavailable("an outage")

        bench.metadata.put = away  # type: ignore[method-assign]
        with pytest.raises(MetadataUnavailable):
            await bench.append(b"a")
        assert released == list(bench.store._ledgers)
        bench.metadata.put = put  # type: ignore[method-assign]
        assert await bench.append(b"a") == 0
        assert bench.log.segments[-1].ledger not in released


async def test_a_ledger_says_whose_it_is() -> None:
    async with rig(leader_epoch=3) as bench:
        found: list[object] = []
        create = bench.store.create

        async def noted(labels=None, copies=None):
            found.append(labels)
            return await create(labels, copies)

        bench.store.create = noted  # type: ignore[method-assign]
        await bench.append(b"a")
        assert found == [{"partition": b"t-0", "topic": TOPIC_ID.hex.encode(), "epoch": b"3"}]


async def test_transactional_records_before_a_snapshot_survive_a_marker_during_it() -> None:
    async with rig() as bench:
        internal = InternalPartition(bench.log, bench.clock)
        await internal.append([(b"k", b"1")]).wait()
        bench.log.begin_verification(7)
        await internal.append([(b"k", b"2")], InTransaction(7, 0)).wait()
        needed_from = internal.begin_snapshot()
        await internal.append([(b"k", b"1")]).wait()
        await internal.append_marker(EndsTransaction(7, 0, 0, True, 1)).wait()
        await internal.end_snapshot(needed_from)
        assert bench.log.log_start_offset
        found = [replayed async for replayed in internal.replay()]
        assert PendingRecord(InTransaction(7, 0), b"k", b"2") in found
        assert found[-1] == TransactionEnded(7, is_commit=True)
