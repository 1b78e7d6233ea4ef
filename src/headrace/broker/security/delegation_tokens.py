"""Delegation tokens (KIP-48, KIP-373): a password for a while, which a client hands to its helpers.

Invariants: a token logs in by SCRAM with its id as the name and its HMAC as the password, as its
owner. The HMAC is a keyed hash of the id with the secret that brokers share, so that every broker
can tell it and none stores it. A token that ends (expiry, which renewals move up to its maximum
lifetime; revocation; its owner, a stored user, is removed) ends the connections that it opened. A
client that has logged in by a token makes, renews and sees none.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from headrace.broker.security.issued import IssuedCredentials
from headrace.broker.security.principal import USER, Principal
from headrace.broker.security.tenant_shares import TenantShares
from headrace.errors import (
    DelegationTokenExpired,
    DelegationTokenOwnerMismatch,
    DelegationTokenUnknown,
    PolicyViolation,
)
from headrace.metadata.issued_facts import DELEGATION_TOKENS, IssuedFact, PrincipalFact
from headrace.records.identifiers import kafka_uuid
from headrace.runtime.scram import ScramCredential, new_credential, salt_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from headrace.broker.security.broker_secret import BrokerSecret
    from headrace.broker.security.tenants import Tenants
    from headrace.broker.security.users import Users
    from headrace.metadata.store import MetadataStore
    from headrace.runtime.clock import Clock
    from headrace.runtime.randomness import Randomness
    from headrace.runtime.slow_calls import SlowCalls

TOKEN_MECHANISM: Final = "DELEGATION-TOKEN"  # noqa: S105  # a name
"""Of principals that have logged in by a token."""
TOKENS_MAX: Final = 10_000
TOKENS_OF_OWNER_MAX: Final = 1_000
RENEWERS_MAX: Final = 100
_REMEMBERED_MAX: Final = 1_000


class DelegationToken(NamedTuple):
    """A token, without its HMAC."""

    id: str
    owner: Principal
    requester: Principal
    renewers: Sequence[Principal]
    created_ms: int
    expires_ms: int
    max_ms: int

    def is_known_to(self, principal: Principal) -> bool:
        """Whether the principal may renew, expire and see it."""
        return principal[:2] in self.known_to

    @property
    def known_to(self) -> Iterator[tuple[str, str]]:
        """(name, type) of each principal that may renew, expire and see it."""
        return (one[:2] for one in (self.owner, self.requester, *self.renewers))


class DelegationTokens:
    """See the module."""

    def __init__(
        self,
        metadata: MetadataStore,
        users: Users,
        tenants: Tenants | None,
        secret: BrokerSecret,
        clock: Clock,
        randomness: Randomness,
        lifetime_ms_max: int,
        expiry_ms: int,
    ) -> None:
        """`secret` has to be loaded before the first call."""
        self._users = users
        self._secret = secret
        self._clock = clock
        self._randomness = randomness
        self._lifetime_ms_max, self._expiry_ms = lifetime_ms_max, expiry_ms
        self._credentials: dict[tuple[str, str], ScramCredential] = {}
        """By mechanism and id: a hash takes 1 ms."""
        self._by_hmac: dict[bytes, str] = {}
        """Ids of the tokens that were looked for by their HMACs."""
        self._unindexed: dict[str, None] = {}
        """Ids of those that are not among them yet: the secret may not be loaded."""
        self.issued = IssuedCredentials(
            metadata,
            DELEGATION_TOKENS,
            clock,
            TenantShares("delegation tokens", TOKENS_MAX),
            tenants,
            self._has_ended,
        )
        self.issued.on_change(self._changed)

    @property
    def is_enabled(self) -> bool:
        """Whether any listener authenticates its clients."""
        return self._secret.is_loaded

    async def create(
        self,
        owner: Principal,
        requester: Principal,
        renewers: Sequence[Principal],
        lifetime_ms: int,
    ) -> DelegationToken:
        """Create a token; `lifetime_ms` below 0: the longest. Raises PolicyViolation,
        MetadataUnavailable."""
        if len(renewers) > RENEWERS_MAX:
            raise PolicyViolation(f"a token has at most {RENEWERS_MAX} renewers: name fewer")
        if len(self.issued.of_owner(owner.type, owner.name)) >= TOKENS_OF_OWNER_MAX:
            raise PolicyViolation(f"{owner} has {TOKENS_OF_OWNER_MAX} tokens: expire some first")
        id_ = kafka_uuid(self._randomness.uuid())
        now_ms = self._clock.now_ms()
        longest_ms = self._lifetime_ms_max
        max_ms = now_ms + (longest_ms if lifetime_ms < 0 else min(lifetime_ms, longest_ms))
        fact = IssuedFact(
            owner.type,
            owner.name,
            now_ms,
            min(max_ms, now_ms + self._expiry_ms),
            max_ms,
            of_user=int(owner.type == USER and self._users.has_user(owner.name)),
            requester_type=requester.type,
            requester=requester.name,
            renewers=[PrincipalFact(one.type, one.name) for one in renewers],
        )
        await self.issued.issue(_stored(id_), fact)
        return _token(id_, fact)

    def hmac_of(self, id_: str) -> bytes:
        """The HMAC of a token: its password, in base64. Not for logs."""
        key = self._secret.derived(b"delegation tokens")
        return hmac.digest(key, id_.encode(), "sha512")

    def all(self) -> Iterator[DelegationToken]:
        """All tokens that hold."""
        for stored, fact in self.issued.all():
            yield _token(bytes.fromhex(stored).decode(), fact)

    def find(self, given: bytes, client: Principal) -> DelegationToken:
        """The token with this HMAC, which the client may renew and expire.

        Raises DelegationTokenUnknown, DelegationTokenOwnerMismatch.
        """
        while self._unindexed:
            id_, _ = self._unindexed.popitem()
            self._by_hmac[self.hmac_of(id_)] = id_
        id_ = self._by_hmac.get(given, "")
        fact = self.issued.find(_stored(id_))
        if fact is None:
            raise DelegationTokenUnknown("there is no such token, or it has expired")
        token = _token(id_, fact)
        if not token.is_known_to(client):
            raise DelegationTokenOwnerMismatch(
                f"{client} is neither owner nor renewer of the token"
            )
        return token

    def _changed(self, stored: str, fact: IssuedFact | None) -> None:
        id_ = bytes.fromhex(stored).decode()
        if fact is not None:
            self._unindexed[id_] = None
            return
        self._unindexed.pop(id_, None)  # one that was renewed is in both
        if self._by_hmac:  # then the secret is loaded
            self._by_hmac.pop(self.hmac_of(id_), None)

    async def renew(self, token: DelegationToken, period_ms: int) -> int:
        """Move a token's expiry; below 0: by the usual time. Returns the new one, in ms since the
        epoch. Raises DelegationTokenUnknown, DelegationTokenExpired, MetadataUnavailable."""
        return await self._expire_after(token, self._expiry_ms if period_ms < 0 else period_ms)

    async def expire(self, token: DelegationToken, period_ms: int) -> int:
        """As `renew`; below 0: at once, which deletes the token."""
        if period_ms < 0:
            await self.issued.revoke(_stored(token.id))
            return self._clock.now_ms()
        return await self._expire_after(token, period_ms)

    async def _expire_after(self, token: DelegationToken, period_ms: int) -> int:
        now_ms = self._clock.now_ms()

        def change(fact: IssuedFact) -> None:
            if now_ms >= min(fact.max_ms or 0, fact.expires_ms):
                raise DelegationTokenExpired("the token has expired: create another one")
            fact.expires_ms = min(fact.max_ms or 0, now_ms + period_ms)

        fact = await self.issued.change(_stored(token.id), change)
        if fact is None:
            raise DelegationTokenUnknown("there is no such token, or it has expired")
        return fact.expires_ms

    # --- logins ------------------------------------------------------------------------------

    async def prepare(self, id_: str, mechanism: str, threads: SlowCalls) -> None:
        """Before `login`, which takes a hash: others have the event loop meanwhile."""
        key = mechanism, id_
        if key in self._credentials or self.token(id_) is None:
            return
        found = await threads.run(partial(self._hashed, *key))
        while len(self._credentials) >= _REMEMBERED_MAX:
            del self._credentials[next(iter(self._credentials))]
        self._credentials[key] = found

    def _hashed(self, mechanism: str, id_: str) -> ScramCredential:
        password = base64.b64encode(self.hmac_of(id_)).decode()
        salt = self._secret.derived(f"token salt:{mechanism}:{id_}".encode())
        return new_credential(mechanism, password, salt_text(int.from_bytes(salt)))

    def login(self, id_: str, mechanism: str) -> tuple[DelegationToken, ScramCredential] | None:
        """The token with this id and its credential, just after `prepare`; None: there is none."""
        token, credential = self.token(id_), self._credentials.get((mechanism, id_))
        return None if token is None or credential is None else (token, credential)

    def token(self, id_: str) -> DelegationToken | None:
        """The token with this id; None: there is none."""
        fact = self.issued.find(_stored(id_))
        return None if fact is None else _token(id_, fact)

    def is_valid(self, id_: str) -> bool:
        """Whether a token that a client logged in by still holds."""
        return self.issued.find(_stored(id_)) is not None

    def _has_ended(self, fact: IssuedFact) -> bool:
        """Whether the stored user whose token it is was removed."""
        return bool(fact.of_user) and not self._users.has_user(fact.owner)


def _stored(id_: str) -> str:
    """The id as a part of a key. Ids of any length come from clients."""
    return id_.encode().hex() if len(id_) <= 100 else hashlib.sha256(id_.encode()).hexdigest()


def _token(id_: str, fact: IssuedFact) -> DelegationToken:
    owner = Principal(fact.owner, fact.owner_type, mechanism=TOKEN_MECHANISM)
    requester = Principal(fact.requester or "", fact.requester_type or USER)
    renewers = [Principal(one.name, one.type) for one in fact.renewers or ()]
    times = fact.created_ms, fact.expires_ms, fact.max_ms or fact.expires_ms
    return DelegationToken(id_, owner, requester, renewers, *times)
