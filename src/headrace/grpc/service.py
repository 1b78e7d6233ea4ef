"""The interface between the gRPC layer and the services that it carries.

Invariants: bytes in, bytes out; knows no HTTP/2 and no protobuf. Handlers are called on the event
loop and must not block; they answer at once or later, through their call. The layer creates no
task per call: one costs as much as HTTP/2 and protobuf together.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Protocol

from headrace.errors import Rejected

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


class Status(IntEnum):
    """The status codes of gRPC (its `doc/statuscodes.md`). Do not change: sent on the wire."""

    OK = 0
    CANCELLED = 1
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    ALREADY_EXISTS = 6
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    ABORTED = 10
    OUT_OF_RANGE = 11
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    DATA_LOSS = 15
    UNAUTHENTICATED = 16


class CallRefused(Rejected):
    """Raised by a handler to finish its call with this status instead of a response."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class Connection(Protocol):
    """One connection of a client."""

    is_slow: bool
    """For the services: whether the last call that has ended took long (`loop_turns.SLOW_NS`)."""


class Call(Protocol):
    """One call of a client.

    Valid until it is finished. After that (`finish`, a cancellation, a lost connection) `send`,
    `respond` and `finish` are ignored, so that a handler need not check before it answers.
    """

    @property
    def path(self) -> str:
        """`/package.Service/Method`."""
        ...

    @property
    def peer(self) -> str:
        """The client's address, without port."""
        ...

    @property
    def secure(self) -> bool:
        """Whether the connection is encrypted (TLS)."""
        ...

    @property
    def authority(self) -> str:
        """`host:port` as the client dialled it; empty if it did not say."""
        ...

    @property
    def session(self) -> object | None:
        """What the listener's `open_session` returned for the connection."""
        ...

    @property
    def connection(self) -> Connection:
        """The connection by which it came, the same object for all its calls."""
        ...

    @property
    def deadline(self) -> float | None:
        """When the client stops waiting (`grpc-timeout`), in the event loop's `time()`."""
        ...

    @property
    def is_finished(self) -> bool:
        """Whether it has ended, in whatever way."""
        ...

    def header(self, name: bytes) -> bytes | None:
        """The request metadata with this lower-case name; None if there is none.

        Several values are joined with commas (RFC 9110, 5.3). Values of `-bin` names are base64.
        """
        ...

    def send(self, message: bytes) -> None:
        """Send one response message of a stream. Raises nothing if the client is gone."""
        ...

    def finish(
        self,
        status: int = 0,
        message: str = "",
        trailers: Sequence[tuple[bytes, bytes]] = (),
    ) -> None:
        """End the call with a status, a message for people, and metadata (lower-case names)."""
        ...

    def respond(self, message: bytes) -> None:
        """Send the only response message and end the call with OK."""
        ...

    def on_cancel(self, callback: Callable[[], None]) -> None:
        """Have `callback` called once if the call ends other than by `finish` or `respond`: reset
        by the client, deadline passed, connection lost. Called at once if it has already."""
        ...

    def on_end(self, callback: Callable[[], None]) -> None:
        """Have `callback`, which must raise nothing, called once when the call ends, in whatever
        way. To be set once, before the call can end."""
        ...

    def keep(self, size: int) -> None:
        """The handler keeps so many bytes more of responses until the client has read earlier ones;
        negative: less. They count as the call does."""
        ...

    async def drained(self, unsent_bytes_max: int | None = None) -> None:
        """Wait until the client has read enough of what was sent; return at once if it has.

        `unsent_bytes_max`: how much may wait for it; 0: until everything is passed on, so that a
        client that goes before cancels the call. None: what the listener allows.

        A handler that sends many messages awaits this between them: what the client does not read
        is held in memory, and a client for which too much is held is disconnected.
        """
        ...


class Requests(Protocol):
    """Receives the messages of a call whose method streams requests."""

    def message(self, body: bytes) -> None:
        """One request message."""
        ...

    def ended(self) -> None:
        """The client sends no more; the call goes on until it is finished."""
        ...


UnaryHandler = Callable[[Call, bytes], None]
"""Gets the only request message. Also for methods that stream responses."""
StreamHandler = Callable[[Call], Requests]
"""Gets the call before any message. For methods that stream requests."""


@dataclass(frozen=True)
class Method:
    """One method of a service."""

    path: str
    """`/package.Service/Method`."""
    handler: UnaryHandler | StreamHandler
    streams_requests: bool = False
    """Whether `handler` is a StreamHandler."""
    request_bytes_max: int | None = None
    """Of one request message, after decompression; None: what the listener allows."""


Services = Mapping[str, Method]
"""Methods by path. A call of any other path is finished with UNIMPLEMENTED."""


def services_of(methods: Iterable[Method]) -> Services:
    """The methods by their paths, which must differ."""
    found: dict[str, Method] = {}
    for method in methods:
        assert method.path not in found, method.path
        found[method.path] = method
    return found
