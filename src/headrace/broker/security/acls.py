"""Access control lists: the rules, the filters that select them, and what they allow.

Invariants: pure, no I/O. The semantics are those of Kafka's StandardAuthorizer: an operation is
denied if any matching rule denies it, otherwise allowed if any matching rule allows it, otherwise
denied. READ, WRITE, DELETE and ALTER allow DESCRIBE as well, ALTER_CONFIGS allows DESCRIBE_CONFIGS;
a rule that denies an operation denies no other.

Rules are indexed by principal and resource name, so a decision costs the same whatever the number
of other principals is: one lookup for the name, one for the wildcard, and one for each length that
a prefix of this principal has.
"""

from __future__ import annotations

from collections import Counter
from enum import IntEnum
from functools import cache
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from headrace.broker.security.authorizer import CLUSTER_NAME, Operation, ResourceType
from headrace.broker.security.tenant_ownership import (
    ADMINISTERED,
    ADMINISTERING,
    NOBODY,
    OF_ALL_TENANTS,
    OF_TENANTS,
    is_of_another,
    tenant_of_resource,
)
from headrace.broker.security.tenant_shares import ByTenant, add_count
from headrace.errors import RequestInvalid
from headrace.records.tenant_names import name_in

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from headrace.broker.security.tenants import Tenants

UNKNOWN: Final = 0
ANY: Final = 1
"""Kafka's values of each enumeration that no stored rule has: ANY is for filters alone."""
NAME_LENGTH_MAX: Final = 1_000
"""Of resources, principals and hosts. Kafka has no limit; a topic has at most 249 characters."""
WILDCARD: Final = "*"
ANY_PRINCIPAL: Final = "User:*"
"""Stands for every principal, whatever its type."""


class PatternType(IntEnum):
    """Kafka's `PatternType`. Do not change: on the wire."""

    MATCH = 2
    """For filters alone: whatever pattern applies to a resource of this name."""
    LITERAL = 3
    PREFIXED = 4


class Permission(IntEnum):
    """Kafka's `AclPermissionType`. Do not change: on the wire."""

    DENY = 2
    ALLOW = 3


class Pattern(NamedTuple):
    """The resources that a rule applies to."""

    kind: ResourceType
    name: str
    type: PatternType = PatternType.LITERAL

    def matches(self, name: str) -> bool:
        """Whether a resource of this kind with this name is among them."""
        if self.type == PatternType.PREFIXED:
            return name.startswith(self.name)
        return self.name in {name, WILDCARD}

    @property
    def tenant(self) -> str:
        """Whose resources these are alone; DEFAULT: no tenant's."""
        return tenant_of_resource(self.kind, self.name)

    def __str__(self) -> str:
        """`topic orders`, `topic orders*` for a prefix."""
        kind = self.kind.name.lower().replace("_", "-")
        return f"{kind} {self.name}{' (prefix)' if self.type == PatternType.PREFIXED else ''}"


class Entry(NamedTuple):
    """Who may, or may not, do what from where."""

    principal: str
    """`User:alice`, or `User:*` for everybody."""
    host: str
    """An address as text, or `*`."""
    operation: Operation
    permission: Permission

    def __str__(self) -> str:
        """`allow User:alice READ from *`."""
        permission = self.permission.name.lower()
        return f"{permission} {self.principal} {self.operation.name} from {self.host}"


class Acl(NamedTuple):
    """One rule."""

    pattern: Pattern
    entry: Entry

    def __str__(self) -> str:
        """`allow User:alice READ from * on topic orders`."""
        return f"{self.entry} on {self.pattern}"


class Selection(Protocol):
    """Selects rules."""

    @property
    def tenant(self) -> str | None:
        """Those of patterns of this tenant alone; None: of all patterns."""
        ...

    def check(self) -> None:
        """Raise RequestInvalid if a value has no meaning."""
        ...

    def matches(self, acl: Acl) -> bool:
        """Whether the rule is selected."""
        ...

    def matches_pattern(self, pattern: Pattern) -> bool:
        """Whether rules of this pattern may be selected."""
        ...


class AclFilter(NamedTuple):
    """Selects rules; None and ANY match everything. Implements Selection."""

    kind: int = ANY
    name: str | None = None
    pattern_type: int = ANY
    principal: str | None = None
    host: str | None = None
    operation: int = ANY
    permission: int = ANY

    @property
    def tenant(self) -> str | None:
        """See Selection."""
        return None

    def check(self) -> None:
        """Raise RequestInvalid if a value has no meaning."""
        known = (
            (self.kind, ResourceType, "resource type"),
            (self.pattern_type, PatternType, "pattern type"),
            (self.operation, Operation, "operation"),
            (self.permission, Permission, "permission"),
        )
        for value, kind, what in known:
            if value != ANY and value not in {int(one) for one in kind}:
                raise RequestInvalid(f"{value} is not a known {what}: the filter matches nothing")

    def matches(self, acl: Acl) -> bool:
        """Whether the rule is selected."""
        entry = acl.entry
        return (
            self.matches_pattern(acl.pattern)
            and self.principal in {None, entry.principal}
            and self.host in {None, entry.host}
            and self.operation in {ANY, entry.operation}
            and self.permission in {ANY, entry.permission}
        )

    def matches_pattern(self, pattern: Pattern) -> bool:
        """Whether rules of this pattern may be selected (KIP-290)."""
        if self.kind not in {ANY, pattern.kind}:
            return False
        if self.name is None:
            return self.pattern_type in {ANY, PatternType.MATCH, pattern.type}
        if self.pattern_type == PatternType.MATCH:
            return pattern.matches(self.name)
        return self.name == pattern.name and self.pattern_type in {ANY, pattern.type}


def check_acl(acl: Acl) -> None:
    """Raise RequestInvalid if the rule cannot be stored."""
    pattern, entry = acl
    if pattern.type == PatternType.MATCH:
        raise RequestInvalid("a rule is literal or prefixed: MATCH is for filters")
    for name, what in (
        (pattern.name, "resource name"),
        (entry.principal, "principal"),
        (entry.host, "host"),
    ):
        if not 0 < len(name) <= NAME_LENGTH_MAX:
            raise RequestInvalid(f"a {what} must have 1 to {NAME_LENGTH_MAX} characters")
    kind, colon, name = entry.principal.partition(":")
    if not (kind and colon and name):
        raise RequestInvalid("a principal must have the form Type:name, such as User:alice")
    if pattern.kind == ResourceType.CLUSTER and (
        pattern.name != WILDCARD and name_in(pattern.name) != CLUSTER_NAME
    ):
        raise RequestInvalid(
            f"the only resources of type CLUSTER are {CLUSTER_NAME}, and that of a tenant's own"
        )
    if pattern.tenant and pattern.kind in OF_TENANTS and name_in(pattern.name) == WILDCARD:
        tenant = pattern.tenant
        raise RequestInvalid(
            f"{tenant}/{WILDCARD} would be one name: to mean all names of the tenant, use the"
            f" prefix {tenant}/"
        )


# --- decisions -------------------------------------------------------------------------------

_ALL_BITS: Final = sum(1 << one for one in Operation if one != Operation.ALL)
_DESCRIBE: Final = 1 << Operation.DESCRIBE
_IMPLIED: Final[Mapping[Operation, int]] = {
    Operation.READ: _DESCRIBE,
    Operation.WRITE: _DESCRIBE,
    Operation.DELETE: _DESCRIBE,
    Operation.ALTER: _DESCRIBE,
    Operation.ALTER_CONFIGS: 1 << Operation.DESCRIBE_CONFIGS,
}


def bits_of(entry: Entry) -> int:
    """The operations that a rule decides, as bits."""
    if entry.operation == Operation.ALL:
        return _ALL_BITS
    bits = 1 << entry.operation
    if entry.permission == Permission.ALLOW:
        bits |= _IMPLIED.get(entry.operation, 0)
    return bits


class _Rules(NamedTuple):
    """What the rules of one principal for one pattern say; by host where they name one."""

    denied: int
    allowed: int
    of_hosts: Mapping[str, tuple[int, int]] | None


@cache
def _of_all_hosts(denied: int, allowed: int) -> _Rules:
    """One value for all that say the same: what stays in the processor's cache."""
    return _Rules(denied, allowed, None)


def _rules(entries: Iterable[Entry]) -> _Rules:
    denied = allowed = 0
    of_hosts: dict[str, tuple[int, int]] = {}
    for entry in entries:
        bits, is_denial = bits_of(entry), entry.permission == Permission.DENY
        if entry.host == WILDCARD:
            denied |= bits * is_denial
            allowed |= bits * (not is_denial)
        else:
            known = of_hosts.get(entry.host, (0, 0))
            of_hosts[entry.host] = (
                (known[0] | bits, known[1]) if is_denial else (known[0], known[1] | bits)
            )
    return _Rules(denied, allowed, of_hosts) if of_hosts else _of_all_hosts(denied, allowed)


class _Held:
    """The rules of one principal for one kind of resource."""

    __slots__ = ("lengths", "literal", "prefixed")

    def __init__(self) -> None:
        self.literal: dict[str, _Rules] = {}
        self.prefixed: dict[str, _Rules] = {}
        self.lengths: dict[str, dict[int, int]] = {}
        """How many prefixes have each length, by their first character: most have another one than
        the name in question."""

    def put(self, pattern: Pattern, rules: _Rules | None) -> None:
        if pattern.type == PatternType.PREFIXED:
            length = len(pattern.name)
            had = pattern.name in self.prefixed
            lengths = self.lengths.setdefault(pattern.name[0], {})
            if rules is None:
                del self.prefixed[pattern.name]
                lengths[length] -= 1
                if not lengths[length]:
                    del lengths[length]
                return
            self.prefixed[pattern.name] = rules
            lengths[length] = lengths.get(length, 0) + (not had)
        elif rules is None:
            del self.literal[pattern.name]
        else:
            self.literal[pattern.name] = rules

    def find(self, name: str, least: int = 0) -> list[_Rules]:
        """The rules that apply to a name, of patterns with so many characters at least. Plain
        loops: this is most of a decision."""
        found: list[_Rules] = []
        rules = self.literal.get(name)
        if rules is not None:
            found.append(rules)
        rules = self.literal.get(WILDCARD)
        if rules is not None and name != WILDCARD and not least:
            found.append(rules)
        lengths = self.lengths.get(name[:1])
        if lengths:
            size, prefixed = len(name), self.prefixed
            for length in lengths:
                if least <= length <= size:
                    rules = prefixed.get(name[:length])
                    if rules is not None:
                        found.append(rules)
        return found

    def patterns(self, kind: ResourceType, name: str) -> set[Pattern]:
        """The patterns that apply to a name."""
        found = {Pattern(kind, one) for one in (name, WILDCARD) if one in self.literal}
        for length in self.lengths.get(name[:1], ()):
            if length <= len(name) and name[:length] in self.prefixed:
                found.add(Pattern(kind, name[:length], PatternType.PREFIXED))
        return found

    @property
    def is_empty(self) -> bool:
        return not self.literal and not self.prefixed


class AclIndex:
    """All rules, and what they decide."""

    def __init__(self) -> None:
        self._entries: dict[Pattern, tuple[Entry, ...]] = {}
        self._held: dict[ResourceType, dict[str, _Held]] = {kind: {} for kind in ResourceType}
        """By kind of resource and principal."""
        self._patterns: dict[ResourceType, _Held] = {}
        """Which patterns have any rule: for `allow.everyone.if.no.acl.found`."""
        self._of_tenants: ByTenant[Pattern] = ByTenant()
        self.count = 0
        self.counts: Counter[str] = Counter()
        """How many rules there are, by tenant."""

    def put(self, pattern: Pattern, entries: Iterable[Entry]) -> None:
        """Replace the rules of a pattern; without entries it has none."""
        by_principal: dict[str, list[Entry]] = {}
        before = self._entries.pop(pattern, ())
        for entry in before:
            by_principal[entry.principal] = []
        kept = tuple(dict.fromkeys(entries))
        for entry in kept:
            by_principal.setdefault(entry.principal, []).append(entry)
        for principal, own in by_principal.items():
            of_kind = self._held[pattern.kind]
            held = of_kind.setdefault(principal, _Held())
            held.put(pattern, _rules(own) if own else None)
            if held.is_empty:
                del of_kind[principal]
        self.count += len(kept) - len(before)
        add_count(self.counts, pattern.tenant, len(kept) - len(before))
        if pattern.tenant:
            self._of_tenants.note(pattern.tenant, pattern, is_there=bool(kept))
        known = self._patterns.setdefault(pattern.kind, _Held())
        if kept:
            self._entries[pattern] = kept
            known.put(pattern, _of_all_hosts(0, 0))
        elif before:
            known.put(pattern, None)

    def entries(self, pattern: Pattern) -> tuple[Entry, ...]:
        """The rules of a pattern."""
        return self._entries.get(pattern, ())

    def find(self, wanted: Selection) -> list[Acl]:
        """The selected rules, sorted."""
        return sorted(
            acl
            for pattern in self.patterns(wanted)
            for entry in self._entries[pattern]
            if wanted.matches(acl := Acl(pattern, entry))
        )

    def patterns(self, wanted: Selection) -> list[Pattern]:
        """The patterns whose rules may be selected."""
        of = wanted.tenant
        known: Iterable[Pattern] = self._entries if of is None else self._of_tenants.of(of)
        if isinstance(wanted, AclFilter) and wanted.name is not None:
            known = self._named(wanted, wanted.name)
        return [pattern for pattern in known if wanted.matches_pattern(pattern)]

    def _named(self, wanted: AclFilter, name: str) -> Iterable[Pattern]:
        """All that may be selected by a name: there may be 200,000 others."""
        kinds = [kind for kind in ResourceType if wanted.kind in {ANY, kind}]
        if wanted.pattern_type == PatternType.MATCH:
            held = [(kind, self._patterns[kind]) for kind in kinds if kind in self._patterns]
            return [one for kind, of_kind in held for one in of_kind.patterns(kind, name)]
        named = [Pattern(kind, name, one) for kind in kinds for one in PatternType]
        return [one for one in named if one in self._entries]

    def touches(self, kind: ResourceType, name: str) -> bool:
        """Whether any rule, of any principal, applies to a resource."""
        known = self._patterns.get(kind)
        return known is not None and bool(known.find(name))

    def decide(
        self,
        principal: str,
        host: str,
        kind: ResourceType,
        name: str,
        everybody: str = ANY_PRINCIPAL,
        within: str = "",
    ) -> tuple[int, int]:
        """(operations that rules deny, operations that rules allow), as bits. `everybody`: whose
        rules apply, too; empty: those of the principal alone. `within`: what `name` begins with;
        only patterns that begin with it apply."""
        denied = allowed = 0
        of_kind, least = self._held[kind], len(within)
        for holder in (principal, everybody):
            held = of_kind.get(holder)
            if held is None:
                continue
            for rules in held.find(name, least):
                denied |= rules[0]
                allowed |= rules[1]
                if rules[2]:
                    of_host = rules[2].get(host)
                    if of_host is not None:
                        denied |= of_host[0]
                        allowed |= of_host[1]
        return denied, allowed

    def matching(self, asked: Question) -> list[Acl]:
        """The rules that decide about an operation, denials first."""
        principal, host, operation, kind, name, _ = asked
        bit = 1 << operation
        of_kind = self._held[kind]
        holders = [of_kind[one] for one in (principal, ANY_PRINCIPAL) if one in of_kind]
        found = [
            Acl(pattern, entry)
            for pattern in set[Pattern]().union(*(one.patterns(kind, name) for one in holders))
            for entry in self._entries[pattern]
            if entry.principal in {principal, ANY_PRINCIPAL}
            and entry.host in {host, WILDCARD}
            and bits_of(entry) & bit
        ]
        return sorted(found, key=lambda acl: (acl.entry.permission, acl))

    def allows_any(
        self,
        principal: str,
        host: str,
        operation: Operation,
        kind: ResourceType,
        within: str = "",
    ) -> bool:
        """Whether rules allow an operation on any resource of a kind (Kafka's
        `authorizeByResourceType`): an allowing rule, of a pattern that begins with `within`, that
        no denying one covers."""
        bit = 1 << operation
        allowed: list[Pattern] = []
        denied: list[Pattern] = []
        for holder in (principal, ANY_PRINCIPAL):
            held = self._held[kind].get(holder)
            if held is None:
                continue
            for pattern_type, known in (
                (PatternType.LITERAL, held.literal),
                (PatternType.PREFIXED, held.prefixed),
            ):
                for name, rules in known.items():
                    of_host = (rules.of_hosts or {}).get(host, (0, 0))
                    if (rules.denied | of_host[0]) & bit:
                        denied.append(Pattern(kind, name, pattern_type))
                    if (rules.allowed | of_host[1]) & bit and name.startswith(within):
                        allowed.append(Pattern(kind, name, pattern_type))
        return _is_any_uncovered(allowed, denied)


def _is_any_uncovered(allowed: list[Pattern], denied: list[Pattern]) -> bool:
    literals = {one.name for one in denied if one.type == PatternType.LITERAL}
    if WILDCARD in literals:
        return False
    prefixes = {one.name for one in denied if one.type == PatternType.PREFIXED}
    for one in allowed:
        if one.type == PatternType.LITERAL and one.name == WILDCARD:
            return True
        if one.type == PatternType.LITERAL and one.name in literals:
            continue
        if not any(one.name[:length] in prefixes for length in range(len(one.name) + 1)):
            return True
    return False


# --- explanations ----------------------------------------------------------------------------


class Question(NamedTuple):
    """May this principal, from this host, do this?"""

    principal: str
    host: str
    operation: Operation
    kind: ResourceType
    name: str
    tenant: str | None = None
    """Of which tenant the principal is; None: of that which it has where a connection is for
    none."""


REASONS: Final[Mapping[str, str]] = {
    "super_user": "{principal} is listed in super.users",
    "damaged_tenants": (
        "{principal} is in two tenants, or a tenant's stored principals are damaged"
    ),
    "other_tenant": "{principal} is of {tenant} tenant, and the resource is not",
    "no_tenant": "{principal} is of no tenant, and the resource is not",
    "all_tenants": "{name} holds what all tenants have",
    "shared_topic": "the topic belongs to another tenant and is read-only by this name",
    "own_tenant": "the resource is of {tenant}, the principal's tenant",
    "operators_rule": "a rule of the operators decides, about more than this tenant has",
    "closed_tenant": (
        "{tenant}, the principal's tenant, gives its principals what rules about its own names"
        " allow (access rules), and none allows this"
    ),
    "rule": "this rule decides: {rule}",
    "other_rules": "rules apply to the resource, but none to this principal, host and operation",
    "no_rule": "no rule applies to the resource, and allow.everyone.if.no.acl.found is {value}",
    "may_differ": "at a listener or server name of a tenant the answer may differ"
    " (docs/TENANTS.md)",
}
"""By code; the last one is added to the others."""


class Explanation(NamedTuple):
    """Why an operation is allowed or not, at a listener that is of no tenant."""

    is_allowed: bool
    code: str
    values: dict[str, str]
    rules: list[Acl]
    """Those that match, denials first."""
    may_differ: bool = False
    """At a listener or server name of a tenant."""

    @property
    def reason(self) -> str:
        """The sentence."""
        text = REASONS[self.code].format(**self.values)
        return f"{text} ({REASONS['may_differ']})" if self.may_differ else text


def explain(
    index: AclIndex,
    asked: Question,
    super_users: Collection[str],
    tenants: Tenants,
    *,
    is_open_without_acl: bool,
) -> Explanation:
    """Answer an operator's question, naming the rule that decides.

    A listener or server name of a tenant may change the answer (docs/TENANTS.md); where there are
    tenants, the reason says so.
    """
    found = _explain(index, asked, super_users, tenants, is_open_without_acl=is_open_without_acl)
    if not tenants.has_any or asked.principal in super_users:
        return found
    return found._replace(may_differ=True)


def _explain(
    index: AclIndex,
    asked: Question,
    super_users: Collection[str],
    tenants: Tenants,
    *,
    is_open_without_acl: bool,
) -> Explanation:
    rules, who = index.matching(asked), {"principal": asked.principal}
    if asked.principal in super_users:
        return Explanation(True, "super_user", who, rules)
    own = tenants.of(asked.principal) if asked.tenant is None else asked.tenant
    if own == NOBODY:
        return Explanation(False, "damaged_tenants", who, rules)
    if is_of_another(asked.kind, asked.name, own, has_tenants=tenants.has_any):
        code = "other_tenant" if own else "no_tenant"
        return Explanation(False, code, {**who, "tenant": own}, rules)
    if tenants.has_any and asked.kind == ResourceType.TOPIC and asked.name in OF_ALL_TENANTS:
        return Explanation(False, "all_tenants", {"name": asked.name}, rules)
    if own and (not rules or rules[0].entry.permission == Permission.ALLOW):
        if asked.kind in OF_TENANTS and not tenants.is_closed(own):
            return Explanation(True, "own_tenant", {"tenant": own}, rules)
        # A rule on * is about the default tenant, and one about everybody administers nothing.
        rules = [one for one in rules if one.pattern.tenant]
        if asked.kind in ADMINISTERED:
            rules = [one for one in rules if one.entry.principal != ANY_PRINCIPAL]
            if asked.kind == ResourceType.CLUSTER and not ADMINISTERING & 1 << asked.operation:
                rules = []
        elif not rules:
            return Explanation(False, "closed_tenant", {"tenant": own}, rules)
    if rules:
        is_allowed = rules[0].entry.permission == Permission.ALLOW
        return Explanation(is_allowed, "rule", {"rule": str(rules[0])}, rules)
    if index.touches(asked.kind, asked.name):
        return Explanation(False, "other_rules", {}, rules)
    is_open_without_acl = is_open_without_acl and not own
    value = "true" if is_open_without_acl else "false"
    return Explanation(is_open_without_acl, "no_rule", {"value": value}, rules)
