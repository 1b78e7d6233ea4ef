"""What a principal may do: the question, asked by faces and services in one way.

Invariants: decisions never wait. A face holds what it was answered no longer than `version`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from headrace.broker.security.authorizer import ALL_OPERATIONS, Operation, ResourceType
from headrace.records.tenant_names import DEFAULT

if TYPE_CHECKING:
    from headrace.broker.security.sessions import ClientSession
    from headrace.broker.security.topic_sharing import TopicSharing


class Authorizer(Protocol):
    """Decides what principals may do."""

    version: int
    """Increases whenever an answer may have changed."""
    is_open: bool
    """Whether every principal may do everything: nothing is asked then."""
    has_tenants: bool
    """Whether there are tenants besides the default one, or were."""

    @property
    def sharing(self) -> TopicSharing | None:
        """What tenants share; None: there are no tenants."""
        ...

    def allows(
        self, session: ClientSession, operation: Operation, kind: ResourceType, name: str
    ) -> bool:
        """Whether the session's principal may do this. Never blocks."""
        ...

    def tenant(self, session: ClientSession) -> str:
        """The tenant whose names the session uses."""
        ...

    def sees_all(self, session: ClientSession) -> bool:
        """Whether the session is a super user's or a broker's, who use the keys of all tenants."""
        ...

    def operations(self, session: ClientSession, kind: ResourceType, name: str) -> int:
        """All that the session's principal may do with a resource, as bits."""
        ...

    def allows_any(self, session: ClientSession, operation: Operation, kind: ResourceType) -> bool:
        """Whether the session's principal may do this with any resource of a kind."""
        ...


class AllowAll:
    """The authorizer of a broker without one."""

    version = 0
    is_open = True
    has_tenants = False
    sharing = None

    def allows(
        self, session: ClientSession, operation: Operation, kind: ResourceType, name: str
    ) -> bool:
        """See Authorizer."""
        return True

    def tenant(self, session: ClientSession) -> str:
        """See Authorizer."""
        return DEFAULT

    def sees_all(self, session: ClientSession) -> bool:
        """See Authorizer."""
        return True

    def operations(self, session: ClientSession, kind: ResourceType, name: str) -> int:
        """See Authorizer."""
        return ALL_OPERATIONS

    def allows_any(self, session: ClientSession, operation: Operation, kind: ResourceType) -> bool:
        """See Authorizer."""
        return True
