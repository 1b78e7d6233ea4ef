"""A transport that sends each write together with the next one, or at the end of the turn.

Invariants: the order of bytes is that of the writes; closing sends what was written before, and
what is written after the connection was lost is dropped. Knows no protocol. The head and the body
of a response are two writes, each of which was a system call that woke the client: a tenth of a
broker's CPU while messages are received over HTTP.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

JOIN_BYTES_MAX: Final = 256 * 1024
"""What is larger is sent as it is: copying it would cost more than a call."""


class JoinedWrites(asyncio.Transport):
    """See the module. All but writing is the transport's own."""

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__()
        self._transport = transport
        self._loop = loop
        self._parts: list[bytes | bytearray | memoryview] = []
        self._size = 0

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """See asyncio.WriteTransport."""
        if not data:
            return
        parts = self._parts
        parts.append(data)
        self._size += len(data)
        if len(parts) == 1:
            self._loop.call_soon(self._flush)
        else:
            self._flush()  # at once: the loop may turn to the next request first

    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview]) -> None:
        """See asyncio.WriteTransport."""
        for data in list_of_data:
            self.write(data)

    def _flush(self) -> None:
        parts = self._parts
        if not parts:
            return
        size = self._size
        self._parts, self._size = [], 0
        if self._transport.is_closing():
            return  # nobody reads it; uvloop's transports raise once the connection is lost
        if size > JOIN_BYTES_MAX:
            self._transport.writelines(parts)
        else:
            self._transport.write(parts[0] if len(parts) == 1 else b"".join(parts))

    def close(self) -> None:
        """See asyncio.BaseTransport."""
        self._flush()
        self._transport.close()

    def abort(self) -> None:
        """See asyncio.WriteTransport."""
        self._parts, self._size = [], 0
        self._transport.abort()

    def get_write_buffer_size(self) -> int:
        """See asyncio.WriteTransport."""
        return self._size + self._transport.get_write_buffer_size()

    def is_closing(self) -> bool:
        """See asyncio.BaseTransport."""
        return self._transport.is_closing()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """See asyncio.BaseTransport."""
        return self._transport.get_extra_info(name, default)

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        """See asyncio.BaseTransport."""
        self._transport.set_protocol(protocol)

    def get_protocol(self) -> asyncio.BaseProtocol:
        """See asyncio.BaseTransport."""
        return self._transport.get_protocol()

    def is_reading(self) -> bool:
        """See asyncio.ReadTransport."""
        return self._transport.is_reading()

    def pause_reading(self) -> None:
        """See asyncio.ReadTransport."""
        self._transport.pause_reading()

    def resume_reading(self) -> None:
        """See asyncio.ReadTransport."""
        self._transport.resume_reading()
