"""Credentials of super users: whoever makes or changes one becomes a super user.

Invariants: knows no protocol. Kafka lets any principal that may ALTER the cluster set a super
user's password; here only a super user (or a broker) makes, changes and removes credentials of one,
whether or not it has any yet, because a name in `super.users` may be one of a certificate or token.
A broker knows who has a password, not who holds a certificate or a token: so the last password of a
super user is kept from clients that have shown nothing but a password, be it another one, which may
just have been removed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from headrace.broker.security.authorizer import Operation, ResourceType
from headrace.broker.security.principal import USER
from headrace.broker.security.users import Remaining
from headrace.errors import PolicyViolation, Unauthorized

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headrace.broker.security.sessions import ClientSession
    from headrace.broker.security.users import Users
    from headrace.broker.services.access_control import AccessControl
    from headrace.broker.services.audit import Audit

_OF_USERS_PASSWORD: Final = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "DELEGATION-TOKEN")
"""Mechanisms of logins that end with the user."""


class SuperUsers:
    """See the module."""

    def __init__(self, access: AccessControl | None, users: Users, audit: Audit) -> None:
        """`access` None: there are none, as everybody may do everything."""
        self._access = access
        self._users = users
        self._audit = audit

    def may_change(self, session: ClientSession, owner: str) -> bool:
        """Whether the client may make, change, see or remove credentials of a principal, as far as
        that depends on super users."""
        access = self._access
        return access is None or not access.is_super_user(owner) or access.sees_all(session)

    def require(self, session: ClientSession, owner: str, right: Operation, request: str) -> None:
        """Raise Unauthorized, and note that in the audit log, unless `may_change`."""
        if not self.may_change(session, owner):
            self._audit.denied(session, right, ResourceType.USER, owner, request)
            raise Unauthorized(
                f"{owner} is listed in super.users, and only a super user makes, changes or removes"
                " credentials of one, which are rights to everything; nothing was changed: log in"
                " as a super user"
            )

    def with_password(self) -> Sequence[str]:
        """The super users that have a password, sorted."""
        return [one for one in self._names() if self._users.has_user(one)]

    def _names(self) -> Sequence[str]:
        found = () if self._access is None else self._access.super_users
        return sorted(one.removeprefix(f"{USER}:") for one in found if one.startswith(f"{USER}:"))

    def remaining(self, session: ClientSession, user: str, step: str) -> Remaining | None:
        """Who has to have a password when this client removes the user; None: nobody, as it has
        shown something else than a password, or the user is not a super user. `step`: how it is
        removed all the same."""
        principal, names = session.principal, self._names()
        if principal is None or principal.mechanism not in _OF_USERS_PASSWORD or user not in names:
            return None
        refusal = PolicyViolation(
            f"no other super user has a password, and this broker does not know who else could"
            f" log in as one, so that nobody might be left who can administer the cluster;"
            f" nothing was changed: give another user of super.users a password first, or"
            f" {step}"
        )
        return Remaining([one for one in names if one != user], refusal)
