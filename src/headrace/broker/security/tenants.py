"""The tenants of principals, as every broker follows them, and their changes.

Invariants: a principal is of one tenant or of none, which is the default one; it is known before
the first request that names anything, and a client cannot choose it. Every broker follows the facts
in the metadata store; the setting `headrace.tenants` adds to them. A principal of two tenants, and
every unknown one while a fact cannot be read, is of NOBODY, who has no rights.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, NamedTuple

from headrace.broker.security.tenant_ownership import (
    NOBODY,
    TENANT_NAME,
    is_of_a_client,
    tenant_of_user,
)
from headrace.coordination.quotas.entities import PRODUCER
from headrace.coordination.quotas.tenant_limits import (
    COUNTS,
    RATES,
    REJECT,
    SLOW,
    STORED,
    WHEN_FULL,
    check_limits,
)
from headrace.errors import (
    CredentialDuplicate,
    CredentialInvalid,
    CredentialUnknown,
    DataCorrupt,
    FormatUnsupported,
    PolicyViolation,
    Rejected,
    RequestInvalid,
    TopicNameInvalid,
)
from headrace.metadata.decoding import decode_fact
from headrace.metadata.followed_facts import FollowedFacts
from headrace.metadata.tenant_facts import (
    ACTIVE,
    DELETED,
    TENANTS,
    TenantFact,
    TenantPrincipal,
    tenant_key,
)
from headrace.records.identifiers import INTERNAL_TOPICS, is_topic_name
from headrace.records.tenant_names import DEFAULT

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from headrace.broker.security.listener import TenantPlace
    from headrace.metadata.store import MetadataEntry, MetadataStore

TENANTS_MAX: Final = 10_000
NAMES_MAX: Final = 100_000
"""Of tenants and deleted ones, whose facts stay: what they had may be left."""
PRINCIPALS_MAX: Final = 1_000
"""Of one tenant: they are one fact."""
PRINCIPAL_LENGTH_MAX: Final = 500
ALL, RULES = "all", "rules"
ACCESS: Final = (ALL, RULES)
"""What principals may do with the names of their tenant: everything that no rule denies, or what
rules about these names allow. Do not change: stored."""
FOLLOWED_S: Final = 1.0
"""After this every broker has followed a change."""
_NO_LIMITS: Final[Mapping[str, float]] = MappingProxyType({})


class TenantNotEmpty(Rejected):
    """A tenant that has principals is deleted only by force."""


def _unknown(tenant: str) -> CredentialUnknown:
    return CredentialUnknown(f"there is no tenant {tenant!r}")


def _fact_of(tenant: str, entry: MetadataEntry) -> TenantFact:
    """Raises DataCorrupt, FormatUnsupported."""
    fact = decode_fact(TenantFact, entry)
    if fact.state not in {ACTIVE, DELETED}:
        raise FormatUnsupported(
            f"the tenant {tenant!r} has the state {fact.state!r}, which this version of"
            " Headrace does not know: start a newer one"
        )
    return fact


def _check_access(access: str | None) -> None:
    if access not in {None, *ACCESS}:
        raise RequestInvalid(f"access must be one of {', '.join(ACCESS)}")


async def refuse_tenants(metadata: MetadataStore) -> None:
    """Raise PolicyViolation if there are tenants, whose names everybody could use."""
    for entry in await metadata.list(TENANTS):
        if decode_fact(TenantFact, entry).state != DELETED:
            raise PolicyViolation(
                f"there is a tenant, {entry.key.removeprefix(TENANTS)}, and everybody may do"
                " everything: set headrace.authorizer=acl, or delete the tenants with it before;"
                " nothing was started"
            )


class TenantChange(NamedTuple):
    """What changes of one tenant."""

    added: Sequence[str]
    removed: Sequence[str]
    limits: Mapping[str, float | None]
    when_full: str | None
    """None: as before."""
    access: str | None
    """The same."""
    may_create: bool
    audit_topic: str | None = None
    """The same; empty: none."""

    def applied(self, before: TenantFact) -> TenantFact:
        """Raises PolicyViolation."""
        known = {one.principal: one for one in before.principals}
        names = dict.fromkeys([*known, *self.added])
        kept = [one for one in names if one not in {*self.removed}]
        if len(kept) > PRINCIPALS_MAX:
            raise PolicyViolation(
                f"a tenant has at most {PRINCIPALS_MAX} principals: remove some first; nothing"
                " was changed"
            )
        texts = before.limits | {
            name: None if one is None else repr(one) for name, one in self.limits.items()
        }
        limits = {name: one for name, one in texts.items() if one is not None}
        principals = [known.get(one, TenantPrincipal(one)) for one in kept]
        return replace(
            before,
            principals=principals,
            limits=limits,
            when_full=self.when_full or before.when_full,
            access=self.access or before.access,
            audit_topic=before.audit_topic
            if self.audit_topic is None
            else self.audit_topic or None,
        )


class Tenants:
    """The tenants of a cluster, as every broker follows them."""

    def __init__(
        self,
        metadata: MetadataStore,
        super_users: Collection[str] = (),
        configured: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """`configured`: the tenants of principals by the setting. Super users are of none."""
        self._super_users = super_users
        self._configured = configured
        self.facts = FollowedFacts(metadata, TENANTS, "a tenant", self.apply)
        self._known: dict[str, MetadataEntry] = {}
        """The facts of tenants, deleted ones too."""
        self._stored: dict[str, tuple[str, ...]] = {}
        self._damaged: set[str] = set()
        self._limits: dict[str, Mapping[str, float]] = {}
        self._when_full: dict[str, str] = {}
        self._closed: set[str] = set()
        self._audit_topics: dict[str, str] = {}
        self._with_rates: dict[str, set[str]] = {key: set() for key in RATES}
        """By rate, the tenants whose requests are metered for it."""
        self._with_counts: set[str] = set()
        self._tenants_of: dict[str, tuple[str, ...]] = {
            one: (tenant,) for one, tenant in configured.items()
        }
        """By principal. More than one tenant only if two brokers stored at once."""
        self._listeners: list[Callable[[], None]] = []
        self.has_any = bool(configured)
        """Whether there are tenants besides the default one, or were: what they had may be left."""

    def on_change(self, listener: Callable[[], None]) -> None:
        """Call `listener` after each change."""
        self._listeners.append(listener)

    def of(self, principal: str) -> str:
        """The tenant of a principal; NOBODY if that is not certain."""
        if principal in self._super_users:
            return DEFAULT
        if tenant := tenant_of_user(principal):
            return tenant if self.exists(tenant) else NOBODY
        found = self._tenants_of.get(principal)
        if found is None:
            return NOBODY if self._damaged else DEFAULT
        return found[0] if len(found) == 1 else NOBODY

    def at(self, principal: str, place: TenantPlace | None) -> str:
        """The tenant of a principal whose connection is for one; NOBODY if it is another's. Super
        users are of the default one everywhere."""
        own = self.of(principal)
        if place is None or own == place.tenant or principal in self._super_users:
            return own
        is_given = place.is_given and self.exists(place.tenant)
        return place.tenant if own == DEFAULT and is_given else NOBODY

    def exists(self, tenant: str) -> bool:
        """Whether there is such a tenant."""
        return tenant in self._stored or self.is_configured(tenant)

    def was_deleted(self, tenant: str) -> bool:
        """Whether there was such a tenant, as far as that is still known, and is none now."""
        return tenant in self._known and not self.exists(tenant)

    def names(self) -> Sequence[str]:
        """All tenants, sorted."""
        return sorted({*self._stored, *self._configured.values()})

    def principals(self, tenant: str) -> Sequence[str]:
        """The principals of a tenant, sorted; those of two tenants are in both.

        Raises CredentialUnknown if there is no such tenant.
        """
        if tenant not in self._stored and tenant not in self._configured.values():
            raise _unknown(tenant)
        configured = (one for one, other in self._configured.items() if other == tenant)
        return sorted({*self._stored.get(tenant, ()), *configured})

    def is_configured(self, tenant: str) -> bool:
        """Whether the setting names the tenant, which commands cannot delete."""
        return tenant in self._configured.values()

    @property
    def has_rates(self) -> bool:
        """Whether any tenant has limits of rates, for which requests are metered."""
        return any(self._with_rates.values())

    def has_rate(self, key: str) -> bool:
        """Whether any tenant's requests are metered for this one."""
        return bool(self._with_rates.get(key))

    def with_count(self, what: str) -> Collection[str]:
        """The tenants that have a limit of `tenant_limits.COUNTS`."""
        return {one for one in self._with_counts if what in self._limits[one]}

    @property
    def has_shared(self) -> bool:
        """Whether brokers have to know of each other what tenants use."""
        return self.has_rates or bool(self._with_counts)

    def limits(self, tenant: str) -> Mapping[str, float]:
        """What limits a tenant (`tenant_limits.LIMITS`); empty if nothing does."""
        return self._limits.get(tenant, _NO_LIMITS)

    def limits_of_new(self, tenant: str) -> Mapping[str, float]:
        """As `limits`, for what is created. Raises TopicNameInvalid if there is no such tenant."""
        if tenant and not self.exists(tenant):
            raise TopicNameInvalid(
                f"there is no tenant {tenant!r}: create it first; nothing was changed"
            )
        return self.limits(tenant)

    def when_full(self, tenant: str) -> str:
        """What happens once a tenant stores all that it may: one of `WHEN_FULL`."""
        return self._when_full.get(tenant, REJECT)

    def access(self, tenant: str) -> str:
        """What a tenant's principals may do with its names: one of `ACCESS`."""
        return RULES if self.is_closed(tenant) else ALL

    def is_closed(self, tenant: str) -> bool:
        """Whether principals of the tenant may do only what rules about its own names allow."""
        return tenant in self._closed

    @property
    def has_audit_topics(self) -> bool:
        """Whether any tenant has an audit log of its own."""
        return bool(self._audit_topics)

    def audit_topic(self, tenant: str) -> str:
        """The name, within the tenant, of the topic of its audit log; empty: it has none."""
        return self._audit_topics.get(tenant, "")

    # --- stored state ------------------------------------------------------------------------

    def apply(self, key: str, entry: MetadataEntry | None) -> None:
        """Apply the fact stored under a key. Raises DataCorrupt, FormatUnsupported."""
        tenant = key.removeprefix(TENANTS)
        if entry is not None and self._known.get(tenant) == entry:
            return
        self._known.pop(tenant, None)
        try:
            fact = TenantFact(DELETED, []) if entry is None else _fact_of(tenant, entry)
        except (DataCorrupt, FormatUnsupported):
            self._damaged.add(tenant)
            if tenant not in self._stored:  # it may be closed
                self._closed.add(tenant)
            self._put(tenant, self._stored.get(tenant, ()))
            raise
        self._damaged.discard(tenant)
        if entry is not None:
            self._known[tenant] = entry
        is_active = fact.state == ACTIVE
        limits = {name: float(one) for name, one in fact.limits.items()}
        self._limit(tenant, limits if is_active else {}, fact.when_full or REJECT)
        # A value of a newer version is some restriction, too.
        is_closed = is_active and fact.access not in {None, ALL}
        (self._closed.add if is_closed else self._closed.discard)(tenant)
        self._audit_topics.pop(tenant, None)
        if is_active and fact.audit_topic:
            self._audit_topics[tenant] = fact.audit_topic
        found = tuple(one.principal for one in fact.principals)
        self._put(tenant, found if is_active else None)

    def _limit(self, tenant: str, limits: Mapping[str, float], when_full: str) -> None:
        for known in (self._limits, self._when_full):
            known.pop(tenant, None)
        if limits:
            self._limits[tenant], self._when_full[tenant] = limits, when_full
        is_slowed = STORED in limits and when_full == SLOW
        for one, is_in in (
            *((known, key in limits) for key, known in self._with_rates.items()),
            (self._with_counts, not limits.keys().isdisjoint(COUNTS)),
        ):
            (one.add if is_in else one.discard)(tenant)
        if is_slowed:
            self._with_rates[PRODUCER].add(tenant)

    def _put(self, tenant: str, principals: tuple[str, ...] | None) -> None:
        """At a cost of the tenant's principals: there may be 10,000 tenants."""
        before, after = {*self._stored.get(tenant, ())}, {*(principals or ())}
        if principals is None:
            self._damaged.discard(tenant)
            self._stored.pop(tenant, None)
        else:
            self._stored[tenant] = principals
        for one in before ^ after:
            found = {*self._tenants_of.get(one, ())} - {tenant}
            if one in after or self._configured.get(one) == tenant:
                found.add(tenant)
            if found:
                self._tenants_of[one] = tuple(sorted(found))
            else:
                self._tenants_of.pop(one, None)
        self.has_any = bool(self._known or self._damaged or self._configured)
        for listener in self._listeners:
            listener()

    # --- changes -----------------------------------------------------------------------------

    async def create(
        self,
        tenant: str,
        principals: Sequence[str],
        access: str | None = None,
        *,
        is_dry_run: bool = False,
    ) -> bool:
        """Create a tenant; returns whether it existed, and then adds the principals, and sets
        `access` unless it is None.

        Raises as `change`.
        """
        _check_access(access)
        if TENANT_NAME.fullmatch(tenant) is None:
            raise RequestInvalid("a tenant's name has 1 to 32 of a-z 0-9 and -, but not - first")
        existed = tenant in self._stored
        if not existed and len(self._stored) >= TENANTS_MAX:
            raise PolicyViolation(f"there are {TENANTS_MAX} tenants: delete one first")
        if tenant not in self._known and len(self._known) >= NAMES_MAX:
            raise PolicyViolation(
                f"there are {NAMES_MAX} names of tenants and deleted tenants: use one of them again"
            )
        for one in principals:
            self._check(tenant, one)
        change = TenantChange(principals, (), _NO_LIMITS, None, access, may_create=True)
        await self._change(tenant, change, is_dry_run=is_dry_run)
        return existed

    async def change(
        self,
        tenant: str,
        added: Sequence[str] = (),
        removed: Sequence[str] = (),
        limits: Mapping[str, float | None] = _NO_LIMITS,
        when_full: str | None = None,
        access: str | None = None,
        *,
        is_dry_run: bool = False,
    ) -> None:
        """Add principals to a tenant, remove others, and set limits (None: remove it), and
        `when_full` and `access` unless they are None. Principals that it has already, or does not
        have, are no error.

        Raises CredentialUnknown if there is no such tenant, CredentialInvalid for a principal that
        cannot be of a tenant, CredentialDuplicate for one of another, RequestInvalid,
        PolicyViolation, MetadataUnavailable.
        """
        check_limits(limits)
        if when_full not in {None, *WHEN_FULL}:
            raise RequestInvalid(f"when_full must be one of {', '.join(WHEN_FULL)}")
        _check_access(access)
        if tenant not in self._stored:
            self.principals(tenant)
            if removed:
                raise PolicyViolation(
                    "the setting headrace.tenants names this tenant: change it there, on every"
                    " broker; nothing was changed"
                )
        for one in added:
            self._check(tenant, one)
        is_configured = self.is_configured(tenant)
        change = TenantChange(added, removed, limits, when_full, access, may_create=is_configured)
        await self._change(tenant, change, is_dry_run=is_dry_run)

    async def move(
        self, tenant: str, principals: Sequence[str], *, is_dry_run: bool = False
    ) -> None:
        """Move principals from their tenants to this one. Between the two they are of NOBODY at
        every broker, never of the default tenant; if it is interrupted they stay so until it is
        repeated. Raises as `change`.
        """
        self.principals(tenant)
        others: set[str] = set()
        for one in principals:
            self._check_kind(one)
            if self._configured.get(one, tenant) != tenant:
                raise PolicyViolation(
                    f"the setting headrace.tenants names the tenant of {one}: change it there, on"
                    " every broker; nothing was changed"
                )
            others.update(self._tenants_of.get(one, ()))
        is_configured = self.is_configured(tenant)
        added = TenantChange(principals, (), _NO_LIMITS, None, None, may_create=is_configured)
        await self._change(tenant, added, is_dry_run=is_dry_run)
        if is_dry_run or others <= {tenant}:
            return
        await asyncio.sleep(FOLLOWED_S)
        removed = TenantChange((), principals, _NO_LIMITS, None, None, may_create=False)
        for other in sorted(others - {tenant}):
            await self._change(other, removed, is_dry_run=False)

    async def set_audit_topic(self, tenant: str, name: str, *, is_dry_run: bool = False) -> None:
        """Have lines of the audit log about a tenant written to a topic of it; empty: no longer.
        Raises as `change`."""
        if name and (not is_topic_name(name) or name in INTERNAL_TOPICS):
            raise RequestInvalid(f"{name[:100]!r} is not the name of a topic; nothing was changed")
        self.principals(tenant)
        is_configured = self.is_configured(tenant)
        change = TenantChange((), (), _NO_LIMITS, None, None, is_configured, name)
        await self._change(tenant, change, is_dry_run=is_dry_run)

    async def delete(self, tenant: str, *, is_forced: bool = False) -> None:
        """Delete a tenant. Unless `is_forced`, one that has principals is refused, also if another
        broker has just stored them. What else it has is not looked at, and stays.

        Raises TenantNotEmpty, and as `change`.
        """
        self.require_deletable(tenant)

        def deleted(before: TenantFact | None) -> TenantFact:
            if before is None:
                raise _unknown(tenant)
            if before.principals and not is_forced:
                raise TenantNotEmpty(
                    f"the tenant has {len(before.principals)} principals: remove them first, or use"
                    " force; nothing was changed"
                )
            return TenantFact(DELETED, [])

        await self._store(tenant, deleted)

    def require_deletable(self, tenant: str) -> None:
        """Raises CredentialUnknown, and PolicyViolation for a tenant of the setting."""
        if self.is_configured(tenant):
            raise PolicyViolation(
                "the setting headrace.tenants names this tenant: remove it there, on every broker;"
                " nothing was changed"
            )
        self.principals(tenant)

    async def _change(self, tenant: str, change: TenantChange, *, is_dry_run: bool) -> None:
        def changed(before: TenantFact | None) -> TenantFact:
            if before is None and not change.may_create:
                raise _unknown(tenant)
            return change.applied(before or TenantFact(ACTIVE, []))

        if is_dry_run:
            known = [TenantPrincipal(one) for one in self._stored.get(tenant, ())]
            changed(TenantFact(ACTIVE, known))
        else:
            await self._store(tenant, changed)

    def _check(self, tenant: str, principal: str) -> None:
        self._check_kind(principal)
        if self._tenants_of.get(principal, (tenant,)) != (tenant,):
            raise CredentialDuplicate(
                f"{principal} is in another tenant: remove it there first, or move it (headrace"
                " tenant set --move); nothing was changed"
            )

    def _check_kind(self, principal: str) -> None:
        if not is_of_a_client(principal) or len(principal) > PRINCIPAL_LENGTH_MAX:
            raise CredentialInvalid(
                f"{principal[:60]!r} is not the principal of a client that logs in: write"
                " Type:name, such as User:alice, not a tenant's own user; nothing was changed"
            )
        if principal in self._super_users:
            raise CredentialInvalid(
                f"{principal} is in super.users, who see all tenants; nothing was changed"
            )

    async def _store(self, tenant: str, change: Callable[[TenantFact | None], TenantFact]) -> None:
        """Compare and set a fact. `change` gets the stored one: None if there is no such tenant,
        as other brokers' changes may not have arrived here."""

        def changed(entry: MetadataEntry | None) -> bytes:
            fact = TenantFact(DELETED, []) if entry is None else _fact_of(tenant, entry)
            after = change(fact if fact.state == ACTIVE else None)
            return replace(after, unknown=fact.unknown).encode()

        await self.facts.change(tenant_key(tenant), changed)
