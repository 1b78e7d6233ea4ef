"""What tenants have of what every broker counts: connections, groups, stored bytes.

Invariants: each broker counts its own, once a second (`tenant_rates` asks the others), and what it
admits meanwhile. Brokers that admit at the same moment may exceed a limit by what they admit in a
second; what a broker that does not answer had last still counts. Whether a tenant is full is
decided once a second, so that a write costs one look at a set. Reads are never refused.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Final

from headrace.coordination.quotas.entities import PRODUCER
from headrace.coordination.quotas.tenant_limits import (
    CONNECTIONS,
    COUNTS,
    DROP_OLDEST,
    GROUPS,
    SLOW,
    STORED,
    full_from,
    slowed_ms,
)
from headrace.coordination.quotas.token_bucket import NS_PER_S, WAIT_MS_MAX
from headrace.errors import PolicyViolation, WriteDeferred
from headrace.records.tenant_names import DEFAULT, tenant_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence

    from headrace.broker.security.sessions import ClientSession
    from headrace.broker.services.access_control import AccessControl
    from headrace.errors import HeadraceError
    from headrace.runtime.clock import Clock

AGAIN_NS: Final = 100_000_000
"""What is refused may have room since it was counted: it is counted again, but not for each."""
PART_MAX: Final = 100
"""Of the time, a hundredth at most is spent on that."""
PERIOD_S: Final = 1.0
REST_NS: Final = 3 * int(PERIOD_S * NS_PER_S)
"""After a drop: what other brokers have said of a tenant is from before their own drops."""


def _above(what: str, count: float, limit: float) -> PolicyViolation:
    return PolicyViolation(
        f"the tenant would have {count:.0f} {what}, and may have {limit:.0f}: end or delete some,"
        " or have the limit raised (headrace tenant set --limit); nothing was changed"
    )


def _deferred() -> WriteDeferred:
    return WriteDeferred(
        f"the tenant has exceeded {PRODUCER} by more than clients can be told to wait: nothing was"
        " stored, send it again later, or have the limit raised (headrace tenant set --limit)",
        throttle_ms=WAIT_MS_MAX,
    )


class TenantCounts:
    """See the module."""

    def __init__(
        self,
        access: AccessControl | None,
        clock: Clock,
        others: Callable[[tuple[str, str]], Sequence[float]],
    ) -> None:
        """`others`: what each other broker counted of a tenant's. `access` None: there are none."""
        self._access = access
        self._now_ns = clock.now_ns
        self._others = others
        self._measures: dict[str, Callable[[Collection[str]], Mapping[str, int]]] = {}
        self._own: dict[tuple[str, str], int] = {}
        self._again_ns: dict[str, int] = {}
        """When each is counted again at the earliest, if tenants are refused meanwhile."""
        self.refused: dict[str, Callable[[], HeadraceError]] = {}
        """Tenants that may write nothing now, and the error that says why."""
        self._drops_from_ns: dict[str, int] = {}
        """Of tenants of which something was dropped here."""

    def add(self, what: str, measure: Callable[[Collection[str]], Mapping[str, int]]) -> None:
        """`measure` counts what this broker has of tenants."""
        self._measures[what] = measure

    def _limit(self, tenant: str, what: str) -> float | None:
        return None if self._access is None else self._access.tenants.limits(tenant).get(what)

    def measure(self) -> dict[tuple[str, str], float]:
        """Count what this broker has of tenants that have such limits."""
        assert self._access is not None, "there are tenants"
        self._own.clear()
        for what in COUNTS:
            self._count(what)
        return dict(self._own)

    def _count(self, what: str) -> None:
        tenants = () if self._access is None else self._access.tenants.with_count(what)
        if tenants and what in self._measures:
            begun_ns = self._now_ns()
            counted = self._measures[what](tenants)
            self._own |= {(tenant, what): counted.get(tenant, 0) for tenant in tenants}
            now_ns = self._now_ns()
            self._again_ns[what] = now_ns + max(AGAIN_NS, (now_ns - begun_ns) * PART_MAX)

    def total(self, tenant: str, what: str) -> float:
        """What all brokers have, as of the last count."""
        place = tenant, what
        return self._own.get(place, 0) + sum(self._others(place))

    def check(self, tenant: str, what: str) -> None:
        """Count one more. Raises PolicyViolation if the tenant has as many as it may."""
        limit = self._limit(tenant, what)
        if limit is None:
            return
        if self.total(tenant, what) >= limit and self._now_ns() >= self._again_ns.get(what, 0):
            self._count(what)
        if self.total(tenant, what) >= limit:
            raise _above(what, self.total(tenant, what) + 1, limit)
        place = tenant, what
        self._own[place] = self._own.get(place, 0) + 1

    def check_group(self, group_id: str) -> None:
        """A group is created. Raises PolicyViolation."""
        tenant = tenant_of(group_id)
        if tenant != DEFAULT:
            self.check(tenant, GROUPS)

    def tenant(self, session: ClientSession) -> str:
        """See TenantConnections."""
        return DEFAULT if self._access is None else self._access.tenant(session)

    def check_connection(self, tenant: str) -> None:
        """See TenantConnections."""
        self.check(tenant, CONNECTIONS)

    def end_connection(self, tenant: str) -> None:
        """See TenantConnections."""
        place = tenant, CONNECTIONS
        if self._own.get(place, 0) > 0:
            self._own[place] -= 1

    # --- stored bytes ------------------------------------------------------------------------

    def end_period(self) -> None:
        """Decide which tenants are full."""
        self.refused.clear()
        if self._access is None:
            return
        tenants = self._access.tenants
        for tenant in tenants.with_count(STORED):
            limit, stored = tenants.limits(tenant)[STORED], self.total(tenant, STORED)
            if stored >= full_from(limit, tenants.when_full(tenant)):
                self.refused[tenant] = partial(
                    PolicyViolation,
                    f"the tenant stores {stored:.0f} bytes, and may store {limit:.0f}: delete"
                    " topics or records, shorten retention, or have the limit raised (headrace"
                    " tenant set --limit); nothing was stored",
                )

    def defer_writes(self, tenant: str, *, is_deferred: bool) -> None:
        """Whether a tenant's writes have to wait until what it owes of its rate is paid."""
        if is_deferred:
            self.refused.setdefault(tenant, _deferred)
        elif self.refused.get(tenant) is _deferred:
            del self.refused[tenant]

    def slowed_ms(self, tenant: str) -> int:
        """For how long a write of the tenant is throttled because of what it stores."""
        limit = self._limit(tenant, STORED)
        if limit is None or self._access is None or self._access.tenants.when_full(tenant) != SLOW:
            return 0
        return slowed_ms(self.total(tenant, STORED), limit)

    async def drop_for_ever(self, drop: Callable[[str, float], Awaitable[bool]]) -> None:
        """Do so each second, beside what divides rates: a drop may take long."""
        while True:
            await asyncio.sleep(PERIOD_S)
            await self.drop_oldest(drop)

    async def drop_oldest(self, drop: Callable[[str, float], Awaitable[bool]]) -> None:
        """Drop this broker's part of what tenants store above their limits, if they want that.
        `drop` drops the oldest that a tenant stores here, so many bytes; whether there was any."""
        if self._access is None:
            return
        tenants, is_counted = self._access.tenants, False
        for tenant in sorted(tenants.with_count(STORED)):
            if tenants.when_full(tenant) != DROP_OLDEST or not self._has_excess(tenant):
                continue
            if not is_counted:  # something may have been dropped since
                self._count(STORED)
                is_counted = True
            if (excess := self._excess(tenant)) > 0:
                own = self._own.get((tenant, STORED), 0)
                if await drop(tenant, excess * own / self.total(tenant, STORED)):
                    is_counted = False
                    if self._others((tenant, STORED)):
                        self._drops_from_ns[tenant] = self._now_ns() + REST_NS
            await asyncio.sleep(0)

    def _has_excess(self, tenant: str) -> bool:
        """Whether a tenant stored too much when it was counted, and is not at rest."""
        if self._now_ns() < self._drops_from_ns.get(tenant, 0):
            return False
        self._drops_from_ns.pop(tenant, None)
        return self._excess(tenant) > 0

    def _excess(self, tenant: str) -> float:
        """The bytes that a tenant stores above its limit."""
        limit = self._limit(tenant, STORED)
        return 0 if limit is None else self.total(tenant, STORED) - limit
