"""Owners that change in one turn are written together, and each by itself where one has a rival."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING
from uuid import UUID

import pytest

from headrace.broker.ownership.cluster_view import ClusterView
from headrace.broker.ownership.owner_facts import BUNDLE_BYTES_MAX, BUNDLE_MAX, OwnerFacts
from headrace.errors import MetadataUnavailable
from headrace.metadata.facts import OwnerFact, owner_key, partition_key
from headrace.metadata.memory import MemoryMetadata, MemoryMetadataStore
from headrace.metadata.store import ABSENT, MultiOperation
from headrace.runtime.tasks import Tasks

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

TOPIC = UUID(int=1)


class Counting(MemoryMetadataStore):
    """Counts the transactions."""

    def __init__(self, shared: MemoryMetadata) -> None:
        super().__init__(shared)
        self.sizes: list[int] = []
        self.sizes_bytes: list[int] = []
        self.is_away = False

    async def multi(self, operations: Sequence[MultiOperation]) -> Sequence[int]:
        self.sizes.append(len(operations))
        self.sizes_bytes.append(sum(len(one.value or b"") for one in operations))
        if self.is_away:
            raise MetadataUnavailable("no answer", is_in_doubt=True)
        return await super().multi(operations)


@asynccontextmanager
async def owner_facts() -> AsyncIterator[tuple[OwnerFacts, Counting, ClusterView]]:
    tasks, store = Tasks(), Counting(MemoryMetadata())
    view = ClusterView(store, tasks, lambda: None)
    try:
        yield OwnerFacts(view, store, tasks), store, view
    finally:
        await tasks.close()


def fact(epoch: int = 0) -> OwnerFact:
    return OwnerFact(1, "life", epoch)


async def test_a_thousand_owners_cost_a_few_transactions() -> None:
    async with owner_facts() as (facts, store, view):
        writes = (facts.write((TOPIC, number), fact(), None) for number in range(1_000))
        assert all(await asyncio.gather(*writes))
        assert sum(store.sizes) == 1_000
        assert len(store.sizes) == -(-1_000 // BUNDLE_MAX)
        assert len(view.owners) == 1_000


async def test_no_transaction_of_long_chains_is_larger_than_zookeeper_takes() -> None:
    async with owner_facts() as (facts, store, view):
        large = BUNDLE_BYTES_MAX + 1  # travels alone
        sizes = [100_000] * 20 + [large] + [100] * 50
        writes = [
            facts.write(
                (TOPIC, number),
                fact(),
                None,
                MultiOperation(partition_key(TOPIC, number), bytes(n), ABSENT),
            )
            for number, n in enumerate(sizes)
        ]
        assert all(await asyncio.gather(*writes))
        assert len(view.owners) == len(sizes)
        assert sum(size > BUNDLE_BYTES_MAX for size in store.sizes_bytes) == 1
        assert store.sizes == [4] * 10 + [2, 100]


async def test_a_rival_keeps_its_partition_and_no_other() -> None:
    async with owner_facts() as (facts, store, view):
        rival = OwnerFact(2, "another", 0)
        await store.put(owner_key(TOPIC, 3), rival.encode(), ABSENT)
        writes = (facts.write((TOPIC, number), fact(), None) for number in range(8))
        written = await asyncio.gather(*writes)
        assert [number for number, done in enumerate(written) if not done] == [3]
        assert view.owners[TOPIC, 3].fact == rival
        assert view.owners[TOPIC, 4].fact == fact()


async def test_without_an_answer_each_write_fails_as_in_doubt() -> None:
    async with owner_facts() as (facts, store, _view):
        store.is_away = True
        writes = [
            asyncio.ensure_future(facts.write((TOPIC, number), fact(), None)) for number in (1, 2)
        ]
        for write in writes:
            with pytest.raises(MetadataUnavailable) as raised:
                await write
            assert raised.value.fields["is_in_doubt"]
