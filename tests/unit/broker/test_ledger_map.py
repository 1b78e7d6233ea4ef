"""The map of a topic's ledgers: its bounds, and what it asks the store's metadata for."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

from headrace.broker.services.ledger_map import LEDGERS_MAX, LedgerMap


class Calls:
    """Owners that are all here."""

    def __init__(self) -> None:
        self.operation = None

    def offer(self, name, operation):
        if name == "ledgers.of_partition":
            self.operation = operation

    def offer_of_broker(self, _name, _operation):
        """Not asked here."""

    async def ask_partitions(self, _name, topic, asked):
        numbers = range(len(topic.partitions))
        return {number: await self.operation(topic, number, asked) for number in numbers}

    async def ask_partition(self, _name, topic, number, asked):
        return await self.operation(topic, number, asked)


class Machines:
    """A store that answers in the next turn of the loop."""

    def __init__(self) -> None:
        self.asked: list[int] = []
        self.running = self.running_max = 0

    async def machines(self, ledger, _position=None):
        self.asked.append(ledger)
        self.running += 1
        self.running_max = max(self.running_max, self.running)
        await asyncio.sleep(0)
        self.running -= 1
        return ["10.0.0.7:3181"]


def ledger(number, *, is_local=True):
    return SimpleNamespace(
        ledger=number, base_offset=number, end_offset=number + 1, end_position=9, newest_ms=1,
        is_local=is_local, is_offloaded=not is_local, is_tabled=False,
    )  # fmt: skip


def topic_of(partitions, segments):
    config = SimpleNamespace(is_table_replacing=False)
    log = SimpleNamespace(is_loaded=True, segments=segments, active=segments[-1], config=config)
    return SimpleNamespace(partitions=range(partitions), require_log=lambda _number: log)


def map_of(machines=None):
    replication = machines and SimpleNamespace(lacking={}, ledgers=machines)
    return LedgerMap(Calls(), None, replication, None)


async def test_an_answer_for_a_topic_is_bounded_however_many_partitions_it_has():
    segments = [ledger(number) for number in range(300)]
    for partitions, shown in ((1, LEDGERS_MAX), (25, LEDGERS_MAX), (100, 50), (6_000, 1)):
        found = await map_of().of_topic(topic_of(partitions, segments))
        assert {len(one.ledgers) for one in found.values()} == {shown}
        assert {(one.ledger_count, one.ledgers[-1].ledger) for one in found.values()} == {
            (300, 299)
        }
    one = await map_of().of_partition(topic_of(6_000, segments), 0)
    assert len(one.ledgers) == LEDGERS_MAX


async def test_the_store_is_asked_for_ledgers_that_it_has_and_for_few_at_once():
    segments = [ledger(number, is_local=number >= 20) for number in range(LEDGERS_MAX)]
    machines = Machines()
    found = await map_of(machines).of_partition(topic_of(1, segments), 0)
    assert sorted(machines.asked) == [*range(20, LEDGERS_MAX)]
    assert machines.running_max <= 64
    assert [bool(one.machines) for one in found.ledgers] == [one.is_local for one in segments]
