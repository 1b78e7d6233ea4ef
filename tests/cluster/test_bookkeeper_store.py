"""The store over a real BookKeeper: beyond the contract that all stores share."""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest
from tests.cluster.bookkeeper_rig import beside, data_entry, plant, plant_payload
from tests.cluster.oracle import stream
from tests.waiting import until

from headrace.errors import LedgerFenced, LedgerLost, LedgerUnknown, StorageUnavailable
from headrace.storage.bookkeeper import id_check, id_mark, inline_checkpoints
from headrace.storage.bookkeeper.bookie_connection import BookieConnection
from headrace.storage.bookkeeper.entries import (
    FRAGMENT,
    HEAD,
    INDEX_INTERVAL_BYTES,
    EntryIndex,
    checkpoint_entries,
    trailer_entries,
)
from headrace.storage.bookkeeper.ledger_metadata import Ensemble, LedgerState
from headrace.storage.bookkeeper.ledger_store import LOOKS_AT_ONCE

if TYPE_CHECKING:
    from headrace.storage.bookkeeper.ledger_store import BookKeeperLedgerStore


async def append(store: BookKeeperLedgerStore, ledger: int, data: bytes) -> None:
    await store.append(ledger, [data], len(data), None)[1].wait()


def test_a_burst_larger_than_what_may_be_under_way_waits_in_line(with_store):
    async def scenario(store):
        room = store._cluster.room
        take, most = room.take, 0

        def noted(size):
            nonlocal most
            found = take(size)
            most = max(most, room._taken)
            return found

        room.take = noted
        ledgers = [await store.create() for _ in range(5)]
        completions = []
        for index in range(40):
            for ledger in ledgers:
                data = stream(index * 30_000, 30_000)
                completions.append(store.append(ledger, [data], len(data), None)[1])
        for completion in completions:
            await completion.wait()
        for ledger in ledgers:
            store.forget(ledger)
            assert bytes(await store.read(ledger, 0, 1 << 30)) == stream(0, 40 * 30_000)
        assert room._taken == 0
        assert not room._waiting
        assert 100_000 < most <= 200_000

    # What a single bookie may owe is left as it is: the slowest of three falls behind the two that
    # acknowledge, and how far is a matter of the machine.
    with_store(scenario, in_flight_bytes_max=200_000, entry_bytes_target=128 << 10)


def test_sealed_ledgers_beyond_the_memory_for_them_are_opened_again(with_store):
    async def scenario(store):
        ledgers = []
        for number in range(6):
            ledger = await store.create()
            await append(store, ledger, b"%d" % number)
            await store.seal(ledger, bytes([number]) * 4_000)
            ledgers.append(ledger)
        assert len(store.list()) == 2
        for _ in range(2):
            for number, ledger in enumerate(ledgers):
                assert (await store.recover(ledger)).footer == bytes([number]) * 4_000
                assert bytes(await store.read(ledger, 0, 10)) == b"%d" % number
                assert len(store.list()) <= 2

    with_store(scenario, opened_bytes_max=11_000)


def test_an_id_that_bookies_have_records_of_is_not_used_again(with_store, caplog):
    """ZooKeeper allocates it where it has lost the ledger: restored from an older backup, say."""

    async def scenario(store):
        ledger = await store.create()
        await append(store, ledger, b"acknowledged")
        other = await beside(store)
        service = other._cluster.service
        await service.delete(ledger, 0)
        allocate = service._allocate

        async def allocate_again():
            return ledger, (await allocate())[1]

        service._allocate = allocate_again
        with pytest.raises(StorageUnavailable, match=f"has allocated ledger id {ledger} again"):
            await other.create()
        with pytest.raises(LedgerUnknown):
            await service.read(ledger)
        service._allocate = allocate
        with pytest.raises(StorageUnavailable, match="creates no more ledgers"):
            await other.create()  # with an id of its own: chains are lost, too
        assert f"ledger id {ledger}" in other.replication().refusal
        assert [record.levelname for record in caplog.records].count("ERROR") == 1
        assert store.replication().refusal == ""
        await append(store, await store.create(), b"x")
        await other.close()

    with_store(scenario)


def test_bookies_know_how_far_ids_were_allocated_without_ledgers_of_these_ids(with_store):
    async def scenario(store):
        await append(store, await store.create(), b"x")
        assert await store.ids_ahead() is None
        service = store._cluster.service
        next_id = await service.peek_id()
        await store._id_mark.cover(next_id + id_mark.BLOCK)  # ZooKeeper forgot it, and its ledger
        other = await beside(store)
        ahead = await other.ids_ahead()
        assert ahead.next_id == next_id
        assert ahead.last == (next_id // id_mark.BLOCK + 1) * id_mark.BLOCK
        assert not ahead.ledgers
        await other.skip_ids(ahead.last)
        assert await other.ids_ahead() is None
        assert id_mark.MARK_LEDGER in await store.ledger_ids(), "or bookies would delete it"
        assert id_mark.MARK_LEDGER not in await store.all_ledgers(), "or brokers would"
        await append(other, await other.create(), b"y")
        await other.close()

    with_store(scenario)


def test_brokers_begin_the_record_of_ledger_ids_at_the_same_time(with_store):
    async def scenario(store):
        service = store._cluster.service
        with suppress(LedgerUnknown):
            await service.delete(id_mark.MARK_LEDGER, -1)
        next_id = await service.peek_id()
        marks = [id_mark.IdMark(store._cluster) for _ in range(5)]
        await asyncio.gather(*(mark.cover(next_id) for mark in marks))
        assert next_id in await store._id_mark.newest_block()

    with_store(scenario)


def test_a_bookie_that_does_not_answer_delays_a_new_ledger_by_a_moment(with_store, monkeypatch):
    async def scenario(store):
        read = BookieConnection.read

        def unanswered(self, ledger, entry, answered, context, *more):
            if entry:
                read(self, ledger, entry, answered, context, *more)

        monkeypatch.setattr(BookieConnection, "read", unanswered)
        began = asyncio.get_running_loop().time()
        await append(store, await store.create(), b"x")
        assert asyncio.get_running_loop().time() - began >= id_check.NEW_ANSWER_S

    with_store(scenario)


@pytest.mark.parametrize("quorum", [(3, 3, 2), (4, 2, 2)])
def test_any_position_of_a_ledger_without_an_index_is_found(with_store, quorum):
    async def scenario(store):
        rng = random.Random(1)
        ledger = await store.create()
        end, last = 0, None
        for index in range(600):
            # At first tiny entries, then large ones: where a guess by share goes wrong.
            size = rng.randrange(1, 60) if index < 500 else rng.randrange(20_000, 60_000)
            _, last = store.append(ledger, [stream(end, size)], size, None)
            end += size
            await asyncio.sleep(0)
        await last.wait()
        other = await beside(store)
        assert (await other.recover(ledger)).end == end
        looked = 0
        read = other._reader.read

        async def counted(*arguments):
            nonlocal looked
            looked += 1
            return await read(*arguments)

        other._reader.read = counted
        for _ in range(40):
            position, size = rng.randrange(end), rng.randrange(1, 5_000)
            other._cluster.cache.forget(ledger)
            found = bytes(await other.read(ledger, position, size))
            assert found == stream(position, size)[: end - position]
        assert looked < 40 * 8, "it searches, and remembers what it has seen"
        await other.close()

    with_store(scenario, quorum, entry_bytes_target=1)


def test_a_reader_from_start_to_end_asks_for_much_at_a_time(with_store):
    async def scenario(store):
        ledger = await store.create()
        for index in range(0, 8 << 20, 64 << 10):
            _, last = store.append(ledger, [stream(index, 64 << 10)], 64 << 10, None)
        await last.wait()
        store._cluster.cache.forget(ledger)
        asked = 0
        read = store._reader.read

        async def counted(*arguments):
            nonlocal asked
            asked += 1
            return await read(*arguments)

        store._reader.read = counted
        position = 0
        while position < 8 << 20:
            data = store.read_cached(ledger, position, 10_000)
            if data is None:
                data = await store.read(ledger, position, 10_000)
                cached = store.read_cached(ledger, position, 10_000)
                assert cached is not None, "who asks again finds it in memory"
                assert bytes(cached) == bytes(data)
            assert bytes(data) == stream(position, 10_000)[: (8 << 20) - position]
            position += len(data)
        assert asked < 40

    with_store(scenario)


def test_a_writer_stops_when_another_process_changes_its_metadata(with_store):
    async def scenario(store):
        service = store._cluster.service

        async def stopped(ledger, change) -> Exception:
            await append(store, ledger, b"mine")
            await service.update(ledger, await service.read(ledger), change)
            while True:
                try:
                    await append(store, ledger, b"more")
                except (LedgerFenced, LedgerLost) as error:
                    return error
                await asyncio.sleep(0.01)

        def replace(metadata):
            first = metadata.ensembles[0]
            changed = Ensemble(0, (*first.bookies[1:], first.bookies[0]))
            return None if metadata.ensembles == (changed,) else metadata.with_ensemble(changed)

        def mark(metadata):
            return metadata.in_recovery() if metadata.state is LedgerState.OPEN else None

        assert isinstance(await stopped(await store.create(), replace), LedgerLost)
        assert isinstance(await stopped(await store.create(), mark), LedgerFenced)
        # Entries elsewhere were re-replicated: that is no business of the writer's.
        ledger = await store.create()
        await service.update(
            ledger,
            await service.read(ledger),
            lambda m: None if m.creator else m.__class__(**{**fields(m), "creator": 7}),
        )
        await asyncio.sleep(0.1)
        await append(store, ledger, b"still mine")
        await store.seal(ledger, b"")

    def fields(metadata):
        return {name: getattr(metadata, name) for name in metadata.__slots__}

    with_store(scenario)


# --- what a writer that dies while it seals, or in the middle of a large append, leaves ----------


def test_an_append_of_several_entries_is_there_as_a_whole_or_not_at_all(with_store):
    async def scenario(store):
        for piece_count in (1, 2, 3):
            ledger = await store.create()
            await plant(store, ledger, 0, [0, 1, 2])
            length, position = 30, 10
            for piece in range(piece_count):
                kind = 1 if piece == 2 else FRAGMENT
                payload = data_entry(position, stream(position, 20), kind, 10)
                length, position = length + len(payload), position + 20
                await plant_payload(store, ledger, 1 + piece, [0, 1, 2], payload, length)
            end = 70 if piece_count == 3 else 10
            assert (await store.recover(ledger)) == (ledger, end, True, None)
            assert bytes(await store.read(ledger, 0, 100)) == stream(0, end)

    with_store(scenario)


@pytest.mark.parametrize("stored", [0, 1, 2, 3])
def test_a_trailer_that_was_stored_in_part_counts_as_none(with_store, stored):
    async def scenario(store):
        index = EntryIndex()
        index.add(1, INDEX_INTERVAL_BYTES)
        ledger = await store.create()
        length = 0
        for entry in range(2):
            payload = data_entry(
                entry * INDEX_INTERVAL_BYTES,
                stream(entry * INDEX_INTERVAL_BYTES, INDEX_INTERVAL_BYTES),
            )
            length += len(payload)
            await plant_payload(store, ledger, entry, [0, 1, 2], payload, length)
        end = 2 * INDEX_INTERVAL_BYTES
        trailer = trailer_entries(index, b"f" * 20, end, 2, HEAD.size + 16 + 18)
        assert len(trailer) == 3
        for number, payload in enumerate(trailer[:stored]):
            length += len(payload)
            await plant_payload(store, ledger, 2 + number, [0, 1, 2], payload, length)
        footer = b"f" * 20 if stored == 3 else None
        assert await store.recover(ledger) == (ledger, end, True, footer)
        assert bytes(await store.read(ledger, 0, 1 << 20)) == stream(0, end)
        assert bytes(await store.read(ledger, end - 5, 100)) == stream(end - 5, 5)

    with_store(scenario)


def test_memory_of_a_ledger_is_counted_until_its_release(with_store):
    async def scenario(store):
        assert store.cached_bytes == 0
        ledger = await store.create()
        await store.append(ledger, [bytes(100_000)], 100_000, None)[1].wait()
        assert store.cached_bytes > 100_000
        await store.seal(ledger, bytes(10_000))
        assert store.cached_bytes > 110_000
        store.release(ledger)
        assert store.cached_bytes == 0
        assert bytes(await store.read(ledger, 99_990, 100)) == bytes(10)

    with_store(scenario)


def test_a_ledger_that_is_released_is_kept_no_longer_and_ends_well(with_store):
    async def scenario(store):
        ledger = await store.create()
        under_way = store.append(ledger, [b"under way"], 9, None)[1]
        store.release(ledger)
        assert store.list() == []
        assert not store._writing
        await under_way.wait()
        assert (await store.recover(ledger)).end == 9
        assert bytes(await store.read(ledger, 0, 100)) == b"under way"

    with_store(scenario)


def test_after_an_outage_ledgers_look_at_their_metadata_in_line(with_store, monkeypatch):
    async def scenario(store):
        service = store._cluster.service
        read, looked, at_once = service.read, [], [0, 0]

        async def counted(ledger, changed=None):
            at_once[0] += 1
            at_once[1] = max(at_once)
            try:
                await asyncio.sleep(0)
                return await read(ledger, changed)
            finally:
                at_once[0] -= 1
                looked.append(ledger)

        monkeypatch.setattr(service, "read", counted)
        ledgers = [await store.create() for _ in range(3 * LOOKS_AT_ONCE)]
        # The record of the newest id is read, too, and a watch may fire twice.
        await until(lambda: set(looked) >= set(ledgers) and not at_once[0])
        looked.clear()
        for writing in store._writing.values():
            writing._changed()  # as every watch does when the session is back
        await until(lambda: set(looked) >= set(ledgers))
        assert at_once[1] <= LOOKS_AT_ONCE

    with_store(scenario)


def test_a_checkpoint_that_was_stored_in_part_counts_as_none(with_store):
    async def scenario(store):
        ledger = await store.create()
        length = 0
        payloads = [data_entry(0, stream(0, 100))]
        payloads += checkpoint_entries(b"whole", 100, 1, -1, 100)
        payloads += [data_entry(100, stream(100, 100))]
        payloads += checkpoint_entries(b"lost" * 50, 200, 3, 1, 100)[:-1]
        for entry, payload in enumerate(payloads):
            length += len(payload)
            await plant_payload(store, ledger, entry, [0, 1, 2], payload, length)
        assert await store.recover(ledger) == (ledger, 200, True, None)
        assert await store.checkpoints(ledger) == [(100, b"whole")]
        assert bytes(await store.read(ledger, 0, 1 << 20)) == stream(0, 200)
        assert bytes(await store.read(ledger, 95, 10)) == stream(95, 10)

    with_store(scenario)


def test_a_long_ledger_without_checkpoints_is_not_searched_to_its_start(with_store, monkeypatch):
    async def scenario(store):
        monkeypatch.setattr(inline_checkpoints, "SEARCHED_BYTES_MAX", 100_000)
        monkeypatch.setattr(inline_checkpoints, "STEP_BYTES", 30_000)
        ledger = await store.create()
        await append(store, ledger, bytes(1_000))
        store.append_checkpoint(ledger, b"too far away")
        for _ in range(20):
            await append(store, ledger, bytes(10_000))
        other = await beside(store)
        info = await other.recover(ledger)
        assert await other.checkpoints(ledger) == []
        monkeypatch.setattr(inline_checkpoints, "SEARCHED_BYTES_MAX", 1_000_000)
        assert await other.checkpoints(ledger) == [(1_000, b"too far away")]
        assert bytes(await other.read(ledger, 0, 1 << 20)) == bytes(info.end)
        await other.close()

    with_store(scenario)


def test_a_ledger_that_another_broker_writes_is_not_read_before_it_is_recovered(with_store):
    async def scenario(store):
        other = await beside(store)
        ledger = await store.create()
        await append(store, ledger, b"abc")
        assert other.read_cached(ledger, 0, 3) is None
        with pytest.raises(StorageUnavailable):
            await other.read(ledger, 0, 3)
        await append(store, ledger, b"not fenced by the look")
        records = {record.ledger: record for record in await other.records()}
        assert not records[ledger].is_closed
        await store.seal(ledger, b"")
        assert bytes(await other.read(ledger, 0, 3)) == b"abc"
        await other.close()

    with_store(scenario)


def test_a_ledger_that_another_broker_writes_is_opened_when_that_one_has_sealed_it(with_store):
    async def scenario(store):
        other = await beside(store)
        ledger, fenced = await store.create(), await store.create()
        await append(store, ledger, b"abc")
        opening = asyncio.create_task(other.open_when_sealed(ledger))
        recovered = asyncio.create_task(other.open_when_sealed(fenced))
        await append(store, ledger, b"not fenced by that")
        assert not opening.done()
        await store.seal(ledger, b"footer")
        await asyncio.wait_for(opening, 30)
        [info] = other.list()
        assert (info.ledger, info.end, info.footer) == (ledger, 21, b"footer")
        third = await beside(store)
        await third.recover(fenced)
        await asyncio.wait_for(recovered, 30)
        assert {info.ledger for info in other.list()} == {ledger, fenced}
        await other.close()
        await third.close()

    with_store(scenario)


def test_a_ledger_of_another_cluster_or_product_is_not_listed(with_store):
    async def scenario(store):
        ours = await store.create({"partition": b"orders-3"})
        mark = store._catalog.mark
        store._catalog.mark = {**mark, "application": b"pulsar"}
        foreign = await store.create({})
        store._catalog.mark = {**mark, "cluster": b"another"}
        other = await store.create({})
        store._catalog.mark = mark
        records = {record.ledger: record for record in await store.records()}
        assert records[ours].custom["partition"] == b"orders-3"
        assert not {foreign, other} & records.keys()

    with_store(scenario)
