"""A broker that was frozen past its session shows nothing as an owner over HTTP, either."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest
from tests.kit.broker import ADDRESS
from tests.unit.http.http_rig import Web
from tests.unit.kafka.shared_rig import SharedBrokerHarness

from headrace.records.identifiers import OFFSETS_TOPIC

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

READINGS_MAX = 200
RECORDS = {"records": [{"value": "a"}]}


@asynccontextmanager
async def owner() -> AsyncIterator[Web]:
    """A broker that owns a topic with a record and coordinates a group."""
    rig = SharedBrokerHarness()
    await rig.start()
    try:
        await rig.node.register(ADDRESS, ("127.0.0.1", 0))
        await rig.node.topics.create("t", 1)
        await rig.node.topics.ensure_internal(OFFSETS_TOPIC)
        web = Web(rig)
        async with asyncio.timeout(60):
            while (await web.ask("POST", "/v1/topics/t/records", RECORDS))[0] != 200:
                await asyncio.sleep(0.005)
        yield web
    finally:
        await rig.stop()


@pytest.mark.parametrize(
    "target", ["/v1/topics/t/records?offset=0", "/v1/topics/t", "/v1/groups/nobody", "/v1/groups"]
)
async def test_reads_made_before_a_freeze_are_not_returned_after_it(target: str) -> None:
    """Frozen before each reading of the clock in turn."""

    async def answer(readings: int) -> tuple[bool, int, Any]:
        async with owner() as web:
            clock, frozen = web.rig.clock, list[bool]()
            web.sending = lambda: frozen.append(clock.ahead_ms > 0)
            clock.readings_left = readings
            status, found = await web.ask("GET", target)
            return frozen[0], status, found  # what is read later shows nothing

    seen = set()
    for readings in range(READINGS_MAX):
        has_frozen, status, found = await answer(readings)
        seen.add(status)
        if not has_frozen:
            return
        if status == 200 and target in {"/v1/topics/t", "/v1/groups"}:
            # asked when it was frozen already: nothing that only an owner knows
            text = str(found)
            assert "end_offset" not in text, found
            assert not found.get("groups"), found
        else:
            assert status == 503, (readings, found)
    raise AssertionError(f"always frozen: {seen}")


async def test_stored_records_are_acknowledged_and_refused_ones_are_retriable() -> None:
    async with owner() as web:
        append = web.node.appends.append

        def frozen(*arguments: Any, **named: Any) -> Any:
            web.rig.clock.freeze()
            return append(*arguments, **named)

        web.node.appends.append = frozen
        status, found = await web.ask("POST", "/v1/topics/t/records", RECORDS)
        assert status == 200, found
    async with owner() as web:
        get = web.node.services.topics.get

        def refusing(name: str) -> Any:
            web.rig.clock.freeze()
            return get("unknown")

        web.node.services.topics.get = refusing
        status, found = await web.ask("POST", "/v1/topics/t/records", RECORDS)
        assert (status, found["retriable"]) == (503, True)
