"""A network that can be cut: a TCP proxy on loopback."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class Proxy:
    """Passes bytes on; on demand it drops them or breaks connections."""

    def __init__(self, target: str) -> None:
        host, _, port = target.rpartition(":")
        self._target = host, int(port)
        self._flows = asyncio.Event()
        self._flows.set()
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task] = set()

    async def __aenter__(self) -> Self:
        await self.listen(0)
        return self

    async def listen(self, port: int) -> None:
        """Accept connections; again after `refuse`, on the same port."""
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", port)
        self.port = self._server.sockets[0].getsockname()[1]
        self.address = f"127.0.0.1:{self.port}"

    async def __aexit__(self, *_: object) -> None:
        await self._stop_listening()
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

    async def refuse(self) -> None:
        """Reset what is open now; new connections are refused."""
        await self._stop_listening()
        self.break_connections()

    async def _stop_listening(self) -> None:
        """`Server.close` alone would leave a connection open that the loop has accepted but not yet
        given to the server: a ResourceWarning in whichever test runs when it is collected."""
        for listener in self._server.sockets:
            asyncio.get_running_loop().remove_reader(listener)
        await asyncio.sleep(0)  # after this turn, what was accepted belongs to the server
        self._server.close()

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Known from here on, also before its task runs, so that ending the proxy ends it, too."""
        if not self._server.is_serving():  # it came while the server was being closed
            writer.transport.abort()
            return
        self._writers.add(writer)
        task = asyncio.create_task(self._serve(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
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


@contextlib.contextmanager
def proxy_in_a_thread(target: str) -> Iterator[tuple[Proxy, Callable[..., Any]]]:
    """A proxy for tests that are not asynchronous, and what runs a coroutine function or a
    function in its loop."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="proxy", daemon=True)
    thread.start()

    def run(call: Callable[..., Any], *arguments: Any) -> Any:
        async def inside() -> Any:
            result = call(*arguments)
            return await result if asyncio.iscoroutine(result) else result

        return asyncio.run_coroutine_threadsafe(inside(), loop).result(60)

    proxy = Proxy(target)
    run(proxy.__aenter__)
    try:
        yield proxy, run
    finally:
        run(proxy.__aexit__)
        run(asyncio.sleep, 0.1)  # until what was aborted is closed
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
