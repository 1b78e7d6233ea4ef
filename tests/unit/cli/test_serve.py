"""`headrace serve` that is stopped before it is ready."""

from __future__ import annotations

import asyncio

import pytest

from headrace.cli.serve import _until_started
from headrace.errors import BrokerIdInUse


def test_a_broker_stopped_while_it_waits_stops_at_once():
    closed = []

    async def start() -> object:
        try:
            await asyncio.Event().wait()
        finally:
            closed.append("what was open")
        raise AssertionError("never")

    async def main() -> None:
        stop = asyncio.Event()
        asyncio.get_running_loop().call_later(0.01, stop.set)
        async with asyncio.timeout(5):
            assert await _until_started(start(), stop) is None

    asyncio.run(main())
    assert closed == ["what was open"]


async def test_why_a_broker_does_not_start_is_raised():
    async def start() -> object:
        raise BrokerIdInUse("taken")

    with pytest.raises(BrokerIdInUse):
        await _until_started(start(), asyncio.Event())
