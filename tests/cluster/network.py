"""A network that can be cut: a TCP proxy on loopback."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Self


class Proxy:
    """Passes bytes on, until it is told to swallow them or to break connections."""

    def __init__(self, target: str) -> None:
        host, _, port = target.rpartition(":")
        self._target = host, int(port)
        self._flows = asyncio.Event()
        self._flows.set()
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task] = set()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        port = self._server.sockets[0].getsockname()[1]
        self.address = f"127.0.0.1:{port}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for writer in self._writers:
            writer.close()

    def swallow(self) -> None:
        """From now on nothing gets through, in either direction; connections stay open."""
        self._flows.clear()

    def restore(self) -> None:
        """Let through what was held back, and all that follows."""
        self._flows.set()

    def break_connections(self) -> None:
        """Reset what is open now; new connections are taken."""
        for writer in list(self._writers):
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        self._writers.add(writer)
        try:
            await self._flows.wait()
            there, back = await asyncio.open_connection(*self._target)
            self._writers.add(back)
            await asyncio.gather(self._pump(reader, back), self._pump(there, writer))
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            for end in {writer, locals().get("back", writer)}:
                end.transport.abort()
                self._writers.discard(end)

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(1 << 16):
                await self._flows.wait()
                writer.write(data)
                await writer.drain()
        await self._flows.wait()  # an end does not get through either
        writer.transport.abort()
