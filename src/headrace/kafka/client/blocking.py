"""A client connection on a blocking socket.

Invariants: no retries, nothing implicit: each request is sent once, and a caller may send arbitrary
bytes and read responses unparsed. Never reads beyond the response that it waits for.
"""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

from headrace.kafka.client.exchange import (
    ANSWER_BYTES_MAX,
    SIZE_BYTES,
    AnswerInvalid,
    Exchange,
    answer_size,
)
from headrace.runtime.access import OPEN, Access

if TYPE_CHECKING:
    from typing import Self

_READ_BYTES_MAX = 1 << 20


class BlockingConnection:
    """One connection. Every wait raises TimeoutError after `timeout_s`."""

    def __init__(
        self,
        address: tuple[str, int],
        timeout_s: float,
        client_id: bytes,
        answer_bytes_max: int = ANSWER_BYTES_MAX,
        access: Access = OPEN,
    ) -> None:
        """Connect, and log in if `access` says so. Raises OSError, AuthenticationFailed."""
        self.socket = socket.create_connection(address, timeout_s)
        try:
            self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if access.tls is not None:
                self.socket = access.tls.wrap_socket(self.socket, server_hostname=address[0])
        except BaseException:
            self.socket.close()
            raise
        self._exchange = Exchange(client_id, answer_bytes_max)
        if access.mechanism:
            try:
                self._log_in(access)
            except BaseException:
                self.socket.close()
                raise

    def _log_in(self, access: Access) -> None:
        from headrace.kafka.client.login import login_of

        login = login_of(access)
        request = None if login is None else login.next_request()
        while login is not None and request is not None:
            answer = self.call(
                request.api_key, request.version, request.body, is_flexible=request.is_flexible
            )
            request = login.next_request(answer)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close it."""
        self.socket.close()

    def call(self, api_key: int, version: int, body: bytes, *, is_flexible: bool) -> bytes:
        """Send a request and wait for the response body. Raises OSError: the connection is then
        unusable."""
        if self._exchange.is_waiting():
            raise AnswerInvalid("the response to an earlier request has not been read")
        self.send(self._exchange.ask(api_key, version, body, is_flexible=is_flexible))
        while (answer := self._exchange.next_answer()) is None:
            self._read()
        return answer

    def send(self, data: bytes) -> None:
        """Send bytes unchanged."""
        self.socket.sendall(data)

    def receive(self) -> bytes:
        """One response without its size, to a request sent as bytes. Raises OSError."""
        while (frame := self._exchange.next_frame()) is None:
            self._read()
        return frame

    def receive_into(self, buffer: bytearray) -> memoryview:
        """As `receive`, into `buffer`, which bounds the size: for measurements."""
        view = memoryview(buffer)
        self._fill(view[:SIZE_BYTES])
        answer = view[: answer_size(view, len(buffer))]
        self._fill(answer)
        return answer

    def _read(self) -> None:
        wanted = min(self._exchange.missing_bytes(), _READ_BYTES_MAX)
        data = self.socket.recv(wanted)
        if not data:
            raise _closed()
        self._exchange.receive(data)

    def _fill(self, view: memoryview) -> None:
        filled = 0
        while filled < len(view):
            count = self.socket.recv_into(view[filled:])
            if not count:
                raise _closed()
            filled += count


def _closed() -> ConnectionResetError:
    return ConnectionResetError("the broker closed the connection")
