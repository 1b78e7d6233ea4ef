"""A client connection on the asyncio loop.

Invariants: no tasks, no timeouts, no retries: a request returns a future, and the caller decides
how long to wait for it. The response to an abandoned request is still consumed in its turn.
"""

from __future__ import annotations

import asyncio
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, cast

from headrace.kafka.client.exchange import ANSWER_BYTES_MAX, AnswerInvalid, Exchange
from headrace.runtime.access import OPEN, Access

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Self

    from headrace.kafka.client.login import ClientLogin, LoginRequest


class AsyncConnection(asyncio.Protocol):
    """One connection."""

    def __init__(self, client_id: bytes, answer_bytes_max: int = ANSWER_BYTES_MAX) -> None:
        self._loop = asyncio.get_running_loop()
        self._exchange = Exchange(client_id, answer_bytes_max)
        self._transport: asyncio.Transport | None = None
        self._waiting: deque[asyncio.Future[bytes]] = deque()
        self._is_lost = False

    @classmethod
    async def open(
        cls,
        address: tuple[str, int],
        client_id: bytes,
        answer_bytes_max: int = ANSWER_BYTES_MAX,
        access: Access = OPEN,
    ) -> Self:
        """Connect. Raises OSError."""
        loop = asyncio.get_running_loop()
        made = await loop.create_connection(
            lambda: cls(client_id, answer_bytes_max), *address, **access.arguments(address[0])
        )
        return made[1]

    async def log_in(self, login: ClientLogin) -> None:
        """Log in, before anything else is asked. Raises OSError, AuthenticationFailed.

        Its steps run in a thread: SCRAM takes a millisecond.
        """
        step: Callable[[], LoginRequest | None] = login.next_request
        while (request := await self._loop.run_in_executor(None, step)) is not None:
            answer = await self.ask(
                request.api_key, request.version, request.body, is_flexible=request.is_flexible
            )
            step = partial(login.next_request, answer)

    @property
    def is_open(self) -> bool:
        """Whether requests can be sent, as far as this end knows."""
        return self._transport is not None and not self._is_lost

    def ask(
        self, api_key: int, version: int, body: bytes, *, is_flexible: bool
    ) -> asyncio.Future[bytes]:
        """Send a request; returns a future of the response body.

        Raises OSError, at once or in the future: the connection is then unusable.
        """
        if self._is_lost or self._transport is None:
            raise _closed()
        self._transport.write(self._exchange.ask(api_key, version, body, is_flexible=is_flexible))
        answer: asyncio.Future[bytes] = self._loop.create_future()
        self._waiting.append(answer)
        return answer

    def close(self) -> None:
        """Close it; data already sent still arrives."""
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """Close it at once."""
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See asyncio."""
        self._transport = cast("asyncio.Transport", transport)  # uvloop's has no such base

    def data_received(self, data: bytes) -> None:
        """See asyncio."""
        if self._is_lost:
            return
        self._exchange.receive(data)
        try:
            while (answer := self._exchange.next_answer()) is not None:
                waiting = self._waiting.popleft()
                if not waiting.done():
                    waiting.set_result(answer)
        except AnswerInvalid as error:
            self._lose(error)
            self.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """See asyncio."""
        self._lose(_closed())

    def _lose(self, error: ConnectionError) -> None:
        self._is_lost = True
        waiting, self._waiting = self._waiting, deque()
        for answer in waiting:
            if not answer.done():
                answer.set_exception(error)


def _closed() -> ConnectionResetError:
    return ConnectionResetError("the broker closed the connection")
