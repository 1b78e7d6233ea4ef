"""A planned move: what the next owner has done before its turn, and what becomes of it."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from tests.unit.log.log_rig import LogHarness, rig, settle

from headrace.errors import MetadataUnavailable, NotOwner


async def next_owner(bench: LogHarness, leader_epoch: int = 1) -> LogHarness:
    """The next owner of a partition that is in use, ready for its turn."""
    rival = bench.rival(leader_epoch)
    rival.log.tenure.expect_handover()
    await rival.log.tenure.read_ahead()
    return rival


async def hand_over(bench: LogHarness, rival: LogHarness) -> None:
    await bench.log.tenure.settle_and_seal()
    bench.log.tenure.record_seal()
    await settle()
    bench.log.tenure.abandon(NotOwner("gone"))
    rival.log.tenure.take_over()
    await rival.ready()


async def test_a_next_owner_that_was_ready_creates_no_ledger_in_its_turn() -> None:
    async with rig(leader_epoch=0) as bench:
        await bench.append(b"a")
        rival = await next_owner(bench)
        created = len(bench.store._ledgers)
        await bench.append(b"b")
        await hand_over(bench, rival)
        assert rival.log.segments[0].verified_to == 0, "nothing was scanned"
        assert rival.begin(b"c") is not None, "at once"
        assert len(bench.store._ledgers) == created
        await settle()
        assert await rival.offsets() == [0, 1, 2]
        assert [segment.leader_epoch for segment in rival.log.segments] == [0, 1]
        again = bench.rival(2)
        await again.ready()
        assert await again.append(b"d") == 3
        assert await again.offsets() == [0, 1, 2, 3]


async def test_a_chain_that_the_former_owner_handed_over_is_not_written_by_the_next_one() -> None:
    async with rig(leader_epoch=0) as bench:
        await bench.append(b"a")
        rival = await next_owner(bench)
        await bench.append(b"b")
        await bench.log.tenure.settle_and_seal(NotOwner("gone"))
        with pytest.raises(NotOwner):
            bench.begin(b"late")
        ahead = rival.log.tenure.ledger_ahead
        assert ahead is not None
        change = bench.log.tenure.next_chain(1, ahead)
        assert change is not None
        [version] = await bench.metadata.multi([change])
        bench.log.tenure.record_seal()
        await settle()
        assert isinstance(bench.log.failure, NotOwner), "the former one is shut out"
        rival.log.tenure.take_over()
        await rival.ready()
        assert rival.begin(b"c") is not None, "at once"
        entry = await bench.metadata.get(change.key)
        assert entry is not None
        assert entry.version == version
        await settle()
        assert await rival.offsets() == [0, 1, 2]
        again = bench.rival(2)
        await again.ready()
        assert await again.offsets() == [0, 1, 2]


async def test_a_next_owner_that_follows_the_former_one_reads_nothing_in_its_turn(
    monkeypatch,
) -> None:
    async with rig(leader_epoch=0) as bench:
        await bench.append(b"a")
        rival = await next_owner(bench)
        following = asyncio.create_task(rival.log.tenure.follow_former())
        await bench.append(b"b")
        await bench.log.tenure.settle_and_seal(NotOwner("gone"))
        ahead = rival.log.tenure.ledger_ahead
        assert ahead is not None
        change = bench.log.tenure.next_chain(1, ahead)
        assert change is not None
        await settle()
        assert not following.done(), "its ledger is sealed, the next owner is not named"
        await bench.metadata.multi([change])
        await asyncio.wait_for(following, 5)
        read: list[object] = []
        for store, names in ((rival.metadata, ("get", "put")), (rival.store, ("read",))):
            for name in names:
                monkeypatch.setattr(type(store), name, noted(getattr(type(store), name), read))
        rival.log.tenure.take_over()
        await rival.ready()
        assert not read
        monkeypatch.undo()
        assert await rival.append(b"c") == 2
        assert await rival.offsets() == [0, 1, 2]


async def test_a_turn_that_begins_while_the_chain_is_read_does_not_read_it_again(
    monkeypatch,
) -> None:
    async with rig(leader_epoch=0) as bench:
        await bench.append(b"a")
        rival = await next_owner(bench)
        following = asyncio.create_task(rival.log.tenure.follow_former())
        await settle()
        await bench.log.tenure.settle_and_seal(NotOwner("gone"))
        ahead = rival.log.tenure.ledger_ahead
        assert ahead is not None
        change = bench.log.tenure.next_chain(1, ahead)
        assert change is not None
        read: list[object] = []
        answered = asyncio.Event()
        kind = type(rival.metadata)
        monkeypatch.setattr(kind, "get", noted(held(kind.get, answered), read))
        await bench.metadata.multi([change])
        await settle()
        assert len(read) == 1
        rival.log.tenure.take_over()
        await settle()
        assert len(read) == 1
        answered.set()
        await rival.ready()
        monkeypatch.undo()
        assert len(read) == 1, "what was under way is used"
        await asyncio.wait([following], timeout=5)
        assert following.done()
        assert await rival.append(b"b") == 1


@pytest.mark.parametrize("is_named", [True, False])
async def test_nothing_is_watched_any_more_after_the_turn_has_come_or_does_not_come(
    is_named,
) -> None:
    async with rig(leader_epoch=0) as bench:
        await bench.append(b"a")
        rival = await next_owner(bench)
        following = asyncio.create_task(rival.log.tenure.follow_former())
        await settle()
        if is_named:
            await hand_over(bench, rival)
        else:
            rival.log.tenure.abandon(NotOwner("it is not handed over"))
        await asyncio.wait([following], timeout=5)
        assert following.done()


def held(method, answered):
    async def call(*arguments, **options):
        found = await method(*arguments, **options)
        await answered.wait()
        return found

    return call


def noted(method, calls):
    async def call(*arguments, **options):
        calls.append((method.__name__, arguments[1:]))
        return await method(*arguments, **options)

    return call


async def test_a_chain_that_was_seen_with_the_next_epoch_is_used_for_the_claim_alone() -> None:
    """An append that fails later has the chain read again: what was seen is old by then."""

    async with rig(leader_epoch=0) as bench:
        await bench.append(b"a")
        rival = await next_owner(bench)
        chain = rival.log.lifecycle_host.chain
        seen = asyncio.create_task(chain.foresee(1))
        await settle()
        await hand_over(bench, rival)
        assert await rival.append(b"b") == 1
        await settle()
        before = chain.fact
        assert len(before.ledgers) == 2
        other = replace(before, cleaned_offset=1)
        await chain.cleaned(1)
        await asyncio.wait_for(seen, 5)
        assert (await chain.claim(1)) == other, "the stored one"


async def test_a_chain_is_not_handed_over_unless_its_last_ledger_is_sealed() -> None:
    async with rig(leader_epoch=0) as bench:
        await bench.append(b"a")
        rival = await next_owner(bench)
        ahead = rival.log.tenure.ledger_ahead
        assert ahead is not None
        assert bench.log.tenure.next_chain(1, ahead) is None
        bench.store.refuse_seals = True
        await bench.log.tenure.settle_and_seal()
        assert bench.log.tenure.next_chain(1, ahead) is None


async def test_the_next_owner_whose_ledger_was_released_recovers_it() -> None:
    """It was named late, when it waited no more, with the ledger that it had created."""

    async with rig(leader_epoch=0) as bench:
        await bench.append(b"a")
        rival = await next_owner(bench)
        ahead = rival.log.tenure.ledger_ahead
        assert ahead is not None
        rival.log.tenure.abandon(NotOwner("it was not handed over in time"))
        await bench.log.tenure.settle_and_seal()
        change = bench.log.tenure.next_chain(1, ahead)
        assert change is not None
        await bench.metadata.multi([change])
        late = bench.rival(1)
        await late.ready()
        assert await late.append(b"b") == 1
        assert await late.offsets() == [0, 1]


async def test_a_ledger_created_ahead_follows_one_that_the_former_owner_rolled_into() -> None:
    async with rig(leader_epoch=0) as bench:
        await bench.append(b"a")
        rival = await next_owner(bench)
        await bench.log.lifecycle_host.roll_now()
        await bench.append(b"b")
        await hand_over(bench, rival)
        assert await rival.append(b"c") == 2
        assert await rival.offsets() == [0, 1, 2]


async def test_a_former_owner_that_sealed_nothing_is_recovered_and_the_ledger_ahead_is_used():
    async with rig(leader_epoch=0) as bench:
        await bench.append(b"a")
        rival = await next_owner(bench)
        created = len(bench.store._ledgers)
        bench.store.refuse_seals = True
        await hand_over(bench, rival)
        assert rival.log.segments[0].is_sealed, "by its recovery"
        assert await rival.append(b"b") == 1
        assert len(bench.store._ledgers) == created
        assert await rival.offsets() == [0, 1]


async def test_a_claim_whose_answer_was_lost_does_not_seal_the_ledger_it_entered() -> None:
    async with rig(leader_epoch=0) as bench:
        await bench.append(b"a")
        rival = await next_owner(bench)
        await bench.log.tenure.settle_and_seal()
        bench.log.tenure.record_seal()
        await settle()
        put = rival.metadata.put

        async def in_doubt(*arguments, **options):
            await put(*arguments, **options)
            rival.metadata.put = put
            raise MetadataUnavailable("no answer")

        rival.metadata.put = in_doubt
        rival.log.tenure.take_over()
        with pytest.raises(MetadataUnavailable):
            await rival.ready()
        await rival.ready()
        assert await rival.append(b"b") == 1
        assert len(rival.log.segments) == 2
        assert await rival.offsets() == [0, 1]


async def test_a_ledger_ahead_whose_own_append_failed_is_recovered_as_any_other() -> None:
    async with rig(leader_epoch=0) as bench:
        await bench.append(b"a")
        rival = await next_owner(bench)
        await hand_over(bench, rival)
        await rival.append(b"b")
        with rival.store.in_doubt(is_stored=True):
            rival.begin(b"c")
            await settle()
        await rival.ready()
        assert await rival.append(b"d") == 3
        assert await rival.offsets() == [0, 1, 2, 3]


async def test_a_partition_that_nothing_is_written_to_gets_no_ledger_ahead() -> None:
    async with rig(leader_epoch=0) as bench:
        rival = await next_owner(bench)
        assert not bench.store._ledgers
        await hand_over(bench, rival)
        assert await rival.append(b"a") == 0
