"""This broker's client quotas: what is stored, what clients use, how long they are throttled.

Invariants: as in Kafka, a quota applies to each broker separately; the metadata store holds it once
for all. Limits of tenants hold for all brokers together (`tenant_rates`). Without quotas a request
costs one check of `is_active`. The state of a client is a token bucket for each quota that applies
to it; at most CLIENTS_MAX are kept.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from headrace.broker.security.client_addresses import client_address
from headrace.broker.security.tenant_shares import ByTenant
from headrace.coordination.quotas.entities import (
    CLIENT_KEYS,
    CONNECTION,
    CONSUMER,
    IP,
    KEYS,
    MUTATION,
    PRODUCER,
    REQUEST,
    USER,
    Entity,
    Match,
    Rates,
    check_rate,
    entity_of,
    matches,
    quota_of,
)
from headrace.coordination.quotas.token_bucket import NS_PER_S, TokenBucket
from headrace.errors import QuotaExceeded, RequestInvalid
from headrace.metadata.decoding import decode_fact
from headrace.metadata.followed_facts import FollowedFacts
from headrace.metadata.quota_facts import QUOTAS, QuotaFact, entity_of_key, quota_key
from headrace.records.tenant_names import tenant_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from headrace.broker.security.sessions import ClientSession
    from headrace.broker.services.tenant_rates import TenantRates
    from headrace.metadata.store import MetadataEntry, MetadataStore
    from headrace.runtime.clock import Clock

log = logging.getLogger(__name__)

CLIENTS_MAX: Final = 10_000
"""Clients with state of their own. The oldest starts over: memory stays bounded even if ids are
invented."""
BURST_S: Final = {PRODUCER: 1, CONSUMER: 1, REQUEST: 1, MUTATION: 11, CONNECTION: 11}
"""Seconds' worth of quota that may be used at once. Kafka's window for mutations and connections is
11 s."""
_PERCENT: Final = 100
_PRODUCE: Final = 0
_EXEMPT: Final = frozenset({18, 27, 83, 86, 87})
"""ApiVersions, and requests between brokers."""


@dataclass(slots=True)
class ThrottleFigures:
    """Throttling by quotas of one kind."""

    count: int = 0
    time_ms: int = 0


SLOWED_MS_MAX: Final = 5_000
"""Of a write that waits before it is stored: its connection is not read meanwhile, and clients that
wait longer for an answer are few."""


ANSWER_WAIT_MS_MAX: Final = 1_000
"""Of a write whose answer waits after it is stored: clients that get none for 3 s send again."""


class ClientQuotas:
    """See the module. Also `sessions.Quotas`."""

    def __init__(
        self, metadata: MetadataStore, clock: Clock, tenants: TenantRates | None = None
    ) -> None:
        self._tenants = tenants
        self._now_ns = clock.now_ns
        self._quotas: dict[Entity, Rates] = {}
        self._of_tenants: ByTenant[Entity] = ByTenant()
        """Those of each tenant's own users."""
        self.facts = FollowedFacts(metadata, QUOTAS, "a quota", self.apply, _tenant_of_key)
        self._clients: dict[tuple[str, str], dict[str, TokenBucket]] = {}
        """Buckets by quota, of (user, client id)."""
        self._buckets: dict[tuple[str, Entity], TokenBucket] = {}
        self._addresses: dict[str, TokenBucket] = {}
        self._listeners: list[Callable[[], None]] = []
        self._has_quotas = False
        self.is_active = False
        """Whether there is any quota, of a client or of a tenant."""
        self.has_connection_quota = False
        self.throttled: dict[str, ThrottleFigures] = {key: ThrottleFigures() for key in KEYS}

    def on_change(self, listener: Callable[[], None]) -> None:
        """Call `listener` after each change of a quota."""
        self._listeners.append(listener)

    # --- stored state ------------------------------------------------------------------------

    def apply(self, key: str, entry: MetadataEntry | None) -> None:
        """Apply the entry stored under a key. Raises DataCorrupt, FormatUnsupported."""
        entity = entity_of_key(key)
        fact = QuotaFact({}) if entry is None else decode_fact(QuotaFact, entry)
        self.facts.note(key, entry, is_empty=fact.is_empty)
        before = self._quotas.get(entity, {})
        if (rates := fact.rates()) == before:
            return
        if rates:
            self._quotas[entity] = rates
        else:
            del self._quotas[entity]
        self._of_tenants.note(tenant_of_entity(entity), entity, is_there=bool(rates))
        self._clients.clear()
        if CONNECTION in rates or CONNECTION in before:  # else a user's quota would fill them again
            self._addresses.clear()
        self._has_quotas = any(set(rates) & set(CLIENT_KEYS) for rates in self._quotas.values())
        self.tenants_changed()
        self.has_connection_quota = any(CONNECTION in rates for rates in self._quotas.values())
        if not self._has_quotas:
            self._buckets.clear()
        for listener in self._listeners:
            listener()

    def tenants_changed(self) -> None:
        """Whether anything is charged may have changed."""
        has_limits = self._tenants is not None and self._tenants.is_active
        self.is_active = self._has_quotas or has_limits

    def has(self, entity: Entity) -> bool:
        """Whether the entity has a quota."""
        return entity in self._quotas

    def counts(self) -> dict[str, int]:
        """How many entities with quotas there are, by the tenant whose own users they have."""
        return self._of_tenants.counts()

    def of_users(self, tenant: str) -> Iterator[tuple[Entity, Rates]]:
        """The quotas of a tenant's own users; DEFAULT: all others."""
        return ((one, dict(self._quotas[one])) for one in self._of_tenants.of(tenant))

    def find(
        self, components: Sequence[Match] = (), *, is_strict: bool = False
    ) -> list[tuple[Entity, Rates]]:
        """The quotas that a filter selects, sorted; all of them for an empty filter that is not
        strict. Raises RequestInvalid."""
        return selected(
            ((entity, dict(rates)) for entity, rates in self._quotas.items()),
            components,
            is_strict=is_strict,
        )

    async def change(
        self,
        parts: Sequence[tuple[str, str | None]],
        changes: Mapping[str, float | None],
        *,
        is_dry_run: bool = False,
    ) -> Rates:
        """Set some quotas of an entity, remove others (None); returns its quotas after the change,
        real or simulated.

        Raises RequestInvalid, MetadataUnavailable.
        """
        entity = entity_of(parts)
        for name, value in changes.items():
            check_rate(entity, name, value)
        key = quota_key(entity)
        found: Rates = {}

        def changed(entry: MetadataEntry | None) -> bytes | None:
            before = QuotaFact({}) if entry is None else decode_fact(QuotaFact, entry)
            texts = {**before.quotas, **{name: _text(v) for name, v in changes.items()}}
            kept = {name: text for name, text in texts.items() if text is not None}
            after = QuotaFact(kept, before.unknown)
            found.clear()
            found.update(after.rates())
            return None if is_dry_run or kept == before.quotas else after.encode()

        await self.facts.change(key, changed)
        return found

    # --- usage -------------------------------------------------------------------------------

    def charge(self, session: ClientSession, api_key: int, size_bytes: int) -> int:
        """See sessions.Quotas."""
        if api_key in _EXEMPT:
            return 0
        throttle_ms = 0
        if api_key == _PRODUCE:
            throttle_ms = self.take(session, PRODUCER, size_bytes)
        return max(throttle_ms, self.take(session, REQUEST, 0))

    def take(
        self, session: ClientSession, key: str, amount: float, *, is_stored: bool = False
    ) -> int:
        """Charge one quota of a client; returns for how many milliseconds it is throttled.
        `is_stored`: it is charged for what it has written, not for what it wants to write."""
        if not self.is_active:
            return 0
        wait_ms = self._charge(session, key, amount, is_stored=is_stored)
        throttle_ms = self._note(key, wait_ms)
        session.throttled_ms += throttle_ms
        return throttle_ms

    def _charge(self, session: ClientSession, key: str, amount: float, *, is_stored: bool) -> int:
        bucket = self._bucket(session, key)
        wait_ms = 0 if bucket is None else bucket.charge(amount, self._now_ns())
        if self._tenants is not None:
            wait_ms = max(wait_ms, self._tenants.take(session, key, amount, is_stored=is_stored))
        return wait_ms

    def slowed_ms(self, session: ClientSession, key: str) -> int:
        """For how many milliseconds a request waits although nothing is owed."""
        return 0 if self._tenants is None else self._tenants.slowed_ms(session, key)

    async def wait_slowed(self, session: ClientSession, key: str) -> None:
        """Wait `slowed_ms`, once, before a write is stored: no answer throttles the client."""
        slowed_ms = self._note(key, min(self.slowed_ms(session, key), SLOWED_MS_MAX))
        if slowed_ms:
            session.throttled_ms += slowed_ms
            await asyncio.sleep(slowed_ms / 1000)

    def check_owed(self, session: ClientSession, *keys: str) -> None:
        """As `check`, but what a client pays for while its answer waits (`answer_wait_ms`) may be
        owed."""
        for key in keys:
            if self._charge(session, key, 0, is_stored=False) > ANSWER_WAIT_MS_MAX:
                self.check(session, key)

    def answer_wait_ms(self, session: ClientSession, amount: float) -> int:
        """Charge what a client has written; returns for how many milliseconds its answer, which
        alone can slow it, waits."""
        owed_ms = self.take(session, PRODUCER, amount, is_stored=True)
        owed_ms = max(owed_ms, self.take(session, REQUEST, 0))
        slowed_ms = self._note(PRODUCER, min(self.slowed_ms(session, PRODUCER), ANSWER_WAIT_MS_MAX))
        session.throttled_ms += slowed_ms
        return min(max(owed_ms, slowed_ms), ANSWER_WAIT_MS_MAX)

    async def wait_paid(self, session: ClientSession, key: str, throttle_ms: int) -> None:
        """Wait `throttle_ms`, as `take` returned it, and on until all is paid: a stream has no
        request that could time out."""
        while throttle_ms:
            await asyncio.sleep(throttle_ms / 1000)
            throttle_ms = self.take(session, key, 0)

    def spent(self, session: ClientSession, api_key: int, time_ns: int) -> int:
        """Charge the time of the broker's event loop that a request took; see `take`."""
        return 0 if api_key in _EXEMPT else self.take(session, REQUEST, time_ns)

    def rates(self, session: ClientSession) -> Rates:
        """The quotas that limit a client, the most specific of each kind."""
        if not self.is_active:
            return {}
        user = "" if session.principal is None else session.principal.name
        found = {key: quota_of(self._quotas, key, user, session.client_id) for key in CLIENT_KEYS}
        return {key: quota[1] for key, quota in found.items() if quota is not None}

    def burst(self, session: ClientSession, key: str) -> int | None:
        """The largest amount that may be used at once; None: not limited."""
        if not self.is_active:
            return None
        bucket = self._bucket(session, key)
        own = None if bucket is None else max(1, int(bucket.rate_per_s * BURST_S[key]))
        tenants = None if self._tenants is None else self._tenants.burst(session, key)
        return min((one for one in (own, tenants) if one is not None), default=None)

    def check(self, session: ClientSession, *keys: str) -> None:
        """Raise QuotaExceeded while the client has exhausted one of these quotas (KIP-599 for
        mutations)."""
        for key in keys:
            wait_ms = self.take(session, key, 0)
            if wait_ms:
                raise QuotaExceeded(
                    f"{key} is exceeded: the request was not executed, try again in {wait_ms} ms",
                    throttle_ms=wait_ms,
                )

    def connected(self, client_host: str) -> int:
        """Charge a new connection to its address; returns for how many milliseconds it is not
        served."""
        own = self._quotas.get(((IP, client_host),), {}).get(CONNECTION)
        if own is None:
            client_host = client_address(client_host)
        bucket = self._addresses.get(client_host)
        if bucket is None:
            rate = self._quotas.get(((IP, None),), {}).get(CONNECTION) if own is None else own
            if rate is None:
                return 0
            bucket = TokenBucket(rate, rate * BURST_S[CONNECTION], self._now_ns())
            _make_room(self._addresses)
            self._addresses[client_host] = bucket
        return self._note(CONNECTION, bucket.charge(1, self._now_ns()))

    def of_tenant(self, tenant: str, what: str) -> float:
        """What all brokers' clients of a tenant use of one of its limits."""
        return 0 if self._tenants is None else self._tenants.used(tenant, what)

    def _note(self, key: str, throttle_ms: int) -> int:
        if throttle_ms:
            figures = self.throttled[key]
            figures.count += 1
            figures.time_ms += throttle_ms
        return throttle_ms

    def _bucket(self, session: ClientSession, key: str) -> TokenBucket | None:
        user = "" if session.principal is None else session.principal.name
        client = user, session.client_id
        buckets = self._clients.get(client)
        if buckets is None:
            _make_room(self._clients)
            buckets = self._clients[client] = self._buckets_of(*client)
        return buckets.get(key)

    def _buckets_of(self, user: str, client_id: str) -> dict[str, TokenBucket]:
        found: dict[str, TokenBucket] = {}
        now_ns = self._now_ns()
        for key in CLIENT_KEYS:
            quota = quota_of(self._quotas, key, user, client_id)
            if quota is None:
                continue
            entity, value = quota
            rate = value / _PERCENT * NS_PER_S if key == REQUEST else value
            bucket = self._buckets.get((key, entity))
            if bucket is None or bucket.rate_per_s != rate:
                bucket = TokenBucket(rate, rate * BURST_S[key], now_ns)
                _make_room(self._buckets, CLIENTS_MAX * len(CLIENT_KEYS))
                self._buckets[key, entity] = bucket
            found[key] = bucket
        return found


def selected(
    quotas: Iterable[tuple[Entity, Rates]], components: Sequence[Match], *, is_strict: bool
) -> list[tuple[Entity, Rates]]:
    """Those that a filter selects, sorted. Raises RequestInvalid."""
    types = [component.type for component in components]
    if len(set(types)) < len(types):
        raise RequestInvalid("a filter may name each entity type only once")
    for component in components:
        entity_of([(component.type, None)])
    return sorted(
        (one for one in quotas if matches(one[0], components, is_strict=is_strict)),
        key=lambda found: [(kind, name is not None, name or "") for kind, name in found[0]],
    )


def tenant_of_entity(entity: Entity) -> str:
    """The tenant whose own user an entity has; DEFAULT: none's."""
    return tenant_of(dict(entity).get(USER) or "")


def _tenant_of_key(key: str) -> str:
    return tenant_of_entity(entity_of_key(key))


def _make_room(known: dict[Any, Any], count_max: int = CLIENTS_MAX) -> None:
    if len(known) >= count_max:
        del known[next(iter(known))]


def _text(value: float | None) -> str | None:
    return None if value is None else repr(float(value))
