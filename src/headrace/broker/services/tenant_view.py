"""How one client writes names: the names of its tenant, without the tenant.

Invariants: a face makes keys of all names that its client writes before it asks for rights, so that
a name that is forgotten is one of the default tenant, to which the client has no rights. What the
client gets has no key of its own tenant, and no other, since it is shown what it has rights to.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from headrace.records.tenant_names import key_of, prefix_of, written

if TYPE_CHECKING:
    from headrace.broker.security.sessions import ClientSession
    from headrace.broker.services.authorizer import Authorizer


class TenantView(NamedTuple):
    """See the module. Of the default tenant, and of those who see all, names are keys."""

    prefix: str = ""
    reads_slashes: bool = False
    """Whether `acme/orders` is a topic of the tenant acme: in a cluster with tenants, for clients
    that are of none."""

    def key(self, name: str) -> str:
        """The key of a name that the client writes."""
        return self.prefix + name

    def topic_key(self, name: str) -> str:
        """The key of a topic's name that the client writes."""
        return key_of(name) if self.reads_slashes else self.prefix + name

    def name(self, key: str) -> str:
        """A key as the client writes it."""
        return key.removeprefix(self.prefix)

    def topic_name(self, key: str) -> str:
        """A topic's key as the client writes it."""
        return written(key) if self.reads_slashes else self.name(key)

    def text(self, text: str) -> str:
        """A text for people, which may name keys."""
        return text.replace(self.prefix, "") if self.prefix else text


OF_ALL: Final = TenantView()


def view_of(authorizer: Authorizer, session: ClientSession) -> TenantView:
    """How a session's client writes names. Of a principal whose tenant is not certain, names are of
    no tenant at all: it has no rights."""
    if not authorizer.has_tenants:
        return OF_ALL
    prefix = prefix_of(authorizer.tenant(session))
    return TenantView(prefix, not prefix)
