"""The users of a cluster: their SCRAM credentials, as every broker follows them.

A user of a tenant's own is called by the key of its name, `«acme»alice`, as a topic of the tenant
is: two tenants may each have an alice. Which user a client means is decided in `login_names`.

Invariants: no password reaches this module. A change is stored first, and then known here at once;
other brokers learn of it by their watch. `on_change` names the users whose credentials changed, so
that connections which they opened can be closed.
"""

from __future__ import annotations

import base64
import hashlib
from typing import TYPE_CHECKING, Final, NamedTuple

from headrace.broker.security.tenant_shares import TenantShares, excess_of_removed
from headrace.broker.security.user_forms import UserForms
from headrace.errors import (
    CredentialDuplicate,
    CredentialInvalid,
    CredentialUnknown,
    HeadraceError,
    PolicyViolation,
)
from headrace.metadata.decoding import decode_fact
from headrace.metadata.followed_facts import FollowedFacts
from headrace.metadata.user_facts import USERS, CredentialFact, UserFact, user_key, user_of_key
from headrace.records.tenant_names import CLOSE, DEFAULT, OPEN, has_marks, name_in, tenant_of
from headrace.runtime.scram import (
    HASHES,
    ITERATIONS_MAX,
    ITERATIONS_MIN,
    ScramCredential,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from headrace.metadata.store import MetadataEntry, MetadataStore

Credentials = dict[str, ScramCredential]
"""By mechanism."""
NAME_BYTES_MAX: Final = 100
"""Stored in hexadecimal as the name of a node."""
SALT_BYTES_MAX: Final = 256
USERS_MAX: Final = 100_000
RESERVED_PREFIX: Final = "headrace-helper:"
"""Of the names of logins that brokers make (see `helper_logins`). Do not change: on the wire."""


class CredentialChange(NamedTuple):
    """One credential of a user is set, or deleted (None)."""

    user: str
    mechanism: str
    credential: ScramCredential | None


class Remaining(NamedTuple):
    """Without a password of one of these users, another user is not removed."""

    users: Sequence[str]
    refusal: PolicyViolation


def check_name(user: str) -> None:
    """Raise CredentialInvalid if this cannot be the name of a new user."""
    _check_form(user)
    if tenant_of(user) and has_marks(name_in(user)):
        raise CredentialInvalid(
            f"the name of a tenant's own user has no {OPEN} or {CLOSE}: at a listener of the"
            " tenant, leave the tenant out, which the broker adds (headrace user: without --tenant)"
        )


def _check_form(user: str) -> None:
    name = name_in(user)
    if not name or len(user.encode()) > NAME_BYTES_MAX or not user.isprintable():
        raise CredentialInvalid(
            f"a user's name has 1 to {NAME_BYTES_MAX} bytes, all of them printable (with the"
            " tenant, if it is a tenant's own user)"
        )
    if name.startswith(RESERVED_PREFIX):
        raise CredentialInvalid(
            f"names that begin with {RESERVED_PREFIX!r} are reserved for logins that brokers make:"
            " choose another one"
        )


def check_change(change: CredentialChange) -> None:
    """Raise CredentialInvalid if the change must not be stored."""
    credential = change.credential
    if credential is None:
        _check_form(change.user)
        return
    check_name(change.user)
    if not ITERATIONS_MIN <= credential.iterations <= ITERATIONS_MAX:
        raise CredentialInvalid(
            f"{credential.iterations} iterations: between {ITERATIONS_MIN} and {ITERATIONS_MAX} are"
            " accepted"
        )
    if not 1 <= len(credential.salt) <= SALT_BYTES_MAX:
        raise CredentialInvalid(f"a salt has 1 to {SALT_BYTES_MAX} bytes")


class Users:
    """See the module."""

    def __init__(self, metadata: MetadataStore) -> None:
        self._metadata = metadata
        self.facts = FollowedFacts(metadata, USERS, "a user", self.apply, _tenant_of_key)
        self._users: dict[str, Credentials] = {}
        self._listeners: list[Callable[[str], None]] = []
        self._forms: dict[str, UserForms] = {DEFAULT: UserForms()}
        """By tenant, of its own users."""

    def on_change(self, listener: Callable[[str], None]) -> None:
        """Call `listener(user)` after each change of a user's credentials."""
        self._listeners.append(listener)

    def apply(self, key: str, entry: MetadataEntry | None) -> None:
        """Apply the entry stored under a key. Raises DataCorrupt, FormatUnsupported.

        A user whose fact cannot be decoded cannot log in.
        """
        user = user_of_key(key)
        credentials: Credentials = {}
        is_empty = False
        try:
            if entry is not None:
                fact = decode_fact(UserFact, entry)
                credentials, is_empty = _credentials(fact), fact.is_empty
        finally:
            self.facts.note(key, entry, is_empty=is_empty)
            self._set(user, credentials)

    def _set(self, user: str, credentials: Credentials) -> None:
        before = self._users.get(user, {})
        if credentials == before:
            return
        forms = self._forms.setdefault(tenant_of(user), UserForms())
        forms.count(before, -1)
        forms.count(credentials, 1)
        if credentials:
            self._users[user] = credentials
        else:
            self._users.pop(user, None)
        for listener in self._listeners:
            listener(user)

    def forms(self, user: str) -> UserForms:
        """How a user looks that does not exist, or lacks a mechanism: as its tenant's own users
        do, or where it has none, as those of the cluster that log in there."""
        found = self._forms.get(tenant_of(user))
        return self._forms[DEFAULT] if found is None or not found.user_count else found

    def credential(self, user: str, mechanism: str) -> ScramCredential | None:
        """A user's credential; None: there is none."""
        return self._users.get(user, {}).get(mechanism)

    def any_credential(self, user: str) -> tuple[str, ScramCredential] | None:
        """A credential against which a password can be checked, and its mechanism."""
        for mechanism in HASHES:
            found = self.credential(user, mechanism)
            if found is not None:
                return mechanism, found
        return None

    def has_user(self, user: str) -> bool:
        """Whether the user exists."""
        return user in self._users

    def has_key_of_hash(self, user: str, stored_key_hash: str) -> bool:
        """Whether a credential of the user has a stored key with this SHA-256 (hex)."""
        return any(
            hashlib.sha256(one.stored_key).hexdigest() == stored_key_hash
            for one in self._users.get(user, {}).values()
        )

    def names(self, prefix: str = "") -> Sequence[str]:
        """All users, or those whose names begin so, sorted."""
        return sorted(name for name in self._users if name.startswith(prefix))

    def described(self, user: str) -> Mapping[str, int]:
        """The iterations of a user's credentials, by mechanism."""
        found = self._users.get(user, {})
        return {mechanism: found[mechanism].iterations for mechanism in sorted(found)}

    async def change(
        self, changes: Sequence[CredentialChange], remaining: Remaining | None = None
    ) -> dict[str, HeadraceError | None]:
        """Change users, each in all its credentials or not at all; returns the result by user."""
        by_user: dict[str, list[CredentialChange]] = {}
        for change in changes:
            by_user.setdefault(change.user, []).append(change)
        results: dict[str, HeadraceError | None] = {}
        for user, of_user in by_user.items():
            try:
                await self._change(user, of_user, remaining)
                results[user] = None
            except HeadraceError as error:
                results[user] = error
        return results

    async def _change(
        self, user: str, changes: Sequence[CredentialChange], remaining: Remaining | None
    ) -> None:
        """Raises CredentialInvalid, CredentialUnknown, PolicyViolation, MetadataUnavailable."""
        for change in changes:
            check_change(change)

        def changed(entry: MetadataEntry | None) -> bytes:
            before = UserFact() if entry is None else decode_fact(UserFact, entry)
            stored = {one.mechanism: one for one in before.credentials}
            for _user, mechanism, credential in changes:
                if credential is not None:
                    stored[mechanism] = _fact(mechanism, credential)
                elif stored.pop(mechanism, None) is None:
                    raise CredentialUnknown(f"user {user!r} has no credential for {mechanism}")
            return UserFact(list(stored.values()), before.unknown).encode()

        await self._store(user, changed, remaining)

    async def replace(
        self,
        user: str,
        credentials: Mapping[str, ScramCredential],
        *,
        is_new: bool,
        remaining: Remaining | None = None,
    ) -> None:
        """Have a user log in by these credentials and no others; none remove the user.

        `is_new`: whether the user must not exist yet, or must. Raises CredentialDuplicate,
        CredentialUnknown, CredentialInvalid, PolicyViolation, MetadataUnavailable.
        """
        for mechanism, credential in credentials.items():
            check_change(CredentialChange(user, mechanism, credential))

        def changed(entry: MetadataEntry | None) -> bytes:
            before = UserFact() if entry is None else decode_fact(UserFact, entry)
            if bool(before.credentials) == is_new:
                if is_new:
                    raise CredentialDuplicate(f"user {user!r} exists; nothing was changed")
                raise CredentialUnknown(f"there is no user {user!r}")
            facts = [_fact(mechanism, one) for mechanism, one in credentials.items()]
            return UserFact(facts, before.unknown).encode()

        await self._store(user, changed, remaining)

    async def _store(
        self,
        user: str,
        changed: Callable[[MetadataEntry | None], bytes],
        remaining: Remaining | None,
    ) -> None:
        if user not in self._users:
            self._check_count(user)

        async def remains(value: bytes) -> MetadataEntry | None:
            if remaining is None or UserFact.decode(value).credentials:
                return None
            for other in remaining.users:
                entry = await self._metadata.get(user_key(other))
                if entry is not None and decode_fact(UserFact, entry).credentials:
                    return entry
            raise remaining.refusal

        await self.facts.change(user_key(user), changed, remains)

    def _check_count(self, user: str) -> None:
        """Raise CredentialInvalid if there can be no further user, or not of this name."""
        tenant = tenant_of(user)
        counts = {of: forms.user_count for of, forms in self._forms.items()}
        if excess := TenantShares("users", USERS_MAX).excess(tenant, counts):
            raise CredentialInvalid(f"{excess}: remove one first; nothing was changed")
        if user_key(user) in self.facts.empty:
            return
        if excess := excess_of_removed("names of removed users", tenant, self.facts):
            raise CredentialInvalid(f"{excess}; nothing was changed")


def _tenant_of_key(key: str) -> str:
    return tenant_of(user_of_key(key))


def _credentials(fact: UserFact) -> Credentials:
    """The credentials of known mechanisms."""
    return {
        one.mechanism: ScramCredential(
            base64.b64decode(one.salt),
            base64.b64decode(one.stored_key),
            base64.b64decode(one.server_key),
            one.iterations,
        )
        for one in fact.credentials
        if one.mechanism in HASHES
    }


def _fact(mechanism: str, credential: ScramCredential) -> CredentialFact:
    salt, stored_key, server_key = (
        base64.b64encode(value).decode()
        for value in (credential.salt, credential.stored_key, credential.server_key)
    )
    return CredentialFact(mechanism, salt, stored_key, server_key, credential.iterations)
