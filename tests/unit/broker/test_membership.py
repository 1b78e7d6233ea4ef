"""A broker among the living: what its end asks of the metadata."""

from __future__ import annotations

import asyncio

from tests.waiting import until

from headrace.broker.ownership.membership import CONFLICT_LOG_INTERVAL_S, Membership
from headrace.metadata.facts import BrokerFact, broker_key
from headrace.metadata.memory import MemoryMetadata, MemoryMetadataStore


async def test_a_broker_that_stops_while_the_metadata_are_away_stops_all_the_same():
    """Its key goes with its session; this was logged as a fault of the broker, with a traceback."""

    shared = MemoryMetadata()
    mine, other = MemoryMetadataStore(shared), MemoryMetadataStore(shared)
    membership = Membership(BrokerFact(1, "a", 1, "", 0, 0), mine, 0)
    await membership.join()
    assert await other.get(broker_key(1)) is not None
    await mine.close()
    await membership.leave()
    assert await other.get(broker_key(1)) is None


async def test_a_broker_that_waits_for_its_id_says_so_at_once(caplog):
    shared = MemoryMetadata()
    mine, other = MemoryMetadataStore(shared), MemoryMetadataStore(shared)
    await Membership(BrokerFact(1, "host-a", 9092, "", 0, 0), other, 0).join()
    waiting = asyncio.ensure_future(
        Membership(BrokerFact(1, "host-b", 9092, "", 0, 0), mine, 60_000).join()
    )
    async with asyncio.timeout(CONFLICT_LOG_INTERVAL_S - 1):
        await until(lambda: "host-a:9092" in caplog.text)
    assert "--broker-id" in caplog.text
    assert caplog.text.count("is registered by") == 1, "it polls more often than it logs"
    await other.close()
    await waiting
