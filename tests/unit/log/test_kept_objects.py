"""When a table is asked again to replace an object that it could not replace."""

from dataclasses import replace
from uuid import UUID

from headrace.log.ledger_chain import OBJECT_KEPT_MS_MAX, LedgerChain
from headrace.metadata.facts import LedgerLink, PartitionFact, partition_key
from headrace.metadata.memory import MemoryMetadataStore
from headrace.metadata.store import ABSENT
from headrace.storage.ledger import LedgerId

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
TOPIC = UUID(int=1)
LINK = LedgerLink(
    7, 0, 1, end_offset=10, size_bytes=100, offloaded_ms=DAY_MS, local_deleted_ms=DAY_MS
)


async def opened(link: LedgerLink = LINK) -> tuple[MemoryMetadataStore, LedgerChain]:
    metadata = MemoryMetadataStore()
    fact = PartitionFact(leader_epoch=1, ledgers=[link])
    await metadata.put(partition_key(TOPIC, 0), fact.encode(), ABSENT)
    return metadata, await again(metadata)


async def again(metadata: MemoryMetadataStore) -> LedgerChain:
    chain = LedgerChain(metadata, TOPIC, 0)
    await chain.load()
    return chain


async def test_an_object_that_was_the_only_copy_for_long_is_tried_again_after_an_hour() -> None:
    metadata, chain = await opened()
    now_ms, waits = 61 * DAY_MS, []
    for _ in range(12):
        until_ms = await chain.object_kept(LedgerId(7), now_ms)
        assert until_ms is not None
        waits.append(until_ms - now_ms)
        now_ms = until_ms + 600_000
        chain = await again(metadata)  # as after a restart
    assert waits[:4] == [HOUR_MS, 2 * HOUR_MS, 4 * HOUR_MS, 8 * HOUR_MS]
    assert waits[-2:] == [OBJECT_KEPT_MS_MAX] * 2


async def test_a_wait_of_an_earlier_version_is_followed_by_an_hour() -> None:
    _, chain = await opened(replace(LINK, object_kept_until_ms=60 * DAY_MS))
    assert await chain.object_kept(LedgerId(7), 61 * DAY_MS) == 61 * DAY_MS + HOUR_MS


async def test_a_replaced_object_has_no_wait() -> None:
    metadata, chain = await opened()
    await chain.object_kept(LedgerId(7), 61 * DAY_MS)
    assert await chain.tabled(LedgerId(7), 62 * DAY_MS)
    (link,) = (await again(metadata)).fact.ledgers
    assert (link.object_kept_until_ms, link.object_kept_wait_ms) == (None, None)
