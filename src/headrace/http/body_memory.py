"""The memory of large bodies that clients send, over all HTTP connections of a broker.

Invariants: knows sizes, not contents. A body counts from its first bytes until its request is
answered. All together have at most `bytes_max`, and those of one tenant a quarter of it. While
there is no more, the body that began first and has taken PATIENCE_S gives way: it can be sent
again. If there is none, the one that wants more is refused.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING, Final, Self

from headrace.errors import QuotaExceeded

if TYPE_CHECKING:
    from collections.abc import Hashable

COUNTED_BYTES_MIN: Final = 64 * 1024
"""Smaller ones are not counted: the number of requests is limited."""
TENANT_FRACTION: Final = 4
PATIENCE_S: Final = 1.0
RETRY_MS: Final = 1_000


class Body:
    """One that is received, and then handled."""

    __slots__ = ("_began_s", "_gave_way", "_memory", "size", "tenant", "timer")

    def __init__(self, memory: BodyMemory, tenant: Hashable = None) -> None:
        """`tenant` None: there are no tenants."""
        self._memory = memory
        self._began_s = 0.0
        self._gave_way = False
        self.size = 0
        """As counted."""
        self.tenant = tenant
        self.timer: asyncio.Timeout | None = None
        """Ends its reception; None: it is complete."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.timer = None
        self._memory.forget(self)

    def grow(self, size: int) -> None:
        """It has this many bytes now. Raises QuotaExceeded if there is no memory for them."""
        if size >= COUNTED_BYTES_MIN:
            now_s = asyncio.get_running_loop().time()
            self._began_s = self._began_s or now_s
            self._memory.hold(self, size - self.size, now_s)

    def received(self) -> None:
        """It is complete."""
        self.timer = None

    def may_give_way(self, now_s: float) -> bool:
        """Whether its client had the time to send it."""
        return self.timer is not None and now_s - self._began_s >= PATIENCE_S

    def give_way(self, now_s: float) -> None:
        """End its reception."""
        assert self.timer is not None
        self._gave_way = True
        if not self.timer.expired():  # else it is to be resumed already
            self.timer.reschedule(now_s)
        self._memory.forget(self)  # it is freed in this turn

    def check(self) -> None:
        """Raises QuotaExceeded if it had to give way."""
        if self._gave_way:
            raise self._memory.shortage()


class BodyMemory:
    """See the module."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._bodies: dict[Body, None] = {}
        """Those that count, in the order in which they began to."""
        self._of_tenants: Counter[Hashable] = Counter()
        self.held_bytes = 0

    def hold(self, body: Body, size: int, now_s: float) -> None:
        """See Body.grow."""
        self._bodies[body] = None
        self._change(body, size)
        if self._is_over(body.tenant):
            self._make_way(body, now_s)
            if self._is_over(body.tenant):
                raise self.shortage()

    def shortage(self) -> QuotaExceeded:
        """Why a body is not received."""
        return QuotaExceeded(
            "requests that are received or handled have all the memory that there is for large ones"
            f" (queued.max.request.bytes, {self._bytes_max >> 20} MiB; a tenant has a quarter of"
            " it): the request was not executed, send fewer large ones at once, and faster",
            throttle_ms=RETRY_MS,
        )

    def _change(self, body: Body, size: int) -> None:
        body.size += size
        self.held_bytes += size
        if body.tenant is not None:
            self._of_tenants[body.tenant] += size
            if not self._of_tenants[body.tenant]:
                del self._of_tenants[body.tenant]

    def _is_over(self, tenant: Hashable) -> bool:
        of_tenant = 0 if tenant is None else self._of_tenants[tenant]
        return self.held_bytes > self._bytes_max or of_tenant > self._bytes_max // TENANT_FRACTION

    def _make_way(self, body: Body, now_s: float) -> None:
        is_of_one = self.held_bytes <= self._bytes_max
        for other in list(self._bodies):
            if not self._is_over(body.tenant):
                return
            is_in_the_way = other.tenant == body.tenant or not is_of_one
            if is_in_the_way and other is not body and other.may_give_way(now_s):
                other.give_way(now_s)

    def forget(self, body: Body) -> None:
        """Its request is answered, or gave way."""
        if body in self._bodies:
            del self._bodies[body]
            self._change(body, -body.size)
