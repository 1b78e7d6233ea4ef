"""What a principal may do: the question, asked by faces and services in one way.

Invariants: the operations and resource types are Kafka's (`AclOperation`, `ResourceType`), so that
its tools and rules work unchanged. A face holds what it was answered no longer than `version`.
"""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from headrace.broker.security.sessions import ClientSession


class Operation(IntEnum):
    """Kafka's `AclOperation`."""

    ALL = 2
    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12
    CREATE_TOKENS = 13
    DESCRIBE_TOKENS = 14
    TWO_PHASE_COMMIT = 15


class ResourceType(IntEnum):
    """Kafka's `ResourceType`."""

    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5
    DELEGATION_TOKEN = 6
    USER = 7


CLUSTER_NAME: Final = "kafka-cluster"
"""The only resource of the type CLUSTER."""


ALL_OPERATIONS: Final = sum(1 << one for one in Operation if one != Operation.ALL)
"""As bits, numbered as in Kafka's `authorized_operations`."""


class Authorizer(Protocol):
    """Decides what principals may do."""

    version: int
    """Increases whenever an answer may have changed."""
    is_open: bool
    """Whether every principal may do everything: nothing is asked then."""

    def allows(
        self, session: ClientSession, operation: Operation, kind: ResourceType, name: str
    ) -> bool:
        """Whether the session's principal may do this. Never blocks."""
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

    def allows(
        self, session: ClientSession, operation: Operation, kind: ResourceType, name: str
    ) -> bool:
        """See Authorizer."""
        return True

    def operations(self, session: ClientSession, kind: ResourceType, name: str) -> int:
        """See Authorizer."""
        return ALL_OPERATIONS

    def allows_any(self, session: ClientSession, operation: Operation, kind: ResourceType) -> bool:
        """See Authorizer."""
        return True
