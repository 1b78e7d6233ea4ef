"""Who may send which request: enforces the column `access` of the table of APIs.

Invariants: every request but Produce and Fetch passes here between the dispatcher and its handler,
so a handler sees only what its client may use. Refused items are taken out of the request, and
their errors are added to the answer; a name that a client may not see is answered in the same way
whether it exists or not. Produce and Fetch ask the authorizer themselves, once for each topic and
version of the rules. A broker whose authorizer is open comes here for nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from headrace.broker.security.access import Access, How, Need, unauthorized
from headrace.broker.security.authorizer import CLUSTER_NAME, Operation, ResourceType
from headrace.broker.services.tenant_acls import own_cluster
from headrace.kafka.refusals import list_for, refusal, refused_items

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from uuid import UUID

    from headrace.broker.node import Node
    from headrace.errors import Unauthorized
    from headrace.kafka.apis import Api
    from headrace.kafka.handlers.context import Context, Handler
    from headrace.kafka.wire.schema import Answer

NOT_ASKED: Final = -(2**31)
"""The value of authorized operations that the client did not ask for."""
_OPERATIONS: Final = {
    ResourceType.TOPIC: 0b1101_1111_1000,
    ResourceType.GROUP: 0b1101_0100_1000,
    ResourceType.CLUSTER: 0b1_1111_1010_0000,
}
"""The operations that each kind of resource has, as bits."""


class Check:
    """One request, and what its principal may do."""

    def __init__(
        self, node: Node, api: Api, request: Any, context: Context, handler: Handler
    ) -> None:
        self.node = node
        self.api = api
        self.request = request
        self.context = context
        self._handler = handler
        self._refused: dict[str, list[dict[str, Any]]] = {}
        """Items to add to each list of the answer."""
        self._skips = False
        """Whether nothing is left to handle of a list that had items."""

    def may(self, operation: Operation, kind: ResourceType, name: str) -> bool:
        """Whether the principal may do this."""
        return self.node.services.authorizer.allows(self.context.session, operation, kind, name)

    def may_cluster(self, operation: Operation) -> bool:
        """Whether the principal may do this with the cluster."""
        return self.may(operation, ResourceType.CLUSTER, CLUSTER_NAME)

    def may_topic(self, operation: Operation, name: str) -> bool:
        """Whether the principal may do this with a topic."""
        return self.may(operation, ResourceType.TOPIC, name)

    def error(self, operation: Operation, kind: ResourceType, name: str) -> Unauthorized:
        """The error of a missing right, which is noted for the audit log."""
        session = self.context.session
        self.node.services.audit.denied(session, operation, kind, name, self.api.name)
        return unauthorized(session, operation, kind, name)

    def require(self, operation: Operation, kind: ResourceType, name: str) -> None:
        """Raise Unauthorized unless the principal may do this."""
        if not self.may(operation, kind, name):
            raise self.error(operation, kind, name)

    def topic_of(self, topic_id: UUID | None) -> str | None:
        """The name of the topic with an id; None if there is none."""
        readable = self.node.services.topics.readable
        topic = None if topic_id is None else readable.find_by_id(topic_id)
        return None if topic is None else topic.name

    # --- lists -------------------------------------------------------------------------------

    def keep(
        self,
        asked: str,
        refuse: Callable[[Any], Unauthorized | None],
        *,
        may_skip: bool = True,
    ) -> None:
        """Take the items that `refuse` has an error for out of a list of the request. `may_skip`:
        if none is left, there is nothing to handle."""
        items = getattr(self.request, asked, None)
        if not items:
            return
        kept: list[Any] = []
        refused: list[tuple[Any, Unauthorized]] = []
        for item in items:
            error = refuse(item)
            if error is None:
                kept.append(item)
            else:
                refused.append((item, error))
        if not refused:
            return
        setattr(self.request, asked, tuple(kept))
        api_key, version = self.context.api_key, self.context.version
        told = list_for(api_key, version, asked)
        for item, error in refused:
            self.add(told, refused_items(api_key, version, told, [item], error))
        self._skips = self._skips or (may_skip and not kept)

    def add(self, told: str, items: Iterable[dict[str, Any]]) -> None:
        """Add items to a list of the answer."""
        self._refused.setdefault(told, []).extend(items)

    def refuse_each(self, need: Need) -> None:
        """Refuse the items of a list that the principal may not use."""
        asked, _, field = need.of.partition(".")

        def refuse(item: Any) -> Unauthorized | None:
            name = self._name(item, field)
            if name is None or self.may(need.operation, need.kind, name):
                return None
            return self.error(need.operation, need.kind, name)

        self.keep(asked, refuse)

    def _name(self, item: Any, field: str) -> str | None:
        """The name in an item; None for the id of a topic that does not exist."""
        if not field:
            return str(item)
        name = getattr(item, field, None)
        topic_id = getattr(item, "topic_id", None)
        if topic_id is not None:
            return self.topic_of(topic_id)
        return name or None

    # --- answers -----------------------------------------------------------------------------

    async def proceed(self) -> dict[str, Any]:
        """The handler's answer to what is left of the request, with the errors of the rest."""
        context = self.context
        if self._skips:
            answer = refusal(context.api_key, context.version, None, None)
        else:
            answer = dict(await self._handler(self.node, self.request, context))
        for told, items in self._refused.items():
            answer[told] = [*(answer.get(told) or ()), *items]
        self._add_operations(answer)
        return answer

    def refuse(self, error: Unauthorized) -> dict[str, Any]:
        """The answer that refuses the whole request."""
        return refusal(self.context.api_key, self.context.version, self.request, error)

    def show(self, answer: dict[str, Any], told: str, is_shown: Callable[[Any], bool]) -> None:
        """Leave items out of a list of the answer."""
        answer[told] = [item for item in answer.get(told) or () if is_shown(item)]

    def show_allowed(self, answer: dict[str, Any], need: Need) -> None:
        """Leave out of the answer what lacks a right."""
        told, _, field = need.of.partition(".")
        self.show(answer, told, lambda item: self.may(need.operation, need.kind, item[field]))

    def operations(self, kind: ResourceType, name: str) -> int:
        """What the principal may do with a resource, as bits."""
        granted = self.node.services.authorizer.operations(self.context.session, kind, name)
        return granted & _OPERATIONS[kind]

    def _add_operations(self, answer: dict[str, Any]) -> None:
        """Replace what everybody may do by what this principal may do (KIP-430)."""
        if answer.get("cluster_authorized_operations", NOT_ASKED) != NOT_ASKED:
            cluster = own_cluster(self.node.services.authorizer.tenant(self.context.session))
            may = self.may(Operation.DESCRIBE, ResourceType.CLUSTER, cluster)
            answer["cluster_authorized_operations"] = (
                self.operations(ResourceType.CLUSTER, cluster) if may else 0
            )
        for item in answer.get("topics") or ():
            if item.get("topic_authorized_operations", NOT_ASKED) != NOT_ASKED:
                item["topic_authorized_operations"] = self.operations(
                    ResourceType.TOPIC, item["name"]
                )
        for item in answer.get("groups") or ():
            if item.get("authorized_operations", NOT_ASKED) != NOT_ASKED:
                item["authorized_operations"] = self.operations(
                    ResourceType.GROUP, item["group_id"]
                )


def _is_met(check: Check, need: Need) -> bool:
    """Whether the cluster's right that suffices is held."""
    return need.unless is not None and check.may_cluster(need.unless)


def require_whole(check: Check, access: Access) -> None:
    """Raise Unauthorized for the first missing right without which the request is refused."""
    for need in access.needs:
        if need.how is not How.WHOLE or _is_met(check, need):
            continue
        name = CLUSTER_NAME if not need.of else getattr(check.request, need.of, None)
        if name is not None:  # a request without a transactional id needs no right to one
            check.require(need.operation, need.kind, name)


async def as_written(check: Check, access: Access) -> Answer:
    """Enforce needs without a rule of their own. Raises Unauthorized."""
    require_whole(check, access)
    for need in access.needs:
        if need.how is How.EACH and not _is_met(check, need):
            check.refuse_each(need)
    answer = await check.proceed()
    for need in access.needs:
        if need.how is How.SHOWN and not _is_met(check, need):
            check.show_allowed(answer, need)
    return answer


# --- changes, for the audit log --------------------------------------------------------------

_NAMING: Final = (
    *("name", "resource_name", "group_id", "topic", "topic_name", "topic_id"),
    *("transactional_id", "user", "principal", "owner_principal_name"),
    *("resource_name_filter", "principal_filter"),
)


def is_change(api: Api) -> bool:
    """Whether a request administers something, rather than sending or receiving records."""
    access = api.access
    return api.key not in _NO_CHANGES and (access.is_audited or bool(access.noted))


_NO_CHANGES: Final = frozenset({3, 27, 39, 40})
"""WriteTxnMarkers, and those whose handlers note what no field names: Metadata a topic that it
creates, RenewDelegationToken and ExpireDelegationToken the token."""


def resources_of(api: Api, request: Any, prefix: str = "") -> list[str | tuple[str, ...]]:
    """The names of what a change is about, as the audit log takes them: where it has none, the
    cluster. `prefix`: of the client's tenant, where the names of users in quotas have none."""
    found: dict[str | tuple[str, ...], None] = {}
    for field in request.__slots__:
        value = getattr(request, field)
        if isinstance(value, tuple):
            for item in value:
                found.update(dict.fromkeys(_names_of(item, prefix)))
        elif field in _NAMING and value:
            found[str(value)] = None
    return list(found) or [CLUSTER_NAME] * bool(api.access.needs)


def _names_of(item: Any, prefix: str) -> list[str | tuple[str, ...]]:
    if isinstance(item, str):
        return [item]
    if entity := getattr(item, "entity", None):
        named = [(f"{part.entity_type}=", part.entity_name or "<default>") for part in entity]
        return [(of, prefix + one) if of == "user=" else of + one for of, one in named]
    names = [str(value) for name in _NAMING if (value := getattr(item, name, None))]
    return [tuple(part for name in names for part in (" ", name))[1:]] if names else []


def failures_in(answer: Any) -> int:
    """How many items of an answer are errors."""
    if isinstance(answer, dict):
        own = sum(bool(value) for name, value in answer.items() if name == "error_code")
        return own or sum(failures_in(value) for value in answer.values())
    if isinstance(answer, list | tuple):
        return sum(failures_in(item) for item in answer)
    return 0
