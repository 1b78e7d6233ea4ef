"""Which user a client means that logs in by a name.

Invariants: the tenant follows from the connection (its listener, or the server name that was asked
for over TLS), never from the name that a client writes. At a tenant's place a name is a user of the
tenant's own, or one of the cluster that is of this tenant or sees all; every other user is answered
there as one that does not exist. Elsewhere no user of a tenant's own exists, whether or not there
are tenants now, and whether it shows a password, a key, a session or a token.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from headrace.broker.security.principal import USER
from headrace.broker.security.tenant_ownership import NOBODY
from headrace.records.tenant_names import DEFAULT, has_marks, prefix_of, tenant_of

if TYPE_CHECKING:
    from headrace.broker.security.listener import TenantPlace
    from headrace.broker.security.tenants import Tenants
    from headrace.broker.security.users import Users

_HIDDEN: Final = "\0"
"""Before a name that is no user's: no user can be called so."""


class LoginNames:
    """See the module."""

    def __init__(self, users: Users, tenants: Tenants | None) -> None:
        self.users = users
        self._tenants = tenants

    def user(self, name: str, place: TenantPlace | None) -> str:
        """The user of a name, as `Users` knows it; one that does not exist if there is none."""
        tenants = self._tenants
        if tenants is None:
            return name
        is_of_cluster = tenant_of(name) == DEFAULT
        if place is None or not tenants.has_any:
            return name if is_of_cluster else _HIDDEN + name
        is_hidden = place.tenant == NOBODY or has_marks(name)
        own = prefix_of(place.tenant) + (_HIDDEN if is_hidden else "") + name
        if self.users.has_user(own) or not is_of_cluster or not self.users.has_user(name):
            return own
        return own if tenants.at(f"{USER}:{name}", place) == NOBODY else name

    def is_at_home(self, user: str, place: TenantPlace | None) -> bool:
        """Whether a user that has shown a key, a session or a token may use it at a connection for
        this tenant, or any. Users of the cluster may: what they can do there, their rights say."""
        tenant = tenant_of(user)
        if self._tenants is None or tenant == DEFAULT:
            return True
        return place is not None and place.tenant == tenant
