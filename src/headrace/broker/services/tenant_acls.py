"""Rules of a tenant's own, as its people write and see them.

They write `orders` and `User:alice`, and mean what these are within the tenant: a rule of theirs is
about the tenant's own names, whatever they write. `*` is all of these, and is stored as their
prefix.

Invariants: what people of a tenant see and remove is about the tenant's own names alone. A name
within a tenant is one for them, whether it is a user of the tenant's own or a principal that
operators gave it: rules about it are stored for both, shown as one, and removed together. So it
does not matter which of them there is now. Rights to administer the tenant (the resource CLUSTER)
are the operators' to give: people of the tenant see these rules, and neither make nor remove any.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from headrace.broker.security.acls import (
    ANY_PRINCIPAL,
    WILDCARD,
    Acl,
    AclFilter,
    Explanation,
    Pattern,
    PatternType,
    Permission,
    Question,
)
from headrace.broker.security.authorizer import CLUSTER_NAME, ResourceType
from headrace.broker.security.principal import USER
from headrace.broker.security.tenant_ownership import (
    OF_TENANTS,
    within,
)
from headrace.errors import ClusterUnauthorized, HeadraceError, RequestInvalid, SecurityDisabled
from headrace.records.tenant_names import DEFAULT, has_marks, prefix_of, shown_name

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headrace.broker.security.listener import TenantPlace
    from headrace.broker.security.sessions import ClientSession
    from headrace.broker.security.users import Users
    from headrace.broker.services.access_control import AccessControl
    from headrace.broker.services.services import Services

_KINDS: Final = OF_TENANTS | {ResourceType.USER}
"""What people of a tenant make rules about."""
_SEEN: Final = _KINDS | {ResourceType.CLUSTER}
_OF_OPERATORS: Final = frozenset(ResourceType) - _KINDS
_USER: Final = f"{USER}:"


def own_cluster(tenant: str) -> str:
    """The resource CLUSTER whose operations DESCRIBE and ALTER are rights to see and to change the
    users and rules of a tenant, or of the default one all that the cluster has."""
    return prefix_of(tenant) + CLUSTER_NAME


def shown_pattern(pattern: Pattern, tenant: str) -> Pattern | None:
    """A pattern as people of the tenant see it; None: they do not."""
    kind, name, pattern_type = pattern
    begin = within(kind, tenant)
    if kind not in _SEEN or not name.startswith(begin):
        return None
    short = name[len(begin) :]
    if not short:  # all of the tenant's names
        return Pattern(kind, WILDCARD) if pattern_type == PatternType.PREFIXED else None
    if kind == ResourceType.USER:
        return Pattern(kind, _USER + short, pattern_type)
    if short == WILDCARD and pattern_type == PatternType.LITERAL:
        return None  # of an earlier version, about a name that nothing can have
    return Pattern(kind, short, pattern_type)


def shown(acl: Acl, tenant: str) -> Acl | None:
    """A rule as people of the tenant see it; None: they do not."""
    pattern = shown_pattern(acl.pattern, tenant)
    principal = shown_name(acl.entry.principal, tenant)
    if pattern is None or principal is None:
        return None
    return Acl(pattern, acl.entry._replace(principal=principal))


def stored(acl: Acl, tenant: str) -> list[Acl]:
    """The rules that are kept of one that people of the tenant make. Raises RequestInvalid,
    ClusterUnauthorized."""
    (kind, name, pattern_type), entry = acl
    principal = entry.principal
    if kind not in _KINDS:
        raise ClusterUnauthorized(
            "people of a tenant make rules about topics, groups, transactional ids and users; other"
            " rights are the operators' to give: ask them"
        )
    if not name or has_marks(name) or has_marks(principal):
        raise RequestInvalid("names and principals in rules are not empty, and have no « or »")
    if kind == ResourceType.USER and entry[::3] == (ANY_PRINCIPAL, Permission.ALLOW):
        raise RequestInvalid(
            f"a rule about everybody ({ANY_PRINCIPAL}) gives nobody a right to users: name a"
            " principal"
        )
    holders = [principal]
    if principal.startswith(_USER) and principal != ANY_PRINCIPAL:
        holders.append(_own(principal, tenant))
    pattern = Pattern(kind, *_key(kind, name, pattern_type, tenant))
    return [Acl(pattern, entry._replace(principal=one)) for one in holders]


def _own(principal: str, tenant: str) -> str:
    """The tenant's own user of that name."""
    return within(ResourceType.USER, tenant) + principal.removeprefix(_USER)


def _key(
    kind: ResourceType, name: str, pattern_type: PatternType, tenant: str
) -> tuple[str, PatternType]:
    """(name, pattern type). Raises RequestInvalid."""
    begin = within(kind, tenant)
    if name == WILDCARD and pattern_type == PatternType.LITERAL:
        return begin, PatternType.PREFIXED
    if kind == ResourceType.USER:
        if len(name) <= len(_USER) or not name.startswith(_USER):
            raise RequestInvalid(
                f"{name[:100]!r} is not the name of a user as a resource: write {_USER}alice, or"
                f" {WILDCARD} for all users of the tenant"
            )
        name = name.removeprefix(_USER)
    return begin + name, pattern_type


class OwnFilter(NamedTuple):
    """What a filter of people of a tenant selects. Implements `acls.Selection`."""

    wanted: AclFilter
    tenant: str
    changes: bool = False
    """Whether it is for what they may remove."""

    def check(self) -> None:
        """See Selection."""
        self.wanted.check()

    def matches(self, acl: Acl) -> bool:
        """See Selection."""
        seen = shown(acl, self.tenant)
        return seen is not None and self.wanted.matches(seen)

    def matches_pattern(self, pattern: Pattern) -> bool:
        """See Selection."""
        if self.changes and pattern.kind not in _KINDS:
            return False
        seen = shown_pattern(pattern, self.tenant)
        return seen is not None and self.wanted.matches_pattern(seen)


class TenantAcls:
    """The rules of one tenant, with the same methods as `AccessControl`: see the module."""

    def __init__(
        self, access: AccessControl, tenant: str, users: Users, place: TenantPlace | None
    ) -> None:
        """`users`: all of them. `place`: of the connection."""
        self._access = access
        self._tenant = tenant
        self._users = users
        self._place = place

    def find(self, wanted: AclFilter) -> list[Acl]:
        """See AccessControl."""
        return self._shown(self._access.find(OwnFilter(wanted, self._tenant)))

    def _shown(self, rules: Sequence[Acl]) -> list[Acl]:
        seen = (shown(one, self._tenant) for one in rules)
        return sorted({one for one in seen if one is not None})

    async def create(
        self, acls: Sequence[Acl], *, is_dry_run: bool = False
    ) -> list[HeadraceError | None]:
        """See AccessControl."""
        results: list[HeadraceError | None] = [None] * len(acls)
        kept: list[Acl] = []
        places: list[int] = []
        for at, acl in enumerate(acls):
            try:
                own = stored(acl, self._tenant)
            except HeadraceError as error:
                results[at] = error
            else:
                kept += own
                places += [at] * len(own)
        made = await self._access.create(kept, is_dry_run=is_dry_run)
        for at, result in zip(places, made, strict=True):
            results[at] = results[at] or result
        return results

    async def delete(self, wanted: AclFilter, *, is_dry_run: bool = False) -> list[Acl]:
        """See AccessControl. Raises ClusterUnauthorized."""
        if wanted.kind in _OF_OPERATORS:
            raise ClusterUnauthorized(
                "rules about anything but topics, groups, transactional ids and users are the"
                " operators' to remove: ask them"
            )
        own = OwnFilter(wanted, self._tenant, changes=True)
        return self._shown(await self._access.delete(own, is_dry_run=is_dry_run))

    def explain(self, asked: Question) -> Explanation:
        """Why an operation is allowed or not to a principal of the tenant, at a connection as that
        of the client. Every other principal is taken for a user of the tenant's own, which need
        not exist. Raises RequestInvalid."""
        tenant, principal = self._tenant, asked.principal
        if has_marks(asked.name) or has_marks(principal):
            raise RequestInvalid("names and principals have no « or »")
        own = _own(principal, tenant) if principal.startswith(_USER) else principal
        is_own = self._users.has_user(own.removeprefix(_USER))
        if not is_own and self._access.tenants.at(principal, self._place) == tenant:
            own = principal
        begin = within(asked.kind, tenant)
        name = asked.name.removeprefix(_USER) if asked.kind == ResourceType.USER else asked.name
        found = self._access.explain(
            asked._replace(principal=own, name=begin + name, tenant=tenant)
        )
        values = found.values | {"principal": principal}
        code, rules = found.code, self._shown(found.rules)
        if code == "rule":
            decisive = shown(found.rules[0], tenant)
            values = {"rule": str(decisive)}
            if decisive is None:
                code, values = "operators_rule", {}
        return Explanation(found.is_allowed, code, values, rules)


def rules_of(services: Services, session: ClientSession) -> AccessControl | TenantAcls:
    """The rules that the session's client sees and changes, if it has the right to. Raises
    SecurityDisabled."""
    access = services.access
    if access is None:
        raise SecurityDisabled(
            "no authorizer is configured on the broker (headrace.authorizer is none): everybody may"
            " do everything, and there are no access control lists"
        )
    tenant = access.tenant(session)
    if tenant == DEFAULT:
        return access
    return TenantAcls(access, tenant, services.authentication.users, session.place)
