"""What a broker says of the servers that it relies on."""

from __future__ import annotations

import asyncio
import logging

from headrace.administration.cluster_settings import ClusterSettings
from headrace.server.assemble import warn_of_zookeepers


def test_a_zookeeper_that_can_lose_changes_is_warned_of_at_start(caplog):
    async def serve(reader, writer):
        await reader.readexactly(4)
        writer.write(b"Zookeeper version: 3.9.3-c26634f, built on 2024-10-17\nMode: follower\n")
        writer.close()

    async def main() -> str:
        async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
            address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
            await warn_of_zookeepers(ClusterSettings(address))
        return address

    with caplog.at_level(logging.WARNING):
        address = asyncio.run(main())
    (message,) = caplog.messages
    assert message.startswith(f"ZooKeeper at {address} is version 3.9.3")
