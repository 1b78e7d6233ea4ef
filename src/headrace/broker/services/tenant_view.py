"""How one client writes names: the names of its tenant, without the tenant.

Invariants: a face makes keys of all names that its client writes before it asks for rights, so that
a name that is forgotten is one of the default tenant, to which the client has no rights. What the
client gets has no key of its own tenant, and no other, since it is shown what it has rights to.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from headrace.broker.security.authorizer import CLUSTER_NAME, Operation, ResourceType
from headrace.records.tenant_names import key_of, prefix_of, with_written_keys, written

if TYPE_CHECKING:
    from headrace.broker.security.sessions import ClientSession
    from headrace.broker.services.authorizer import Authorizer


class TenantView(NamedTuple):
    """See the module. Of the default tenant, names are keys."""

    prefix: str = ""
    is_operator: bool = False
    """Whether `acme/orders` is of the tenant acme, whatever it names: in a cluster with tenants,
    for clients that see the names of all of them."""

    def key(self, name: str) -> str:
        """The key of a name that the client writes."""
        return key_of(name) if self.is_operator else self.prefix + name

    def name(self, key: str) -> str:
        """A key as the client writes it."""
        return written(key) if self.is_operator else key.removeprefix(self.prefix)

    def text(self, text: str) -> str:
        """A text for people, which may name keys."""
        if self.is_operator:
            return with_written_keys(text)
        return text.replace(self.prefix, "") if self.prefix else text


OF_ALL: Final = TenantView()
_CLUSTER: Final = ResourceType.CLUSTER, CLUSTER_NAME


def view_of(authorizer: Authorizer, session: ClientSession) -> TenantView:
    """How a session's client writes names. Of a principal whose tenant is not certain, names are of
    no tenant at all: it has no rights."""
    if not authorizer.has_tenants:
        return OF_ALL
    return TenantView(prefix_of(authorizer.tenant(session)))


def written_view_of(authorizer: Authorizer, session: ClientSession) -> TenantView:
    """The same where operators write `acme/orders`: super users, and others who see the cluster."""
    view = view_of(authorizer, session)
    if view.prefix or not authorizer.has_tenants:
        return view
    sees_cluster = authorizer.allows(session, Operation.DESCRIBE, *_CLUSTER)
    return TenantView(is_operator=sees_cluster or authorizer.sees_all(session))
