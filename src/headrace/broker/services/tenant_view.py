"""How one client writes names: the names of its tenant, without the tenant.

Invariants: a face makes keys of all names that its client writes before it asks for rights, so that
a name that is forgotten is one of the default tenant, to which the client has no rights. What the
client gets has no key of its own tenant, and no other, since it is shown what it has rights to;
nor the cluster's own id, in place of which it sees one of its tenant.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from headrace.broker.security.authorizer import CLUSTER_NAME, Operation, ResourceType
from headrace.records.cluster_ids import tenants_cluster_id
from headrace.records.tenant_names import (
    key_of,
    prefix_of,
    tenant_of,
    with_written_keys,
    written,
)

if TYPE_CHECKING:
    from collections.abc import Collection

    from headrace.broker.security.sessions import ClientSession
    from headrace.broker.security.topic_sharing import TopicSharing
    from headrace.broker.services.services import Services


class TenantView(NamedTuple):
    """See the module. Of the default tenant, names are keys."""

    prefix: str = ""
    sharing: TopicSharing | None = None
    """Of a tenant: by which it has names for topics of others."""
    is_operator: bool = False
    """Whether `acme/orders` is of the tenant acme, whatever it names: in a cluster with tenants,
    for clients that see the names of all of them."""
    hidden_id: str = ""
    """See `Cluster.hidden_id`."""

    def key(self, name: str) -> str:
        """The key of a name that the client writes."""
        return key_of(name) if self.is_operator else self.prefix + name

    def name(self, key: str) -> str:
        """A key as the client writes it."""
        return written(key) if self.is_operator else key.removeprefix(self.prefix)

    def sources(self) -> Collection[str]:
        """What else texts have in which there may be keys: of topics that others share."""
        return () if self.sharing is None else self.sharing.marks(tenant_of(self.prefix))

    def text(self, text: str) -> str:
        """A text for people, which may name keys."""
        if self.is_operator:
            return with_written_keys(text)
        if not self.prefix:
            return text
        if self.sharing is not None:  # first: what is in keys of its own is no other topic
            text = self.sharing.shown(text, tenant_of(self.prefix))
        return self.without_id(text.replace(self.prefix, ""))

    def without_id(self, text: str) -> str:
        """What may have the cluster's own id, with the one that the client sees."""
        if not self.prefix or not self.hidden_id or self.hidden_id not in text:
            return text
        own = tenants_cluster_id(self.hidden_id, tenant_of(self.prefix))
        return text.replace(self.hidden_id, own)


OF_ALL: Final = TenantView()
_CLUSTER: Final = ResourceType.CLUSTER, CLUSTER_NAME


def view_of(services: Services, session: ClientSession) -> TenantView:
    """How a session's client writes names. Of a principal whose tenant is not certain, names are of
    no tenant at all: it has no rights."""
    authorizer = services.authorizer
    if not authorizer.has_tenants or not (tenant := authorizer.tenant(session)):
        return OF_ALL
    return TenantView(
        prefix_of(tenant), hidden_id=services.cluster.hidden_id, sharing=authorizer.sharing
    )


def written_view_of(services: Services, session: ClientSession) -> TenantView:
    """The same where operators write `acme/orders`: super users, and others who see the cluster."""
    view, authorizer = view_of(services, session), services.authorizer
    if view.prefix or not authorizer.has_tenants:
        return view
    sees_cluster = authorizer.allows(session, Operation.DESCRIBE, *_CLUSTER)
    return TenantView(is_operator=sees_cluster or authorizer.sees_all(session))
