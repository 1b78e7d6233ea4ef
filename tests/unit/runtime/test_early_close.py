"""Which of a killed process's connections ends first."""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys

import pytest

CLIENT = """
import asyncio, socket, sys
from headrace.runtime.early_close import connect_early

async def main():
    ports = [int(one) for one in sys.argv[1:]]
    before = [socket.create_connection(("127.0.0.1", port)) for port in ports[:10]]
    early = await connect_early("127.0.0.1", ports[10])
    after = [socket.create_connection(("127.0.0.1", port)) for port in ports[11:]]
    print("connected", flush=True)
    await asyncio.sleep(100)

asyncio.run(main())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="Linux closes from the highest descriptor on")
def test_the_early_connection_ends_first():
    servers = [socket.create_server(("127.0.0.1", 0)) for _ in range(21)]
    ports = [str(server.getsockname()[1]) for server in servers]
    with subprocess.Popen([sys.executable, "-c", CLIENT, *ports], stdout=subprocess.PIPE) as client:
        assert client.stdout is not None
        assert client.stdout.readline() == b"connected\n"
        accepted = [server.accept()[0] for server in servers]
        poll = select.epoll()
        for one in accepted:
            poll.register(one.fileno(), select.EPOLLIN | select.EPOLLET)
        numbers = {one.fileno(): number for number, one in enumerate(accepted)}
        os.kill(client.pid, signal.SIGKILL)
        first, _ = poll.poll(10, 1)[0]
        assert numbers[first] == 10
        for one in (*accepted, *servers, poll):
            one.close()
