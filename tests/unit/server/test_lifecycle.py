"""A broker stops one part after another, once for any number of requests to stop."""

from __future__ import annotations

import asyncio
import logging

from headrace.server.lifecycle import Broker


def test_a_broker_stopped_twice_stops_once_and_in_order(caplog):
    """The second demand closed the metadata under the first one's last request to them."""
    steps: list[str] = []

    async def main() -> None:
        answer = asyncio.Event()

        async def close_metadata() -> None:
            steps.append("metadata closed")

        async def leave() -> None:
            steps.append("leaving")
            await answer.wait()
            steps.append("left")

        broker = Broker(close_metadata)
        broker.on_stop(leave)

        async def stop_again() -> None:
            await asyncio.sleep(0)
            asyncio.get_running_loop().call_later(0.01, answer.set)
            await broker.stop()
            assert steps == ["leaving", "left", "metadata closed"]

        await asyncio.gather(broker.stop(), stop_again())
        await broker.stop()

    with caplog.at_level(logging.WARNING):
        asyncio.run(main())
    assert steps == ["leaving", "left", "metadata closed"]
    assert caplog.messages == []


def test_a_part_that_fails_keeps_no_other_from_being_closed(caplog):
    closed: list[str] = []

    async def main() -> None:
        async def close_first() -> None:
            closed.append("first")

        async def fail() -> None:
            raise OSError("it is stuck")

        broker = Broker(close_first)
        broker.on_stop(fail)
        await broker.stop()

    asyncio.run(main())
    assert closed == ["first"]
    assert caplog.messages == ["cannot stop a part of the broker cleanly"]
