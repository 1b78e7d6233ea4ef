"""The memory of large requests and responses, over all connections of a broker.

Invariants: knows sizes, not contents. While memory is short, the connections of clients that do not
send or read their part are closed, the one that has stood still for longest first: what they send
or read can be repeated, and the memory of the others cannot be had otherwise.

Responses: a connection holds the bytes of its large responses from the moment they are read until
the operating system has taken them. All connections together hold about `bytes_max`: a response
that is about to be read gets at most a quarter of what is left, so that a few slow clients leave
enough for all others; each gets at least `RESPONSE_BYTES_MIN`, so that nobody waits for them.

Requests: a connection holds the size of a large request from its first bytes until its response is
known. One that does not fit waits in the client's socket, in the order of arrival. Requests of a
tenant hold a part of the memory, and tenants take turns: theirs may wait for their tenant's share
while they hold it.
"""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    import asyncio

RESPONSE_BYTES_MIN: Final = 256 * 1024
"""A response may be this large however much is held."""
SHARE: Final = 4
"""A response gets at most this fraction of what is left."""
COUNTED_BYTES_MIN: Final = 64 * 1024
"""Smaller requests and responses are not counted: a connection's number of them is limited, and the
transport buffers as much without pausing."""
TENANT_FRACTION: Final = 4
"""Requests of a tenant hold at most this fraction of the memory, or one does."""
CHECK_S: Final = 0.5
PATIENCE_S: Final = 1.0
"""A client that stands still for this long, while memory is short, is disconnected. It loses a
round trip: it reconnects and asks again."""
PROGRESS_BYTES: Final = 64 * 1024
"""A client that reads or sends less between two checks is taken to stand still: a byte now and then
does not entitle it to megabytes."""


class Holder(Protocol):
    """A connection."""

    def unsent_bytes(self) -> int:
        """How many bytes of its responses the operating system has not taken yet, or cannot get
        because they wait for an earlier response."""
        ...

    def missing_bytes(self) -> int:
        """How many bytes of the request that it has begun the client has not sent yet."""
        ...

    def granted(self, size: int) -> None:
        """The request of this size, which had to wait, may be read."""
        ...

    def abort(self, reason: str) -> None:
        """Close the connection and log the reason."""
        ...


class _Held:
    __slots__ = ("left", "size", "stuck_since_s")

    def __init__(self, now_s: float) -> None:
        self.size = 0
        self.left = 0
        """What the client had not read or sent at the last check at which that had changed."""
        self.stuck_since_s = now_s


class ConnectionMemory:
    """What requests and responses have in common."""

    def __init__(self, bytes_max: int, loop: asyncio.AbstractEventLoop) -> None:
        self.bytes_max = bytes_max
        self.held_bytes = 0
        self.closed_count = 0
        """Connections that were closed because their clients stood still."""
        self._loop = loop
        self._holders: dict[Holder, _Held] = {}
        self._check: asyncio.TimerHandle | None = None

    def hold(self, holder: Holder, size: int) -> None:
        """Count this much for the connection."""
        held = self._holders.get(holder)
        if held is None:
            held = self._holders[holder] = _Held(self._loop.time())
        held.size += size
        self.held_bytes += size
        self._watch()

    def release(self, holder: Holder, size: int) -> None:
        """The connection holds this much less."""
        held = self._holders[holder]
        assert held.size >= size, "what is held is released once"
        held.size -= size
        self.held_bytes -= size
        if not held.size:
            del self._holders[holder]

    def held_by(self, holder: Holder) -> int:
        """How much is counted for the connection."""
        held = self._holders.get(holder)
        return 0 if held is None else held.size

    def forget(self, holder: Holder) -> None:
        """A connection has ended: it holds nothing."""
        held = self._holders.pop(holder, None)
        if held is not None:
            self.held_bytes -= held.size

    def is_short(self) -> bool:
        """Whether clients that stand still are disconnected."""
        raise NotImplementedError

    def _left(self, holder: Holder) -> int:
        """What the client has not read or sent yet."""
        raise NotImplementedError

    def _complaint(self) -> str:
        """What the client did not do, and the setting, for `{seconds}`."""
        raise NotImplementedError

    def _watch(self) -> None:
        if self._check is None and self.is_short():
            self._check = self._loop.call_later(CHECK_S, self._close_stuck)

    def _close_stuck(self) -> None:
        self._check = None
        if not self.is_short():
            return
        now_s = self._loop.time()
        stuck: list[tuple[float, int, Holder]] = []
        for order, (holder, held) in enumerate(self._holders.items()):
            left = self._left(holder)
            if not left or abs(held.left - left) >= PROGRESS_BYTES:
                held.left, held.stuck_since_s = left, now_s
            elif now_s - held.stuck_since_s >= PATIENCE_S:
                stuck.append((held.stuck_since_s, order, holder))
        for since_s, _, holder in sorted(stuck, key=lambda each: each[:2]):
            if not self.is_short():
                break
            self.closed_count += 1
            holder.abort(
                f"{self._complaint()} for {now_s - since_s:.1f} s, while all connections hold "
                f"{self.held_bytes >> 20} of {self.bytes_max >> 20} MiB"
            )
            self.forget(holder)
        self._watch()


class ResponseMemory(ConnectionMemory):
    """See the module."""

    def grant(self, wanted: int) -> int:
        """How many of the `wanted` bytes a response may have that is read now."""
        left = (self.bytes_max - self.held_bytes) // SHARE
        if wanted <= left:
            return wanted
        return min(wanted, max(left, RESPONSE_BYTES_MIN))

    def is_short(self) -> bool:
        """See ConnectionMemory."""
        return self.held_bytes > self.bytes_max // 2

    def _left(self, holder: Holder) -> int:
        return holder.unsent_bytes()

    def _complaint(self) -> str:
        return "has read nothing of its responses (queued.max.response.bytes)"


class RequestMemory(ConnectionMemory):
    """See the module. Kafka has a pool of this name and meaning for all requests, without a limit
    by default (KIP-72)."""

    def __init__(self, bytes_max: int, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(bytes_max, loop)
        self._waiting: OrderedDict[object, deque[tuple[Holder, int]]] = OrderedDict()
        """By tenant, in turns."""
        self._tenants: dict[Holder, object] = {}
        self._bytes: Counter[object] = Counter()
        """Of tenants."""

    def reserve(self, holder: Holder, size: int, tenant: object = None) -> bool:
        """Hold memory for a request; False: the connection waits until `granted`. `tenant` None:
        without a bound of its own."""
        is_next = not self._waiting or (tenant not in self._waiting and self._next() is None)
        if is_next and self._has_room(size) and self._is_within(tenant, size):
            self._take(holder, size, tenant)
            return True
        self._waiting.setdefault(tenant, deque()).append((holder, size))
        self._watch()
        return False

    def _take(self, holder: Holder, size: int, tenant: object) -> None:
        self.hold(holder, size)
        if tenant is not None:
            # What holds memory as one tenant's connection goes on so until it holds none.
            self._bytes[self._tenants.setdefault(holder, tenant)] += size

    def _give_back(self, holder: Holder, size: int) -> None:
        tenant = self._tenants.get(holder)
        if tenant is not None:
            self._bytes[tenant] -= size
            if not self._bytes[tenant]:
                del self._bytes[tenant]
            if holder not in self._holders:
                del self._tenants[holder]

    def _is_within(self, tenant: object, size: int) -> bool:
        # One request may be larger than a tenant's part.
        held = 0 if tenant is None else self._bytes[tenant]
        return not held or held + size <= self.bytes_max // TENANT_FRACTION

    def _next(self) -> tuple[object, deque[tuple[Holder, int]]] | None:
        """The tenant whose turn it is, and its connections; None: all wait for their own parts."""
        for tenant, waiting in self._waiting.items():
            if self._is_within(tenant, waiting[0][1]):
                return tenant, waiting
        return None

    def _has_room(self, size: int) -> bool:
        # One request may be larger than all memory.
        return self.held_bytes + size <= self.bytes_max or not self.held_bytes

    def release(self, holder: Holder, size: int) -> None:
        """See ConnectionMemory."""
        super().release(holder, size)
        self._give_back(holder, size)
        self._serve()

    def forget(self, holder: Holder) -> None:
        """See ConnectionMemory."""
        held = self._holders.get(holder)
        super().forget(holder)
        if held is not None:
            self._give_back(holder, held.size)
        for tenant, waiting in list(self._waiting.items()):
            rest = deque(each for each in waiting if each[0] is not holder)
            if rest:
                self._waiting[tenant] = rest
            else:
                del self._waiting[tenant]
        self._serve()

    def _serve(self) -> None:
        while (found := self._next()) is not None:
            tenant, waiting = found
            if not self._has_room(waiting[0][1]):
                return
            holder, size = waiting.popleft()
            self._waiting.move_to_end(tenant)
            if not waiting:
                del self._waiting[tenant]
            self._take(holder, size, tenant)
            # Later: this may be called while another connection's response is sent.
            self._loop.call_soon(holder.granted, size)

    def is_short(self) -> bool:
        """See ConnectionMemory."""
        return bool(self._waiting)

    def _left(self, holder: Holder) -> int:
        # A tenant that waits for its own part alone is short of what its own connections hold.
        is_awaited = self._next() is not None or self._tenants.get(holder) in self._waiting
        return holder.missing_bytes() if is_awaited else 0

    def _complaint(self) -> str:
        return "has sent nothing more of its request (queued.max.request.bytes)"
