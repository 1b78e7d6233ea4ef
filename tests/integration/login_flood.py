"""Logs in by PLAIN with a wrong password, again and again, on many connections.

python login_flood.py HOST:PORT CONNECTIONS

Each time from another address, since one that fails often has to wait. Prints a dot for each login
that was refused.
"""

from __future__ import annotations

import asyncio
import os
import sys
from random import randrange

HANDSHAKE = b"\x00\x11\x00\x01\x00\x00\x00\x01\x00\x00\x00\x05PLAIN"
TOKEN = b"\0admin\0wrong"
AUTHENTICATE = b"\x00\x24\x00\x00\x00\x00\x00\x02\x00\x00" + len(TOKEN).to_bytes(4, "big") + TOKEN


def framed(data: bytes) -> bytes:
    return len(data).to_bytes(4, "big") + data


async def flood(host: str, port: int) -> None:
    while True:
        try:
            own = f"127.{randrange(2, 255)}.{randrange(256)}.{randrange(1, 255)}"
            reader, writer = await asyncio.open_connection(host, port, local_addr=(own, 0))
            writer.write(framed(HANDSHAKE) + framed(AUTHENTICATE))
            if await reader.read():
                os.write(1, b".")
            writer.close()
        except OSError:
            await asyncio.sleep(0.01)


async def main() -> None:
    host, _, port = sys.argv[1].rpartition(":")
    await asyncio.gather(*(flood(host, int(port)) for _ in range(int(sys.argv[2]))))


asyncio.run(main())
