"""API keys: what a program uses instead of its user's password.

Invariants: a key acts as its owner, and its scope can only narrow what the owner may do. It is
shown once. It ends at its expiry, when it is revoked, and when its owner, if that is a stored user,
is removed; a new password of the owner does not end it.

    kind       the client sends          the secret is                      stored of it
    http       the key                   256 random bits                    SHA-256
    rocketmq   its id and a signature    an HMAC of its id with the         nothing
                                         brokers' secret

A signature is checked with the secret itself, so that of RocketMQ's clients is derived, as the
passwords of delegation tokens are: who can read the brokers' secret can be any client anyway.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
from typing import TYPE_CHECKING, Final, NamedTuple

from headrace.broker.security.acls import (
    ANY_PRINCIPAL,
    WILDCARD,
    Acl,
    Entry,
    Pattern,
    PatternType,
    Permission,
    bits_of,
    check_acl,
)
from headrace.broker.security.authorizer import Operation, ResourceType
from headrace.broker.security.issued import IssuedCredentials
from headrace.broker.security.principal import USER, Principal
from headrace.broker.security.tenant_shares import TenantShares
from headrace.errors import AuthenticationFailed, PolicyViolation, RequestInvalid
from headrace.metadata.issued_facts import API_KEYS, IssuedFact, ScopeFact

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from headrace.broker.security.broker_secret import BrokerSecret
    from headrace.broker.security.tenants import Tenants
    from headrace.broker.security.users import Users
    from headrace.metadata.store import MetadataStore
    from headrace.runtime.clock import Clock
    from headrace.runtime.randomness import Randomness

API_KEY: Final = "API-KEY"
"""The mechanism of principals of keys whose owner is not a stored user."""
HTTP, ROCKETMQ = "http", "rocketmq"
KINDS: Final = (HTTP, ROCKETMQ)
"""For which clients a key is. Do not change: stored."""
LIFETIME_MS: Final = 90 * 86_400_000
LIFETIME_MS_MAX: Final = 366 * 86_400_000
KEYS_MAX: Final = 10_000
KEYS_OF_OWNER_MAX: Final = 100
NAME_LENGTH_MAX: Final = 100
RULES_MAX: Final = 50
PREFIX: Final = "hrk_"
"""Of every key, so that scanners recognise one that was published. Do not change: clients have
them."""
SECRET_PREFIX: Final = "hrs_"  # noqa: S105 - of secrets, none itself
"""Of the secret of an access key, for the same reason. Do not change: clients have them."""
_KEY: Final = re.compile(r"hrk_([0-9a-f]{16})_([A-Za-z0-9_-]{43})")


class ScopeRule(NamedTuple):
    """One operation on the resources of a pattern."""

    pattern: Pattern
    operation: Operation

    @property
    def bits(self) -> int:
        """The operations that it covers, as bits."""
        return bits_of(Entry(ANY_PRINCIPAL, WILDCARD, self.operation, Permission.ALLOW))

    def check(self) -> None:
        """Raise RequestInvalid if it has no meaning."""
        check_acl(
            Acl(self.pattern, Entry(ANY_PRINCIPAL, WILDCARD, self.operation, Permission.ALLOW))
        )


class Scope:
    """What a key is limited to."""

    __slots__ = ("rules",)

    def __init__(self, rules: Sequence[ScopeRule]) -> None:
        self.rules = rules

    def covers(self, operation: Operation, kind: ResourceType, name: str) -> bool:
        """Whether the key may be used for this, if its owner may do it."""
        return any(
            rule.pattern.kind == kind
            and rule.pattern.matches(name)
            and rule.bits >> operation & 1 == 1
            for rule in self.rules
        )


class ApiKey(NamedTuple):
    """A key that holds, without its secret."""

    id: str
    name: str
    principal: Principal
    created_ms: int
    expires_ms: int
    scope: Scope | None
    """None: whatever its owner may do."""
    kind: str = HTTP


class NewKey(NamedTuple):
    """What a new key is to be."""

    name: str
    owner: Principal
    lifetime_ms: int = LIFETIME_MS
    rules: Sequence[ScopeRule] | None = None
    kind: str = HTTP

    def check(self) -> None:
        """Raise RequestInvalid if there can be no such key."""
        if not 0 < len(self.name) <= NAME_LENGTH_MAX or not self.name.isprintable():
            raise RequestInvalid(f"a key's name has 1 to {NAME_LENGTH_MAX} printable characters")
        if self.kind not in KINDS:
            raise RequestInvalid(f"a key is for one of {', '.join(KINDS)}")
        if not 0 < self.lifetime_ms <= LIFETIME_MS_MAX:
            raise RequestInvalid(f"a key's lifetime is 1 to {LIFETIME_MS_MAX} ms")
        if self.rules is not None:
            if not 0 < len(self.rules) <= RULES_MAX:
                raise RequestInvalid(f"a scope has 1 to {RULES_MAX} rules")
            for rule in self.rules:
                rule.check()


class ApiKeys:
    """See the module."""

    def __init__(
        self,
        metadata: MetadataStore,
        users: Users,
        tenants: Tenants | None,
        brokers: BrokerSecret,
        clock: Clock,
        randomness: Randomness,
    ) -> None:
        """`brokers`: their secret, which has to be loaded before a key for RocketMQ is made."""
        self._users = users
        self._brokers = brokers
        self._clock = clock
        self._randomness = randomness
        self.issued = IssuedCredentials(
            metadata, API_KEYS, clock, TenantShares("API keys", KEYS_MAX), tenants, self._has_ended
        )

    async def create(self, new: NewKey, *, is_dry_run: bool = False) -> tuple[str, ApiKey]:
        """Create a key; returns it with its secret, which is not kept: of a key for HTTP, the
        whole key. A dry run checks that there could be one.

        Raises RequestInvalid, PolicyViolation, MetadataUnavailable.
        """
        new.check()
        owner = new.owner
        before = [key for key in self.all() if key.principal[:2] == owner[:2]]
        if len(before) >= KEYS_OF_OWNER_MAX:
            raise PolicyViolation(f"{owner} has {KEYS_OF_OWNER_MAX} keys: revoke some first")
        if any(key.name == new.name for key in before):
            raise PolicyViolation(f"{owner} has a key of this name: revoke it, or take another one")
        if new.kind == ROCKETMQ and not self._brokers.is_loaded:
            raise PolicyViolation(
                "no listener of this broker authenticates its clients, so that a key would be"
                " ignored; nothing was created: give a listener the protocol SASL_SSL first"
            )
        id_ = self._randomness.uuid().hex[:16]
        is_http = new.kind == HTTP
        data = self._randomness.uuid().bytes + self._randomness.uuid().bytes
        secret = _text(data) if is_http else self.access_secret(id_)
        now_ms = self._clock.now_ms()
        fact = IssuedFact(
            owner.type,
            owner.name,
            now_ms,
            now_ms + new.lifetime_ms,
            of_user=int(owner.type == USER and self._users.has_user(owner.name)),
            name=new.name,
            secret_hash=_hash(secret) if is_http else None,
            scope=None if new.rules is None else [_fact(rule) for rule in new.rules],
            kind=None if is_http else new.kind,
        )
        if is_dry_run:
            await self.issued.check_room(fact)
            return "", _key("", fact)
        await self.issued.issue(id_, fact)
        return f"{PREFIX}{id_}_{secret}" if is_http else secret, _key(id_, fact)

    def access_secret(self, id_: str) -> str:
        """The secret of the key for RocketMQ's clients that has this id, if there is one. Not for
        logs."""
        key = self._brokers.derived(b"access keys of RocketMQ's clients")
        return SECRET_PREFIX + _text(hmac.digest(key, id_.encode(), "sha256"))

    def find(self, text: str) -> ApiKey:
        """The key for HTTP with this secret. Raises AuthenticationFailed."""
        match = _KEY.fullmatch(text)
        fact = None if match is None else self.issued.find(match[1])
        if match is None or fact is None or fact.kind is not None:
            raise AuthenticationFailed("an API key that does not exist, or has expired")
        if not hmac.compare_digest(_hash(match[2]), fact.secret_hash or ""):
            raise AuthenticationFailed(f"another secret than that of API key {match[1]}")
        return _key(match[1], fact)

    def get(self, id_: str) -> ApiKey | None:
        """The key with this id, if it holds."""
        fact = self.issued.find(id_)
        return None if fact is None else _key(id_, fact)

    def is_valid(self, id_: str) -> bool:
        """Whether a key that was used still holds."""
        return self.issued.find(id_) is not None

    def all(self) -> Iterator[ApiKey]:
        """All keys that hold, by id."""
        for id_, fact in self.issued.all():
            yield _key(id_, fact)

    async def revoke(self, id_: str) -> None:
        """End a key: on this broker at once, on others within a second. Raises
        MetadataUnavailable."""
        await self.issued.revoke(id_)

    def _has_ended(self, fact: IssuedFact) -> bool:
        """Whether the stored user whose key it is was removed."""
        return bool(fact.of_user) and not self._users.has_user(fact.owner)


def is_api_key(text: str) -> bool:
    """Whether a bearer token is meant to be an API key."""
    return text.startswith(PREFIX)


def _text(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


def _hash(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()


def _fact(rule: ScopeRule) -> ScopeFact:
    pattern = rule.pattern
    return ScopeFact(int(pattern.kind), int(pattern.type), pattern.name, int(rule.operation))


def _key(id_: str, fact: IssuedFact) -> ApiKey:
    mechanism = "PLAIN" if fact.of_user else API_KEY
    principal = Principal(fact.owner, fact.owner_type, mechanism=mechanism)
    scope = None if fact.scope is None else Scope([*_rules(fact.scope)])
    times = fact.created_ms, fact.expires_ms
    return ApiKey(id_, fact.name or "", principal, *times, scope, fact.kind or HTTP)


def _rules(facts: Sequence[ScopeFact]) -> Iterator[ScopeRule]:
    """Those of a newer version allow nothing here."""
    for fact in facts:
        try:
            kind, operation = ResourceType(fact.kind), Operation(fact.operation)
            yield ScopeRule(Pattern(kind, fact.name, PatternType(fact.pattern_type)), operation)
        except ValueError:
            continue
