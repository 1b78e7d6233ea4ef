"""Browser sessions: what a page has instead of a password, after its user has signed in.

Invariants: the session's id is random, made at sign-in alone, and never taken from a client; only
its hash is stored. An id carries a keyed hash, so that brokers look up only ids that a broker made,
which makes a session hold on every broker at once. A session ends at its expiry, when its user
signs out, is removed or gets another password, and when the user has signed in too often since.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from typing import TYPE_CHECKING, Final, NamedTuple

from headrace.broker.security.issued import IssuedCredentials
from headrace.broker.security.principal import Principal
from headrace.broker.security.tenant_shares import TenantShares
from headrace.errors import AuthenticationFailed, MetadataUnavailable
from headrace.metadata.issued_facts import BROWSER_SESSIONS, IssuedFact

if TYPE_CHECKING:
    from headrace.broker.security.broker_secret import BrokerSecret
    from headrace.broker.security.logins import Identity
    from headrace.broker.security.tenants import Tenants
    from headrace.broker.security.users import Users
    from headrace.metadata.store import MetadataStore
    from headrace.runtime.clock import Clock
    from headrace.runtime.randomness import Randomness

SESSIONS_MAX: Final = 10_000
SESSIONS_OF_USER_MAX: Final = 50
"""Then a user's oldest one ends."""
VALUE_LENGTH_MAX: Final = 200
_TAG_BYTES: Final = 16
_ID_BYTES: Final = 32


class BrowserSession(NamedTuple):
    """A session that holds. Not for logs."""

    id: str
    """Its hash, by which it is stored."""
    principal: Principal
    expires_ms: int
    csrf_token: str
    """What a page sends with each request that changes something: no other site can read it."""

    def __repr__(self) -> str:
        return f"BrowserSession({self.principal})"


class BrowserSessions:
    """See the module."""

    def __init__(
        self,
        metadata: MetadataStore,
        users: Users,
        tenants: Tenants | None,
        secret: BrokerSecret,
        clock: Clock,
        randomness: Randomness,
        lifetime_ms: int,
    ) -> None:
        """`secret` has to be loaded before the first call."""
        self._users = users
        self._secret = secret
        self._clock = clock
        self._randomness = randomness
        self.lifetime_ms = lifetime_ms
        self.issued = IssuedCredentials(
            metadata,
            BROWSER_SESSIONS,
            clock,
            TenantShares("browser sessions", SESSIONS_MAX),
            tenants,
            self._has_ended,
        )

    async def begin(self, identity: Identity) -> tuple[str, BrowserSession]:
        """Begin a session of a user that has proven its password; returns its secret value, too.

        Raises AuthenticationFailed, PolicyViolation, MetadataUnavailable.
        """
        principal, credential = identity.principal, identity.credential
        if credential is None:
            raise AuthenticationFailed("sessions are for stored users", user=principal.name)
        number = self._randomness.uuid().bytes + self._randomness.uuid().bytes
        value = base64.urlsafe_b64encode(number + self._tag(number)).decode()
        now_ms = self._clock.now_ms()
        fact = IssuedFact(
            principal.type,
            principal.name,
            now_ms,
            now_ms + self.lifetime_ms,
            mechanism=principal.mechanism,
            user_proof=hashlib.sha256(credential.stored_key).hexdigest(),
        )
        before = self.issued.of_owner(principal.type, principal.name)
        for id_ in before[: max(0, len(before) + 1 - SESSIONS_OF_USER_MAX)]:
            await self.issued.revoke(id_)
        id_ = hashlib.sha256(number).hexdigest()
        await self.issued.issue(id_, fact)
        return value, self._session(id_, number, fact)

    async def find(self, value: str) -> BrowserSession | None:
        """The session of a secret value; None: it does not hold, or cannot be looked up now."""
        number = self._number(value)
        if number is None:
            return None
        id_ = hashlib.sha256(number).hexdigest()
        try:
            fact = await self.issued.fetch(id_)
        except MetadataUnavailable:
            return None
        return None if fact is None else self._session(id_, number, fact)

    async def end(self, session: BrowserSession) -> None:
        """End a session: on this broker at once, on others within a second. Raises
        MetadataUnavailable."""
        await self.issued.revoke(session.id)

    def is_valid(self, session: BrowserSession) -> bool:
        """Whether an earlier session still holds."""
        return self.issued.find(session.id) is not None

    def _session(self, id_: str, number: bytes, fact: IssuedFact) -> BrowserSession:
        principal = Principal(fact.owner, fact.owner_type, mechanism=fact.mechanism or "")
        token = hmac.digest(number, b"csrf", "sha256").hex()
        return BrowserSession(id_, principal, fact.expires_ms, token)

    def _number(self, value: str) -> bytes | None:
        """The random part of a value that a broker has made."""
        if len(value) > VALUE_LENGTH_MAX:
            return None
        try:
            data = base64.b64decode(value, altchars=b"-_", validate=True)
        except (binascii.Error, ValueError):
            return None
        number, tag = data[:_ID_BYTES], data[_ID_BYTES:]
        return number if hmac.compare_digest(tag, self._tag(number)) else None

    def _tag(self, number: bytes) -> bytes:
        return self._secret.derived(b"browser session:" + number)[:_TAG_BYTES]

    def _has_ended(self, fact: IssuedFact) -> bool:
        """Whether the user no longer has the password of the sign-in."""
        return not self._users.has_key_of_hash(fact.owner, fact.user_proof or "")
