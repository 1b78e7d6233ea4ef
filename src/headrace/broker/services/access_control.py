"""The broker's authorizer: the stored access control lists, changes to them, and decisions.

Invariants: every broker follows the facts in the metadata store, so a change reaches each of them
within a second, and requests of open connections at once. Decisions never wait: they use memory
only. A fact that cannot be read denies everything on its resources until it is repaired.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from headrace.broker.broker_config import ACL
from headrace.broker.security.acls import (
    ANY_PRINCIPAL,
    WILDCARD,
    Acl,
    AclIndex,
    Entry,
    Explanation,
    Pattern,
    PatternType,
    Permission,
    Question,
    Selection,
    check_acl,
    explain,
)
from headrace.broker.security.authorizer import ALL_OPERATIONS, Operation, ResourceType
from headrace.broker.security.sessions import REMEMBERED_LENGTH_MAX
from headrace.broker.security.tenant_ownership import (
    ADMINISTERING,
    NOBODY,
    OF_ALL_TENANTS,
    OF_TENANTS,
    is_of_another,
    tenant_of_resource,
    tenant_of_user,
    tenants_of,
    within,
)
from headrace.broker.security.tenant_shares import TenantShares, excess_of_removed
from headrace.broker.security.tenants import Tenants
from headrace.broker.security.topic_sharing import OF_SHARED, TopicSharing
from headrace.errors import (
    HeadraceError,
    PolicyViolation,
    RequestInvalid,
)
from headrace.metadata.acl_facts import ACLS, AclFact, AclRule, acl_key, pattern_of_key
from headrace.metadata.decoding import decode_fact
from headrace.metadata.followed_facts import FollowedFacts
from headrace.records.tenant_names import DEFAULT, prefix_of
from headrace.runtime.fair_locks import FairLock

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from headrace.broker.broker_config import BrokerConfig
    from headrace.broker.security.principal import Principal
    from headrace.broker.security.sessions import ClientSession
    from headrace.metadata.store import MetadataEntry, MetadataStore

ACLS_MAX: Final = 200_000
"""In all: about 500 bytes of memory each."""
ACLS_OF_PATTERN_MAX: Final = 5_000
"""They are one fact, and a ZooKeeper node has at most 1 MB."""
RIGHTS_MAX: Final = 10_000
"""Decisions that one session remembers."""
_HARDCODED: Final = "hardcode"
"""As in Kafka: a topic of this name stands for any topic without rules."""
_CLOSED: Final = Entry(ANY_PRINCIPAL, WILDCARD, Operation.ALL, Permission.DENY)


def super_users_of(text: str) -> frozenset[str]:
    """The principals of Kafka's `super.users`: `User:alice;User:bob`. Raises RequestInvalid."""
    found = frozenset(part.strip() for part in text.split(";") if part.strip())
    for one in found:
        kind, colon, name = one.partition(":")
        if not (kind and colon and name):
            raise RequestInvalid(
                f"{one!r} in super.users is not a principal: write Type:name, such as User:alice,"
                " and separate several by semicolons"
            )
        if tenant_of_user(one):
            raise RequestInvalid(
                f"{one} in super.users is a user of a tenant's own, and super users see all"
                " tenants: name another user; nothing was started"
            )
    return found


def access_of(config: BrokerConfig, metadata: MetadataStore) -> AccessControl | None:
    """The access control of a broker; None if everybody may do everything."""
    if config.authorizer != ACL:
        if config.tenants:
            raise RequestInvalid(
                "headrace.tenants is set, and everybody may do everything: set"
                " headrace.authorizer=acl, or remove the tenants; nothing was started"
            )
        return None
    super_users = super_users_of(config.super_users)
    return AccessControl(
        metadata,
        super_users,
        Tenants(metadata, super_users, tenants_of(config.tenants, super_users)),
        is_open_without_acl=config.allow_everyone_if_no_acl,
    )


class AccessControl:
    """See the module. Implements `security.authorizer.Authorizer`."""

    is_open = False

    def __init__(
        self,
        metadata: MetadataStore,
        super_users: frozenset[str] = frozenset(),
        tenants: Tenants | None = None,
        *,
        is_open_without_acl: bool = False,
    ) -> None:
        """`is_open_without_acl`: resources without any rule are open to
        everybody (Kafka's `allow.everyone.if.no.acl.found`)."""
        self.super_users = super_users
        self.tenants = tenants or Tenants(metadata, super_users)
        self.tenants.on_change(self._tenants_changed)
        self.sharing = TopicSharing(metadata, self.tenants.exists, lambda: self.tenants.has_any)
        self.tenants.on_change(self.sharing.tenants_changed)
        self.sharing.on_change(self._tenants_changed)
        self.is_shared: Callable[[str], bool] = lambda _key: False
        """Whether a key is of a topic that another tenant shares, which is read-only."""
        self.has_tenants = self.tenants.has_any
        self._is_open_without_acl = is_open_without_acl
        self._index = AclIndex()
        self.facts = FollowedFacts(
            metadata, ACLS, "an access control list", self.apply, _tenant_of_key
        )
        self._changing = FairLock()
        self.version = 0

    @property
    def followed(self) -> Sequence[FollowedFacts]:
        """What a broker follows."""
        return self.facts, self.tenants.facts, self.sharing.facts

    # --- stored state ------------------------------------------------------------------------

    @property
    def count(self) -> int:
        """How many rules there are."""
        return self._index.count

    def apply(self, key: str, entry: MetadataEntry | None) -> None:
        """Apply the fact stored under a key. Raises DataCorrupt, FormatUnsupported."""
        kind, pattern_type, name = pattern_of_key(key)
        try:
            pattern = Pattern(ResourceType(kind), name, PatternType(pattern_type))
        except ValueError:
            return  # of a newer version: no resource here can match it
        entries, is_empty = [_CLOSED], False
        try:
            fact = AclFact([]) if entry is None else decode_fact(AclFact, entry)
            entries, is_empty = _entries(fact), fact.is_empty
        finally:
            self.facts.note(key, entry, is_empty=is_empty)
            self._put(pattern, entries)

    def _tenants_changed(self) -> None:
        """What sessions remember was decided for the tenants that their principals had."""
        self.has_tenants = self.tenants.has_any
        self.version += 1

    def _put(self, pattern: Pattern, entries: Sequence[Entry]) -> None:
        if set(entries) != set(self._index.entries(pattern)):
            self._index.put(pattern, entries)
            self.version += 1

    def find(self, wanted: Selection) -> list[Acl]:
        """The rules that a filter selects, sorted. Raises RequestInvalid."""
        wanted.check()
        return self._index.find(wanted)

    def explain(self, asked: Question) -> Explanation:
        """Why an operation is allowed or not."""
        found = explain(
            self._index,
            asked,
            self.super_users,
            self.tenants,
            is_open_without_acl=self._is_open_without_acl,
        )
        is_change = asked.kind == ResourceType.TOPIC and not OF_SHARED >> asked.operation & 1
        if found.is_allowed and is_change and self.is_shared(asked.name):
            return found._replace(is_allowed=False, code="shared_topic", values={})
        return found

    async def create(
        self, acls: Sequence[Acl], *, is_dry_run: bool = False
    ) -> list[HeadraceError | None]:
        """Store rules, or check only whether they could be (`is_dry_run`); returns an error or None
        for each. A rule that exists is no error."""
        results: list[HeadraceError | None] = [None] * len(acls)
        by_pattern: dict[Pattern, list[int]] = {}
        for at, acl in enumerate(acls):
            try:
                check_acl(acl)
            except HeadraceError as error:
                results[at] = error
            else:
                by_pattern.setdefault(acl.pattern, []).append(at)
        for pattern, places in ({} if is_dry_run else by_pattern).items():
            added = [acls[at].entry for at in places]
            try:
                await self._change(pattern, partial(_joined, added))
            except HeadraceError as error:
                for at in places:
                    results[at] = error
        return results

    async def delete(self, wanted: Selection, *, is_dry_run: bool = False) -> list[Acl]:
        """Delete the rules that a filter selects; returns them.

        Raises RequestInvalid, MetadataUnavailable.
        """
        if is_dry_run:
            return self.find(wanted)
        wanted.check()
        deleted: list[Acl] = []
        for pattern in self._index.patterns(wanted):
            removed: list[Acl] = []

            def keep(
                rules: list[AclRule], pattern: Pattern = pattern, removed: list[Acl] = removed
            ) -> list[AclRule]:
                removed.clear()
                kept: list[AclRule] = []
                for rule in rules:
                    entry = _entry(rule)
                    if entry is not None and wanted.matches(acl := Acl(pattern, entry)):
                        removed.append(acl)
                    else:
                        kept.append(rule)
                return kept

            await self._change(pattern, keep)
            deleted += removed
        return sorted(deleted)

    async def _change(
        self, pattern: Pattern, change: Callable[[list[AclRule]], list[AclRule]]
    ) -> None:
        """Compare and set the rules of a pattern."""
        key = acl_key(pattern.kind, pattern.type, pattern.name)

        def changed(entry: MetadataEntry | None) -> bytes | None:
            before = AclFact([]) if entry is None else decode_fact(AclFact, entry)
            rules = change(list(before.rules))
            if rules == before.rules:
                return None
            self._check_count(pattern.tenant, len(rules), len(before.rules))
            if entry is None and pattern.tenant:
                self._check_removed(pattern.tenant)
            return AclFact(rules, before.unknown).encode()

        async with self._changing:
            await self.facts.change(key, changed)

    def _check_count(self, tenant: str, count: int, before: int) -> None:
        if count <= before:
            return
        if count > ACLS_OF_PATTERN_MAX:
            raise PolicyViolation(
                f"a resource can have at most {ACLS_OF_PATTERN_MAX} rules; nothing was changed for"
                " it: use a prefix, a wildcard, or fewer principals"
            )
        counts = self._index.counts if self.has_tenants else {DEFAULT: self.count}
        of = tenant if self.has_tenants else DEFAULT
        if excess := TenantShares("rules", ACLS_MAX).excess(of, counts, count - before):
            raise PolicyViolation(f"{excess}; nothing was changed: delete some, or use prefixes")

    def _check_removed(self, tenant: str) -> None:
        """Raise PolicyViolation if a tenant's part of what is kept of removed rules is used up."""
        if excess := excess_of_removed("resources without rules", tenant, self.facts):
            raise PolicyViolation(f"{excess}; nothing was changed")

    # --- decisions ---------------------------------------------------------------------------

    def allows(
        self, session: ClientSession, operation: Operation, kind: ResourceType, name: str
    ) -> bool:
        """See Authorizer. A remembered decision takes 0.3 us, another about 5 us."""
        return self._known_bits(session, kind, name) >> operation & 1 == 1

    def _known_bits(self, session: ClientSession, kind: ResourceType, name: str) -> int:
        if (
            session.rights_version != self.version
            or session.rights_principal is not session.principal
        ):
            self.renew(session)
        bits = session.rights.get((kind, name))
        return self._decide(session, kind, name) if bits is None else bits

    def operations(self, session: ClientSession, kind: ResourceType, name: str) -> int:
        """See Authorizer."""
        return self._known_bits(session, kind, name)

    def tenant(self, session: ClientSession) -> str:
        """See Authorizer."""
        if not self.has_tenants or (session.place is not None and self.sees_all(session)):
            return DEFAULT
        return self.tenants.at(str(session.principal), session.place)

    def sees_all(self, session: ClientSession) -> bool:
        """See Authorizer."""
        principal = session.principal
        return principal is not None and (principal.is_broker or str(principal) in self.super_users)

    def is_super_user(self, principal: str) -> bool:
        """Whether a principal, as text, may do everything by `super.users`."""
        return principal in self.super_users

    def renew(self, session: ClientSession) -> None:
        """Forget what the session remembers: rules, or its principal, have changed."""
        session.rights.clear()
        session.granted.clear()
        session.rights_version = self.version
        session.rights_principal = session.principal

    def _decide(self, session: ClientSession, kind: ResourceType, name: str) -> int:
        principal = session.principal
        bits = 0 if principal is None else self._bits(session, principal, kind, name)
        if len(name) > REMEMBERED_LENGTH_MAX:
            return bits
        if len(session.rights) >= RIGHTS_MAX:
            session.rights.clear()
        session.rights[kind, name] = bits
        return bits

    def _bits(self, session: ClientSession, known: Principal, kind: ResourceType, name: str) -> int:
        bits = self._bits_of_own(session, known, kind, name)
        is_read_only = bits and kind == ResourceType.TOPIC and not known.is_broker
        return bits & OF_SHARED if is_read_only and self.is_shared(name) else bits

    def _bits_of_own(
        self, session: ClientSession, known: Principal, kind: ResourceType, name: str
    ) -> int:
        principal = str(known)
        if known.is_broker or principal in self.super_users:
            return ALL_OPERATIONS
        own = self.tenants.at(principal, session.place)
        if own == NOBODY:
            return 0
        if is_of_another(kind, name, own, has_tenants=self.has_tenants):
            return 0
        if self.has_tenants and kind == ResourceType.TOPIC and name in OF_ALL_TENANTS:
            return 0
        asked = principal, session.client_host, kind, name
        denied, allowed = self._index.decide(*asked)
        if own != DEFAULT:
            if kind in OF_TENANTS and not self.tenants.is_closed(own):
                return ALL_OPERATIONS & ~denied
            # A rule on * is about the default tenant, and one about everybody administers nothing.
            everybody = ANY_PRINCIPAL if kind in OF_TENANTS else ""
            own_allowed = self._index.decide(*asked, everybody, within(kind, own))[1] & ~denied
            return own_allowed & (ADMINISTERING if kind == ResourceType.CLUSTER else -1)
        if self._is_open_without_acl and not self._index.touches(kind, name):
            return ALL_OPERATIONS
        return allowed & ~denied

    def allows_any(self, session: ClientSession, operation: Operation, kind: ResourceType) -> bool:
        """See Authorizer."""
        principal = session.principal
        if principal is None:
            return False
        own, of = self.tenant(session), (str(principal), session.client_host, operation, kind)
        if own:
            if own == NOBODY or kind not in OF_TENANTS:
                return False
            return not self.tenants.is_closed(own) or self._index.allows_any(*of, prefix_of(own))
        if self.allows(session, operation, kind, _HARDCODED):
            return True
        return self._index.allows_any(*of)


def _tenant_of_key(key: str) -> str:
    kind, _, name = pattern_of_key(key)
    return tenant_of_resource(ResourceType(kind), name)


def _entry(rule: AclRule) -> Entry | None:
    """None for a rule of a newer version, about an operation that is not known here."""
    try:
        operation, permission = Operation(rule.operation), Permission(rule.permission)
    except ValueError:
        return None
    return Entry(rule.principal, rule.host, operation, permission)


def _entries(fact: AclFact) -> list[Entry]:
    return [entry for entry in map(_entry, fact.rules) if entry is not None]


def _joined(entries: Sequence[Entry], rules: list[AclRule]) -> list[AclRule]:
    for entry in entries:
        rule = AclRule(entry.principal, entry.host, int(entry.operation), int(entry.permission))
        if rule not in rules:
            rules.append(rule)
    return rules
