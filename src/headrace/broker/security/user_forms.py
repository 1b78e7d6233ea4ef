"""What a client that begins a login learns of a user, also of users that do not exist.

Invariants: of the users of one tenant. A name that no user has looks like a user chosen by the name
among those that exist, in the iterations and salts of all mechanisms and in those that it seems to
lack: the looks of absent users are as frequent as those of users. A user that lacks a mechanism,
and a name that looks as if it did, are answered alike, by a look chosen among the credentials of
that mechanism. The choice is the same on every broker that knows the same users; it changes, like a
password, for few names when users of several looks are added or removed.
"""

from __future__ import annotations

import bisect
import hmac
import itertools
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from headrace.runtime.scram import (
    HASHES,
    NEW_FORM,
    CredentialForm,
    ScramCredential,
    absent_credential,
    form_of,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

Profile = tuple[tuple[str, CredentialForm], ...]
"""The credentials of a user, by mechanism in the order of HASHES: how they look."""
_DEFAULT: Final[Profile] = tuple((mechanism, NEW_FORM) for mechanism in HASHES)
"""Where there is no user."""
_CHANCE_BITS: Final = 64
Look = TypeVar("Look", Profile, CredentialForm)


class _Frequencies(Generic[Look]):
    """How many have each look, and the choice of one. Kept sorted: people of a tenant may give each
    of its 10,000 users another look, and change one before each login."""

    def __init__(self) -> None:
        self._names: list[str] = []
        """The looks as text, sorted; the other lists are in their order."""
        self._looks: list[Look] = []
        self._counts: list[int] = []
        self._sums: list[int] = []

    def count(self, look: Look, step: int) -> None:
        """Count one more or one less."""
        name = repr(look)
        at = bisect.bisect_left(self._names, name)
        if self._names[at : at + 1] != [name]:
            self._names.insert(at, name)
            self._looks.insert(at, look)
            self._counts.insert(at, 0)
        self._counts[at] += step
        if not self._counts[at]:
            del self._names[at], self._looks[at], self._counts[at]
        self._sums = []

    def choose(self, chance: int) -> Look | None:
        """The look at a place, of _CHANCE_BITS, among all that are counted; None: there is none."""
        if not self._counts:
            return None
        if not self._sums:
            self._sums = list(itertools.accumulate(self._counts))
        at = chance * self._sums[-1] >> _CHANCE_BITS
        return self._looks[bisect.bisect_right(self._sums, at)]


class UserForms:
    """See the module."""

    def __init__(self) -> None:
        self.user_count = 0
        self._profiles: _Frequencies[Profile] = _Frequencies()
        self._forms: dict[str, _Frequencies[CredentialForm]] = {
            mechanism: _Frequencies() for mechanism in HASHES
        }

    def count(self, credentials: Mapping[str, ScramCredential], step: int) -> None:
        """A user with these credentials, if any, is known from now on (1), or no longer (-1)."""
        if not credentials:
            return
        self.user_count += step
        profile = _profile(credentials)
        self._profiles.count(profile, step)
        for mechanism, form in profile:
            self._forms[mechanism].count(form, step)

    def lacking(self, mechanism: str, secret: bytes, user: str) -> ScramCredential:
        """The credential by which a user that lacks this mechanism is answered."""
        form = self._forms[mechanism].choose(_chance(secret, mechanism, user))
        return absent_credential(mechanism, secret, user, form or NEW_FORM)

    def absent(self, mechanism: str, secret: bytes, user: str) -> ScramCredential:
        """The credential by which a user that does not exist is answered."""
        form = dict(self._profile_of_absent(secret, user)).get(mechanism)
        if form is None:
            return self.lacking(mechanism, secret, user)
        return absent_credential(mechanism, secret, user, form)

    def absent_password(self, secret: bytes, user: str) -> tuple[str, ScramCredential]:
        """The mechanism and credential against which the password is checked of a user that does
        not exist: the first, as for other users."""
        mechanism, form = self._profile_of_absent(secret, user)[0]
        return mechanism, absent_credential(mechanism, secret, user, form)

    def _profile_of_absent(self, secret: bytes, user: str) -> Profile:
        return self._profiles.choose(_chance(secret, "profile", user)) or _DEFAULT


def _profile(credentials: Mapping[str, ScramCredential]) -> Profile:
    salts = [one.salt for one in credentials.values()]
    return tuple(
        (
            mechanism,
            form_of(
                credentials[mechanism], is_salt_shared=salts.count(credentials[mechanism].salt) > 1
            ),
        )
        for mechanism in HASHES
        if mechanism in credentials
    )


def _chance(secret: bytes, what: str, user: str) -> int:
    digest = hmac.digest(secret, f"look:{what}:{user}".encode(), "sha256")
    return int.from_bytes(digest[: _CHANCE_BITS // 8])
