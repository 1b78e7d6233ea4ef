"""Enforces what each HTTP operation needs: before its handler, and in what it shows.

Invariants: a name that the client may not use is refused before it is looked up, so that nothing
is learned of its existence; lists are filtered before they are cut into pages.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from headrace.broker.security.access import How, Need, unauthorized
from headrace.broker.security.authorizer import CLUSTER_NAME, Operation, ResourceType
from headrace.broker.security.principal import USER
from headrace.broker.services.tenant_acls import own_cluster
from headrace.http.access import EVERYWHERE
from headrace.records.tenant_names import DEFAULT, name_in, prefix_of, sibling, tenant_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from headrace.broker.security.access import Access
    from headrace.broker.security.sessions import ClientSession
    from headrace.broker.services.services import Services

Json = dict[str, Any]
_NAMING: Final = (
    *("name", "topic", "reader", "principal", "user", "client_id", "ip"),
    *("principals", "add", "move", "remove"),
)
"""Fields of bodies that name what changes of the cluster are about."""

_SELECTING: Final = frozenset({"group", "reason", "letters", "loop_max"})


class Rights:
    """What one call's principal may do."""

    def __init__(
        self, services: Services, session: ClientSession, access: Access, request: str
    ) -> None:
        """`request`: its name in the audit log."""
        self._services = services
        self._session = session
        self._access = access
        self._request = request
        self.is_open = services.authorizer.is_open and session.scope is None

    def may(self, operation: Operation, kind: ResourceType, name: str = CLUSTER_NAME) -> bool:
        """Whether the principal may do this."""
        scope = self._session.scope
        if scope is not None and not scope.covers(operation, kind, name):
            return False
        return self._services.authorizer.allows(self._session, operation, kind, name)

    def require(self, operation: Operation, kind: ResourceType, name: str = CLUSTER_NAME) -> None:
        """Raise Unauthorized unless the principal may do this."""
        if not self.may(operation, kind, name):
            self._services.audit.denied(self._session, operation, kind, name, self._request)
            raise unauthorized(self._session, operation, kind, name)

    def require_each(self, operation: Operation, kind: ResourceType, names: Iterable[str]) -> None:
        """Raise Unauthorized, which does not tell the name, unless the principal may do this with
        each of the resources."""
        if self.is_open:
            return
        for name in names:
            if not self.may(operation, kind, name):
                self._services.audit.denied(self._session, operation, kind, name, self._request)
                raise unauthorized(self._session, operation, kind, EVERYWHERE)

    def check(self, path: Json, body: Json) -> None:
        """Raise Unauthorized for the first missing right."""
        if self.is_open or self._access.rule == "stream":  # its handler decides for each event
            return
        if self._access.rule in {"of_tenant", "users"} and self._check_own(path, body):
            return
        for need in self._access.needs:
            if need.how is How.SHOWN:
                continue
            is_of_all = need.unless is not None and self.may(need.unless, ResourceType.CLUSTER)
            for name in _names({"path": path, "body": body}, need.of):
                if is_of_all and tenant_of(name) == DEFAULT:
                    continue
                self.require(need.operation, need.kind, sibling(name, need.prefix + name_in(name)))
        if self._access.rule == "redrive":
            self._check_redrive(body)

    def _check_own(self, path: Json, body: Json) -> bool:
        """Whether the client is of a tenant: then rights to administer it count, or to its own
        users. Raises Unauthorized."""
        tenant = self._services.authorizer.tenant(self._session)
        if tenant == DEFAULT:
            return False
        asked = self._access.needs[0].operation, ResourceType.CLUSTER, own_cluster(tenant)
        if self._access.rule == "of_tenant":
            self.require(*asked)
            return True
        if self.may(*asked):
            return True
        user = f"{USER}:{prefix_of(tenant)}{path.get('user') or body.get('user', '')}"
        self.require(self._access.needs[0].operation, ResourceType.USER, user)
        return True

    def _check_redrive(self, body: Json) -> None:
        if "to" not in body:
            self.require(Operation.WRITE, ResourceType.TOPIC, EVERYWHERE)
        if not body.keys().isdisjoint(_SELECTING):  # the others are appended again
            self.require(Operation.WRITE, ResourceType.TOPIC, body["topic"])

    def shown(self, items: Sequence[Json], place: str) -> Sequence[Json]:
        """Those of the items that are shown in a list of the answer."""
        for need in self._needs_of(place):
            field = need.of.rpartition(".")[2]
            items = [item for item in items if self._is_shown(need, item, field)]
        return items

    def _needs_of(self, place: str) -> Iterable[Need]:
        if self.is_open:
            return ()
        return [
            need
            for need in self._access.needs
            if need.how is How.SHOWN and need.of.rpartition(".")[0] == place
        ]

    def _is_shown(self, need: Need, item: Json, field: str) -> bool:
        if need.kind is ResourceType.CLUSTER:  # a fact about the cluster: the item lacks it
            if not self.may(need.operation, need.kind):
                item.pop(field, None)
            return True
        name = item.get(field)
        if isinstance(name, list):  # an item is shown with those that it may show
            item[field] = [one for one in name if self.may(need.operation, need.kind, one)]
            return True
        return name is None or self.may(need.operation, need.kind, name)

    def filter(self, answer: Json) -> None:
        """Leave out of an answer what the principal may not see."""
        if self.is_open:
            return
        for need in self._access.needs:
            if need.how is How.SHOWN:
                self._filter(answer, need.of.split("."), need)

    def _filter(self, value: Any, places: list[str], need: Need) -> None:
        items = value.get(places[0])
        if not isinstance(items, list):
            return
        if len(places) == 2:
            value[places[0]] = [one for one in items if self._is_shown(need, one, places[1])]
            return
        for item in items:
            self._filter(item, places[1:], need)

    def is_mine(self, owner: str, operation: Operation) -> bool:
        """Whether a task is the principal's, or it may do this with everybody's."""
        if self.is_open or owner == str(self._session.principal):
            return True
        return self.may(operation, ResourceType.CLUSTER)

    def note_change(self, path: Json, body: Json, *, failed: bool) -> None:
        """Write an administrative change to the audit log."""
        needed = self._access.noted
        if needed:
            given = {"path": path, "body": body}
            names: dict[str | tuple[str, ...], None] = dict.fromkeys(
                name
                for need in needed
                for name in (_names(given, need.of) if need.of else _named(path, body))
            )
            audit = self._services.audit
            note = audit.changed_frequently if self._access.is_frequent else audit.changed
            note(self._session, self._request, [*names], int(failed))


def _named(path: Json, body: Json) -> list[str | tuple[str, ...]]:
    """What a change of the cluster is about: a tenant and its principals, a rule, a quota; another
    tenant's topic in parts, as it is no key here."""
    values = [*(path or {}).values(), *((body or {}).get(name) for name in _NAMING)]
    each = (one for value in values for one in (value if isinstance(value, list) else [value]))
    found: list[str | tuple[str, ...]] = [one for one in each if isinstance(one, str)] or [
        CLUSTER_NAME
    ]
    return found + [one.partition("/") for one in [(body or {}).get("source")] if one is not None]


def _names(given: Json, of: str) -> list[str]:
    """The names at a place of a request; none if it lacks them."""
    if not of:
        return [CLUSTER_NAME]
    found: list[Any] = [given]
    for place in of.split("."):
        found = [item[place] for item in found if isinstance(item, dict) and place in item]
        found = [one for item in found for one in (item if isinstance(item, list) else [item])]
    return [name for name in found if isinstance(name, str)]
