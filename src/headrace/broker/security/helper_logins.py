"""Logins of commands that a broker runs for a client: they act as that client.

Invariants: no I/O, and nothing is stored. A login's name says for whom it is and until when, and
ends with a keyed hash of that, so that only a broker can have made it; its password is another
keyed hash. Both are computed from the secret that the brokers share, so that every broker knows the
credential of every such login. Names are reserved: no user can have one. A login of a stored user
holds as long as that user has the credential of its beginning. No login acts as a broker.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import json
from typing import TYPE_CHECKING, Final, NamedTuple

from headrace.broker.security.plain import PLAIN, NamedPassword
from headrace.broker.security.principal import Principal
from headrace.broker.security.users import RESERVED_PREFIX
from headrace.errors import AuthenticationFailed, RequestInvalid
from headrace.runtime.scram import HASHES, SHA_256, ScramCredential, new_credential

if TYPE_CHECKING:
    from headrace.broker.security.broker_secret import BrokerSecret
    from headrace.broker.security.users import Users
    from headrace.runtime.clock import Clock

HELPER_MECHANISM: Final = SHA_256
"""The only one that these logins use."""
LIFETIME_MS: Final = 24 * 3_600_000
"""Longer than redrives take, most of the time; one that ends early goes on when started again."""
NAME_LENGTH_MAX: Final = 4_096
"""Half of a SCRAM message. The names of principals have at most some hundred characters."""
_SALT: Final = b"headrace helpers"
"""The password is a keyed hash, so that its own hash needs no other salt."""
_STORED: Final = frozenset({PLAIN, *HASHES})
"""Mechanisms whose users are stored."""
_REMEMBERED_MAX: Final = 64


class HelperLogin(NamedTuple):
    """Whom a login acts as, and by what it is proven."""

    principal: Principal
    client_host: str
    """The client's address: rules may name it."""
    expires_ms: int
    credential: ScramCredential
    of_user: ScramCredential | None
    """The stored user's credential at the beginning; None: the client is not a stored user."""


def is_helper(user: str) -> bool:
    """Whether a name is reserved for these logins."""
    return user.startswith(RESERVED_PREFIX)


class HelperLogins:
    """See the module."""

    def __init__(self, users: Users, secret: BrokerSecret, clock: Clock) -> None:
        """`secret` has to be loaded before the first call."""
        self._users = users
        self._secret = secret
        self._clock = clock
        self._remembered: dict[str, ScramCredential] = {}
        """By password: a hash takes 1 ms."""

    def issue(self, principal: Principal, client_host: str) -> NamedPassword:
        """A login for a command that acts as a client, for LIFETIME_MS.

        Raises RequestInvalid if the client's name is too long, AuthenticationFailed if the client
        is a user that no longer exists.
        """
        assert not principal.is_broker, "brokers have a login of their own"
        expires_ms = self._clock.now_ms() + LIFETIME_MS
        values = [expires_ms, client_host, principal.type, principal.name]
        text = json.dumps([*values, principal.tenant, principal.mechanism], separators=(",", ":"))
        payload = base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")
        name = f"{RESERVED_PREFIX}{payload}.{self._tag(payload)}"
        if len(name) > NAME_LENGTH_MAX:
            raise RequestInvalid(
                f"the name of the client has {len(principal.name)} characters, too many for a"
                " command that acts as the client: run it on the command line"
            )
        return NamedPassword(name, self._password(payload, self._credential_of(principal)))

    def find(self, name: str) -> HelperLogin | None:
        """The login of a reserved name; None: no broker has issued it.

        Raises AuthenticationFailed if it was issued and does not hold: it has expired, or its user
        no longer exists.
        """
        payload, _, tag = name.removeprefix(RESERVED_PREFIX).rpartition(".")
        if len(name) > NAME_LENGTH_MAX or not payload:
            return None
        if not hmac.compare_digest(tag.encode(), self._tag(payload).encode()):
            return None
        expires_ms, client_host, principal = _read(payload)
        if principal.is_broker:
            raise AuthenticationFailed("a helper's login must not act as a broker")
        if self._clock.now_ms() >= expires_ms:
            raise AuthenticationFailed(f"the login of a helper of {principal} has expired")
        of_user = self._credential_of(principal)
        credential = self._hashed(self._password(payload, of_user))
        return HelperLogin(principal, client_host, expires_ms, credential, of_user)

    def _tag(self, payload: str) -> str:
        return self._secret.derived(b"helper name:" + payload.encode()).hex()

    def _password(self, payload: str, of_user: ScramCredential | None) -> str:
        """Differs once the user's password has changed."""
        key = b"" if of_user is None else of_user.stored_key
        return self._secret.derived(b"helper login:" + payload.encode() + b":" + key).hex()

    def _hashed(self, password: str) -> ScramCredential:
        """Only passwords of names that a broker has issued get here."""
        found = self._remembered.get(password)
        if found is None:
            found = new_credential(HELPER_MECHANISM, password, _SALT)
            while len(self._remembered) >= _REMEMBERED_MAX:
                del self._remembered[next(iter(self._remembered))]
            self._remembered[password] = found
        return found

    def _credential_of(self, principal: Principal) -> ScramCredential | None:
        """The credential of a stored user. Raises AuthenticationFailed."""
        if principal.mechanism not in _STORED:
            return None
        found = self._users.any_credential(principal.name)
        if found is None:
            raise AuthenticationFailed(f"the user of {principal} no longer exists")
        return found[1]


def _read(payload: str) -> tuple[int, str, Principal]:
    """What a broker has written. Raises AuthenticationFailed: it may be of another version."""
    try:
        text = base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4))
        expires_ms, client_host, kind, name, tenant, mechanism = json.loads(text)
    except (binascii.Error, ValueError, TypeError) as error:
        raise AuthenticationFailed("the login of a helper of another version") from error
    return expires_ms, client_host, Principal(name, kind, tenant, mechanism)
