"""Compaction over ledgers that brokers share: a fault, a takeover and a pause at each step of it.

Whatever happens, readers find the latest value of each key and no deleted one, and the sweep may
delete what no chain names. A chain that is lost, or restored from an old back-up, is rebuilt from
the ledgers without mixing compacted ledgers with those that they replaced.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING
from uuid import UUID

import pytest
from tests.clocks import HandClock
from tests.kit.records import append

from headrace.broker.housekeeping import chain_repair
from headrace.broker.housekeeping.chain_repair import ChainRepairer
from headrace.broker.housekeeping.fact_audit import audit
from headrace.broker.housekeeping.ledger_evidence import read_facts
from headrace.errors import ChainMissing, HeadraceError, MetadataUnavailable, StorageUnavailable
from headrace.log.compaction.cleaner import Cleaner
from headrace.log.environment import Environment
from headrace.log.ledger_chain import LedgerChain
from headrace.log.log_config import LogConfig
from headrace.log.partition_log import PartitionLog
from headrace.metadata.facts import PartitionFact, TopicFact, partition_key, topic_key
from headrace.metadata.memory import MemoryMetadata, MemoryMetadataStore
from headrace.metadata.store import ABSENT, ANY
from headrace.records.batch import iterate_headers
from headrace.records.codec import Record, decode_batch, encode_batch
from headrace.runtime.tasks import Tasks
from headrace.storage.memory import MemoryLedgerStore

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from headrace.log.segment import Segment

TOPIC_ID = UUID(int=7)
CHAIN = partition_key(TOPIC_ID, 0)
STEPS_MAX = 200
SEGMENT_BYTES = [250, 100_000]
"""Each ledger compacted by itself; all of one epoch made one."""


class Gate:
    """Counts the steps of a round; at one of them something happens."""

    def __init__(self) -> None:
        self.left = 0
        self.is_after = False
        """Whether the action comes after the step: what it raises hides that it was done."""
        self.action: Callable[[], Awaitable[None]] | None = None

    async def step(self) -> None:
        self.left -= 1
        if self.left == 0 and self.action is not None:
            await self.action()


class Gated:
    """An object whose calls that wait pass a gate first."""

    def __init__(self, inner: object, gate: Gate, *names: str) -> None:
        self._inner, self._gate, self._names = inner, gate, names

    def __getattr__(self, name: str):
        found = getattr(self._inner, name)
        if name not in self._names:
            return found

        async def call(*args: object, **named: object):
            is_after = self._gate.is_after
            if not is_after:
                await self._gate.step()
            answer = await found(*args, **named)
            if is_after:
                await self._gate.step()
            return answer

        return call


class Owner:
    """One broker that owns the partition, or believes so."""

    def __init__(self, world: SharedLog, epoch: int) -> None:
        self.world, self.gate = world, Gate()
        self.tasks = Tasks()
        store = Gated(
            world.ledgers.beside(), self.gate, "create", "read", "seal", "recover", "delete"
        )
        metadata = Gated(MemoryMetadataStore(world.metadata), self.gate, "get", "put")
        self.environment = Environment(store, metadata, world.clock, self.tasks, is_shared=True)
        self.log = PartitionLog("t-0", TOPIC_ID, 0, world.config, self.environment, epoch)

    async def put(self, key: str, value: str | None) -> None:
        """Append; in the model if it is acknowledged. Raises HeadraceError."""
        stored = None if value is None else value.encode()
        batch = encode_batch([Record(0, self.world.clock.now_ms(), key.encode(), stored)])
        await append(self.log, batch)
        if value is None:
            self.world.model.pop(key, None)
        else:
            self.world.model[key] = value

    async def work(self, name: str) -> None:
        """Two rounds, with writes between: the second removes what the first has marked."""
        for turn in range(2):
            await self.put(name, f"{name}{turn}")
            await self.put("moved", f"{name}{turn}")
            await self.log.lifecycle_host.roll_now()
            await Cleaner(self.log, self.environment).run()

    async def table(self) -> dict[str, str]:
        await self.log.wait_loaded()
        found: dict[str, str] = {}
        offset = self.log.log_start_offset
        while offset < self.log.high_watermark:
            data = bytes(await self.log.reader.read(offset, 1 << 20))
            for at, header in iterate_headers(data):
                for record in decode_batch(data, at):
                    key = record.key.decode()
                    if record.value is None:
                        found.pop(key, None)
                    else:
                        found[key] = record.value.decode()
                offset = header.last_offset + 1
        return found


class SharedLog:
    """What is stored, and what it should be."""

    def __init__(self, segment_bytes: int) -> None:
        self.clock = HandClock(1_700_000_000_000, step_ms=1)
        self.ledgers, self.metadata = MemoryLedgerStore(), MemoryMetadata()
        self.ledgers.beside()  # shared from now on
        self.store = MemoryMetadataStore(self.metadata)
        self.model: dict[str, str] = {}
        self.config = LogConfig(
            segment_bytes=segment_bytes,
            is_compacted=True,
            is_deleted_by_retention=False,
            delete_retention_ms=0,
        )
        self.owners: list[Owner] = []

    async def owner(self) -> Owner:
        owner = Owner(self, len(self.owners) + 1)
        self.owners.append(owner)
        owner.log.lifecycle_host.load()
        await owner.log.wait_loaded()
        return owner

    async def begin(self) -> Owner:
        fact = TopicFact("t", TOPIC_ID, 1, 1, {}, 0)
        await self.store.put(topic_key("t"), fact.encode(), ABSENT)
        owner = await self.owner()
        for turn in range(3):
            for key in "abc":
                await owner.put(key, f"{key}{turn}")
            await owner.put("gone", None if turn == 1 else f"gone{turn}" if not turn else None)
            await owner.log.lifecycle_host.roll_now()
        return owner

    async def check(self) -> None:
        """As the next owner finds it."""
        owner = await self.owner()
        assert await owner.table() == self.model

    async def sweep(self, kept: int = 0) -> None:
        """Delete what the sweep may delete after its grace, but the `kept` oldest."""
        ledgers = await self.ledgers.all_ledgers()
        facts = await read_facts(self.store)
        records = await self.ledgers.records_of([x for x in ledgers if x not in facts.named])
        found = audit(facts, records, set(ledgers))
        assert not found.proved
        for record in records[kept:]:
            if record.ledger not in found.kept:
                await self.ledgers.delete(record.ledger)

    async def repair(self) -> None:
        repairer = ChainRepairer(self.ledgers.beside(), self.store, self.clock)
        records = await self.ledgers.records_of(await self.ledgers.all_ledgers())
        done = await repairer.repair(records, accept_loss=False)
        assert [chain.problem for chain in done.chains] == [""]

    async def lose_chain_and_repair(self) -> None:
        fact = TopicFact("t", TOPIC_ID, 1, 1, {}, 0, chain_count=1)
        await self.store.put(topic_key("t"), fact.encode(), ANY)
        await self.store.delete(CHAIN, ANY)
        await self.repair()
        await self.check()

    async def check_all(self, *, is_lost_at_once: bool = False) -> None:
        await self.check()
        if is_lost_at_once:
            await self.lose_chain_and_repair()
        for kept in (1, 0):  # the grace of some is over before that of others
            await self.sweep(kept)
            await self.check()
            await self.lose_chain_and_repair()

    async def close(self) -> None:
        for owner in self.owners:
            await owner.tasks.close()


async def tried(work: Awaitable[None]) -> None:
    try:
        await work
    except HeadraceError:
        pass


async def fault(world: SharedLog, owner: Owner, step: int) -> None:
    async def refuse() -> None:
        raise StorageUnavailable("an outage")

    owner.gate.left, owner.gate.action = step, refuse
    await tried(owner.work("x"))
    owner.gate.action = None
    if owner.gate.left <= 0 and owner.log.failure is None:
        await tried(owner.work("y"))


async def lost_answer(world: SharedLog, owner: Owner, step: int) -> None:
    """The step is done, the owner does not learn of it, and what no chain names is deleted."""

    async def hide() -> None:
        raise MetadataUnavailable("the connection broke")

    owner.gate.left, owner.gate.action, owner.gate.is_after = step, hide, True
    await tried(owner.work("x"))
    owner.gate.action = None
    if owner.gate.left <= 0 and owner.log.failure is None:
        await asyncio.sleep(0)  # the owner deletes a ledger that it has given up
        await world.sweep()
        await tried(owner.work("y"))
        if owner.log.failure is None:
            assert await owner.table() == world.model


async def crash(world: SharedLog, owner: Owner, step: int) -> None:
    died = asyncio.Event()

    async def die() -> None:
        died.set()
        await asyncio.Event().wait()

    owner.gate.left, owner.gate.action = step, die
    work = asyncio.create_task(tried(owner.work("x")))
    waiting = asyncio.create_task(died.wait())
    await asyncio.wait({work, waiting}, return_when=asyncio.FIRST_COMPLETED)
    for task in (work, waiting):
        task.cancel()
    await asyncio.gather(work, waiting, return_exceptions=True)
    await owner.tasks.close()
    await (await world.owner()).work("y")


async def pause(world: SharedLog, owner: Owner, step: int) -> None:
    async def wake_later() -> None:
        successor = await world.owner()
        await successor.work("y")
        await successor.put("after", "1")

    owner.gate.left, owner.gate.action = step, wake_later
    await tried(owner.work("x"))
    # Steps of it that were begun by then end, too.
    if owner.log.failure is None:
        await tried(owner.put("zombie", "1"))


async def run(event, segment_bytes: int, step: int) -> bool:
    """Whether the step was reached."""
    world = SharedLog(segment_bytes)
    try:
        owner = await world.begin()
        await event(world, owner, step)
        await world.check_all(is_lost_at_once=step % 2 == 0)
        return owner.gate.left <= 0
    finally:
        await world.close()


def every_step(event, segment_bytes: int) -> int:
    """Run it for each step; how many there are."""
    for step in range(1, STEPS_MAX):
        if not asyncio.run(asyncio.wait_for(run(event, segment_bytes, step), 20)):
            return step - 1
    raise AssertionError("a round does not end")


@pytest.mark.parametrize("segment_bytes", SEGMENT_BYTES)
@pytest.mark.parametrize("event", [fault, lost_answer, crash, pause])
def test_nothing_is_lost_or_comes_back_whichever_step_is_disturbed(event, segment_bytes):
    assert every_step(event, segment_bytes) > 20


@pytest.mark.parametrize("segment_bytes", SEGMENT_BYTES)
async def test_a_chain_from_an_old_backup_is_rebuilt_with_the_compacted_ledgers(segment_bytes):
    world = SharedLog(segment_bytes)
    owner = await world.begin()
    backup = await world.store.get(CHAIN)
    await owner.work("x")
    await world.sweep()
    await world.check()
    await world.sweep()
    await world.store.put(CHAIN, backup.value, ANY)
    ledgers = await world.ledgers.all_ledgers()
    facts = await read_facts(world.store)
    unnamed = await world.ledgers.records_of([x for x in ledgers if x not in facts.named])
    found = audit(facts, unnamed, set(ledgers))
    assert found.proved == {(TOPIC_ID, 0)}
    assert found.kept == {one.ledger for one in unnamed if not one.is_empty}
    await world.repair()
    await world.check()
    await world.close()


@pytest.mark.parametrize("rounds", [1, 2])
async def test_a_chain_whose_compacted_ledgers_lie_in_object_storage_is_completed(rounds):
    world = SharedLog(1 << 20)
    owner = await world.begin()
    for turn in range(rounds):
        await owner.put("open", f"{turn}")  # into a ledger that is older than the next round's
        await Cleaner(owner.log, owner.environment).run()
        if turn + 1 < rounds:
            await owner.log.lifecycle_host.roll_now()
    backup = await world.store.get(CHAIN)
    links = PartitionFact.decode(backup.value).ledgers
    compacted = [link for link in links if link.is_sealed]
    assert not links[-1].is_sealed
    assert links[-1].ledger < compacted[-1].ledger
    await owner.log.lifecycle_host.roll_now()
    await owner.put("later", "1")
    await owner.log.lifecycle_host.roll_now()
    for link in compacted:
        await world.ledgers.delete(link.ledger)
    await world.store.put(CHAIN, backup.value, ANY)
    await world.repair()
    repaired = PartitionFact.decode((await world.store.get(CHAIN)).value).ledgers
    assert [link.ledger for link in repaired[: len(links)]] == [link.ledger for link in links]
    assert len(repaired) == len(links) + 1
    await world.close()


def _swap_without_epoch(monkeypatch):
    async def store(self, change, stored=None):
        fact = change(self.fact)
        if fact is None:
            return False
        entry = await self._metadata.get(self._key)
        version = ABSENT if entry is None else entry.version
        self._version = await self._metadata.put(self._key, fact.encode(), version)
        self.fact = fact
        if stored is not None:
            stored()
        return True

    monkeypatch.setattr(LedgerChain, "_store", store)


def _mix_old_and_new(monkeypatch):
    def oldest(links, compacted, _known):
        kept: list[Segment] = []
        for link in sorted(links, key=lambda one: one.ledger):
            if not any(chain_repair._overlaps(one, link) for one in kept):
                kept.append(link)
        return sorted(kept, key=lambda one: one.base_offset)

    monkeypatch.setattr(chain_repair, "_without_replaced", oldest)


def _sweep_takes_whatever_is_unnamed(monkeypatch):
    """A ledger that is written for long is deleted while it is swapped in."""
    swap = Cleaner._swap

    async def late(self, group, new, begin_ns):
        await self._store.delete(new.ledger)
        await swap(self, group, new, begin_ns)

    monkeypatch.setattr(Cleaner, "_swap", late)


@pytest.mark.parametrize(
    "plant", [_swap_without_epoch, _mix_old_and_new, _sweep_takes_whatever_is_unnamed]
)
def test_planted_bugs_are_found(monkeypatch, plant):
    plant(monkeypatch)
    steps = list(range(1, 60))
    Random(1).shuffle(steps)
    for step in steps:
        try:
            asyncio.run(asyncio.wait_for(run(pause, 250, step), 20))
        except (AssertionError, HeadraceError):
            return
    pytest.fail("no step has found it")


async def test_a_repair_of_a_served_chain_is_not_written_over():
    world = SharedLog(250)
    owner = await world.begin()
    entry = await world.store.get(CHAIN)
    fact = PartitionFact.decode(entry.value)
    repaired = replace(fact, ledgers=fact.ledgers[1:], log_start_offset=4).encode()
    await world.store.put(CHAIN, repaired, ANY)
    with pytest.raises(ChainMissing):
        await Cleaner(owner.log, owner.environment).run()
    await owner.log.lifecycle_host.roll_now()
    assert (await world.store.get(CHAIN)).value == repaired
    await world.close()


async def test_a_trim_whose_answer_was_lost_takes_place_with_the_next_change():
    world = SharedLog(250)
    owner = await world.begin()

    async def hide() -> None:
        raise MetadataUnavailable("the connection broke")

    owner.gate.left, owner.gate.action, owner.gate.is_after = 1, hide, True
    with pytest.raises(MetadataUnavailable):
        await owner.log.lifecycle_host.trim(4)
    assert owner.log.log_start_offset == 0
    await owner.put("later", "1")
    await owner.log.lifecycle_host.roll_now()
    assert owner.log.log_start_offset == 4
    fact = PartitionFact.decode((await world.store.get(CHAIN)).value)
    assert fact.log_start_offset == 4
    named = {link.ledger for link in fact.ledgers}
    assert {segment.ledger for segment in owner.log.segments} <= named
    await world.close()


async def test_a_ledger_that_took_too_long_to_write_is_not_swapped_in():
    world = SharedLog(250)
    owner = await world.begin()
    before = await world.store.get(CHAIN)
    done = await Cleaner(owner.log, owner.environment, build_ms_max=-1).run()
    assert not done.is_complete
    assert (await world.store.get(CHAIN)).value == before.value
    await asyncio.sleep(0)
    await world.check_all()
    await world.close()
