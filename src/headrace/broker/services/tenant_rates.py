"""The rates of tenants, of bytes and of processor time, over the whole cluster: this broker's share
of them. What brokers know of each other's tenants, rates and counts (`tenant_counts`).

Invariants: each second a broker asks the others what tenants used of them, and computes its share
of each rate; a broker that does not answer counts as it did before. The shares of all brokers add
up to the rate at most while they know the same figures. Where clients of a tenant are throttled, it
counts as using the whole rate: they would use more than they were let. Without limits of rates
nothing is charged or asked.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, Final

from headrace.broker.services.owner_calls import checked
from headrace.broker.services.tenant_counts import PERIOD_S, TenantCounts
from headrace.coordination.quotas.entities import PRODUCER, REQUEST
from headrace.coordination.quotas.tenant_limits import share_of
from headrace.coordination.quotas.token_bucket import MS_PER_S, NS_PER_S, WAIT_MS_MAX, TokenBucket
from headrace.errors import HeadraceError, PeerVersionDiffers
from headrace.runtime.loop_turns import gather_charged

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from headrace.broker.security.sessions import ClientSession
    from headrace.broker.services.access_control import AccessControl
    from headrace.broker.services.owner_calls import OwnerCalls
    from headrace.metadata.facts import BrokerFact
    from headrace.runtime.clock import Clock

log = logging.getLogger(__name__)

NS_PER_MS: Final = NS_PER_S // MS_PER_S
_NS_PER_PERCENT: Final = NS_PER_S // 100
"""Of a second of one processor."""
_USED: Final = "tenants.used"
Used = dict[tuple[str, str], float]
"""By tenant and limit: bytes for each second, percent of a processor, or how many there are."""


class TenantRates:
    """See the module."""

    def __init__(self, access: AccessControl | None, clock: Clock, broker_id: int) -> None:
        """`access` None: there are no tenants."""
        self._access = access
        self._now_ns = clock.now_ns
        self._broker_id = broker_id
        self._charged: Used = {}
        """Since `_since_ns`."""
        self._since_ns = clock.now_ns()
        self._used: Used = {}
        """In the last period."""
        self._others: dict[int, Used] = {}
        """Of each other live broker, as it answered last."""
        self._buckets: dict[tuple[str, str], TokenBucket] = {}
        self._throttled_to_ns: dict[tuple[str, str], int] = {}
        self.counts = TenantCounts(access, clock, self._used_by_others)

    @property
    def is_active(self) -> bool:
        """Whether requests of any tenant are metered."""
        return self._access is not None and self._access.tenants.has_rates

    def take(
        self, session: ClientSession, key: str, amount: float, *, is_stored: bool = False
    ) -> int:
        """Charge the rate of a client's tenant; returns for how many ms it is throttled. The
        amount of REQUEST is in nanoseconds.

        What a tenant owes longer than a client can be told to wait is paid before it writes more:
        such a write is not charged, and not stored (`refused` of `counts`), unless it `is_stored`
        already.
        """
        if self._access is None or not self._access.tenants.has_rate(key):
            return 0
        tenant = self._access.tenant(session)
        # A write is slowed for what is stored; that is no debt, for which `amount` 0 asks. No
        # answer throttles a client whose write `is_stored`: over HTTP it has waited (`slowed_ms`).
        is_slowed = key == PRODUCER and amount and not is_stored
        slowed_ms = self.counts.slowed_ms(tenant) if is_slowed else 0
        rate = self._access.tenants.limits(tenant).get(key)
        if rate is None:
            return slowed_ms
        if key == REQUEST:
            amount /= _NS_PER_PERCENT
        return max(slowed_ms, self._charge(tenant, key, rate, amount, is_stored=is_stored))

    def slowed_ms(self, session: ClientSession, key: str) -> int:
        """For how long a request waits because of what the client's tenant stores."""
        if self._access is None or key != PRODUCER:
            return 0
        return self.counts.slowed_ms(self._access.tenant(session))

    def _charge(self, tenant: str, key: str, rate: float, amount: float, *, is_stored: bool) -> int:
        place, now_ns = (tenant, key), self._now_ns()
        bucket = self._buckets.get(place)
        if bucket is None:
            share = self._share(place, rate)
            bucket = self._buckets[place] = TokenBucket(share, share, now_ns)
        # A client that is told to wait does so even if the share grows meanwhile, and it will.
        soon = share_of(rate, rate, self._used_by_others(place))
        is_deferred = key == PRODUCER and bucket.wait_ms(now_ns, soon) >= WAIT_MS_MAX
        if key == PRODUCER:
            self.counts.defer_writes(tenant, is_deferred=is_deferred)
        if is_stored or not is_deferred:
            self._charged[place] = self._charged.get(place, 0) + amount
            if not bucket.charge(amount, now_ns):
                return 0
        wait_ms = bucket.wait_ms(now_ns, soon)
        to_ns = now_ns + wait_ms * NS_PER_MS
        self._throttled_to_ns[place] = max(to_ns, self._throttled_to_ns.get(place, 0))
        return wait_ms

    def used(self, tenant: str, what: str) -> float:
        """What a tenant used of a limit at all brokers in the last period."""
        place = tenant, what
        return self._used.get(place, 0) + sum(self._used_by_others(place))

    def burst(self, session: ClientSession, key: str) -> int | None:
        """The largest amount that may be used at once; None: not limited."""
        self.take(session, key, 0)
        bucket = None
        if self._access is not None:
            bucket = self._buckets.get((self._access.tenant(session), key))
        return None if bucket is None else max(1, int(bucket.rate_per_s))

    def _share(self, place: tuple[str, str], rate: float) -> float:
        return share_of(rate, self._used.get(place, 0), self._used_by_others(place))

    def _used_by_others(self, place: tuple[str, str]) -> list[float]:
        return [used.get(place, 0) for used in self._others.values()]

    # --- what other brokers know -------------------------------------------------------------

    async def run(self, calls: OwnerCalls, brokers: Callable[[], Sequence[BrokerFact]]) -> None:
        """Compute shares for ever."""
        calls.offer_of_broker(_USED, self._answer)
        while True:
            await asyncio.sleep(PERIOD_S)
            if self._access is not None and self._access.tenants.has_shared:
                await self._exchange(calls, [one.id for one in brokers()])
            elif self._buckets or self._used or self._others or self.counts.refused:
                for known in (self._buckets, self._throttled_to_ns, self._used, self._others):
                    known.clear()
                self.counts.end_period()

    async def _answer(self, _asked: Any) -> list[tuple[str, str, float]]:
        return [(*place, used) for place, used in self._used.items()]

    async def _exchange(self, calls: OwnerCalls, live: Sequence[int]) -> None:
        self._end_period()
        others = [one for one in live if one != self._broker_id]
        self._others = {one: self._others.get(one, {}) for one in others}
        await gather_charged(self._ask(calls, one) for one in others)
        self.divide()
        self.counts.end_period()

    def _end_period(self) -> None:
        assert self._access is not None, "there are tenants"
        now_ns = self._now_ns()
        passed_s = max(now_ns - self._since_ns, 1) / NS_PER_S
        self._used = {place: amount / passed_s for place, amount in self._charged.items()}
        self._charged, self._since_ns = {}, now_ns
        for place, to_ns in list(self._throttled_to_ns.items()):
            if to_ns <= now_ns:
                del self._throttled_to_ns[place]
            else:
                rate = self._access.tenants.limits(place[0]).get(place[1], 0)
                self._used[place] = max(self._used.get(place, 0), rate)
        self._used |= self.counts.measure()

    async def _ask(self, calls: OwnerCalls, broker_id: int) -> None:
        try:
            async with asyncio.timeout(PERIOD_S):
                answer = await calls.ask_broker(_USED, broker_id, [])
            self._others[broker_id] = _decoded(answer)
        except (HeadraceError, TimeoutError) as error:
            log.debug("what tenants use of broker %d is not known: %s", broker_id, error)

    def divide(self) -> None:
        """Give this broker's buckets their shares of the rates."""
        assert self._access is not None, "there are tenants"
        now_ns = self._now_ns()
        for place, bucket in list(self._buckets.items()):
            rate = self._access.tenants.limits(place[0]).get(place[1])
            if rate is None:
                del self._buckets[place]
            else:
                share = self._share(place, rate)
                bucket.set_rate(share, share, now_ns)


def _decoded(answer: Any) -> Used:
    """Raises PeerVersionDiffers."""
    if not isinstance(answer, list):
        raise PeerVersionDiffers("a broker's answer is of another version: try again later")
    found: Used = {}
    for one in answer:
        tenant, key, used = checked(one, str, str, int | float)
        found[tenant, key] = max(float(used), 0)
    return found
