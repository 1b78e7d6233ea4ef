"""A forwarder to a node's loopback interface from outside its namespace.

Invariants: a separate process in the node's network namespace, so that cuts, delays and resets
affect the forwarded traffic like any other. It knows bytes, no protocol. It outlives the node:
while the node is down, connections are closed immediately.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from typing import TYPE_CHECKING

from headrace_verify.real_broker import addresses_in, die_with_us

if TYPE_CHECKING:
    from collections.abc import Sequence

FORWARDER_PORT, LOOPBACK = 9380, "127.0.0.1"
CHUNK_BYTES = 128 << 10


class Forwarder:
    """The process. `launch`: the command prefix that enters the namespace."""

    def __init__(
        self, launch: Sequence[str], here: tuple[str, int], there: tuple[str, int]
    ) -> None:
        self.address = f"{here[0]}:{here[1]}"
        command = [*launch, sys.executable, "-m", "headrace_verify.blackbox.forwarder"]
        command += [self.address, f"{there[0]}:{there[1]}"]
        self._process = subprocess.Popen(  # noqa: S603 - our own command
            command,
            stdin=subprocess.DEVNULL,
            preexec_fn=die_with_us(),  # noqa: PLW1509 - one call of libc
        )

    def close(self) -> None:
        """Kill it."""
        self._process.kill()
        self._process.wait()


async def serve(here: tuple[str, int], there: tuple[str, int]) -> None:
    """Forward until killed."""

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
            pass  # one of the ends is closed
        finally:
            writer.transport.abort()
            there_writer.transport.abort()

    server = await asyncio.start_server(accept, *here)
    await server.serve_forever()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Raises OSError when one end is closed, so that the other direction ends, too."""
    while data := await reader.read(CHUNK_BYTES):
        writer.write(data)
        await writer.drain()
    raise ConnectionResetError("the end of the forwarded data")


if __name__ == "__main__":
    (HERE,), (THERE,) = addresses_in(sys.argv[1]), addresses_in(sys.argv[2])
    asyncio.run(serve(HERE, THERE))
