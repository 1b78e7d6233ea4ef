"""A way to a node's loopback from outside of it: what connects here is passed on to there.

Invariants: a process of its own in the node's network namespace, so that cuts, delays and resets
meet what it passes on like everything else. It knows bytes, no protocol. It outlives the node, as a
machine's front does: while nobody serves there, connections end at once.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from typing import TYPE_CHECKING

from headrace_verify.real_broker import addresses_in, die_with_us

if TYPE_CHECKING:
    from collections.abc import Sequence

DOOR_PORT, LOOPBACK = 9380, "127.0.0.1"
CHUNK_BYTES = 128 << 10


class Door:
    """The process. `launch`: what a command begins with that is to run in the namespace."""

    def __init__(
        self, launch: Sequence[str], here: tuple[str, int], there: tuple[str, int]
    ) -> None:
        self.address = f"{here[0]}:{here[1]}"
        command = [*launch, sys.executable, "-m", "headrace_verify.blackbox.door"]
        command += [self.address, f"{there[0]}:{there[1]}"]
        self._process = subprocess.Popen(  # noqa: S603 - our own command
            command,
            stdin=subprocess.DEVNULL,
            preexec_fn=die_with_us(),  # noqa: PLW1509 - one call of libc
        )

    def close(self) -> None:
        """End it."""
        self._process.kill()
        self._process.wait()


async def serve(here: tuple[str, int], there: tuple[str, int]) -> None:
    """Pass on until killed."""

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            there_reader, there_writer = await asyncio.open_connection(*there)
        except OSError:
            writer.transport.abort()
            return
        try:
            async with asyncio.TaskGroup() as pumps:
                pumps.create_task(_pump(reader, there_writer))
                pumps.create_task(_pump(there_reader, writer))
        except* OSError:
            pass  # one of the ends has gone
        finally:
            writer.transport.abort()
            there_writer.transport.abort()

    server = await asyncio.start_server(accept, *here)
    await server.serve_forever()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Raises OSError when one end has gone, so that the other direction ends, too."""
    while data := await reader.read(CHUNK_BYTES):
        writer.write(data)
        await writer.drain()
    raise ConnectionResetError("the end of what is passed on")


if __name__ == "__main__":
    (HERE,), (THERE,) = addresses_in(sys.argv[1]), addresses_in(sys.argv[2])
    asyncio.run(serve(HERE, THERE))
