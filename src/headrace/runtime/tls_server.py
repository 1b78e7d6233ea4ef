"""Accepts TLS connections, with a bound on those that have not finished their handshake.

Invariants: knows sockets and handshakes. `create_server` would keep every connection that says
nothing for the whole handshake timeout, however many there are, and tell nobody of it; here the
oldest gives way to each new one beyond HANDSHAKES_MAX, so that a client that goes on comes through
beside however many that do not. The protocol sees a connection once its handshake is done.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from typing import TYPE_CHECKING, Final

from headrace.runtime.tasks import Tasks
from headrace.runtime.tls import server_arguments

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Sequence

log = logging.getLogger(__name__)

HANDSHAKES_MAX: Final = 500
"""Unfinished ones of one listener: about 60 KiB each."""
ACCEPT_REST_S: Final = 0.1
"""After an error, such as too many open files."""
_BATCH: Final = 64
"""Connections accepted before others have their turn."""


async def listening_sockets(host: str, port: int, backlog: int) -> list[socket.socket]:
    """Sockets that listen at an address, as `loop.create_server` makes them. Raises OSError."""
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    made: list[socket.socket] = []
    try:
        for family, kind, protocol, _, address in dict.fromkeys(found):
            one = socket.socket(family, kind, protocol)
            made.append(one)
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                one.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            one.bind(address)
            one.listen(backlog)
    except BaseException:
        for one in made:
            one.close()
        raise
    return made


class TlsServer:
    """See the module. Used as an asyncio.Server."""

    def __init__(
        self,
        sockets: Sequence[socket.socket],
        protocol: Callable[[], asyncio.Protocol],
        context: ssl.SSLContext,
    ) -> None:
        """`sockets` listen already; they are closed by `close`."""
        self.sockets = tuple(sockets)
        self._protocol = protocol
        self._context = context
        self._loop = asyncio.get_running_loop()
        self._tasks = Tasks()
        self._accepting: list[asyncio.Task[None]] = []
        self._handshakes: dict[asyncio.Task[None], list[socket.socket]] = {}
        """The oldest first, with its socket until the task has begun."""
        self.given_up_total = 0
        """Handshakes that gave way to newer ones."""

    async def start_serving(self) -> None:
        """Accept connections."""
        for one in self.sockets:
            one.setblocking(False)
            accepting = self._tasks.start(self._accept(one), "accept TLS connections")
            self._accepting.append(accepting)

    async def _accept(self, listening: socket.socket) -> None:
        count = 0
        while True:
            try:
                accepted, _ = await self._loop.sock_accept(listening)
            except OSError as error:
                if listening.fileno() < 0:
                    return
                log.warning("cannot accept a connection (%s): trying again", error)
                await asyncio.sleep(ACCEPT_REST_S)
                continue
            if len(self._handshakes) >= HANDSHAKES_MAX:
                oldest = next(iter(self._handshakes))
                self._give_up(oldest, self._handshakes.pop(oldest))
                self.given_up_total += 1
            unbegun = [accepted]
            task = self._tasks.start(self._begin(unbegun), "TLS handshake")
            self._handshakes[task] = unbegun
            task.add_done_callback(self._ended)
            count += 1
            if count % _BATCH == 0:
                await asyncio.sleep(0)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._handshakes.pop(task, None)

    def _give_up(self, task: asyncio.Task[None], unbegun: list[socket.socket]) -> None:
        task.cancel()
        for one in unbegun:  # otherwise its transport closes it
            one.close()
        unbegun.clear()

    async def _begin(self, unbegun: list[socket.socket]) -> None:
        accepted = unbegun.pop()
        # Failures, also of TLS, are OSErrors; why a handshake fails is logged by its context.
        with contextlib.suppress(OSError):
            await self._loop.connect_accepted_socket(
                self._protocol, accepted, **server_arguments(self._context)
            )

    @property
    def unfinished(self) -> int:
        """How many handshakes are not finished."""
        return len(self._handshakes)

    def close(self) -> None:
        """Accept no more; connections go on."""
        for accepting in self._accepting:
            accepting.cancel()
        for task, unbegun in self._handshakes.items():
            self._give_up(task, unbegun)
        for one in self.sockets:
            if one.fileno() >= 0:
                self._loop.remove_reader(one.fileno())
                one.close()

    async def wait_closed(self) -> None:
        """Wait until nothing is accepted any more."""
        await self._tasks.close()
