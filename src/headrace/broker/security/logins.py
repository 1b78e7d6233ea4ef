"""Logs clients in: by which mechanisms, against which users, and for how long.

Invariants: no bytes of a protocol but SASL's own, no connections. Which user a name is depends on
the tenant of the connection (`login_names`); only users in the metadata are a tenant's own.
Password hashes and signatures run in a thread; SCRAM costs microseconds and runs at once. Why a
login failed is logged and never told. A password that was right is remembered as a keyed hash until
its credential changes, because HTTP clients send it with every request.
"""

from __future__ import annotations

import hmac
import logging
from typing import TYPE_CHECKING, Final, NamedTuple

from headrace.broker.security.broker_secret import BROKER_MECHANISM
from headrace.broker.security.helper_logins import HELPER_MECHANISM, HelperLogins, is_helper
from headrace.broker.security.oauthbearer import (
    INVALID_TOKEN,
    OAUTHBEARER,
    BearerToken,
    read_bearer,
    read_scheme,
)
from headrace.broker.security.plain import PLAIN, NamedPassword, read_plain
from headrace.broker.security.principal import BROKER, Principal
from headrace.errors import AuthenticationFailed, MechanismUnsupported
from headrace.records.tenant_names import tenant_of
from headrace.runtime.scram import (
    HASHES,
    SHA_256,
    SHA_512,
    ScramCredential,
    ScramLogin,
    absent_credential,
    is_password,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headrace.broker.security.api_keys import ApiKeys
    from headrace.broker.security.broker_secret import BrokerSecret
    from headrace.broker.security.delegation_tokens import DelegationTokens
    from headrace.broker.security.listener import TenantPlace
    from headrace.broker.security.login_names import LoginNames
    from headrace.broker.security.tokens import Tokens
    from headrace.broker.security.users import Users
    from headrace.runtime.clock import Clock
    from headrace.runtime.randomness import Randomness
    from headrace.runtime.slow_calls import SlowCalls

log = logging.getLogger(__name__)

MECHANISMS: Final = (PLAIN, SHA_256, SHA_512, OAUTHBEARER)
PASSWORD_LENGTH_MAX: Final = 1_024
_REMEMBERED_MAX: Final = 10_000
_REFUSED: Final = "invalid credentials"


class Identity(NamedTuple):
    """Who has logged in."""

    principal: Principal
    expires_ms: int | None = None
    """When the token or helper's login expires, since the epoch."""
    credential: ScramCredential | None = None
    """The user's credential that was proven, or for which a helper's login was issued: the login
    ends when the user no longer has it."""
    client_host: str = ""
    """The address of the client for which a helper acts; "": it is the connection's."""
    token_id: str = ""
    """The delegation token by which it has logged in."""
    key_id: str = ""
    """The access key by which it signs its calls."""


class Answer(NamedTuple):
    """What a client gets for one message."""

    data: bytes
    identity: Identity | None = None
    """None: the login continues."""


class LoginFigures:
    """How many logins there were."""

    def __init__(self) -> None:
        self.succeeded: dict[str, int] = {}
        """By mechanism."""
        self.failed: dict[str, int] = {}

    def count(self, mechanism: str, *, is_success: bool) -> None:
        """Count one login."""
        counts = self.succeeded if is_success else self.failed
        counts[mechanism] = counts.get(mechanism, 0) + 1


class Logins:
    """See the module."""

    def __init__(
        self,
        names: LoginNames,
        secret: BrokerSecret,
        delegation: DelegationTokens,
        keys: ApiKeys,
        clock: Clock,
        randomness: Randomness,
        threads: SlowCalls,
        tokens: Tokens | None = None,
    ) -> None:
        """Without `tokens`, no bearer token is accepted. `secret` has to be loaded before the
        first login."""
        self._names = names
        self.users = users = names.users
        self.secret = secret
        self.delegation, self._keys = delegation, keys
        self.clock = clock
        self.helpers = HelperLogins(users, secret, clock)
        self.figures = LoginFigures()
        self._randomness = randomness
        self.threads = threads
        self._tokens = tokens
        self._remembered: dict[str, tuple[ScramCredential, bytes]] = {}
        self._memory_key = randomness.uuid().bytes

    def with_tokens(self, tokens: Tokens) -> Logins:
        """The same, with bearer tokens."""
        parts = self._names, self.secret, self.delegation, self._keys, self.clock
        return Logins(*parts, self._randomness, self.threads, tokens)

    def begin(
        self,
        mechanism: str,
        enabled: Sequence[str],
        place: TenantPlace | None = None,
        *,
        takes_helpers: bool = False,
    ) -> Login:
        """Start a login at a connection for one tenant, or any. `takes_helpers`: whether commands
        that a broker runs for a client may log in, even if their mechanism is not enabled for
        users. Raises MechanismUnsupported."""
        if mechanism == BROKER_MECHANISM:
            nonce = self._randomness.uuid().hex
            of_broker = ScramLogin(SHA_256, self.secret.credential, nonce)
            return Login(self, mechanism, of_broker, place)
        is_enabled = mechanism in enabled
        if not is_enabled and not (takes_helpers and mechanism == HELPER_MECHANISM):
            raise MechanismUnsupported(
                f"SASL mechanism {mechanism[:40]!r} is not enabled on this listener",
                enabled=list(enabled),
            )
        scram = None
        if mechanism in HASHES:
            nonce = self._randomness.uuid().hex + self._randomness.uuid().hex

            def find(name: str, is_token: bool) -> tuple[ScramCredential, bool]:
                if is_token:
                    return self._credential_of_token(mechanism, name, place, is_enabled=is_enabled)
                user = name if is_helper(name) else self._names.user(name, place)
                return self._credential(mechanism, user, is_enabled=is_enabled)

            scram = ScramLogin(mechanism, find, nonce)
        return Login(self, mechanism, scram, place)

    def _credential(
        self, mechanism: str, user: str, *, is_enabled: bool
    ) -> tuple[ScramCredential, bool]:
        """A user's credential, and whether it exists; with the same work either way. `is_enabled`:
        whether users may log in by the mechanism. Raises AuthenticationFailed if they may not,
        which is the same for all users."""
        secret = self._absent_secret
        if is_helper(user):
            helper = self.helpers.find(user) if mechanism == HELPER_MECHANISM else None
            found = None if helper is None else helper.credential
            absent = absent_credential(mechanism, secret, user)
        elif is_enabled:
            found = self.users.credential(user, mechanism)
            forms = self.users.forms(user)
            has_user = found is None and self.users.has_user(user)
            absent = (forms.lacking if has_user else forms.absent)(mechanism, secret, user)
        else:
            raise AuthenticationFailed("the mechanism is not enabled for users on this listener")
        return (absent, False) if found is None else (found, True)

    def _credential_of_token(
        self, mechanism: str, id_: str, place: TenantPlace | None, *, is_enabled: bool
    ) -> tuple[ScramCredential, bool]:
        """As `_credential`, of a delegation token."""
        if not is_enabled:
            raise AuthenticationFailed("the mechanism is not enabled for users on this listener")
        found = self.delegation.login(id_, mechanism)
        absent = absent_credential(mechanism, self._absent_secret, id_)
        if found is None or not self.is_at_home(found[0].owner, place):
            return absent, False
        return found[1], True

    def is_at_home(self, principal: Principal, place: TenantPlace | None) -> bool:
        """Whether what the principal has been issued may be used at a connection for one tenant, or
        any."""
        return self._names.is_at_home(principal.name, place)

    @property
    def _absent_secret(self) -> bytes:
        return self.secret.derived(b"absent users")

    def _of_password(self, user: str) -> tuple[str, ScramCredential]:
        """The mechanism and credential against which a user's password is checked; one that no
        password fits, of the same cost, if the user does not exist."""
        found = self.users.any_credential(user)
        return found or self.users.forms(user).absent_password(self._absent_secret, user)

    def is_remembered(self, given: NamedPassword, place: TenantPlace | None = None) -> bool:
        """Whether the password is known to be right: `check_password` takes microseconds."""
        user = self._names.user(given.user, place)
        found = self.users.any_credential(user)
        digest = hmac.digest(self._memory_key, given.password.encode(), "sha256")
        known, known_digest = self._remembered.get(user, (None, b""))
        is_current = found is not None and known == found[1]
        return is_current and hmac.compare_digest(digest, known_digest)

    async def check_password(
        self, given: NamedPassword, place: TenantPlace | None = None
    ) -> Identity:
        """The user whose password this is, at a connection for one tenant, or any. Raises
        AuthenticationFailed."""
        user, password = self._names.user(given.user, place), given.password
        mechanism, credential = self._of_password(user)
        digest = hmac.digest(self._memory_key, password.encode(), "sha256")
        known, known_digest = self._remembered.get(user, (None, b""))
        if known != credential or not hmac.compare_digest(digest, known_digest):
            is_right = await self.threads.run(lambda: is_password(mechanism, credential, password))
            if not is_right or self.users.credential(user, mechanism) != credential:
                raise AuthenticationFailed("wrong password, or no such user", user=user)
            if len(self._remembered) >= _REMEMBERED_MAX:
                del self._remembered[next(iter(self._remembered))]
            self._remembered[user] = credential, digest
        return Identity(Principal(user, mechanism=PLAIN), None, credential)

    async def check_token(self, token: BearerToken) -> Identity:
        """Whom the token was issued to. Raises AuthenticationFailed."""
        if self._tokens is None:
            raise AuthenticationFailed("no issuer of tokens is configured")
        user, expires_ms = await self._tokens.judge(token.token)
        if tenant_of(user):
            raise AuthenticationFailed("the token's subject looks like a tenant's user", user=user)
        if token.authorization_id not in {"", user}:
            raise AuthenticationFailed("the authorization id is not the token's subject", user=user)
        return Identity(Principal(user, mechanism=OAUTHBEARER), expires_ms)

    async def check_bearer(self, value: str) -> Identity:
        """As check_token, for `Bearer TOKEN`. Raises AuthenticationFailed."""
        return await self.check_token(BearerToken(read_scheme(value), ""))

    def proven(self, scram: ScramLogin, mechanism: str, place: TenantPlace | None) -> Identity:
        """Who has just proven its credential. Raises AuthenticationFailed if it has changed
        since the login began."""
        if scram.is_token:
            token = self.delegation.token(scram.user)
            if token is not None:  # its credential does not change
                return Identity(token.owner, token.expires_ms, token_id=token.id)
        elif is_helper(scram.user):
            helper = self.helpers.find(scram.user)
            if helper is not None and helper.credential == scram.credential:
                principal, client_host, expires_ms, _, of_user = helper
                return Identity(principal, expires_ms, of_user, client_host)
        else:
            principal = Principal(self._names.user(scram.user, place), mechanism=mechanism)
            identity = Identity(principal, None, scram.credential)
            if self.is_valid(identity):
                return identity
        raise AuthenticationFailed("the user was changed during the login")

    def is_valid(self, identity: Identity) -> bool:
        """Whether an earlier login still holds: the user still has the credential."""
        if identity.key_id:
            return self._keys.is_valid(identity.key_id)
        if identity.token_id:
            return self.delegation.is_valid(identity.token_id)
        credential = identity.credential
        return credential is None or credential in _credentials_of(
            self.users, identity.principal.name
        )


def _credentials_of(users: Users, user: str) -> Sequence[ScramCredential]:
    found = (users.credential(user, mechanism) for mechanism in HASHES)
    return [one for one in found if one is not None]


class Login:
    """One login by one mechanism: the client's messages in, answers out."""

    def __init__(
        self,
        logins: Logins,
        mechanism: str,
        scram: ScramLogin | None,
        place: TenantPlace | None,
    ) -> None:
        self._logins = logins
        self._place = place
        self.mechanism = mechanism
        self._scram = scram
        self._is_begun = False
        self.has_waited = False
        """Whether the client has waited because of failures of its address."""
        self._is_refused = False
        """The token was refused in the first of two steps."""
        self.user = ""
        """Who claims to log in, for the log."""

    async def answer(self, message: bytes) -> Answer:
        """The answer to the client's next message. Raises AuthenticationFailed."""
        try:
            found = await self._answer(message)
        except AuthenticationFailed:
            self._logins.figures.count(self.mechanism, is_success=False)
            raise
        if found.identity is not None:
            self._logins.figures.count(self.mechanism, is_success=True)
        return found

    async def _answer(self, message: bytes) -> Answer:
        if self._is_refused:
            raise AuthenticationFailed("the token was refused")
        if self._scram is not None:
            return await self._scram_answer(self._scram, message)
        if self.mechanism == PLAIN:
            given = read_plain(message)
            self.user = given.user
            return Answer(b"", await self._logins.check_password(given, self._place))
        try:
            return Answer(b"", await self._logins.check_token(read_bearer(message)))
        except AuthenticationFailed as error:
            # RFC 7628, section 3.2.2: the client acknowledges the refusal before it fails.
            log.info("a token was refused: %s", error)
            self._is_refused = True
            return Answer(INVALID_TOKEN)

    async def _scram_answer(self, scram: ScramLogin, message: bytes) -> Answer:
        if not self._is_begun:
            self._is_begun = True
            try:
                scram.read_first(message)
            finally:
                self.user = scram.user
            if scram.is_token:
                await self._logins.delegation.prepare(
                    scram.user, self.mechanism, self._logins.threads
                )
            return Answer(scram.answer_first())
        data = scram.final(message)
        if self.mechanism == BROKER_MECHANISM:
            return Answer(data, Identity(Principal(scram.user, BROKER, mechanism=self.mechanism)))
        return Answer(data, self._logins.proven(scram, self.mechanism, self._place))
