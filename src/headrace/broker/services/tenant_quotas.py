"""Quotas of a tenant's users, as its people write and see them.

A quota of theirs is one of a user, or of a user and a client id: no other is about what the tenant
has alone. A user's name is that of the tenant's own user, and of the principal that operators gave
the tenant, if there is one: it is stored for both.

Invariants: people of a tenant see and change quotas of these names alone. A quota limits what
clients get within the tenant's limits: it lifts none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from headrace.broker.security.principal import USER as PRINCIPAL
from headrace.broker.security.tenant_shares import TenantShares, excess_of_removed
from headrace.broker.services.client_quotas import selected
from headrace.coordination.quotas.entities import (
    CLIENT_ID,
    USER,
    Entity,
    Match,
    Rates,
    entity_of,
)
from headrace.errors import ClusterUnauthorized, PolicyViolation, RequestInvalid
from headrace.metadata.quota_facts import quota_key
from headrace.records.tenant_names import DEFAULT, has_marks, name_in, prefix_of, tenant_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from headrace.broker.security.sessions import ClientSession
    from headrace.broker.security.tenants import Tenants
    from headrace.broker.services.client_quotas import ClientQuotas
    from headrace.broker.services.services import Services

QUOTAS_MAX: Final = 100_000
"""Of the entities that tenants' people give quotas."""


class TenantQuotas:
    """The quotas of one tenant, with methods as those of `ClientQuotas`: see the module."""

    def __init__(self, quotas: ClientQuotas, tenants: Tenants, tenant: str) -> None:
        self._quotas = quotas
        self._tenants = tenants
        self._tenant = tenant

    def _shown(self, entity: Entity) -> Entity | None:
        user = _user_of(entity)
        if user is None or (tenant_of(user) != self._tenant and not self._is_given(user)):
            return None
        return _with_user(entity, name_in(user))

    def _is_given(self, user: str) -> bool:
        """Whether operators have given the tenant a principal of this name."""
        return self._tenants.of(f"{PRINCIPAL}:{user}") == self._tenant

    def find(
        self, components: Sequence[Match] = (), *, is_strict: bool = False
    ) -> list[tuple[Entity, Rates]]:
        """See ClientQuotas."""
        found: dict[Entity, Rates] = {}
        for tenant in (DEFAULT, self._tenant):
            for entity, rates in self._quotas.of_users(tenant):
                shown = self._shown(entity)
                if shown is not None:
                    found[shown] = rates
        return selected(found.items(), components, is_strict=is_strict)

    async def change(
        self,
        parts: Sequence[tuple[str, str | None]],
        changes: Mapping[str, float | None],
        *,
        is_dry_run: bool = False,
    ) -> Rates:
        """See ClientQuotas. Raises ClusterUnauthorized, PolicyViolation, too."""
        named = entity_of(parts)
        user = _user_of(named)
        if user is None:
            raise ClusterUnauthorized(
                "people of a tenant set quotas of a user that they name, or of such a user and a"
                " client id; other quotas are the operators': ask them"
            )
        if has_marks(user):
            raise RequestInvalid("the name of a user has no « or »")
        users = [prefix_of(self._tenant) + user]
        if self._is_given(user):
            users.append(user)
        rates: Rates = {}
        for one in users:
            entity = _with_user(named, one)
            if any(value is not None for value in changes.values()):
                self._check_room(entity)
            rates = await self._quotas.change(entity, changes, is_dry_run=is_dry_run)
        return rates

    def _check_room(self, entity: Entity) -> None:
        """Raise PolicyViolation if the tenant's part of the quotas that there can be is used up."""
        if self._quotas.has(entity):
            return
        shares = TenantShares("quotas of users", QUOTAS_MAX)
        excess = shares.excess(self._tenant, self._quotas.counts())
        facts = self._quotas.facts
        if not excess and quota_key(entity) not in facts.empty:
            excess = excess_of_removed("removed quotas", self._tenant, facts)
        if excess:
            raise PolicyViolation(f"{excess}: remove some first; nothing was changed")


def _user_of(entity: Entity) -> str | None:
    """Whose quota it is, of all client ids or one; None: it is not one user's alone."""
    parts = dict(entity)
    return parts.get(USER) if parts.keys() <= {USER, CLIENT_ID} else None


def _with_user(entity: Entity, user: str) -> Entity:
    return entity_of({**dict(entity), USER: user}.items())


def quotas_of(services: Services, session: ClientSession) -> ClientQuotas | TenantQuotas:
    """The quotas that the session's client sees and changes, if it has the right to."""
    access = services.access
    tenant = DEFAULT if access is None else access.tenant(session)
    if access is None or tenant == DEFAULT:
        return services.quotas
    return TenantQuotas(services.quotas, access.tenants, tenant)
