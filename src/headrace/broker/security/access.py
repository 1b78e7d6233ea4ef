"""What a request needs: the column `access` of each face's table.

Invariants: values, which the faces enforce (`kafka/authorization`, `http/authorization`). A row is
public with its reason, or names every operation that it needs on which resource. `how` says what a
missing right means: the whole request is refused, one item of a list is refused (the others are
handled), or one item of the answer is left out. Operations and errors are those of Kafka's
KafkaApis and ControllerApis.
"""

from __future__ import annotations

from enum import Enum
from shlex import quote
from typing import TYPE_CHECKING, Final, NamedTuple

from headrace.broker.security.authorizer import Operation, ResourceType
from headrace.errors import (
    ClusterUnauthorized,
    DelegationTokenUnauthorized,
    GroupUnauthorized,
    TopicUnauthorized,
    TransactionalIdUnauthorized,
    Unauthorized,
)
from headrace.records.tenant_names import has_marks

if TYPE_CHECKING:
    from headrace.broker.security.sessions import ClientSession


class How(Enum):
    """What a missing right means."""

    WHOLE = "the request is refused"
    EACH = "the item is refused"
    SHOWN = "the item is left out"
    ANY = "the request is refused unless one such resource is allowed"


class Need(NamedTuple):
    """One operation on one kind of resource."""

    operation: Operation
    kind: ResourceType
    of: str = ""
    """Where the resource's name is. Kafka: a field of the request (`group_id`), a list of names
    (`group_ids`), or a field of a list's items (`topics.name`). HTTP: `path.topic`, `body.to`. With
    SHOWN, a field of the answer; if the resource is the cluster, the field is left out. Empty: the
    cluster."""
    how: How = How.WHOLE
    unless: Operation | None = None
    """An operation on the cluster that suffices instead."""
    prefix: str = ""
    """What precedes that name in the resource's."""


_ADMINISTERING: Final = frozenset(
    {Operation.CREATE, Operation.DELETE, Operation.ALTER, Operation.ALTER_CONFIGS}
)


class Access(NamedTuple):
    """What one API needs."""

    needs: tuple[Need, ...] = ()
    public: str = ""
    """Why everybody may send it; empty: not everybody may."""
    rule: str = ""
    """What enforces the needs: a rule of `kafka/authorization_rules`, or a handler. Empty: they are
    enforced as written."""
    is_audited: bool = False
    """Whether it is in the audit log although it needs no right to administer."""
    is_frequent: bool = False
    """Whether programs do it all the time, too."""

    def by(self, rule: str) -> Access:
        """These needs, enforced by a rule of their own."""
        return self._replace(rule=rule)

    def audited(self, *, is_frequent: bool = False) -> Access:
        """These needs, of what changes more than a client's own."""
        return self._replace(is_audited=True, is_frequent=is_frequent)

    @property
    def noted(self) -> tuple[Need, ...]:
        """The needs whose resources the audit log names, of what administers something."""
        if self.is_audited and self.public:  # no resource is needed that could be named
            return (Need(Operation.ALTER, ResourceType.CLUSTER),)
        if self.is_audited:
            return tuple(need for need in self.needs if need.how is not How.SHOWN)
        return tuple(need for need in self.needs if need.operation in _ADMINISTERING)


def public(reason: str) -> Access:
    """An API for everybody."""
    return Access(public=reason)


def needs(*all_of: Need) -> Access:
    """An API that needs all of these."""
    return Access(all_of)


def cluster(operation: Operation, unless: Operation | None = None) -> Need:
    """A right to the cluster; `unless`: or this one."""
    return Need(operation, ResourceType.CLUSTER, unless=unless)


def group(operation: Operation, of: str = "group_id", how: How = How.WHOLE) -> Need:
    """A right to a group."""
    return Need(operation, ResourceType.GROUP, of, how)


def transaction(operation: Operation, of: str = "transactional_id", how: How = How.WHOLE) -> Need:
    """A right to a transactional id."""
    return Need(operation, ResourceType.TRANSACTIONAL_ID, of, how)


def topics(
    operation: Operation,
    of: str = "topics.name",
    how: How = How.EACH,
    unless: Operation | None = None,
) -> Need:
    """A right to each topic."""
    return Need(operation, ResourceType.TOPIC, of, how, unless)


BETWEEN_BROKERS = needs(cluster(Operation.CLUSTER_ACTION))
"""Requests that brokers send to each other."""


_OPTIONS: Final = {
    ResourceType.TOPIC: "--topic",
    ResourceType.GROUP: "--group",
    ResourceType.CLUSTER: "--cluster",
    ResourceType.TRANSACTIONAL_ID: "--transactional-id",
}
_ERRORS: Final[dict[ResourceType, type[Unauthorized]]] = {
    ResourceType.TOPIC: TopicUnauthorized,
    ResourceType.GROUP: GroupUnauthorized,
    ResourceType.CLUSTER: ClusterUnauthorized,
    ResourceType.TRANSACTIONAL_ID: TransactionalIdUnauthorized,
    ResourceType.DELEGATION_TOKEN: DelegationTokenUnauthorized,
    ResourceType.USER: ClusterUnauthorized,
}


def _command(principal: str, operation: Operation, kind: ResourceType, name: str) -> str:
    """What an operator runs to allow it. An operator writes a tenant's names in another way than
    its clients, who may read this."""
    option = _OPTIONS.get(kind)
    if option is None or ":" not in principal or has_marks(principal + name) or len(name) > 255:
        return "headrace acl add"
    of = "" if kind == ResourceType.CLUSTER else f" {quote(name)}"
    by = f"--principal {quote(principal)} --operation {operation.name}"
    return f"headrace acl add {by} {option}{of}"


def unauthorized(
    session: ClientSession, operation: Operation, kind: ResourceType, name: str
) -> Unauthorized:
    """The error of a missing right, which a rule can give, or a wider scope of the client's key."""
    what = kind.name.lower().replace("_", " ")
    of = "" if kind == ResourceType.CLUSTER else f" {name[:255]!r}"
    scope = session.scope
    if scope is None or scope.covers(operation, kind, name):
        who, step = str(session.principal or "the client"), "an administrator can allow it"
        step += f" ({_command(who, operation, kind, name)})"
    else:
        who = f"the key of {session.principal}, by its scope,"
        step = "create another one (headrace key create --scope)"
    return _ERRORS[kind](
        f"{who} may not {operation.name} {what}{of}: {step}",
        operation=operation,
        kind=kind,
    )
