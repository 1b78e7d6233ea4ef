"""Users are listed, created, given passwords and removed, for every face.

Invariants: knows no protocol. A password is hashed in a thread, and neither kept nor logged; one
that is made here is returned once. Users of a tenant's own have the tenant's prefix in their names
(`prefix`), and people of a tenant get to know no others. A user whose name looks like a key within
its tenant, which earlier versions did not refuse, is shown to operators alone, so that they delete
it.
"""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Final, NamedTuple

from headrace.broker.security.authorizer import Operation
from headrace.broker.security.principal import USER
from headrace.broker.security.users import check_name
from headrace.broker.services.super_users import SuperUsers
from headrace.errors import (
    CredentialDuplicate,
    CredentialInvalid,
    CredentialUnknown,
    HeadraceError,
)
from headrace.records.tenant_names import has_marks, name_in, tenant_of
from headrace.runtime.scram import HASHES, ITERATIONS, new_credential, salt_text

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from headrace.broker.security.logins import Logins
    from headrace.broker.security.sessions import ClientSession
    from headrace.broker.security.users import CredentialChange, Remaining
    from headrace.broker.services.access_control import AccessControl
    from headrace.broker.services.audit import Audit
    from headrace.runtime.randomness import Randomness
    from headrace.runtime.scram import ScramCredential

_AS_OPERATOR: Final = (
    "remove this one all the same over HTTP (DELETE /v1/users/{0}?force=true), or in the metadata"
    " itself (headrace user remove {0} --data-dir FOLDER, or --zookeeper)"
)
_GENERATED_BYTES: Final = 18
"""Of chance in a password that is made here: 24 characters."""


class NewPassword(NamedTuple):
    """What a user is to log in with from now on, and with nothing else."""

    password: str | None = None
    """None: one is made."""
    mechanisms: Sequence[str] = tuple(HASHES)
    iterations: int = ITERATIONS


class UserAdministration:
    """See the module."""

    def __init__(
        self,
        logins: Logins,
        access: AccessControl | None,
        audit: Audit,
        randomness: Randomness,
    ) -> None:
        self._users = logins.users
        self.super_users = SuperUsers(access, self._users, audit)
        self._threads = logins.threads
        self._access = access
        self._randomness = randomness

    def names(self, prefix: str = "") -> list[str]:
        """The users that people of a tenant, or operators, may know, sorted."""
        return [one for one in self._users.names(prefix) if not is_hidden(one, prefix)]

    def described(self, user: str, prefix: str = "") -> Mapping[str, int]:
        """The iterations of a user's credentials, by mechanism. Raises CredentialUnknown."""
        if not self._users.has_user(user) or is_hidden(user, prefix):
            raise CredentialUnknown(f"there is no user {user!r} with a password")
        return self._users.described(user)

    def check_tenant(self, user: str) -> None:
        """Raise CredentialInvalid if this is to be a user of a tenant that does not exist."""
        tenant = tenant_of(user)
        if tenant and self._access is not None and not self._access.tenants.exists(tenant):
            raise CredentialInvalid(f"there is no tenant {tenant!r}: create it first")

    async def change(
        self, session: ClientSession, request: str, changes: Sequence[CredentialChange]
    ) -> dict[str, HeadraceError | None]:
        """Change users in their credentials, each in all or not at all; returns the result by user.
        The client's own come last: its connections are closed soon after. `request`: its name in
        the audit log."""
        principal = session.principal
        by_user: dict[str, list[CredentialChange]] = {}
        for one in sorted(
            changes, key=lambda it: principal is not None and it.user == principal[0]
        ):
            by_user.setdefault(one.user, []).append(one)
        results: dict[str, HeadraceError | None] = {}
        for user, of_user in by_user.items():
            remaining = self.super_users.remaining(session, user, _AS_OPERATOR.format(user))
            try:
                self.super_users.require(session, f"{USER}:{user}", Operation.ALTER, request)
            except HeadraceError as error:
                results[user] = error
            else:
                results |= await self._users.change(of_user, remaining)
        return results

    async def create(self, user: str, new: NewPassword, *, is_dry_run: bool = False) -> str | None:
        """Add a user; returns the password if it was made here.

        Raises CredentialInvalid, CredentialDuplicate, MetadataUnavailable.
        """
        check_name(user)
        self.check_tenant(user)
        if self._users.has_user(user):
            raise CredentialDuplicate(f"user {user!r} exists: give it another password instead")
        return await self._set(user, new, is_new=True, is_dry_run=is_dry_run)

    async def set_password(
        self, user: str, new: NewPassword, *, prefix: str = "", is_dry_run: bool = False
    ) -> str | None:
        """Give a user another password, which closes its connections; returns it if it was made
        here. Mechanisms that are not named are taken away: the old password must not remain valid
        by one. Raises CredentialUnknown, CredentialInvalid, MetadataUnavailable."""
        self.described(user, prefix)
        return await self._set(user, new, is_new=False, is_dry_run=is_dry_run)

    async def delete(
        self,
        user: str,
        *,
        prefix: str = "",
        remaining: Remaining | None = None,
        is_dry_run: bool = False,
    ) -> None:
        """Remove a user. Raises CredentialUnknown, PolicyViolation, MetadataUnavailable."""
        self.described(user, prefix)
        if not is_dry_run:
            await self._users.replace(user, {}, is_new=False, remaining=remaining)
        elif remaining is not None and not any(map(self._users.has_user, remaining.users)):
            raise remaining.refusal

    async def _set(
        self, user: str, new: NewPassword, *, is_new: bool, is_dry_run: bool
    ) -> str | None:
        made = None if new.password is not None else self._made()
        password = made or new.password or ""
        if not password or "\0" in password:
            raise CredentialInvalid("a password is not empty, and has no NUL: nothing was changed")
        if is_dry_run:
            return None
        salts = {one: self._salt() for one in new.mechanisms}

        def hashed() -> dict[str, ScramCredential]:
            return {
                one: new_credential(one, password, salt, new.iterations)
                for one, salt in salts.items()
            }

        await self._users.replace(user, await self._threads.run(hashed), is_new=is_new)
        return made

    def _made(self) -> str:
        data = self._randomness.uuid().bytes + self._randomness.uuid().bytes
        return base64.urlsafe_b64encode(data[:_GENERATED_BYTES]).decode()

    def _salt(self) -> bytes:
        return salt_text(self._randomness.uuid().int << 64 ^ self._randomness.uuid().int)


def is_hidden(user: str, prefix: str) -> bool:
    """Whether people of the tenant with this prefix do not see a user of its own."""
    return bool(prefix) and has_marks(name_in(user))
